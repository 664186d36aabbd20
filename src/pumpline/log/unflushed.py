"""What a kill left in the write-ahead log, and the segments may lack.

`read_records` reads a file, which may be damaged, by the rules of `log.recovery`: damage costs the
records that it hit, and a copy of it is kept; a record that ends early at the end of the file was
never acknowledged. `Unflushed` has the messages of all records by their ids, and gives each log
those that follow on it.
"""

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import repeat
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

from pumpline.core.messages.batches import (
    FULL_BYTES,
    BadBatch,
    Builder,
    LogBatch,
    ShortBatch,
    read_batch,
)
from pumpline.core.messages.frame import ID_AT, ID_BYTES, MESSAGE_OVERHEAD_BYTES
from pumpline.log.files import open_file
from pumpline.log.log import Log
from pumpline.log.recovery import Damage, copy_damage_if_room, find_batch, parse, resync
from pumpline.log.segment import OFFSET_END

GAP_MAX = 1 << 24  # offsets: another log has ids so near with a probability of 2^-39

_U32 = Struct(">I")
_U64 = Struct(">Q")
_I64 = Struct(">q")
_FIRST = attrgetter("first")
# What a record may have as its first offset: that of records of many logs (`wal.MIXED`), or one of
# a log, below 2^48.
_FIRSTS = b"(?:" + re.escape(_U64.pack(OFFSET_END)) + rb"|\0\0.{6})"


class WalRecords(NamedTuple):
    """What is in a file of the write-ahead log."""

    records: list[LogBatch]
    size_bytes: int  # of the file
    damages: list[Damage]


KeepDamage = Callable[[int, str, int, int], Damage]


def read_records(path: str, *, keep: KeepDamage = copy_damage_if_room) -> WalRecords:
    """All whole records of a file; FileNotFoundError if there is none. `keep` is called for what is
    damaged, as `copy_damage_if_room`."""
    fd = open_file(path)
    try:
        size_bytes = os.fstat(fd).st_size
        data = memoryview(os.pread(fd, size_bytes, 0))
        return WalRecords(*_parse_records(fd, path, data, keep))
    finally:
        os.close(fd)


def _parse_records(
    fd: int, path: str, data: memoryview, keep: KeepDamage
) -> tuple[list[LogBatch], int, list[Damage]]:
    records: list[LogBatch] = []
    damages: list[Damage] = []
    at, size_bytes = 0, len(data)
    while at < size_bytes:
        try:
            record = read_batch(data, at)
        except BadBatch as fault:
            resume = find_batch(fd, at, size_bytes, firsts=_FIRSTS, belongs=_is_record)
            if resume is None and isinstance(fault, ShortBatch):
                damages.append(Damage(path, at, size_bytes - at, ""))
                break
            resume = size_bytes if resume is None else resume
            damages.append(keep(fd, path, at, resume))
            at = resume
        else:
            records.append(record)
            at += record.size_bytes
    return records, size_bytes, damages


def _is_record(batch: LogBatch) -> bool:
    """Whether what looks like a batch, and may be the body of a message, has messages."""
    try:
        return all(len(message.frame) >= MESSAGE_OVERHEAD_BYTES for _, message in by_id(batch))
    except ValueError:
        return False


class _Message(NamedTuple):
    frame: memoryview
    due_ns: int
    record: LogBatch


class Unflushed:
    """Messages that a kill left in the write-ahead log, by their ids."""

    def __init__(self, records: list[LogBatch], *, gap_max: int = GAP_MAX) -> None:
        """A message may follow on the end of its log with `gap_max` offsets left out between."""
        self._gap_max = gap_max
        self._messages: dict[int, _Message] = {}
        for record in records:
            self._messages.update(by_id(record))
        self._ids = sorted(self._messages)

    def has_any_of(self, log: Log) -> bool:
        """Whether there are messages that are in the log, or follow on it."""
        return bool(self._ids_of(log))

    def repair(self, log: Log) -> None:
        """Cut the segments off where they lack a message that is here, and take over what they
        have after it. A loss of power may have taken messages that were not synced, and spared
        later ones."""
        ids = self._ids_of(log)
        if not ids or ids[0] >= log.base_id + log.end:
            return
        gap = _first_gap(log, ids[0] - log.base_id)
        if gap is None or log.base_id + gap[2] not in self._messages:
            return
        for batch in _batches_after(log, gap):
            for message_id, message in by_id(batch):
                self._messages.setdefault(message_id, message)
        self._ids = sorted(self._messages)
        log.cut_back(gap)
        log.synced = log.written
        log.start_at(log.written)
        log.syncing.begin_again()

    def _ids_of(self, log: Log) -> list[int]:
        start = bisect_left(self._ids, log.base_id)
        return self._ids[start : bisect_right(self._ids, log.base_id + log.end, lo=start)]

    def next_offset(self, log: Log) -> int | None:
        """The first offset after the end of the log that is here, if any is. It need not follow on
        the end: an earlier start may have left out offsets that were lost."""
        return self._next_offset(log.base_id, log.end)

    def _next_offset(self, base_id: int, offset: int) -> int | None:
        index = bisect_left(self._ids, base_id + offset)
        if index == len(self._ids) or self._ids[index] >= base_id + offset + self._gap_max:
            return None
        return self._ids[index] - base_id

    def take(self, log: Log) -> list[LogBatch]:
        """Those from the end of the log on, in order. Offsets are missing between them where
        damage took a record."""
        batches: list[LogBatch] = []
        offset: int | None = log.end
        while offset is not None:
            run = self._take_run(log.base_id, offset)
            batches += run
            offset = self._next_offset(log.base_id, run[-1].end if run else offset + 1)
        return batches

    def _take_run(self, base_id: int, first: int) -> list[LogBatch]:
        """Those that follow on each other from `first` on."""
        batches: list[LogBatch] = []
        builder = Builder(first=first, timestamp_ns=0)
        newest_ns = 0
        while (found := self._messages.pop(base_id + builder.end, None)) is not None:
            frame, due_ns, record = found
            if record.first == builder.end:  # a batch of this log alone
                batches += _sealed(builder)
                batches.append(record)
                for message_id in range(base_id + record.first, base_id + record.end):
                    self._messages.pop(message_id, None)
                builder = Builder(first=record.end, timestamp_ns=0)
                continue
            published_ns = int.from_bytes(frame[8:16], "big", signed=True)
            if published_ns < newest_ns or len(builder.frames) >= FULL_BYTES:
                batches += _sealed(builder)
                builder = Builder(first=builder.end, timestamp_ns=0)
            newest_ns = published_ns
            builder.add(bytes(frame), due_ns)
        return batches + _sealed(builder)


def _first_gap(log: Log, offset: int) -> tuple[int, int, int] | None:
    """The first place after `offset` at which the log lacks an offset below its end, as
    `cut_back` takes it: segment, position, offset. Reads what there is from `offset` on."""
    segments = log.segments
    for segment in segments[max(bisect_right(segments, offset, key=_FIRST) - 1, 0) :]:
        at = segment.near(offset)  # 0 in those that follow
        fd = log.files.get(segment.path)
        data = memoryview(os.pread(fd, segment.size_bytes - at, at))
        limit = log.limit_of(segment)
        batches, _, _ = parse(data, limit)
        end = batches[0].first if at and batches else segment.first
        for batch in batches:
            if batch.first > end:
                return segment.first, at, end
            end = batch.end
            at += batch.size_bytes
        if end < min(limit, log.written):
            return segment.first, at, end
    return None


def _batches_after(log: Log, gap: tuple[int, int, int]) -> Iterator[LogBatch]:
    """The batches that the segments have after a gap, also after damaged bytes."""
    segment_first, position, offset = gap
    for segment in log.segments[bisect_left(log.segments, segment_first, key=_FIRST) :]:
        fd = log.files.get(segment.path)
        limit, size_bytes = log.limit_of(segment), segment.size_bytes
        at: int | None = position if segment.first == segment_first else 0
        while at is not None and at < size_bytes:
            data = memoryview(os.pread(fd, size_bytes - at, at))
            batches, used, _ = parse(data, limit)
            yield from batches
            offset = batches[-1].end if batches else offset
            at = resync(fd, at + used, size_bytes, offset=offset, limit=limit)


def _sealed(builder: Builder) -> list[LogBatch]:
    if not builder.ends:
        return []
    builder.timestamp_ns = builder.published_ns(builder.first)
    return [builder.seal()]


def by_id(record: LogBatch) -> Iterator[tuple[int, _Message]]:
    start = 0
    dues = (due_ns for (due_ns,) in _I64.iter_unpack(record.dues)) if record.dues else repeat(0)
    for (end,), due_ns in zip(_U32.iter_unpack(record.ends), dues, strict=False):
        frame = record.frames[start:end]
        yield int(bytes(frame[ID_AT : ID_AT + ID_BYTES]), 16), _Message(frame, due_ns, record)
        start = end
