"""Ranges: where in which files the batches of [start, to) are.

The event loop takes a `SelectedRange` of a log, from memory; the rest is for a thread: `open_range`
finds the exact positions, with open descriptors, so that what was found can be sent
even if the log retires it meanwhile; `find_parts` tells them to who opens the files; `find_time`,
`begun_ns` and `waiting_since_ns` look at publish times. Bytes are not read but for headers, and for
a segment that this process has not seen the inside of: that is checked to the last byte, once, so
that damage is known and stepped over.

`to` must not be beyond what was acknowledged: the file may hold more.
"""

import os
from bisect import bisect_right
from contextlib import suppress
from operator import attrgetter
from typing import NamedTuple

from pumpline.core.messages.batches import HEADER, HEADER_BYTES, read_batch
from pumpline.log.checking import check
from pumpline.log.files import open_file
from pumpline.log.log import Log
from pumpline.log.segment import Segment

FILES_MAX = 16  # that one range opens
_FIRST = attrgetter("first")


class Piece(NamedTuple):
    """A segment as it was when selected."""

    segment: Segment
    size_bytes: int
    end: int  # where the next segment begins, or the log ends


class SelectedRange(NamedTuple):
    log: Log
    pieces: list[Piece]


class Extent(NamedTuple):
    fd: int
    position: int
    length_bytes: int
    path: str  # of the file, to open it again


class Part(NamedTuple):
    """Whole batches that cover the offsets from where the part before it ended up to `to`."""

    to: int
    extents: list[tuple[int, int]]  # positions and lengths, in bytes


class File(NamedTuple):
    """A segment as another process can find it, and be sure that it is the one."""

    path: str
    device: int
    inode: int
    parts: list[Part]


class Range(NamedTuple):
    """Whole batches that cover [start, to); the owner closes the descriptors."""

    to: int
    extents: list[Extent]

    @property
    def size_bytes(self) -> int:
        return sum(extent.length_bytes for extent in self.extents)

    def close(self) -> None:
        for fd in {extent.fd for extent in self.extents}:
            os.close(fd)


class Place(NamedTuple):
    """A batch's header, as far as it matters here."""

    position: int
    next_position: int
    first: int
    end: int
    timestamp_ns: int


def select(log: Log, start: int, to: int, *, files_max: int = FILES_MAX) -> SelectedRange:
    """The segments that hold [start, to), or the first of them, on the event loop."""
    pieces: list[Piece] = []
    segments = log.segments
    index = max(bisect_right(segments, start, key=_FIRST) - 1, 0)
    for segment in segments[index:]:
        index += 1
        if segment.first >= to or len(pieces) == files_max:
            break
        end = segments[index].first if index < len(segments) else log.written
        if segment.size_bytes and end > start:  # else there may be no file
            pieces.append(Piece(segment, segment.size_bytes, end))
    return SelectedRange(log, pieces)


def open_range(selection: SelectedRange, start: int, to: int, *, bytes_max: int) -> Range:
    """From a thread: where the batches are, as far as `bytes_max` allows, but one at least.

    FileNotFoundError when a segment was retired since it was selected.
    """
    extents: list[Extent] = []
    reached = start if selection.pieces else to
    try:
        for piece in selection.pieces:
            room_bytes = bytes_max - sum(extent.length_bytes for extent in extents)
            if extents and room_bytes <= 0:
                break
            fd = _open(piece.segment)
            try:
                check(selection.log, piece.segment, fd)
                found, reached = _cover(fd, piece, reached, to, room_bytes, must=not extents)
            except BaseException:
                os.close(fd)
                raise
            extents += found
            if not found:
                os.close(fd)
            if reached < min(piece.end, to):
                break
    except BaseException:
        Range(reached, extents).close()
        raise
    return Range(reached, extents)


def find_parts(
    selection: SelectedRange, start: int, to: int, *, bytes_max: int, parts_max: int
) -> list[File]:
    """From a thread: where the batches are, in parts of `bytes_max`, for who opens the files.

    FileNotFoundError when a segment was retired since it was selected.
    """
    files: list[File] = []
    reached = start
    for piece in selection.pieces:
        parts: list[Part] = []
        fd = _open(piece.segment)
        try:
            check(selection.log, piece.segment, fd)
            while reached < min(piece.end, to) and len(parts) < parts_max:
                found, reached = _cover(fd, piece, reached, to, bytes_max, must=True)
                parts.append(Part(reached, [(at, length) for _, at, length, _ in found]))
            status = os.fstat(fd)
        finally:
            os.close(fd)
        path = os.path.abspath(piece.segment.path)
        files.append(File(path, status.st_dev, status.st_ino, parts))
        parts_max -= len(parts)
        if not parts_max:
            break
    return [file for file in files if file.parts]


def _cover(
    fd: int, piece: Piece, start: int, to: int, room_bytes: int, *, must: bool
) -> tuple[list[Extent], int]:
    """The batches of [start, to) in one segment, within the room, and the offset reached."""
    segment = piece.segment
    place = _place(fd, piece, segment.near(start))
    while place.end <= start and place.position < piece.size_bytes:
        place = _place(fd, piece, place.next_position)
    begin = stop = place.position
    limit = max(begin + room_bytes, place.next_position if must else 0)
    ahead = min(segment.near(to - 1), segment.near_position(limit))
    reached = start
    if ahead > begin:
        place = _place(fd, piece, ahead)
        stop, reached = place.position, place.first
    while place.position < piece.size_bytes and place.first < to:
        if place.next_position > limit:
            return _without_holes(fd, segment, begin, stop), reached
        stop, reached = place.next_position, place.end
        if reached >= to:  # what follows may be in the middle of being written
            break
        place = _place(fd, piece, stop)
    return _without_holes(fd, segment, begin, stop), min(piece.end, to)


def _place(fd: int, piece: Piece, position: int) -> Place:
    """The batch at `position`, or after the damage there, or the end of the piece."""
    position = piece.segment.holes.get(position, position)
    if position + HEADER_BYTES <= piece.size_bytes:
        head = os.pread(fd, HEADER_BYTES, position)
        if len(head) == HEADER_BYTES:
            length, _, first, timestamp_ns, count, _ = HEADER.unpack(head)
            return Place(position, position + 4 + length, first, first + count, timestamp_ns)
    return Place(piece.size_bytes, piece.size_bytes, piece.end, piece.end, 0)


def _without_holes(fd: int, segment: Segment, begin: int, stop: int) -> list[Extent]:
    extents = []
    for hole, resume in sorted(segment.holes.items()):
        if begin <= hole < stop:
            extents.append(Extent(fd, begin, hole - begin, segment.path))
            begin = resume
    extents.append(Extent(fd, begin, stop - begin, segment.path))
    return [extent for extent in extents if extent.length_bytes > 0]


# -- publish times ----------------------------------------------------------------------------


def find_time(selection: SelectedRange, time_ns: int, start: int = 0) -> int | None:
    """The first offset published at `time_ns` or later; None if there is none.

    Publish times are taken to rise from offset `start` on, which is in the first piece: the
    segments are searched by their first batch.
    """
    pieces = list(selection.pieces)
    low, high = 1 if pieces and pieces[0].segment.first < start else 0, len(pieces)
    while low < high:  # the first segment that begins at the time or later
        middle = (low + high) // 2
        piece_ns = begun_ns(selection.log, pieces[middle])
        if not piece_ns:  # damage took all of it
            del pieces[middle]
            high -= 1
        elif piece_ns >= time_ns:
            high = middle
        else:
            low = middle + 1
    if low:
        found = _find_time_in(selection.log, pieces[low - 1], time_ns, start)
        if found is not None:
            return found
    return pieces[low].segment.first if low < len(pieces) else None


def begun_ns(log: Log, piece: Piece) -> int:
    """When the first batch of a segment was published, 0 if damage took all; from a thread."""
    segment = piece.segment
    if not segment.begun_ns:
        fd = _open(segment)
        try:
            place = _place(fd, piece, 0)
            if place.first != segment.first:
                check(log, segment, fd)
                place = _place(fd, piece, 0)
            segment.begun_ns = place.timestamp_ns
        finally:
            os.close(fd)
    return segment.begun_ns


def waiting_since_ns(log: Log, piece: Piece, offset: int) -> int:
    """Since when the message at `offset`, or the next of the segment, waits; from a thread.

    0 if there is none. FileNotFoundError when the segment was retired since it was selected.
    """
    fd = _open(piece.segment)
    try:
        check(log, piece.segment, fd)
        place = _place(fd, piece, piece.segment.near(offset))
        while place.end <= offset and place.position < piece.size_bytes:
            place = _place(fd, piece, place.next_position)
        if place.position >= piece.size_bytes:
            return 0
        data = os.pread(fd, place.next_position - place.position, place.position)
        return read_batch(memoryview(data), 0).waiting_since_ns(max(offset, place.first))
    finally:
        os.close(fd)


def _find_time_in(log: Log, piece: Piece, time_ns: int, start: int) -> int | None:
    fd = _open(piece.segment)
    try:
        check(log, piece.segment, fd)
        low, high = piece.segment.near(start), piece.size_bytes
        # By the index to where it is near, then from batch to batch.
        while piece.segment.near_position((low + high) // 2) > low:
            middle = piece.segment.near_position((low + high) // 2)
            if _place(fd, piece, middle).timestamp_ns >= time_ns:
                high = middle
            else:
                low = middle
        place = _place(fd, piece, low)
        before: Place | None = None  # the last batch that begins before the time
        while place.position < piece.size_bytes:
            if place.timestamp_ns >= time_ns and place.first >= start:
                break
            before = place
            place = _place(fd, piece, place.next_position)
        if before is not None:
            found = _find_time_in_batch(fd, before, time_ns, start)
            if found is not None:
                return found
        return place.first if place.position < piece.size_bytes else None
    finally:
        os.close(fd)


def _find_time_in_batch(fd: int, place: Place, time_ns: int, start: int) -> int | None:
    """A batch has the messages of many ticks."""
    data = os.pread(fd, place.next_position - place.position, place.position)
    batch = read_batch(memoryview(data), 0)
    found = batch.first_at(time_ns, max(batch.first, start), batch.end)
    return found if found < batch.end else None


def _open(segment: Segment) -> int:
    fd = open_file(segment.path)
    with suppress(OSError):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    return fd
