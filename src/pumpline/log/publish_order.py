"""Where the publish times of a log rise: `<offset, 20 digits>.unordered`, an empty file.

Messages are in the order of their publish times, unless the clock was set back. The file says from
which offset on they are. Batches in memory count as well (`start_with`): the file is written with
them.
"""

import os
from collections.abc import Iterable
from contextlib import suppress

from pumpline.core.messages.batches import AnyBatch
from pumpline.log.files import open_file
from pumpline.log.segment import offsets_in_names

_SUFFIX = ".unordered"


class PublishOrder:
    __slots__ = ("_directory", "newest_ns", "start")

    def __init__(self, directory: str, names: Iterable[str]) -> None:
        """Of a log with these files."""
        self._directory = directory
        self.newest_ns = 0  # no written message from `start` on was published later
        *old, self.start = offsets_in_names(names, _SUFFIX) or [0]
        for offset in old:  # a kill left it
            with suppress(OSError):
                os.unlink(self._path(offset))

    def start_at(self, offset: int) -> None:
        """Publish times before `offset` say nothing about those from there on. OSError if that
        cannot be noted."""
        before = self.start
        os.close(open_file(self._path(offset), os.O_CREAT | os.O_WRONLY))
        self.start = offset
        if before != offset:
            with suppress(FileNotFoundError):
                os.unlink(self._path(before))

    def start_with(self, batches: Iterable[AnyBatch], first: int) -> int:
        """What `start` will be once these are written, to a log that begins at `first`."""
        start, newest_ns = self.start, self.newest_ns
        for batch in batches:
            if batch.published_ns(batch.first) < newest_ns and batch.first != first:
                start = batch.first
            newest_ns = batch.published_ns(batch.end - 1)
        return start

    def _path(self, offset: int) -> str:
        return os.path.join(self._directory, f"{offset:020d}{_SUFFIX}")
