"""When logs are fsynced: after `--sync-every` messages of a topic, and every `--sync-timeout`.

An fsync runs in a thread, one at a time for each topic. With `--sync-every=1` a publisher's answer
waits for it (group commit): what arrives while one runs shares the next. Else nobody waits, and
a topic rests for 10 ms between two: fsyncs back to back took a quarter of the MPUB rate.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

from pumpline.core.text.histogram import Buckets
from pumpline.log.files import sync_paths
from pumpline.log.scheduling import Later, Offload

REST_S = 0.01
TIME_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

_NS_PER_S = 1_000_000_000


class Synced(Protocol):
    """A topic, as seen from here."""

    @property
    def unsynced(self) -> int: ...

    def take_dirty(self) -> list[str]: ...

    def sync_done(self, paths: list[str], error: OSError | None) -> None: ...


class Fsyncs:
    def __init__(self, *, every: int, timeout_ns: int, offload: Offload, later: Later) -> None:
        self.group_commit = every <= 1
        self.times_s = Buckets(TIME_BOUNDS_S)
        self.failures = 0
        self._every = every
        self._timeout_s = timeout_ns / _NS_PER_S
        self._offload = offload
        self._later = later
        self._waiting: dict[Synced, None] = {}
        self._running: set[Synced] = set()
        self._resting: set[Synced] = set()
        self._hurried: set[Synced] = set()  # somebody waits for their next fsync
        self._timer_set = False

    def appended(self, topic: Synced) -> None:
        """A topic's log grew."""
        if topic.unsynced >= self._every:
            self._start(topic)
        else:
            self._wait(topic)

    def hurry(self, topic: Synced) -> None:
        """Sync a topic, whose log grew, as soon as it may be."""
        self._hurried.add(topic)
        self._start(topic)

    def _wait(self, topic: Synced) -> None:
        self._waiting[topic] = None
        if not self._timer_set:
            self._timer_set = True
            self._later(self._timeout_s, self._on_timer)

    def forget(self, topic: Synced) -> None:
        self._waiting.pop(topic, None)
        self._hurried.discard(topic)

    def _on_timer(self) -> None:
        self._timer_set = False
        waiting, self._waiting = self._waiting, {}
        for topic in waiting:
            self._start(topic)

    def _start(self, topic: Synced) -> None:
        if topic in self._running or topic in self._resting:
            return
        self._hurried.discard(topic)
        paths = topic.take_dirty()
        if not paths:
            return
        self._running.add(topic)

        def job() -> float:
            started_s = time.perf_counter()
            sync_paths(paths)
            return time.perf_counter() - started_s

        self._offload(job, self._finisher(topic, paths))

    def _finisher(self, topic: Synced, paths: list[str]) -> Callable[[Any], None]:
        def done(result: float | BaseException) -> None:
            self._running.discard(topic)
            if isinstance(result, BaseException) and not isinstance(result, OSError):
                raise result
            if isinstance(result, OSError):
                self.failures += 1
                topic.sync_done(paths, result)
                self._wait(topic)  # trying again at once would only meet the same error
                return
            self.times_s.record(result)
            topic.sync_done(paths, None)
            if self.group_commit:
                self._sync_rest(topic)
            else:
                self._resting.add(topic)
                self._later(REST_S, lambda: self._rested(topic))

        return done

    def _rested(self, topic: Synced) -> None:
        self._resting.discard(topic)
        self._sync_rest(topic)

    def _sync_rest(self, topic: Synced) -> None:
        if topic in self._hurried:
            self._start(topic)
        elif topic.unsynced:
            self.appended(topic)
