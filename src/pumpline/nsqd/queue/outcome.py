"""A ticket: the outcome, still to come, of what a topic was given to publish in one tick."""

import logging
from collections.abc import Callable

EXITING = "exiting"  # the error of what came too late: the topic is deleted, or nsqd stops

_LOG = logging.getLogger(__name__)


class Ticket:
    __slots__ = ("_waiting", "done", "error", "succeeded")

    def __init__(self) -> None:
        self.done = self.succeeded = False
        self.error: str | None = None  # why it failed, once done
        self._waiting: list[Callable[[], None]] | None = None

    def wait(self, callback: Callable[[], None]) -> None:
        """Call back when done, which it must not be yet."""
        if self._waiting is None:
            self._waiting = [callback]
        else:
            self._waiting.append(callback)

    def settle(self, error: str | None) -> None:
        self.done = True
        self.error = error
        self.succeeded = error is None
        waiting, self._waiting = self._waiting, None
        for callback in waiting or ():
            try:
                callback()
            except Exception:  # one that fails must not keep the others from being called
                _LOG.exception("somebody who published could not be answered")
