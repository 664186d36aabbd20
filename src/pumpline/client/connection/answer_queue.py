"""Requests that wait for their answers: nsqd answers in the order in which it was asked.

When a connection ends, each request that is still open fails, and its sender has to know whether
nsqd may have acted on it: a request that never left, or that stands behind one that nsqd could not
parse, was certainly not carried out. Knows no socket.
"""

from collections import deque
from collections.abc import Callable

from pumpline.client.errors import ConnectionClosedError, ServerError
from pumpline.core.protocol.errors import (
    E_BAD_BODY,
    E_BAD_CHANNEL,
    E_BAD_MESSAGE,
    E_BAD_TOPIC,
    E_INVALID,
)

# After one of these nsqd reads no further: it carries out nothing that was sent behind it.
_MALFORMED = frozenset({E_INVALID, E_BAD_TOPIC, E_BAD_CHANNEL, E_BAD_MESSAGE, E_BAD_BODY})

OnAnswer = Callable[[bytes, Exception | None], None]
"""The data of the answer; or why there is none."""


class AnswerQueue:
    def __init__(self) -> None:
        self._expected: deque[OnAnswer] = deque()
        self._unsent = 0  # of the expected: their commands are not written to the socket yet
        self._is_cut_off = False  # nsqd carries out nothing of what is expected

    @property
    def are_expected(self) -> bool:
        return bool(self._expected)

    def add(self, on_answer: OnAnswer) -> None:
        """A request was appended to the output."""
        self._expected.append(on_answer)
        self._unsent += 1

    def flushed(self) -> None:
        """The output was written to the socket."""
        self._unsent = 0

    def answer(self, data: bytes) -> None:
        if self._expected:
            self._expected.popleft()(data, None)

    def refuse(self, error: ServerError) -> bool:
        """A fatal error is the answer to the oldest request; False if there is none."""
        if not self._expected:
            return False
        self._is_cut_off = error.code in _MALFORMED
        self._expected.popleft()(b"", error)
        return True

    def fail(self, new_error: Callable[[bool], ConnectionClosedError]) -> None:
        """The connection has ended. `new_error` is told whether nsqd may have the request."""
        sent = 0 if self._is_cut_off else len(self._expected) - self._unsent
        expected, self._expected = self._expected, deque()
        for position, on_answer in enumerate(expected):
            on_answer(b"", new_error(position < sent))
