"""The disk as nsqd's parts see it: the data directory, its open files, and what writes to them.

`Disk` puts together what belongs to one data directory: whether writes succeed (`disk_health`),
when cursors are written (`checkpoints`), when logs are fsynced (`fsync`), and how work is moved to
a thread (`offload`). It knows no topics: they come to it as small protocols.
"""

from collections.abc import Callable

from pumpline.log.completion import EXITING, Completion, completed
from pumpline.log.cursor import Clocks
from pumpline.log.directory import Directory
from pumpline.log.files import FilePool
from pumpline.log.flusher import Flusher
from pumpline.log.group_commit import GroupCommit
from pumpline.log.log import Log
from pumpline.log.ring import Ring
from pumpline.log.run_mark import SKIPPED, SYNC_EVERY_MAX
from pumpline.log.scheduling import Later, Offload
from pumpline.log.wal import WriteAheadLog
from pumpline.nsqd.options import Options
from pumpline.nsqd.storage.checkpoints import Checkpoints
from pumpline.nsqd.storage.disk_health import DiskHealth
from pumpline.nsqd.storage.fsync import Fsyncs


class Disk:
    def __init__(
        self,
        directory: Directory,
        options: Options,
        *,
        clocks: Callable[[], Clocks],
        offload: Offload,
        later: Later,
        offload_fsync: Offload | None = None,
        offload_checkpoint: Offload | None = None,
        files: FilePool | None = None,
    ) -> None:
        """`offload` is for reads; fsyncs and checkpoints may have threads of their own, so that
        they do not wait for each other."""
        self.offload_fsync = offload_fsync or offload
        offload_checkpoint = offload_checkpoint or offload
        self.directory = directory
        self.clocks = clocks  # as they are now
        self.files = files or FilePool()
        self.make_room: Callable[[], bool] = lambda: False  # delete consumed history
        self.offload = offload
        self.later = later
        self.health = DiskHealth(directory.path, offload=self.offload_fsync, later=later)
        self.checkpoints = Checkpoints(offload=offload_checkpoint, later=later, clocks=clocks)
        self.fsyncs = Fsyncs(
            every=min(options.sync_every, SYNC_EVERY_MAX),
            timeout_ns=options.sync_timeout_ns,
            offload=self.offload_fsync,
            later=later,
        )
        self.wal = WriteAheadLog(directory.path, self.files)
        self.wal.gap_max += directory.losses * SKIPPED
        self.flusher = Flusher(
            self.wal,
            syncs=self.fsyncs.group_commit,
            offload=self.offload_fsync,
            later=later,
            failed=self.failed,
            flushed=self.appended,
        )
        self._segment_bytes_max = options.max_bytes_per_file

    def failed(self, error: OSError, what: str, *, size_bytes: int = 0) -> str:
        """Note a failed write; returns the reason for whoever waits for it."""
        return self.health.failed(error, what, size_bytes=size_bytes)

    def appended(self, log: Log) -> None:
        """The log's segments grew: they are to be synced, with --sync-every=1 by the flusher."""
        if self.fsyncs.group_commit:
            self.flusher.grown([log])
        else:
            self.fsyncs.appended(log.syncing)

    def request_sync(self, group_commit: GroupCommit) -> None:
        """The write-ahead log grew, and publishers wait for its fsync."""
        self.fsyncs.appended(group_commit)

    def sync(self, log: Log | Ring) -> Completion:
        """Sync all that was acknowledged so far, soon; the outcome."""
        if isinstance(log, Ring) or self.fsyncs.group_commit:
            return completed()
        if log.is_closed:
            return completed(EXITING)
        try:
            log.flush()
        except OSError as error:
            self.flusher.stuck(log)
            return completed(self.failed(error, f"topic {log.name}"))
        return self.sync_segments(log)

    def sync_segments(self, log: Log) -> Completion:
        """Sync what was written to the log's segments, soon; the outcome."""
        completion = log.syncing.completion()
        if not completion.done:
            self.fsyncs.hurry(log.syncing)
        return completion

    def open_log(
        self,
        topic: str,
        base_id: int,
        clean: tuple[int, int, int] | None = None,
        names: list[str] | None = None,
    ) -> Log:
        """The log of a topic whose directory exists; `clean` and `names` as in `Log`."""
        log = Log(
            self.directory.topic_path(topic),
            base_id=base_id,
            files=self.files,
            offload=self.offload,
            later=self.later,
            segment_bytes_max=self._segment_bytes_max,
            keeps_unsynced=self.fsyncs.group_commit,
            clean=clean,
            names=names,
        )
        log.name = topic
        log.syncing.failed = lambda error: self.failed(error, f"topic {topic}")
        return log
