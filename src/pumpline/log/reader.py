"""A reader: one channel's place in a log on disk.

`batch(offset)` answers at once from memory: the log's tail, or the block read last. What is not in
memory is read from the page cache without waiting (RWF_NOWAIT); what is not there either is read
in a thread, and `on_ready` is called when it came. A reader holds one block, so a channel a billion
messages behind costs what one costs that keeps up. Readers of one log that are near each other
share their blocks.
"""

import os
from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from pumpline.core.messages.batches import HEADER_BYTES, AnyBatch, LogBatch
from pumpline.core.messages.kernels import locate, unfilled
from pumpline.log import recovery
from pumpline.log.files import open_file
from pumpline.log.recovery import Damage
from pumpline.log.segment import INDEX_STRIDE_BYTES, Segment, seek_batch

if TYPE_CHECKING:  # a log makes its readers
    from pumpline.log.log import Log

BLOCK_BYTES = 512 * 1024
BLOCK_BYTES_MAX = 2 << 20  # of one large batch: 1 ms; what is larger is read in a thread
REGION_BYTES = INDEX_STRIDE_BYTES + HEADER_BYTES  # have all headers between two index points
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_FIRST = attrgetter("first")


class Block:
    """Consecutive batches of one segment, as read from the file."""

    __slots__ = ("__weakref__", "batches", "next_position", "position", "segment")

    def __init__(
        self, segment: Segment, position: int, batches: list[LogBatch], next_position: int
    ) -> None:
        self.segment = segment
        self.position = position
        self.batches = batches
        self.next_position = next_position


class Loaded(NamedTuple):
    block: Block  # without batches: nothing valid from there to the end of the segment
    damages: list[Damage]


class Reader:
    __slots__ = (
        "__weakref__",
        "_block",
        "_covers_from",
        "_current",
        "_loading",
        "_log",
        "_on_ready",
        "_outdated",
    )

    def __init__(self, log: "Log", on_ready: Callable[[], None]) -> None:
        self._log = log
        self._on_ready = on_ready
        self._block: Block | None = None
        self._covers_from = 0  # the block has all there is from this offset to its last batch
        self._current: AnyBatch | None = None
        self._loading = False
        self._outdated = False  # what is being loaded is not to be used

    def batch(self, offset: int) -> AnyBatch | None:
        """The batch with `offset`, or the next one if `offset` is gone, or an empty one where the
        segments end if there is none. None: not in memory yet."""
        current = self._current
        if current is None or not current.first <= offset < current.end:
            current = self._current = self._log.in_tail(offset) or self._from_file(offset)
        return current

    def release(self) -> None:
        """Free the block; the next read looks for its place again."""
        self._block = self._current = None

    def forget(self) -> None:
        """The log was cut back or closed: what was read, or is being read, may be gone."""
        self.release()
        self._outdated = self._loading

    def _from_file(self, offset: int) -> LogBatch | None:
        while not self._loading:
            block = self._block
            batches = block.batches if block is not None else None
            if batches and self._covers_from <= offset < batches[-1].end:
                return _at_or_after(batches, offset)
            segment, position = self._place(block, offset)
            if segment is None:
                return _nothing_before(self._log.written) if offset < self._log.written else None
            if position is None:
                position = self._position(segment, offset)
            found = self._log.cached_block(segment, position)
            if found is None:
                found = self._read_now(segment, position)
            if found is None:
                self._load(segment, position, offset)
            else:
                self._block = found
                self._covers_from = offset
        return None

    def _place(self, block: Block | None, offset: int) -> tuple[Segment | None, int | None]:
        """Where to read next: (segment, position); position None when it has to be looked for."""
        log = self._log
        if block is not None and log.contains(block.segment):
            grown = block.next_position < block.segment.size_bytes
            if not block.batches and offset >= self._covers_from:
                # Nothing valid was in the rest of that segment; more may have come since.
                if grown:
                    return block.segment, block.next_position
                return log.segment_after(block.segment), 0
            if block.batches and block.batches[-1].end == offset and grown:
                return block.segment, block.next_position
        segment = log.segment_of(offset)
        if segment is not None and segment.first >= offset:
            return segment, 0
        return segment, None

    def _position(self, segment: Segment, offset: int) -> int | None:
        """Where the batch with `offset` begins, by the index and the page cache; None when that is
        not enough."""
        first, position, _ = segment.region(offset)
        if position < 0 or not _NOWAIT:
            return None
        buffer = unfilled(min(segment.size_bytes - position, REGION_BYTES))
        try:
            got = os.preadv(self._log.files.get(segment.path), [buffer], position, _NOWAIT)
        except OSError:
            return None  # the thread meets the same error, if it is one, and reports it
        at = locate(buffer, 0, got, first, offset)
        return position + at if at >= 0 else None

    def _read_now(self, segment: Segment, position: int | None) -> Block | None:
        """Read from the page cache only; None when that is not enough."""
        if (position or 0) >= segment.size_bytes:  # there may be no file yet
            return Block(segment, segment.size_bytes, [], segment.size_bytes)
        if position is None or not _NOWAIT or position in segment.holes:
            return None
        end = segment.block_end(position, wanted_bytes=BLOCK_BYTES, bytes_max=BLOCK_BYTES_MAX)
        buffer = unfilled(end - position)
        try:
            fd = self._log.files.get(segment.path)
            got = os.preadv(fd, [buffer], position, _NOWAIT)
        except OSError:
            return None  # the thread meets the same error, if it is one, and reports it
        batches, used, fault = recovery.parse(memoryview(buffer)[:got], self._log.limit_of(segment))
        if not batches or fault == recovery.DAMAGED:
            return None
        return self._log.keep_block(Block(segment, position, batches, position + used))

    def _load(self, segment: Segment, position: int | None, offset: int) -> None:
        self._loading = True
        size_bytes = segment.size_bytes
        limit = self._log.limit_of(segment)

        def job() -> Loaded:
            return load(
                segment,
                position,
                size_bytes,
                offset=offset,
                limit=limit,
                is_outdated=lambda: self._outdated,
            )

        def done(result: Loaded | BaseException) -> None:
            self._loaded(result, segment, offset)

        self._log.offload(job, done)

    def _loaded(self, result: Loaded | BaseException, segment: Segment, offset: int) -> None:
        outdated = self._outdated or not self._log.contains(segment)
        if not isinstance(result, BaseException):
            self._log.report_damage(result.damages)
            if not outdated:
                self._block = self._log.keep_block(result.block)
                self._covers_from = offset
        elif not outdated:
            self._log.report_read_error(result, self._end_load)
            return
        self._end_load()

    def _end_load(self) -> None:
        self._loading = self._outdated = False
        self._on_ready()


def _nothing_before(offset: int) -> LogBatch:
    """What stands for the end of a log whose last batches are damaged."""
    return LogBatch(
        first=offset,
        count=0,
        timestamp_ns=0,
        ends=memoryview(b""),
        frames=memoryview(b""),
    )


def _at_or_after(batches: list[LogBatch], offset: int) -> LogBatch:
    """The batch with `offset`, or the first after it; `offset` is below the last batch's end."""
    index = max(bisect_right(batches, offset, key=_FIRST) - 1, 0)
    return batches[index] if offset < batches[index].end else batches[index + 1]


def load(
    segment: Segment,
    position: int | None,
    size_bytes: int,
    *,
    offset: int,
    limit: int,
    is_outdated: Callable[[], bool],
) -> Loaded:
    """Read one block, from a thread: look for its place, step over damage, wait for the disk.

    Offsets from `limit` on are the next segment's. The file may be cut back meanwhile, or be that
    of another log: then it `is_outdated`, and what is read from it is no damage.
    """
    damages: list[Damage] = []
    fd = open_file(segment.path)
    try:
        if position is None:
            position = seek_batch(fd, segment.near(offset), offset, size_bytes)
        readable = min(size_bytes, os.fstat(fd).st_size)  # less: cut back meanwhile
        known = segment.first  # no batch from here on begins below
        want = BLOCK_BYTES
        while position < readable:
            if position in segment.holes:
                position = segment.holes[position]
                continue
            data = os.pread(fd, min(want, readable - position), position)
            if not data:
                break
            batches, used, fault = recovery.parse(memoryview(data), limit)
            if batches and batches[-1].end > offset:
                return Loaded(Block(segment, position, batches, position + used), damages)
            if batches:
                position += used
                known = batches[-1].end
                want = BLOCK_BYTES
            elif 0 < fault <= readable - position:
                want = fault
            elif is_outdated():
                break
            else:
                found = recovery.resync(fd, position, readable, offset=known, limit=limit)
                resume = found or readable
                damages.append(recovery.set_aside(fd, segment, position, resume))
                position = resume
        return Loaded(Block(segment, size_bytes, [], size_bytes), damages)
    finally:
        os.close(fd)
