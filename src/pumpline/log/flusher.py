"""The flusher: moves messages from the write-ahead log to the segments, and empties it.

FLUSH_S after a message was written to it, the write-ahead log turns to another file, and the logs
with messages in the one that was written to are flushed, some at a time. Then that file is removed;
with --sync-every=1 not before the segments are synced. A log that cannot be flushed is *stuck*, and
flushed again after RETRY_S; until then no file is removed.

Only the flusher knows both the write-ahead log and the segments.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from pumpline.log.files import sync_paths
from pumpline.log.log import Log, State
from pumpline.log.scheduling import Later, Offload
from pumpline.log.tail import Tail
from pumpline.log.wal import WriteAheadLog

FLUSH_S = 0.1
SYNCED_FLUSH_S = 1.0  # with --sync-every=1: each log is an fsync
PAUSE_RATIO = 10  # pause = 10 x duration of the last flush
LOGS_AT_ONCE = 200  # flushed before others have their turn: 25 us each
RETRY_S = 0.5
BEHIND_BYTES = (
    64 << 20
)  # in the write-ahead log: it takes no more until the segments have caught up

NO_LINES: Mapping[bytes, Tail] = MappingProxyType({})


class Progress:
    """Commits to the write-ahead log so far."""

    __slots__ = ("appended", "completed")

    def __init__(self) -> None:
        self.appended = 0
        self.completed = 0  # acknowledged or refused


class Flusher:
    def __init__(
        self,
        wal: WriteAheadLog,
        *,
        syncs: bool,
        offload: Offload,
        later: Later,
        failed: Callable[[OSError, str], str],
        flushed: Callable[[Log], None],
    ) -> None:
        """`syncs`: segments are synced before a file of the write-ahead log is emptied. `flushed`
        is called for each log whose segments grew."""
        self.commit: Callable[[], None] = lambda: None  # what was added goes to the logs first
        self.progress = Progress()
        self.when_caught_up: Callable[[], object] | None = None
        self._wal = wal
        self._syncs = syncs
        self._offload = offload
        self._later = later
        self._failed = failed
        self._flushed_one = flushed
        self._flush_s = SYNCED_FLUSH_S if syncs else FLUSH_S
        self._grown: dict[Log, None] = {}  # with messages in the file that is written to
        self._grown_lines: set[bytes] = set()  # likewise, by the lines of their commands
        self._by_line: Mapping[bytes, Tail] = NO_LINES
        self._to_flush: list[Log] = []  # with messages in the other one
        self._flushed: list[Log] = []  # to be synced
        self._stuck: dict[Log, None] = {}
        self._is_running = False  # until the old file is removed
        self._is_syncing = False
        self._is_stopped = False
        self._begins_after = 0  # commits
        self._timer_set = False
        self._begun_s = 0.0
        self._took_s = 0.0

    @property
    def is_behind(self) -> bool:
        """The write-ahead log must not grow before the segments have caught up."""
        return self._is_running and self._wal.size_bytes > BEHIND_BYTES

    def grown(
        self,
        logs: Iterable[Log],
        by_line: Mapping[bytes, Tail] = NO_LINES,
        lines: Iterable[bytes] = (),
    ) -> None:
        """The write-ahead log has messages of these logs, and of those that have these lines."""
        for log in logs:
            self._grown[log] = None
        if lines:
            self._by_line = by_line
            self._grown_lines.update(lines)
        if not self._timer_set:
            self._set_timer(max(self._flush_s, PAUSE_RATIO * self._took_s))

    def retry(self) -> None:
        """Begin after a while, as something failed."""
        if not self._timer_set:
            self._set_timer(RETRY_S)

    def stuck(self, log: Log) -> None:
        """The log could not be flushed."""
        self._stuck[log] = None
        self.retry()

    def _set_timer(self, delay_s: float) -> None:
        self._timer_set = True
        self._later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_set = False
        self.begin()

    def begin(self) -> None:
        """Flush what the write-ahead log has so far."""
        if self._is_running or self._is_stopped:
            return
        self._is_running = True
        self._begun_s = time.monotonic()
        self.commit()
        self._wal.turn()
        self._to_flush = list(dict.fromkeys([*self._stuck, *self._take_grown()]))
        self._begins_after = self.progress.appended
        self.resume()

    def resume(self) -> None:
        """Flush some logs, once everything in the file that is to be emptied is acknowledged."""
        if not self._is_running or self._is_syncing or self._is_stopped:
            return
        if self.progress.completed < self._begins_after:
            return
        for log in self._to_flush[:LOGS_AT_ONCE]:
            self._flush(log)
        del self._to_flush[:LOGS_AT_ONCE]
        if self._to_flush:
            self._later(0, self.resume)
        elif self._syncs and self._flushed:
            self._sync()
        else:
            self._end()

    def _take_grown(self) -> list[Log]:
        """The logs with messages in the file that is written to."""
        logs = [*self._grown, *map(self._by_line.get, self._grown_lines)]  # None: deleted
        self._grown.clear()
        self._grown_lines.clear()
        return [log for log in dict.fromkeys(logs) if isinstance(log, Log)]

    def _flush(self, log: Log) -> None:
        if log.state is State.CLOSED:
            self._stuck.pop(log, None)
            return
        try:
            log.flush()
        except OSError as error:
            self._failed(error, f"topic {log.name}")
            self._stuck[log] = None
        else:
            self._stuck.pop(log, None)
            if self._syncs:
                self._flushed.append(log)
            else:
                self._flushed_one(log)

    def _sync(self) -> None:
        """Sync the segments: in a thread, unless somebody else does."""
        self._is_syncing = True
        logs, self._flushed = self._flushed, []
        claimed = [log.syncing.completion() for log in logs if log.syncing.is_claimed]
        taken = [(log, log.syncing.take_dirty()) for log in logs if not log.syncing.is_claimed]
        own = [(log, paths) for log, paths in taken if paths]
        for log, paths in taken:
            if not paths:
                log.syncing.note_clean()
        awaited = [completion for completion in claimed if not completion.done]
        left = 1 + len(awaited)

        def one_done() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._synced(logs)

        def job() -> list[OSError | None]:
            return [_sync_error(paths) for _, paths in own]

        def done(errors: list[OSError | None] | BaseException) -> None:
            if isinstance(errors, BaseException):
                raise errors
            for (log, paths), error in zip(own, errors, strict=True):
                log.syncing.sync_done(paths, error)
            one_done()

        for completion in awaited:
            completion.when_done(one_done)
        self._offload(job, done)

    def _synced(self, logs: list[Log]) -> None:
        self._is_syncing = False
        self._stuck.update(dict.fromkeys(log for log in logs if log.state is State.STUCK))
        if not self._is_stopped:
            self._end()

    def _end(self) -> None:
        """Remove the file that is not written to, if all its messages are in their segments."""
        self._is_running = False
        self._flushed.clear()
        self._took_s = time.monotonic() - self._begun_s
        wal = self._wal
        has_grown = bool(self._grown or self._grown_lines)
        if not self._stuck:
            wal.remove(all_files=not has_grown)
        if self._stuck or wal.is_torn or wal.has_old:
            self.retry()
        elif has_grown:
            self.grown([])
        caught_up, self.when_caught_up = self.when_caught_up, None
        if caught_up is not None:
            caught_up()

    def flush_all(self) -> bool:
        """Flush everything, for a stop; returns whether that succeeded. No file is removed any
        more."""
        self._is_stopped = True
        for log in [*self._stuck, *self._to_flush, *self._take_grown()]:
            self._flush(log)
        return not self._stuck


def _sync_error(paths: list[str]) -> OSError | None:
    try:
        sync_paths(paths)
    except OSError as error:
        return error
    return None
