"""The load processes of one measured phase, and what they share with the parent.

Each process has a slot in a shared array of message counts that only it writes, a flag that tells
it to stop, and a queue for its failure or its findings. The parent reads the counts whenever it
likes: a rate is the difference of two readings, and no process reports a rate itself. Knows
processes and shared memory; must not know the protocol or any workload.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from bench.kit.servers import BenchFailure, Server, cpu_s

PROCESSES_MAX = 64
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 3.0
STALL_TIMEOUT_S = 10.0
POLL_S = 0.01

# Fork, so that a process starts in milliseconds with everything imported.
_FORK = multiprocessing.get_context("fork")


class LoadProcess:
    """What one load process sees of the shared memory; hot loops read `counts`, `slot`, `stop`."""

    def __init__(self, all_processes: LoadProcesses, slot: int) -> None:
        self.counts = all_processes.counts
        self.slot = slot
        self.stop = all_processes.stop
        self._all = all_processes

    def ready(self) -> None:
        """Tells the parent that this process is connected, and waits until all are."""
        self._all.ready.release()
        self._all.started.wait()

    def report(self, findings: dict[str, float]) -> None:
        """Sends the parent figures that are not counts."""
        self._all.findings.put(findings)


class LoadProcesses:
    """Load processes that start together and stop together; use as a context manager."""

    def __init__(self) -> None:
        self.counts = _FORK.RawArray("q", PROCESSES_MAX)
        self.stop = _FORK.RawArray("b", 1)
        self.ready = _FORK.Semaphore(0)
        self.started = _FORK.Event()
        self.findings = _FORK.SimpleQueue()
        self._failures = _FORK.SimpleQueue()
        self._processes: list[multiprocessing.process.BaseProcess] = []

    def add(self, work: Callable[..., None], *args: object, **options: object) -> int:
        """Adds a process that will run `work(process, ...)`; returns its slot in `counts`."""
        slot = len(self._processes)
        own = LoadProcess(self, slot)
        self._processes.append(
            _FORK.Process(target=_run, args=(own, self._failures, work, args, options), daemon=True)
        )
        return slot

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop[0] = 1
        self.started.set()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in self._processes:
            if process.pid is None:
                continue
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()

    def connect(self, server: Server) -> None:
        """Starts the processes and returns when every one is connected and waits."""
        for process in self._processes:
            process.start()
        deadline = time.monotonic() + READY_TIMEOUT_S
        for _ in self._processes:
            while not self.ready.acquire(timeout=0.1):
                self.check(server)
                if time.monotonic() > deadline:
                    raise BenchFailure(f"load not connected after {READY_TIMEOUT_S:.0f} s")

    def begin(self) -> None:
        """Lets the processes start their work."""
        self.started.set()

    def total(self, slots: Iterable[int]) -> int:
        """The messages counted in these slots."""
        return sum(self.counts[slot] for slot in slots)

    def cpu_s(self) -> list[float]:
        """CPU time of each process so far."""
        return [cpu_s(process.pid) if process.pid else 0.0 for process in self._processes]

    def check(self, server: Server) -> None:
        """Raises when the server or a load process has failed."""
        server.check_alive()
        if not self._failures.empty():
            # A dying server resets its clients first: wait for its own exit status and log.
            time.sleep(0.1)
            server.check_alive()
            raise BenchFailure(f"load client: {self._failures.get()}")
        for process in self._processes:
            if process.exitcode:
                raise BenchFailure(f"load process ended with {process.exitcode}")

    def wait_until(
        self,
        server: Server,
        slots: Iterable[int],
        *,
        seconds: float | None = None,
        messages: int | None = None,
    ) -> None:
        """Returns after so many seconds or counted messages, whichever is first."""
        slots = list(slots)
        end = None if seconds is None else time.monotonic() + seconds
        seen, seen_at = self.total(slots), time.monotonic()
        while True:
            total, now = self.total(slots), time.monotonic()
            if (messages is not None and total >= messages) or (end is not None and now >= end):
                return
            self.check(server)
            if total != seen:
                seen, seen_at = total, now
            elif now - seen_at > STALL_TIMEOUT_S:
                raise BenchFailure(f"nothing moved for {STALL_TIMEOUT_S:.0f} s at {seen} messages")
            time.sleep(POLL_S if end is None else min(POLL_S, max(0.0, end - now)))

    def found(self) -> dict[str, Any]:
        """One process's findings."""
        found: dict[str, Any] = self.findings.get()
        return found


def _run(
    own: LoadProcess,
    failures: Any,
    work: Callable[..., None],
    args: tuple[object, ...],
    options: dict[str, object],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()
    gc.disable()
    try:
        work(own, *args, **options)
    except Exception as error:
        # After `stop` the server may have ended already; that is not a failure.
        if not own.stop[0]:
            text = str(error) if isinstance(error, BenchFailure) else repr(error)
            failures.put(f"{work.__name__}: {text}")
    os._exit(0)
