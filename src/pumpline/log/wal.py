"""The write-ahead log of a data directory: what all topics published, on the way to their segments.

A *record* is a batch (`core.messages.batches`). Most hold small messages of many topics: a
message's id says to which log it belongs, and where in it (id = the log's base id + offset); their
field `first` is MIXED. The others are batches of one log, as its segment will have them: large
ones, and those with due times or publish tokens.

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
from contextlib import suppress

from pumpline.core.messages.batches import LogBatch
from pumpline.log.files import FilePool, write_all
from pumpline.log.segment import OFFSET_END
from pumpline.log.unflushed import GAP_MAX, Unflushed, read_records

PREFIX = "wal-"
MIXED = OFFSET_END  # in the place of the first offset: the messages are of any logs

_LOG = logging.getLogger(__name__)


class WriteAheadLog:
    def __init__(self, directory: str, files: FilePool) -> None:
        self._directory = directory
        self._files = files
        found = (number_in(name) for name in os.listdir(directory))
        numbers = sorted(number for number in found if number is not None)
        self._old = [self._file(number) for number in numbers]  # to be flushed and removed
        self._current = self._file(numbers[-1] + 1 if numbers else 0)
        self.gap_max = GAP_MAX  # see `Unflushed`
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

    def append(self, parts: list[bytes | memoryview]) -> int:
        """Write records, or raise OSError having written nothing that counts; returns their
        size."""
        return self._current.append(parts)

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
    def unflushed(self) -> Unflushed:
        """What a kill left; to be asked for before anything is appended."""
        if self._unflushed is None:
            records = [record for file in self._old for record in file.read()]
            self._unflushed = Unflushed(records, gap_max=self.gap_max)
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

    def append(self, parts: list[bytes | memoryview]) -> int:
        if self.is_torn:
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)
        fd = self._files.get(self._path)
        try:
            size_bytes = write_all(fd, parts)
        except OSError:
            self._cut(self.size_bytes)
            raise
        self.size_bytes += size_bytes
        return size_bytes

    def take_dirty(self) -> list[str]:
        self._syncing_bytes = self.size_bytes
        if self.size_bytes == self._synced_bytes and not self._is_cut:
            return []
        self._is_cut_covered = self._is_cut
        return [self._path, os.path.dirname(self._path)] if self._is_new else [self._path]

    def synced(self) -> None:
        assert self._synced_bytes <= self._syncing_bytes <= self.size_bytes, "positions only grow"
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
            found = read_records(self._path)
        except FileNotFoundError:
            return []
        self.size_bytes = found.size_bytes
        self._synced_bytes = found.size_bytes  # perhaps acknowledged: `cut_back` must leave it
        self.is_torn = True  # perhaps: nothing is appended to it
        for damage in found.damages:
            level = logging.ERROR if damage.kept_in else logging.WARNING
            _LOG.log(level, "WAL: %s", damage)
            self.is_kept = self.is_kept or damage.kept_in == self._path
        return found.records
