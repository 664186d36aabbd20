"""The disk as nsqd's parts see it: the data directory, its open files, and what writes to them.

`Disk` puts together what belongs to one data directory: whether writes succeed (`disk_health`),
when cursors are written (`checkpoints`), when logs are fsynced (`fsync`), and how work is moved to
a thread (`offload`). It knows no topics: they come to it as small protocols.
"""

from typing import Protocol

from pumpline.log.cursor import Clocks
from pumpline.log.directory import Directory
from pumpline.log.files import FilePool
from pumpline.log.journal import PublishJournal
from pumpline.log.log import Log
from pumpline.log.scheduling import Later, Offload
from pumpline.nsqd.options import Options
from pumpline.nsqd.storage.checkpoints import Checkpoints
from pumpline.nsqd.storage.disk_health import DiskHealth
from pumpline.nsqd.storage.fsync import Fsyncs


class Clock(Protocol):
    @property
    def wall_ns(self) -> int:
        """Nanoseconds since 1970."""

    @property
    def clocks(self) -> Clocks:
        """The steady clock, and what to add to get a date."""


class Disk:
    def __init__(
        self,
        directory: Directory,
        options: Options,
        *,
        clock: Clock,
        offload: Offload,
        later: Later,
        files: FilePool | None = None,
    ) -> None:
        self.directory = directory
        self.clock = clock
        self.files = files or FilePool()
        self.journal = PublishJournal(directory.path, self.files)
        self.offload = offload
        self.later = later
        self.delay_max_ns = options.max_req_timeout_ns  # of a message
        self.health = DiskHealth(directory.path, offload=offload, later=later)
        self.checkpoints = Checkpoints(offload=offload, later=later, clocks=lambda: clock.clocks)
        self.fsyncs = Fsyncs(
            every=options.sync_every,
            timeout_ns=options.sync_timeout_ns,
            offload=offload,
            later=later,
        )
        self._segment_bytes_max = options.max_bytes_per_file

    def open_log(self, topic: str, base_id: int, clean: tuple[int, int, int] | None = None) -> Log:
        """The log of a topic whose directory exists; `clean` as in `Log`."""
        return Log(
            self.directory.topic_path(topic),
            base_id=base_id,
            files=self.files,
            offload=self.offload,
            later=self.later,
            segment_bytes_max=self._segment_bytes_max,
            clean=clean,
        )
