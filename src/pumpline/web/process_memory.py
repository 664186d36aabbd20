"""The memory of a daemon's process, and how what is free goes back to the system.

Some of what is freed stays, for what comes next: the C library would give a buffer of 500 kB back
and ask for it again with each large message, and the system clears every page of it, which doubled
what such a publish costs. So up to `KEPT_BYTES` at the end of the heap are kept.

The C library keeps most of what is freed elsewhere, too. 3,000 TLS clients who come at once and
leave again cost 130 MB that way, and 400 MB after five rounds, with nothing of them left. So a
daemon that has grown by `SLACK_BYTES` asks the C library to give back what is free (`malloc_trim`).
Where that gives back little, the memory is in use, and the next try is twice as far away.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

LOOK_S = 5.0
LOOK_S_MAX = 40.0
SLACK_BYTES = 32 << 20
KEPT_BYTES = 16 << 20
MAPPED_BYTES = 4 << 20  # of one buffer: a larger one is not on the heap, and goes back when freed

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's <malloc.h>
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """The process's resident memory; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def keep_heap() -> None:
    """Keep free memory at the end of the C heap, where the C library can."""
    import ctypes  # 10 ms, which no start waits for

    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)


def trim_heap() -> None:
    """Give free memory of the C heap back to the system, where the C library can."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class HeapTrim:
    """Looks at the process's memory now and then, from `start` to `close`."""

    def __init__(
        self,
        *,
        resident: Callable[[], int] = resident_bytes,
        keep: Callable[[], None] = keep_heap,
        trim: Callable[[], None] = trim_heap,
    ) -> None:
        """`keep` and `trim` are called in a thread."""
        self._resident = resident
        self._keep = keep
        self._trim = trim
        self._least_bytes = 0
        self._pause_s = LOOK_S
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """What is resident now is in use."""
        self._least_bytes = self._resident()
        loop.run_in_executor(None, self._keep)
        self._look_later(loop)

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_closed:
            self._timer = loop.call_later(self._pause_s, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        before = self._note()
        if before - self._least_bytes < SLACK_BYTES:
            self._pause_s = LOOK_S
            self._look_later(loop)
            return

        def trimmed(_: "asyncio.Future[None]") -> None:
            gained = before - self._note()
            self._pause_s = LOOK_S if gained >= SLACK_BYTES // 2 else self._next_pause_s()
            self._look_later(loop)

        loop.run_in_executor(None, self._trim).add_done_callback(trimmed)

    def _note(self) -> int:
        now = self._resident()
        self._least_bytes = min(self._least_bytes, now)
        return now

    def _next_pause_s(self) -> float:
        return min(2 * self._pause_s, LOOK_S_MAX)
