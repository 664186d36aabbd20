"""A segment: one file of batches, `<first offset, 20 digits>.log`.

A segment knows its size and, for what this process wrote or looked for, a sparse index from offset
to file position: one point for every INDEX_STRIDE_BYTES, so at most 1,600 points for 100 MiB.
"""

import os
from array import array
from bisect import bisect_right
from struct import Struct

from pumpline.core.batches import HEADER_BYTES, Batch

INDEX_STRIDE_BYTES = 64 * 1024
SUFFIX = ".log"
OFFSET_END = 1 << 63  # no log comes to that

_LENGTH = Struct(">I")
_COUNT_AT = 32
_FIRST_AT = 8
_FIRST = Struct(">Q")


class Segment:
    __slots__ = ("_offsets", "_positions", "deferred", "first", "holes", "path", "size_bytes")

    def __init__(self, directory: str, first: int) -> None:
        self.first = first
        self.path = os.path.join(directory, f"{first:020d}{SUFFIX}")
        self.size_bytes = 0
        self.deferred: list[tuple[int, int, int]] = []  # (first, end, due): found by a recovery
        self.holes: dict[int, int] = {}  # position of damage -> position where sense resumes
        self._offsets = array("Q")
        self._positions = array("Q")

    def note(self, batch: Batch, position: int) -> None:
        """A batch begins at `position`: remember it if far enough from the last point."""
        if not self._positions or position - self._positions[-1] >= INDEX_STRIDE_BYTES:
            self._offsets.append(batch.first)
            self._positions.append(position)

    def near(self, offset: int) -> int:
        """A position at or before the batch that holds `offset`."""
        index = bisect_right(self._offsets, offset) - 1
        return self._positions[index] if index >= 0 else 0

    def cut(self, size_bytes: int) -> None:
        """The file ends at `size_bytes` from now on."""
        self.size_bytes = size_bytes
        self.holes = {at: resume for at, resume in self.holes.items() if resume <= size_bytes}
        self._offsets = array("Q")
        self._positions = array("Q")


def first_of(name: str) -> int | None:
    """The first offset in a segment's file name, or None for another file."""
    stem, suffix = os.path.splitext(name)
    if suffix != SUFFIX or len(stem) != 20 or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem) if int(stem) < OFFSET_END else None


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
