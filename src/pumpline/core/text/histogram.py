"""Histograms: how many values of what size, in little memory. Pure: times are arguments.

`Buckets` counts values below fixed bounds, as Prometheus wants them. `Histogram` keeps any
positive integers to within 1/128 of their size, for quantiles: numbers below 128 are counted
exactly, larger ones by their seven leading bits.

    value      1 0 1 1 0 1 0 | 1 1 0 1      kept: the bits left of the bar, and how many are right
    bucket     [1011010 0000, 1011011 0000)  width: 1/64 of the value at most

A quantile is the middle of its bucket, hence half that width off at most.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import ceil, inf

_LEADING_BITS = 7
_HALF = 1 << (_LEADING_BITS - 1)


class Buckets:
    """Counts of values up to each bound, and of those beyond the last."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0  # of all values

    def record(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[float, int]]:
        """(bound, how many values are not over it); the last bound is infinite."""
        result = []
        seen = 0
        for bound, count in zip((*self.bounds, inf), self.counts, strict=True):
            seen += count
            result.append((bound, seen))
        return result


class Histogram:
    __slots__ = ("_counts", "count")

    def __init__(self) -> None:
        self.count = 0
        self._counts: dict[int, int] = {}  # by bucket; at most 64 * 57 of them for 63 bits

    def record(self, value: int, count: int = 1) -> None:
        """`value`, `count` times; what is below 0 counts as 0."""
        bucket = _bucket_of(max(value, 0))
        self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.count += count

    def add(self, other: "Histogram") -> None:
        """Count the values of another as well."""
        self.count += other.count
        for bucket, count in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + count

    def quantiles(self, wanted: Iterable[float]) -> list[float]:
        """For each q in (0, 1], the value at rank ceil(q * count); 0 if there is none."""
        ordered = sorted(self._counts.items())
        return [self._value_at(ordered, q) for q in wanted]

    def _value_at(self, ordered: list[tuple[int, int]], q: float) -> float:
        rank = min(max(ceil(q * self.count), 1), self.count)
        for bucket, count in ordered:
            rank -= count
            if rank <= 0:
                return _middle_of(bucket)
        return 0.0


def merged(histograms: Iterable[Histogram]) -> Histogram:
    result = Histogram()
    for each in histograms:
        result.add(each)
    return result


def _bucket_of(value: int) -> int:
    """Buckets are numbered in the order of the values in them."""
    shift = max(value.bit_length() - _LEADING_BITS, 0)
    return shift * _HALF + (value >> shift)


def _middle_of(bucket: int) -> float:
    shift = max(bucket // _HALF - 1, 0)
    low = (bucket - shift * _HALF) << shift
    return low + ((1 << shift) - 1) / 2
