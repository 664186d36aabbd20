"""Rates from counters: over a window of five to ten seconds, so that they neither jump nor lag.

A window has two earlier readings. The rate is that between now and the older one; when the younger
is five seconds old it becomes the older. A reading has a signature of who was counted. When that
changes, as a node left or restarted, counters cannot be compared, and there is no rate until there
are two readings of the same nodes again. Pure.
"""

from typing import NamedTuple

WINDOW_S = 5.0


class CounterReading(NamedTuple):
    at_s: float
    signature: int
    counters: tuple[int, ...]


class RateWindow:
    __slots__ = ("_older", "_younger")

    def __init__(self) -> None:
        self._older: CounterReading | None = None
        self._younger: CounterReading | None = None

    def rates(self, now: CounterReading) -> tuple[float, ...] | None:
        """How fast each counter rose, or None if nobody knows; may be negative."""
        older, younger = self._older, self._younger
        if older is None or older.signature != now.signature or older.at_s >= now.at_s:
            self._older, self._younger = now, None
            return None
        if younger is None or younger.signature != now.signature:
            self._younger = younger = now
        elapsed_s = now.at_s - older.at_s
        rates = tuple(
            (new - old) / elapsed_s for new, old in zip(now.counters, older.counters, strict=True)
        )
        if now.at_s - younger.at_s >= WINDOW_S or elapsed_s >= 2 * WINDOW_S:
            self._older, self._younger = younger, now
        return rates


def positive(rate: float) -> float:
    """Counters that fall, as after an empty or a rewind, are no rate."""
    return round(rate, 3) if rate > 0 else 0.0
