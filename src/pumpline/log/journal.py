"""The journal of a data directory: small publishes to many topics, on the way to their logs.

One write takes what was published to all of them in a tick; their logs get it later, in larger
pieces. A record is a batch (`core.messages.batches`) with the frames of any topics: a message's id
says which log it belongs to, and where in it (id = the log's base id + offset).

Two files take turns: while the messages of one are filed in their logs, the other is written to;
when all are, the first is emptied. A kill leaves messages that their logs lack: `unfiled` has them
on the next start. An append that fails has written nothing, or the file takes no more until it is
emptied (`is_torn`). An fsync is somebody else's: `take_dirty` says of which files, and `synced` or
`cut_back` what came of it.
"""

import errno
import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from struct import Struct

from pumpline.core.messages.batches import Builder, LogBatch
from pumpline.core.messages.frame import ID_AT, ID_BYTES
from pumpline.log.files import FilePool, lacks_room, write_all, write_whole
from pumpline.log.log import Log
from pumpline.log.recovery import DAMAGED, parse
from pumpline.log.segment import OFFSET_END

NAMES = ("journal-0", "journal-1")

_TIMESTAMP = Struct(">q")
_TIMESTAMP_AT = 8
_U32 = Struct(">I")
_LOG = logging.getLogger(__name__)


class PublishJournal:
    def __init__(self, directory: str, files: FilePool) -> None:
        self._files = [_File(os.path.join(directory, name), files) for name in NAMES]
        self._unfiled: Unfiled | None = None

    @property
    def size_bytes(self) -> int:
        """Of the file that is written to."""
        return self._files[0].size_bytes

    @property
    def is_torn(self) -> bool:
        """Whether the file that is written to takes no more."""
        return self._files[0].is_torn

    @property
    def is_unemptied(self) -> bool:
        """Whether the other file could not be cut or emptied: it may have what was refused."""
        return self._files[1].is_torn and not self._files[1].is_kept

    def append(self, batch: LogBatch) -> None:
        """Write `batch`, or raise OSError having written nothing that counts."""
        self._files[0].append(batch.parts())

    def take_dirty(self) -> list[str]:
        """The paths that an fsync has to cover from now on, so that all so far is on the disk."""
        return [path for file in self._files for path in file.take_dirty()]

    def synced(self) -> None:
        """The fsync of what `take_dirty` returned last has succeeded."""
        for file in self._files:
            file.synced()

    def cut_back(self) -> None:
        """Take back everything that was appended and is not synced."""
        for file in self._files:
            file.cut_back()

    def turn(self) -> None:
        """Write to the other file from now on, if it is empty."""
        current, other = self._files
        if not other.size_bytes and not other.is_torn:
            self._files = [other, current]

    def empty(self, *, both: bool) -> None:
        """All messages of the file that is not written to, or of both, are in their logs."""
        self._files[1].empty()
        if both:
            self._files[0].empty()

    def remove(self) -> None:
        """All messages are in their logs."""
        for file in self._files:
            file.remove()

    @property
    def unfiled(self) -> "Unfiled":
        """What a kill left; to be asked for before anything is appended."""
        if self._unfiled is None:
            frames: dict[int, memoryview] = {}
            for file in self._files:
                for batch in file.read():
                    frames.update(_by_id(batch))
            self._unfiled = Unfiled(frames)
        return self._unfiled

    def forget_unfiled(self) -> None:
        """All of it is in the logs."""
        self._unfiled = None
        self.remove()


class Unfiled:
    """Messages of a journal, by their ids."""

    def __init__(self, frames: dict[int, memoryview]) -> None:
        self._frames = frames
        self._ids = sorted(frames)

    def has_any_of(self, log: Log) -> bool:
        """Whether the journal has messages that are in the log, or follow on it."""
        return bool(self._ids_of(log))

    def mend(self, log: Log) -> None:
        """Cut the log off where it lacks messages that are here. A loss of power may have taken
        some that were not synced and spared later ones; all of these are here as well."""
        ids = self._ids_of(log)
        if ids and ids[0] < log.base_id + log.end:
            gap = log.first_gap(ids[0] - log.base_id)
            if gap is not None and self._has_all(log.base_id + gap[2], log.base_id + log.end):
                log.cut_back(gap)

    def _has_all(self, first_id: int, end_id: int) -> bool:
        return all(message_id in self._frames for message_id in range(first_id, end_id))

    def _ids_of(self, log: Log) -> list[int]:
        start = bisect_left(self._ids, log.base_id)
        return self._ids[start : bisect_right(self._ids, log.base_id + log.end, lo=start)]

    def take(self, log: Log) -> Builder | None:
        """Those that follow on the end of the log, if any."""
        builder = Builder(first=log.end, timestamp_ns=0)
        while (frame := self._frames.pop(log.base_id + builder.end, None)) is not None:
            builder.add(bytes(frame))
        return builder if builder.ends else None


def _by_id(batch: LogBatch) -> Iterator[tuple[int, memoryview]]:
    start = 0
    for (end,) in _U32.iter_unpack(batch.ends):
        frame = batch.frames[start:end]
        yield int(bytes(frame[ID_AT : ID_AT + ID_BYTES]), 16), frame
        start = end


def seal(builder: Builder) -> LogBatch:
    """The batch for a log of messages that came in the course of some ticks."""
    builder.timestamp_ns = _TIMESTAMP.unpack_from(builder.frames, _TIMESTAMP_AT)[0]
    return builder.seal()


class _File:
    def __init__(self, path: str, files: FilePool) -> None:
        self.size_bytes = 0
        self.is_torn = False
        self._synced_bytes = 0
        self._syncing_bytes = 0  # what an fsync that is under way covers
        self._is_new = True  # its name is not synced
        self.is_kept = False  # it is damaged, and there was no room for a copy
        self._path = path
        self._files = files

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
        if self.size_bytes == self._synced_bytes:
            return []
        return [self._path, os.path.dirname(self._path)] if self._is_new else [self._path]

    def synced(self) -> None:
        if self._syncing_bytes:
            self._is_new = False
        self._synced_bytes = self._syncing_bytes

    def cut_back(self) -> None:
        if self.size_bytes > self._synced_bytes:
            self._cut(self._synced_bytes)

    def empty(self) -> None:
        if (self.size_bytes or self.is_torn) and not self.is_kept:
            self._cut(0)

    def _cut(self, size_bytes: int) -> None:
        try:
            os.ftruncate(self._files.get(self._path), size_bytes)
        except OSError as error:
            # What would come after a torn record could not be found again.
            _LOG.error("JOURNAL: cannot cut %s: %s", self._path, error)
            self.is_torn = True
        else:
            self._has(size_bytes)

    def _has(self, size_bytes: int) -> None:
        """The file is sound up to here, and ends here."""
        self.size_bytes = size_bytes
        self._synced_bytes = min(self._synced_bytes, size_bytes)
        self._syncing_bytes = min(self._syncing_bytes, size_bytes)
        self.is_torn = False

    def remove(self) -> None:
        self._files.forget(self._path)
        if self.is_kept:
            return
        try:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
        except OSError as error:  # what is in it is in the logs, and will be found there
            _LOG.error("JOURNAL: cannot remove %s: %s", self._path, error)
            return
        self._is_new = True
        self._has(0)

    def read(self) -> list[LogBatch]:
        try:
            with open(self._path, "rb") as file:
                data = memoryview(file.read())
        except FileNotFoundError:
            return []
        self.size_bytes = len(data)
        self._synced_bytes = len(data)  # it may have been acknowledged: `cut_back` must leave it
        self.is_torn = bool(data)  # perhaps: nothing is appended before it is emptied
        batches, at, fault = parse(data, OFFSET_END)
        if fault:
            self._set_aside(data, at, is_torn=fault != DAMAGED)
        return batches

    def _set_aside(self, data: memoryview, at: int, *, is_torn: bool) -> None:
        """What follows is no record: one that was never acknowledged if it ends early, else perhaps
        damage, of which a copy is kept."""
        size_bytes = len(data) - at
        if is_torn:
            what = (self._path, size_bytes, at)
            _LOG.warning("JOURNAL: %s: torn tail of %d bytes at %d cut off", *what)
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
        _LOG.error("JOURNAL: %s: %d bytes at %d damaged, kept in %s", *what_is_bad)
