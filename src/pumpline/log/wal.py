"""The write-ahead log of a data directory: what all topics published, on the way to their segments.

A *record* is a batch (`core.messages.batches`). Most hold small messages of many topics: a
message's id says to which log it belongs, and where in it (id = the log's base id + offset); their
field `first` is MIXED. The others are batches of one log, as its segment will have them: large
ones, and those with a due time or publish tokens.

A file is written to until it is *turned*: then there is a next one, with a higher number, and the
messages of the first are flushed to the segments. When all are there, the file is removed. A kill
leaves messages that the segments lack: `unflushed` has them on the next start. Where an id is in
two records, the later one counts: the other was refused, and could not be cut off.

An append that fails has written nothing, or the file takes no more (`is_torn`). An fsync is
somebody else's: `take_dirty` says of which files, and `synced` or `cut_back` what came of it.
"""

import errno
import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
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
from pumpline.core.messages.frame import ID_AT, ID_BYTES
from pumpline.log.files import FilePool, lacks_room, write_all, write_whole
from pumpline.log.log import Log
from pumpline.log.recovery import parse
from pumpline.log.segment import OFFSET_END

PREFIX = "wal-"
GAP_MAX = 1 << 24  # offsets: another log has ids so near with a probability of 2^-39
MIXED = OFFSET_END  # in the place of the first offset: the messages are of any logs

_U32 = Struct(">I")
_FIRST = attrgetter("first")
_LOG = logging.getLogger(__name__)


class WriteAheadLog:
    def __init__(self, directory: str, files: FilePool) -> None:
        self._directory = directory
        self._files = files
        found = (number_in(name) for name in os.listdir(directory))
        numbers = sorted(number for number in found if number is not None)
        self._old = [self._file(number) for number in numbers]  # to be flushed and removed
        self._current = self._file(numbers[-1] + 1 if numbers else 0)
        self._unflushed: Unflushed | None = None

    def _file(self, number: int) -> "_File":
        return _File(os.path.join(self._directory, f"{PREFIX}{number:020d}"), number, self._files)

    @property
    def size_bytes(self) -> int:
        """Of the file that is written to."""
        return self._current.size_bytes

    @property
    def is_torn(self) -> bool:
        """The file that is written to takes no more."""
        return self._current.is_torn

    @property
    def has_old(self) -> bool:
        """An old file is still there: it may have what was refused."""
        return any(file.size_bytes and not file.is_kept for file in self._old)

    def append(self, parts: list[bytes | memoryview]) -> None:
        """Write records, or raise OSError having written nothing that counts."""
        self._current.append(parts)

    def take_dirty(self) -> list[str]:
        """The paths that an fsync has to cover from now on, so that all so far is on the disk."""
        paths = [path for file in self._all for path in file.take_dirty()]
        return list(dict.fromkeys(paths))

    def synced(self) -> None:
        """The fsync of what `take_dirty` returned last has succeeded."""
        for file in self._all:
            file.synced()

    def cut_back(self) -> None:
        """Take back everything that was appended and is not synced."""
        for file in self._all:
            file.cut_back()

    def turn(self) -> None:
        """Write to another file from now on, unless older ones are still there."""
        if self._current.is_used and not self._old:
            self._old = [self._current]
            self._current = self._file(self._current.number + 1)

    def remove(self, *, all_files: bool) -> None:
        """All messages of the old files, or of all, are in their segments."""
        self._old = [file for file in self._old if not file.remove()]
        if all_files and self._current.is_used:
            self._old += [] if self._current.remove() else [self._current]
            self._current = self._file(self._current.number + 1)

    @property
    def _all(self) -> "list[_File]":
        return [*self._old, self._current]

    @property
    def unflushed(self) -> "Unflushed":
        """What a kill left; to be asked for before anything is appended."""
        if self._unflushed is None:
            self._unflushed = Unflushed([record for file in self._old for record in file.read()])
        return self._unflushed

    def forget_unflushed(self) -> None:
        """All of it is in the segments."""
        self._unflushed = None
        self.remove(all_files=True)


def number_in(name: str) -> int | None:
    """The number in the name of a file of the write-ahead log, or None for another file."""
    digits = name.removeprefix(PREFIX)
    if digits == name or len(digits) != 20 or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


class _Message(NamedTuple):
    frame: memoryview
    record: LogBatch


class Unflushed:
    """Messages that a kill left in the write-ahead log, by their ids."""

    def __init__(self, records: list[LogBatch]) -> None:
        self._messages: dict[int, _Message] = {}
        for record in records:
            self._messages.update(_by_id(record))
        self._ids = sorted(self._messages)

    def has_any_of(self, log: Log) -> bool:
        """Whether there are messages that are in the log, or follow on it."""
        return bool(self._ids_of(log))

    def repair(self, log: Log) -> None:
        """Cut the segments off where they lack messages that are here. A loss of power may have
        taken some that were not synced and spared later ones; all of these are here as well."""
        ids = self._ids_of(log)
        if ids and ids[0] < log.base_id + log.end:
            gap = _first_gap(log, ids[0] - log.base_id)
            if gap is not None and self._has_all(log.base_id + gap[2], log.base_id + log.end):
                log.cut_back(gap)
                log.synced = log.written
                log.start_at(log.written)
                log.syncing.begin_again()

    def _has_all(self, first_id: int, end_id: int) -> bool:
        return all(message_id in self._messages for message_id in range(first_id, end_id))

    def _ids_of(self, log: Log) -> list[int]:
        start = bisect_left(self._ids, log.base_id)
        return self._ids[start : bisect_right(self._ids, log.base_id + log.end, lo=start)]

    def next_offset(self, log: Log) -> int | None:
        """The first offset after the end of the log that is here, if any is. It need not follow on
        the end: an earlier start may have left out offsets that were lost."""
        end_id = log.base_id + log.end
        index = bisect_left(self._ids, end_id)
        if index == len(self._ids) or self._ids[index] >= end_id + GAP_MAX:
            return None
        return self._ids[index] - log.base_id

    def take(self, log: Log) -> list[LogBatch]:
        """Those that follow on the end of the log."""
        batches: list[LogBatch] = []
        builder = Builder(first=log.end, timestamp_ns=0)
        newest_ns = 0
        while (found := self._messages.pop(log.base_id + builder.end, None)) is not None:
            frame, record = found
            if record.first == builder.end:  # a batch of this log alone
                batches += _sealed(builder)
                batches.append(record)
                for message_id in range(log.base_id + record.first, log.base_id + record.end):
                    self._messages.pop(message_id, None)
                builder = Builder(first=record.end, timestamp_ns=0)
                continue
            published_ns = int.from_bytes(frame[8:16], "big", signed=True)
            if published_ns < newest_ns or len(builder.frames) >= FULL_BYTES:
                batches += _sealed(builder)
                builder = Builder(first=builder.end, timestamp_ns=0)
            newest_ns = published_ns
            builder.add(bytes(frame))
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


def _sealed(builder: Builder) -> list[LogBatch]:
    if not builder.ends:
        return []
    builder.timestamp_ns = builder.published_ns(builder.first)
    return [builder.seal()]


def _by_id(record: LogBatch) -> Iterator[tuple[int, _Message]]:
    start = 0
    for (end,) in _U32.iter_unpack(record.ends):
        frame = record.frames[start:end]
        yield int(bytes(frame[ID_AT : ID_AT + ID_BYTES]), 16), _Message(frame, record)
        start = end


def read_records(data: memoryview) -> tuple[list[LogBatch], int, bool]:
    """The whole records at the start of `data`, the bytes they take, and whether what follows is
    damaged: it does not just end early."""
    records: list[LogBatch] = []
    at = 0
    while at < len(data):
        try:
            record = read_batch(data, at)
        except ShortBatch:
            return records, at, False
        except BadBatch:
            return records, at, True
        records.append(record)
        at += record.size_bytes
    return records, at, False


class _File:
    def __init__(self, path: str, number: int, files: FilePool) -> None:
        self.number = number
        self.size_bytes = 0
        self.is_torn = False
        self.is_kept = False  # it is damaged, and there was no room for a copy
        self._synced_bytes = 0
        self._syncing_bytes = 0  # what an fsync that is under way covers
        self._is_new = True  # its name is not synced
        self._is_cut = False  # likewise that it was cut: a loss of power may undo that
        self._is_cut_covered = False  # by an fsync that is under way
        self._path = path
        self._files = files

    @property
    def is_used(self) -> bool:
        """There is something in it."""
        return self.size_bytes > 0 or self.is_torn

    def append(self, parts: list[bytes | memoryview]) -> None:
        if self.is_torn:
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)
        fd = self._files.get(self._path)
        try:
            write_all(fd, parts)
        except OSError:
            self._cut(self.size_bytes)
            raise
        self.size_bytes += sum(map(len, parts))

    def take_dirty(self) -> list[str]:
        self._syncing_bytes = self.size_bytes
        if self.size_bytes == self._synced_bytes and not self._is_cut:
            return []
        self._is_cut_covered = self._is_cut
        return [self._path, os.path.dirname(self._path)] if self._is_new else [self._path]

    def synced(self) -> None:
        if self._syncing_bytes:
            self._is_new = False
        self._synced_bytes = self._syncing_bytes
        self._is_cut = self._is_cut and not self._is_cut_covered

    def cut_back(self) -> None:
        if self.size_bytes > self._synced_bytes:
            self._cut(self._synced_bytes)

    def _cut(self, size_bytes: int) -> None:
        try:
            os.ftruncate(self._files.get(self._path), size_bytes)
        except OSError as error:
            # What would come after a torn record could not be found again.
            _LOG.error("WAL: cannot cut %s: %s", self._path, error)
            self.is_torn = True
        else:
            self._is_cut, self._is_cut_covered = True, False
            self._has(size_bytes)

    def _has(self, size_bytes: int) -> None:
        """The file is sound up to here, and ends here."""
        self.size_bytes = size_bytes
        self._synced_bytes = min(self._synced_bytes, size_bytes)
        self._syncing_bytes = min(self._syncing_bytes, size_bytes)
        self.is_torn = False

    def remove(self) -> bool:
        """Returns whether there is no more to be done."""
        self._files.forget(self._path)
        if self.is_kept:
            return True
        try:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
        except OSError as error:  # what is in it is in the segments, and will be found there
            _LOG.error("WAL: cannot remove %s: %s", self._path, error)
            return False
        return True

    def read(self) -> list[LogBatch]:
        try:
            with open(self._path, "rb") as file:
                data = memoryview(file.read())
        except FileNotFoundError:
            return []
        self.size_bytes = len(data)
        self._synced_bytes = len(data)  # it may have been acknowledged: `cut_back` must leave it
        self.is_torn = True  # perhaps: nothing is appended to it
        records, at, is_damaged = read_records(data)
        if at < len(data):
            self._quarantine(data, at, is_torn=not is_damaged)
        return records

    def _quarantine(self, data: memoryview, at: int, *, is_torn: bool) -> None:
        """What follows is no record: one that was never acknowledged if it ends early, else perhaps
        damage, of which a copy is kept."""
        size_bytes = len(data) - at
        if is_torn:
            what = (self._path, size_bytes, at)
            _LOG.warning("WAL: %s: torn tail of %d bytes at %d cut off", *what)
            return
        kept = f"{self._path}.{at}.bad"
        try:
            write_whole(kept, bytes(data[at:]), sync=False)
        except OSError as failure:
            if not lacks_room(failure):
                raise
            kept = self._path
            self.is_kept = True
        what_is_bad = (self._path, size_bytes, at, kept)
        _LOG.error("WAL: %s: %d bytes at %d damaged, kept in %s", *what_is_bad)
