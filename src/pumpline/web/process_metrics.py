"""What every daemon tells Prometheus of itself: versions, its process under the usual names, HTTP
replies, and how late its event loop is. Figures that the system does not give are left out."""

import asyncio
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Self

from pumpline import NSQ_VERSION, __version__
from pumpline.core.text.histogram import Buckets
from pumpline.web.process_memory import resident_bytes
from pumpline.web.prometheus_text import COUNTER, GAUGE, HISTOGRAM, Exposition, Family, labels
from pumpline.web.server import HttpServer

DELAY_PERIOD_S = 0.1
DELAY_WINDOW_S = 60.0
DELAY_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

CPU = Family("process_cpu_seconds", COUNTER, "User and system CPU time used.")
RESIDENT = Family("process_resident_memory_bytes", GAUGE, "Resident memory.")
OPEN_FILES = Family("process_open_fds", GAUGE, "Open file descriptors.")
MAX_FILES = Family("process_max_fds", GAUGE, "File descriptors that may be open.")
STARTED = Family("process_start_time_seconds", GAUGE, "When the process began, since 1970.")

BUILD_LABELS = ("version", "pumpline", "python", "event_loop")  # nsqd adds `kernels`
PROCESS_FAMILIES = (CPU, RESIDENT, OPEN_FILES, MAX_FILES, STARTED)

_imported_s = time.time()


class DaemonFamilies(NamedTuple):
    """What each daemon has under its own name."""

    build: Family
    replies: Family
    dropped: Family
    delay: Family
    longest_delay: Family

    @classmethod
    def of(cls, daemon: str) -> Self:
        return cls(
            Family(
                f"{daemon}_build_info",
                GAUGE,
                "Versions, and what the program runs on.",
                BUILD_LABELS,
            ),
            Family(f"{daemon}_http_replies", COUNTER, "HTTP replies by status.", ("status",)),
            Family(
                f"{daemon}_http_dropped_clients",
                COUNTER,
                "HTTP clients dropped: they took too long.",
            ),
            Family(
                f"{daemon}_event_loop_delay_seconds",
                HISTOGRAM,
                "How late timers of the event loop ran, of one every 0.1 s.",
            ),
            Family(
                f"{daemon}_event_loop_delay_max_seconds",
                GAUGE,
                "The longest of these delays in the last one to two minutes.",
            ),
        )


def add_build(
    exposition: Exposition, daemon: str, loop: asyncio.AbstractEventLoop, **more: str
) -> None:
    """Versions, and what else there is to say of the program."""
    words = labels(
        version=NSQ_VERSION,
        pumpline=__version__,
        python=sys.version.split()[0],
        event_loop=type(loop).__module__.partition(".")[0],
        **more,
    )
    exposition.add(DaemonFamilies.of(daemon).build, 1, words)


def add_http(exposition: Exposition, daemon: str, servers: Sequence[HttpServer]) -> None:
    families = DaemonFamilies.of(daemon)
    counts = sum((server.replies for server in servers), Counter[int]())
    for status, count in sorted(counts.items()):
        exposition.add(families.replies, count, labels(status=str(status)))
    exposition.add(families.dropped, sum(server.dropped_count for server in servers))


def add_process(exposition: Exposition) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    exposition.add(CPU, used.ru_utime + used.ru_stime)
    exposition.add(STARTED, _imported_s)
    exposition.add(MAX_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    if resident := resident_bytes():
        exposition.add(RESIDENT, resident)
    with suppress(OSError):  # no /proc here
        exposition.add(OPEN_FILES, len(os.listdir("/proc/self/fd")))


class LoopDelay:
    """How much later than asked for a timer of the event loop runs, ten times a second."""

    def __init__(self) -> None:
        self.delays_s = Buckets(DELAY_BOUNDS_S)
        self._longest_s = [0.0, 0.0]  # in this window, and in the one before
        self._window_ends_s = time.monotonic() + DELAY_WINDOW_S
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        due_s = time.monotonic() + DELAY_PERIOD_S  # uvloop's own clock counts milliseconds
        self._timer = loop.call_later(DELAY_PERIOD_S, self._on_timer, loop, due_s)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def add_to(self, exposition: Exposition, daemon: str) -> None:
        families = DaemonFamilies.of(daemon)
        exposition.add_histogram(families.delay, self.delays_s)
        exposition.add(families.longest_delay, max(self._longest_s))

    def _on_timer(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        now_s = time.monotonic()
        self.note(max(now_s - due_s, 0.0), now_s)
        self.start(loop)

    def note(self, delay_s: float, now_s: float) -> None:
        self.delays_s.record(delay_s)
        if now_s >= self._window_ends_s:
            missed = now_s >= self._window_ends_s + DELAY_WINDOW_S
            self._longest_s = [0.0, 0.0 if missed else self._longest_s[0]]
            self._window_ends_s = now_s + DELAY_WINDOW_S
        self._longest_s[0] = max(self._longest_s[0], delay_s)
