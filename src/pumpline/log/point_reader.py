"""A point reader: reads messages at scattered offsets, each from its own place in the file.

Deferred and requeued messages become due in any order. A `Reader` parses a block of 512 KiB for
each of them, 5 ms if its batches hold one message each: 180 messages a second. A point reader asks
its owner which offsets come next, sorts them, and reads for each only the *region* between two
points of the index of its segment, 16 KiB: 5 us. A kernel hops to the batch.

What is not in the page cache is read in a thread, all offsets of the group in one job. A channel
gets one group from the page cache in an iteration of the event loop: others have their turn before
the next. Damage, and offsets that are gone, are left to `Reader`.
"""

import os
from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING

from pumpline.core.messages.batches import (
    DUE_BYTES,
    DUES,
    HEADER,
    HEADER_BYTES,
    BadBatch,
    Dues,
    ExtendedBatch,
    LogBatch,
    read_batch,
)
from pumpline.core.messages.frame import ID_AT, ID_BYTES, MESSAGE_OVERHEAD_BYTES
from pumpline.core.messages.kernels import locate, unfilled
from pumpline.log.files import open_file
from pumpline.log.reader import BLOCK_BYTES_MAX, REGION_BYTES, Reader
from pumpline.log.segment import Segment

if TYPE_CHECKING:  # a log makes its readers
    from pumpline.log.log import Log

GROUP_MESSAGES = 500  # read at once: 8 ms
GROUP_BYTES_MAX = 4 << 20  # kept of a group
HEAD_BYTES = 2048  # of a region, for one message: have the tables of a batch of 160 messages
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_WHOLE_FROM = 16  # wanted messages of one large batch: from here on it is read as a whole
_U32 = Struct(">I")
_FRAME_HEAD = Struct(">II")
_TIMESTAMP = Struct(">q")
_TIMESTAMP_AT = 8
_MESSAGE = 2

Found = dict[int, LogBatch]
Upcoming = Callable[[int], Sequence[int]]
"""Gives the offsets that will be asked for next, as many as that or fewer."""


class PointReader(Reader):
    __slots__ = ("_found", "_is_awaited", "_is_resting", "_odd", "_upcoming")

    def __init__(self, log: "Log", on_ready: Callable[[], None], upcoming: Upcoming) -> None:
        super().__init__(log, on_ready)
        self._upcoming = upcoming
        self._found: Found = {}
        self._odd = -1  # an offset that only a `Reader` can find
        self._is_resting = False  # a group was read in this iteration of the event loop
        self._is_awaited = False  # and the next is to be read in the next one

    def release(self) -> None:
        super().release()
        self._found = {}
        self._odd = -1

    def _from_file(self, offset: int) -> LogBatch | None:
        found = self._found.get(offset)
        if found is not None or self._loading:
            return found
        if offset != self._odd:
            self._read_group(offset)
            found = self._found.get(offset)
            if found is not None or self._loading:
                return found
            self._odd = offset
        return super()._from_file(offset)

    def _read_group(self, offset: int) -> None:
        """Find `offset` and what comes after it, from the page cache or in a thread."""
        if self._is_resting:
            self._loading = self._is_awaited = True
            return
        log = self._log
        self._found = {}
        group = _Group(log, offset, self._upcoming(GROUP_MESSAGES))
        if not group.parts:
            return
        if _NOWAIT and group.is_indexed:
            self._is_resting = True
            log.later(0, self._rested)
            try:
                is_cold = group.read(lambda path: (log.files.get(path), False), _NOWAIT)
            except OSError:  # the thread meets the same error, if it is one, and reports it
                is_cold = True
            self._found = group.found
            if offset in group.found or not is_cold:
                return
        self._load_group(group, offset)

    def _rested(self) -> None:
        self._is_resting = False
        if self._is_awaited:
            self._is_awaited = False
            self._end_load()

    def _load_group(self, group: "_Group", offset: int) -> None:
        self._loading = True

        def done(result: object) -> None:
            if isinstance(result, BaseException):
                if not self._outdated and self._log.contains(group.parts[0][0]):
                    self._log.report_read_error(result, self._end_load)
                    return
            elif not self._outdated:
                self._found = group.found
                if offset not in group.found:
                    self._odd = offset
            self._end_load()

        self._log.offload(group.load, done)


class _Group:
    """Messages that are read together, the one that is asked for first."""

    def __init__(self, log: "Log", asked: int, upcoming: Sequence[int]) -> None:
        self.found: Found = {}
        self._log = log
        self._size_bytes = 0
        self.parts: list[tuple[Segment, int, list[int]]] = []  # with sizes, and offsets in order
        segment = log.segment_of(asked)
        if segment is not None and segment.first <= asked:
            self.parts.append((segment, segment.size_bytes, [asked]))
        limit = -1
        for offset in sorted(each for each in upcoming if each < log.written and each != asked):
            if offset >= limit:
                segment = log.segment_of(offset)
                if segment is None or offset < segment.first:
                    continue
                limit = log.limit_of(segment)
                self.parts.append((segment, segment.size_bytes, []))
            self.parts[-1][2].append(offset)
        self.is_indexed = all(segment.is_indexed for segment, _, _ in self.parts)

    def load(self) -> None:
        """From a thread: wait for the disk."""
        for segment, _, _ in self.parts:
            if not segment.is_indexed:
                fd = open_file(segment.path)
                try:
                    segment.learn_index(fd)
                finally:
                    os.close(fd)
        self.read(lambda path: (open_file(path), True), 0)

    def read(self, opened: Callable[[str], tuple[int, bool]], flags: int) -> bool:
        """Fill `found`; returns whether something was not in the page cache. `opened` gives a
        descriptor, and says whether it is to be closed."""
        is_cold = False
        for segment, size_bytes, offsets in self.parts:
            fd, is_own = opened(segment.path)
            try:
                is_cold = self._read_segment(fd, segment, size_bytes, offsets, flags) or is_cold
            finally:
                if is_own:
                    os.close(fd)
        return is_cold

    def _read_segment(
        self, fd: int, segment: Segment, size_bytes: int, offsets: list[int], flags: int
    ) -> bool:
        buffer = unfilled(REGION_BYTES)
        is_cold = False
        at = 0
        while at < len(offsets) and self._size_bytes < GROUP_BYTES_MAX:
            first, position, limit = segment.region(offsets[at])
            until = at + 1
            while until < len(offsets) and offsets[until] < limit:
                until += 1
            if position >= 0:
                wanted = min(size_bytes - position, HEAD_BYTES if until == at + 1 else REGION_BYTES)
                try:
                    got = os.preadv(fd, [memoryview(buffer)[:wanted]], position, flags)
                    if got == HEAD_BYTES and locate(buffer, 0, got, first, offsets[at]) < 0:
                        wanted = min(size_bytes - position, REGION_BYTES)
                        got = os.preadv(fd, [memoryview(buffer)[:wanted]], position, flags)
                except BlockingIOError:
                    got = 0
                if got == wanted:
                    region = _Region(fd, buffer, got, position, flags, segment, limit=size_bytes)
                    is_cold = self._take(region, first, offsets[at:until]) or is_cold
                else:
                    is_cold = True
            at = until
        return is_cold

    def _take(self, region: "_Region", first: int, offsets: list[int]) -> bool:
        """Take the messages at these offsets out of a region; returns whether a part of it was not
        in the page cache."""
        at = index = 0
        while index < len(offsets):
            at = locate(region.data, at, region.end, first, offsets[index])
            if at < 0:
                return False
            length, _, first, _, count, _ = HEADER.unpack_from(region.data, at)
            until = index + 1
            while until < len(offsets) and offsets[until] < first + count:
                until += 1
            try:
                batches = region.batches(at, 4 + length, self._log.base_id, offsets[index:until])
            except BlockingIOError:
                return True
            for offset, batch in zip(offsets[index:until], batches, strict=False):
                self.found[offset] = batch
            is_one = bool(batches) and batches[0] is batches[-1]
            self._size_bytes += sum(len(b.frames) for b in (batches[:1] if is_one else batches))
            index = until
        return False


class _Region:
    """What was read of a region, and how to read more."""

    __slots__ = ("_fd", "_flags", "_is_checked", "_limit", "_position", "_sound_at", "data", "end")

    def __init__(
        self,
        fd: int,
        data: bytearray,
        end: int,
        position: int,
        flags: int,
        segment: Segment,
        *,
        limit: int,
    ) -> None:
        self._limit = limit  # of positions
        self._is_checked = position >= segment.unchecked_bytes
        self._sound_at = segment.sound_at
        self.data = data
        self.end = end
        self._fd = fd
        self._position = position
        self._flags = flags

    def batches(self, at: int, size: int, base_id: int, offsets: list[int]) -> list[LogBatch]:
        """For each offset a batch that has it, from the batch of `size` bytes at `at`; none if that
        is damaged."""
        if at + size <= self.end:
            return _whole(self._read(at, size), len(offsets))
        is_checked = self._is_checked or self._position + at in self._sound_at
        if size > BLOCK_BYTES_MAX and not is_checked:
            return []
        if size <= BLOCK_BYTES_MAX and (len(offsets) >= _WHOLE_FROM or not is_checked):
            found = _whole(self._read(at, size), len(offsets))
            if found and size > REGION_BYTES:  # at most 6,400 of 100 MiB are
                self._sound_at.add(self._position + at)
            return found
        head = bytes(memoryview(self.data)[at : at + HEADER_BYTES])
        singles = [self._single(at, size, head, base_id, offset) for offset in offsets]
        return [batch for batch in singles if batch is not None] if all(singles) else []

    def _single(
        self, at: int, size: int, head: bytes, base_id: int, offset: int
    ) -> LogBatch | None:
        """One message of a large batch, which this process wrote or has checked: to sum the whole
        batch again would take 0.3 ms."""
        _, _, first, _, count, flags = HEADER.unpack(head)
        index = offset - first
        ends_at = at + HEADER_BYTES
        begin = self._read_u32(ends_at + 4 * index - 4) if index else 0
        end = self._read_u32(ends_at + 4 * index)
        dues_at = frames_at = ends_at + 4 * count
        due: Dues = b""
        if flags & DUES:
            frames_at += DUE_BYTES * count
            due = self._read(dues_at + DUE_BYTES * index, DUE_BYTES)
        if not end - begin >= MESSAGE_OVERHEAD_BYTES or frames_at + end > at + size:
            return None
        frame = self._read(frames_at + begin, end - begin)
        its_id = frame[ID_AT : ID_AT + ID_BYTES]
        if its_id != b"%016x" % (base_id + offset):
            return None
        if _FRAME_HEAD.unpack_from(frame) != (len(frame) - 4, _MESSAGE):
            return None
        batch = LogBatch(
            first=offset,
            count=1,
            timestamp_ns=_TIMESTAMP.unpack_from(frame, _TIMESTAMP_AT)[0],
            ends=memoryview(_U32.pack(len(frame))),
            frames=frame,
        )
        return ExtendedBatch(batch, due) if due else batch

    def _read_u32(self, at: int) -> int:
        return int(_U32.unpack(self._read(at, 4))[0])

    def _read(self, at: int, size: int) -> memoryview:
        """Bytes from `at` on, which is relative to the region; BlockingIOError if they are not in
        the page cache."""
        if at + size <= self.end:
            return memoryview(bytes(memoryview(self.data)[at : at + size]))
        if self._position + at + size > self._limit:
            raise BlockingIOError  # what says so is damaged
        if self._flags and size > BLOCK_BYTES_MAX:
            raise BlockingIOError  # 1 ms and more: for a thread
        buffer = unfilled(size)
        if os.preadv(self._fd, [buffer], self._position + at, self._flags) != size:
            raise BlockingIOError
        return memoryview(buffer)


def _whole(data: memoryview, count: int) -> list[LogBatch]:
    try:
        return [read_batch(data, 0)] * count
    except BadBatch:
        return []
