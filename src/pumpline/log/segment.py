"""A segment: one file of batches, `<first offset, 20 digits>.log`.

A segment knows its size and, for what this process wrote or checked, a sparse index from offset to
file position: one point for every INDEX_STRIDE_BYTES, so at most 6,400 points (100 kB) for 100 MiB.
What was there when the process started and was not checked since is `unchecked_bytes` long.

Threads read the index while the event loop adds to it; they may miss its newest point.
"""

import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from pumpline.core.messages.batches import HEADER_BYTES, LogBatch

INDEX_STRIDE_BYTES = 16 * 1024
SUFFIX = ".log"
OFFSET_END = 1 << 63  # above every offset

_LENGTH = Struct(">I")
_COUNT_AT = 24
_FIRST_AT = 8
_FIRST = Struct(">Q")
_HEAD = Struct(">I4xQ8xI4x")  # length, first, count
_CHUNK_BYTES = 1 << 20


class DueTimes(NamedTuple):
    """The due times of a batch that has some, as they are in it."""

    first: int
    end: int
    dues: bytes
    published_ns: int

    @classmethod
    def of(cls, batch: LogBatch) -> "DueTimes":
        return cls(batch.first, batch.end, bytes(batch.dues), batch.timestamp_ns)


class Segment:
    __slots__ = (
        "_index",
        "begun_ns",
        "deferred",
        "first",
        "holes",
        "ordered_from",
        "path",
        "size_bytes",
        "sound_at",
        "tokens",
        "unchecked_bytes",
    )

    def __init__(self, directory: str, first: int) -> None:
        self.first = first
        self.path = os.path.join(directory, f"{first:020d}{SUFFIX}")
        self.size_bytes = 0
        self.unchecked_bytes = 0  # from the start of the file
        self.begun_ns = 0  # publish time of the first batch; 0: not known yet
        self.deferred: list[DueTimes] = []  # found by a recovery
        self.tokens: list[tuple[int, bytes]] = []  # (end of its batch, token): likewise
        self.ordered_from = first  # publish times rise from there on: likewise
        self.holes: dict[int, int] = {}  # position of damage -> position where sense resumes
        self.sound_at: set[int] = set()  # large batches in the unchecked part that were checked
        self._index = array("Q"), array("Q")  # offsets, positions

    def note(self, batch: LogBatch, position: int) -> None:
        """A batch begins at `position`: remember it if far enough from the last point."""
        offsets, positions = self._index
        if not positions or position - positions[-1] >= INDEX_STRIDE_BYTES:
            # Append the position first: ranges.py reads this index from other threads, unlocked.
            positions.append(position)
            offsets.append(batch.first)
            if not position:
                self.begun_ns = batch.timestamp_ns

    def near(self, offset: int) -> int:
        """A position at or before the batch that holds `offset`."""
        offsets, positions = self._index
        index = bisect_right(offsets, offset) - 1
        return positions[index] if index >= 0 else 0

    def region(self, offset: int) -> tuple[int, int, int]:
        """Where to look for the batch with `offset`: the offset and the position of the last point
        of the index before it, and the offset of the next one. Position -1: it is not known."""
        offsets, positions = self._index
        index = bisect_right(offsets, offset) - 1
        limit = offsets[index + 1] if index + 1 < len(offsets) else OFFSET_END
        return (offsets[index], positions[index], limit) if index >= 0 else (0, -1, limit)

    def estimate(self, offset: int, end: int) -> int:
        """About where `offset` begins, if the segment goes up to offset `end`."""
        offsets, positions = self._index
        index = bisect_right(offsets, offset)
        low, at = (offsets[index - 1], positions[index - 1]) if index else (self.first, 0)
        high, to = (
            (offsets[index], positions[index]) if index < len(offsets) else (end, self.size_bytes)
        )
        if offset >= high or high <= low:
            return to
        return at + (to - at) * (offset - low) // (high - low)

    def near_position(self, position: int) -> int:
        """Where a batch begins, at or before `position`."""
        positions = self._index[1]
        index = bisect_right(positions, position) - 1
        return positions[index] if index >= 0 else 0

    def block_end(self, position: int, *, wanted_bytes: int, bytes_max: int) -> int:
        """Where to end a read that begins at `position` with a batch: after as many whole batches
        as `wanted_bytes` have, or after the one that is larger, up to `bytes_max`."""
        positions = self._index[1]
        after = bisect_right(positions, position + wanted_bytes)
        if after and positions[after - 1] > position:
            return positions[after - 1]
        end = positions[after] if after < len(positions) else self.size_bytes
        if end - position > bytes_max:
            end = position + wanted_bytes
        return min(end, self.size_bytes)

    @property
    def is_indexed(self) -> bool:
        """Whether the index begins with the first batch."""
        positions = self._index[1]
        return bool(positions) and not positions[0]

    def learn_index(self, fd: int) -> None:
        """Index the part that was not checked, from a thread: 0.2 s for 350,000 batches, where a
        check takes 2 s. It ends early at damage."""
        found = _hopped(fd, self.first, self.unchecked_bytes)
        offsets, positions = self._index
        if not self.is_indexed:  # it is not known otherwise meanwhile
            self._index = found[0] + offsets, found[1] + positions

    def learn(self, checked: "Segment") -> None:
        """Take over what a check of the unchecked part found, in an object of its own."""
        offsets, positions = self._index
        known = bisect_right(positions, checked.size_bytes - 1)
        found_offsets, found_positions = checked._index
        self._index = found_offsets + offsets[known:], found_positions + positions[known:]
        self.holes.update(checked.holes)
        self.begun_ns = checked.begun_ns or self.begun_ns
        self.unchecked_bytes = 0

    def cut(self, size_bytes: int) -> None:
        """The file ends at `size_bytes` from now on."""
        self.size_bytes = size_bytes
        self.unchecked_bytes = min(self.unchecked_bytes, size_bytes)
        self.sound_at = {at for at in self.sound_at if at < size_bytes}
        self.holes = {at: resume for at, resume in self.holes.items() if resume <= size_bytes}
        offsets, positions = self._index
        kept = bisect_right(positions, size_bytes - 1)
        self._index = offsets[:kept], positions[:kept]


def _hopped(fd: int, first: int, size_bytes: int) -> tuple["array[int]", "array[int]"]:
    """Offsets and positions for an index, by the headers alone: they have to follow on each
    other."""
    offsets, positions = array("Q"), array("Q")
    at = begin = 0
    data = b""
    while at + HEADER_BYTES <= size_bytes:
        if at + HEADER_BYTES > begin + len(data):
            begin, data = at, os.pread(fd, _CHUNK_BYTES, at)
            if len(data) < HEADER_BYTES:
                break
        length, its_first, count = _HEAD.unpack_from(data, at - begin)
        if its_first != first or not count or at + 4 + length > size_bytes:
            break
        if not positions or at - positions[-1] >= INDEX_STRIDE_BYTES:
            offsets.append(first)
            positions.append(at)
        at += 4 + length
        first += count
    return offsets, positions


def first_of(name: str) -> int | None:
    """The first offset in a segment's file name, or None for another file."""
    return offset_in(name, SUFFIX)


def offset_in(name: str, suffix: str) -> int | None:
    """The offset in a file name of this kind, or None for another file."""
    stem, ending = os.path.splitext(name)
    if ending != suffix or len(stem) != 20 or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem) if int(stem) < OFFSET_END else None


def count_fitting(batches: list[LogBatch], bytes_max: int, size_bytes: int) -> int:
    """How many of these go to a segment that has `size_bytes`, or to the next one if it is full."""
    room_bytes = bytes_max - size_bytes if size_bytes < bytes_max else bytes_max
    count = 0
    while room_bytes > 0 and count < len(batches):
        room_bytes -= batches[count].size_bytes
        count += 1
    return count


def offsets_in_names(names: Iterable[str], suffix: str) -> list[int]:
    """The offsets in the names of files that end with `suffix`, in order."""
    offsets = (offset_in(name, suffix) for name in names if name.endswith(suffix))
    return sorted(offset for offset in offsets if offset is not None)


def seek_batch(fd: int, position: int, offset: int, size_bytes: int) -> int:
    """Hop from header to header until the batch that holds `offset`; no crc is checked.

    A hop counts only if it ends at a header whose offsets go on where the last ones ended: a
    damaged length or count must not lead astray. So the position returned is that of the batch, or
    one before it.
    """
    sound = position
    end = -1
    while position + HEADER_BYTES <= size_bytes:
        head = os.pread(fd, HEADER_BYTES, position)
        if len(head) < HEADER_BYTES:
            break
        first = _FIRST.unpack_from(head, _FIRST_AT)[0]
        if end not in (-1, first):
            break
        sound = position
        end = first + _LENGTH.unpack_from(head, _COUNT_AT)[0]
        if end > offset:
            break
        position += 4 + _LENGTH.unpack_from(head)[0]
    return sound
