"""A limit on code that must not hang: SIGALRM turns an endless loop into a failure."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Hung(BaseException):
    """Not an Exception, so that nothing under test can swallow it."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise Hung in the main thread if the block takes longer."""

    def on_alarm(number: int, frame: FrameType | None) -> None:
        raise Hung(f"still busy after {seconds} s")

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
