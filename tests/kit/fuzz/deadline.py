"""A limit on code that must not hang: SIGALRM turns an endless loop into a failure.

There is one such alarm in a process, and pytest's own limit is set with it: it is put back after.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SOON_S = 0.001  # 0 would be never


class Hung(BaseException):
    """Not an Exception, so that nothing under test can swallow it."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise Hung in the main thread if the block takes longer."""

    def on_alarm(number: int, frame: FrameType | None) -> None:
        raise Hung(f"still busy after {seconds} s")

    before = signal.signal(signal.SIGALRM, on_alarm)
    started_s = time.monotonic()
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left_s:
            passed_s = time.monotonic() - started_s
            signal.setitimer(signal.ITIMER_REAL, max(left_s - passed_s, SOON_S))
