"""A completion: the outcome, still to come, of what was published, or of an fsync."""

import logging
from collections.abc import Callable

EXITING = "exiting"  # the error of what came too late: the topic is deleted, or nsqd stops

_LOG = logging.getLogger(__name__)


class Completion:
    __slots__ = ("_callbacks", "done", "error", "succeeded")

    def __init__(self) -> None:
        self.done = self.succeeded = False
        self.error: str | None = None  # why it failed, once done
        self._callbacks: list[Callable[[], None]] | None = None

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call back when it completes, which it must not have yet."""
        assert not self.done, "it has completed"
        if self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def complete(self, error: str | None) -> None:
        assert not self.done, "a completion completes once"
        self.done = True
        self.error = error
        self.succeeded = error is None
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            try:
                callback()
            except Exception:  # one that fails must not keep the others from being called
                _LOG.exception("a callback of a completion failed")


def completed(error: str | None = None) -> Completion:
    """An outcome that is known."""
    completion = Completion()
    completion.complete(error)
    return completion
