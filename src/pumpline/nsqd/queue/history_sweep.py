"""Deletes consumed history when a write finds no room on the disk.

It runs on the event loop, in the middle of a publish, and again for each publish that fails. So it
is bounded: with 10,000 topics a walk over all of them takes 80 ms if nothing is consumed, and 2.6 s
if everything is. A run takes SLICE_S, but visits at least TOPICS_MIN topics before it gives up, and
the next run continues where it ended. After a whole walk without result, the pause is 10 x the
duration of the walk.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")

SLICE_S = 0.01
TOPICS_MIN = 100
_REST_RATIO = 10


class HistorySweep(Generic[T]):
    def __init__(
        self,
        topics: Mapping[str, T],
        *,
        drop: Callable[[T], bool],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`drop` deletes the consumed segments of a topic; returns whether there were any."""
        self._topics = topics
        self._drop = drop
        self._clock_s = clock_s
        self._next = 0  # topic to begin with
        self._fruitless = 0  # topics in a row that had nothing
        self._fruitless_s = 0.0  # how long that took
        self._rest_until_s = 0.0

    def run(self) -> bool:
        """Delete consumed segments; return whether there were any."""
        started_s = now_s = self._clock_s()
        if now_s < self._rest_until_s:
            return False
        names = list(self._topics)
        found = False
        visited = 0
        least = min(TOPICS_MIN, len(names))
        while (visited < least and not found) or (
            visited < len(names) and now_s - started_s < SLICE_S
        ):
            name = names[(self._next + visited) % len(names)]
            with suppress(OSError):  # it cannot be deleted: then it gives no room
                found = self._drop(self._topics[name]) or found
            visited += 1
            now_s = self._clock_s()
        self._next = (self._next + visited) % max(len(names), 1)
        self._fruitless += visited
        self._fruitless_s += now_s - started_s
        if not found and self._fruitless >= len(names):
            self._rest_until_s = now_s + _REST_RATIO * self._fruitless_s
        if now_s < self._rest_until_s or found:
            self._fruitless = 0
            self._fruitless_s = 0.0
        return found
