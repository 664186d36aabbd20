"""Deferred messages: offsets that wait for their due times, a million of them in 24 MB.

A calendar queue. A message is three integers in the array of its *bucket*, which has all messages
that are due within the same 67 ms. When the time of a bucket comes, its messages move to a heap,
`_near`, and leave it in the order of their due times. To add or to take a message costs under a
microsecond, however many there are, and a copy of all of them is a copy of some arrays.

A bucket with more than SORTED_MAX messages is never sorted: its messages are due when its time is
over. They could not all be delivered within it anyway.
"""

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence, Set
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from pumpline.core.messages.batches import Dues
from pumpline.core.messages.leases import NEVER_NS

SORTED_MAX = 20_000  # 5 ms
_BUCKET_BITS = 26  # of ns: 67 ms


class Pending(NamedTuple):
    """An unfinished offset whose attempts or due time differ from the rule."""

    offset: int
    attempts: int
    due_ns: int  # 0: no longer deferred


class Pendings:
    """Pending messages as they are written to a cursor: deferred ones, then those that are not, as
    offset -> attempts. If an offset is there twice, the last one counts."""

    __slots__ = ("_attempts", "_deferred")

    def __init__(self, deferred: "array[int]", attempts: dict[int, int]) -> None:
        self._deferred = deferred
        self._attempts = attempts

    @classmethod
    def of(cls, items: Iterable[Pending]) -> "Pendings":
        flat = array("q")
        for offset, attempts, due_ns in items:
            flat.extend((due_ns, offset, attempts))
        return cls(flat, {})

    def __len__(self) -> int:
        return len(self._deferred) // 3 + len(self._attempts)

    def __iter__(self) -> Iterator[Pending]:
        flat = self.flat()
        return map(Pending, flat[1::3], flat[2::3], flat[0::3])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pendings) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Pendings({list(self)})"

    def flat(self) -> "array[int]":
        """All of them; for a thread, if they are many."""
        if not self._attempts:
            return self._deferred
        flat = self._deferred[:]
        for offset, attempts in self._attempts.items():
            flat.extend((0, offset, attempts))
        return flat


class Deferred:
    __slots__ = ("_buckets", "_least", "_near", "_numbers", "count")

    def __init__(self) -> None:
        self.count = 0
        self._buckets: dict[int, array[int]] = {}
        self._least: dict[int, int] = {}  # due time in each bucket
        self._numbers: list[int] = []  # heap of the buckets there are
        self._near: list[tuple[int, int, int]] = []  # heap of (due, offset, attempts)

    def add(self, flat: "array[int]", due_ns: int) -> None:
        """Messages with the same due time."""
        number = due_ns >> _BUCKET_BITS
        bucket = self._buckets.get(number)
        if bucket is None:
            self._buckets[number] = flat[:]
            self._least[number] = due_ns
            heappush(self._numbers, number)
        else:
            bucket.extend(flat)
            if due_ns < self._least[number]:
                self._least[number] = due_ns
        self.count += len(flat) // 3

    def add_each(self, flat: "array[int]") -> None:
        """Messages with due times of their own."""
        buckets, least = self._buckets, self._least
        for at, due_ns in zip(range(0, len(flat), 3), flat[0::3], strict=True):
            number = due_ns >> _BUCKET_BITS
            bucket = buckets.get(number)
            if bucket is None:
                buckets[number] = flat[at : at + 3]
                least[number] = due_ns
                heappush(self._numbers, number)
            else:
                bucket.extend(flat[at : at + 3])
                if due_ns < least[number]:
                    least[number] = due_ns
        self.count += len(flat) // 3

    def next_due_ns(self) -> int:
        """When the first is due."""
        due_ns = self._near[0][0] if self._near else NEVER_NS
        if self._numbers:
            number = self._numbers[0]
            is_large = len(self._buckets[number]) > 3 * SORTED_MAX
            due_ns = min(due_ns, _end_ns(number) if is_large else self._least[number])
        return due_ns

    def take(self, now_ns: int, count: int) -> tuple[list[int], list[int]]:
        """Take up to `count` messages that are due: their offsets and attempts."""
        offsets: list[int] = []
        attempts: list[int] = []
        near = self._near
        while len(offsets) < count:
            if self._numbers and self._open_first(now_ns, offsets, attempts, count):
                continue
            if not near or near[0][0] > now_ns:
                break
            _, offset, tried = heappop(near)
            offsets.append(offset)
            attempts.append(tried)
        self.count -= len(offsets)
        return offsets, attempts

    def _open_first(self, now_ns: int, offsets: list[int], attempts: list[int], count: int) -> bool:
        """Open the first bucket if it is its turn: move its messages to the heap, or take some if
        they are too many; returns whether it was."""
        number = self._numbers[0]
        begin_ns = number << _BUCKET_BITS
        if begin_ns > now_ns or (self._near and self._near[0][0] < begin_ns):
            return False
        bucket = self._buckets[number]
        if len(bucket) <= 3 * SORTED_MAX:
            self._near.extend(zip(bucket[0::3], bucket[1::3], bucket[2::3], strict=True))
            heapify(self._near)
        elif _end_ns(number) > now_ns:
            return False
        else:
            at = len(bucket) - 3 * (count - len(offsets))
            part = bucket[max(at, 0) :]
            offsets += part[1::3]
            attempts += part[2::3]
            if at > 0:
                del bucket[at:]
                return True
        heappop(self._numbers)
        del self._buckets[number], self._least[number]
        return True

    def find(self, offsets: Set[int]) -> dict[int, Pending]:
        """Those of `offsets` that are deferred."""
        found = {o: Pending(o, tried, due) for due, o, tried in self._near if o in offsets}
        for bucket in self._buckets.values():
            there = bucket[1::3]
            if not offsets.isdisjoint(there):
                each = zip(bucket[0::3], there, bucket[2::3], strict=True)
                found.update((o, Pending(o, tried, due)) for due, o, tried in each if o in offsets)
        return found

    def copy(self) -> "array[int]":
        """All of them, in no order."""
        flat = array("q")
        for bucket in self._buckets.values():
            flat.extend(bucket)
        for each in self._near:
            flat.extend(each)
        return flat


def flat_of(due_ns: int, offsets: Sequence[int], attempts: Sequence[int]) -> "array[int]":
    """Messages with one due time."""
    if len(offsets) == 1:
        return array("q", (due_ns, offsets[0], attempts[0]))
    flat = array("q", bytes(24 * len(offsets)))
    flat[0::3] = array("q", (due_ns,)) * len(offsets)
    flat[1::3] = array("q", offsets)
    flat[2::3] = array("q", attempts)
    return flat


def flat_of_dues(dues: Dues, first: int, *, after_ns: int, shift_ns: int) -> "array[int]":
    """The messages from offset `first` on that are due after `after_ns`, by these due times (as a
    batch has them), and were never delivered. `shift_ns` is added to each due time."""
    times_ns = array("q", bytes(dues))
    if sys.byteorder == "little":
        times_ns.byteswap()
    offsets: Sequence[int] = range(first, first + len(times_ns))
    if min(times_ns, default=0) <= after_ns:
        pairs = [(o, due) for o, due in zip(offsets, times_ns, strict=True) if due > after_ns]
        offsets = [offset for offset, _ in pairs]
        times_ns = array("q", (due for _, due in pairs))
    flat = array("q", bytes(24 * len(offsets)))
    flat[0::3] = array("q", [due + shift_ns for due in times_ns])
    flat[1::3] = array("q", offsets)
    return flat


def _end_ns(number: int) -> int:
    return (number + 1) << _BUCKET_BITS
