"""Direct writes: large batches go straight to their segment, and are written once.

With `--sync-every=1` a direct write is acknowledged after an fsync of its segment. The messages of
a log that wait for an fsync are either all in the write-ahead log or all in its segments: neither
fsync has to wait for the other, and if one fails, only its messages are refused. So a log that has
messages in the write-ahead log that wait takes no direct write, and one with a direct write that
waits takes nothing else.

If the fsync fails, the segments are cut back to what was acknowledged.
"""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pumpline.log.completion import Completion
from pumpline.log.flusher import Flusher
from pumpline.log.log import Log, State
from pumpline.log.scheduling import Offload

if TYPE_CHECKING:  # a group commit has its direct writes
    from pumpline.log.group_commit import GroupCommit

DIRECT_BYTES = 8192  # of what a log gets in a tick: then it is written to its segment
SYNCED_DIRECT_BYTES = 64 << 10  # likewise where that takes an fsync of its own
SYNCED_LOGS_MAX = 4  # with direct writes at the same time: for more, one fsync for all is better

Refused = Callable[[str], None]
"""Gets the reason."""


class CommitStorage(Protocol):
    """What a group commit needs of its surroundings."""

    @property
    def offload_fsync(self) -> Offload: ...

    def make_room(self) -> bool:
        """Delete consumed history; return whether there was any."""

    def failed(self, error: OSError, what: str, *, size_bytes: int = 0) -> str:
        """Note a failed write; returns the reason for the publishers."""

    def request_sync(self, group_commit: "GroupCommit") -> None:
        """Sync what `take_dirty` returns soon, then call `sync_done`."""

    def appended(self, log: Log) -> None:
        """The log's segments grew."""

    def sync_segments(self, log: Log) -> Completion:
        """Sync what was written to the log's segments, soon; the outcome."""


class DirectWrites:
    def __init__(self, flusher: Flusher, storage: CommitStorage, *, syncs: bool) -> None:
        """`syncs`: publishers are answered after an fsync."""
        self.unsynced_bytes = 0
        self._flusher = flusher
        self._storage = storage
        self._syncs = syncs
        self._waiting: Counter[Log] = Counter()  # writes that wait for their fsync

    def __contains__(self, log: Log) -> bool:
        """Whether a direct write of this log waits for its fsync."""
        return log in self._waiting

    def takes(self, log: Log, size_bytes: int) -> bool:
        """Whether the next messages of a log, of this size, are to be written to its segment."""
        if not self._syncs:
            return size_bytes >= DIRECT_BYTES
        if log in self._waiting:
            return True
        is_worth_it = size_bytes >= SYNCED_DIRECT_BYTES and len(self._waiting) < SYNCED_LOGS_MAX
        return is_worth_it and log.accepted == log.end and not log.syncing.is_claimed

    def write(
        self, log: Log, completion: Completion, size_bytes: int, refused: Refused = lambda _: None
    ) -> None:
        """Write all that the log has accepted to its segment; it is acknowledged, or `refused` is
        called and the log forgets it."""
        try:
            log.write_accepted()
        except OSError as error:
            log.refuse(log.logged)
            if log.state is State.STUCK:
                self._flusher.stuck(log)
            reason = self._storage.failed(error, f"topic {log.name}", size_bytes=size_bytes)
            refused(reason)
            completion.complete(reason)
            return
        if self._syncs:
            self._sync(log, completion, size_bytes, refused)
        else:
            log.acknowledge(log.written)
            self._storage.appended(log)
            completion.complete(None)

    def _sync(self, log: Log, completion: Completion, size_bytes: int, refused: Refused) -> None:
        self._waiting[log] += 1
        self.unsynced_bytes += size_bytes
        end = log.written
        synced = self._storage.sync_segments(log)

        def done() -> None:
            self._waiting -= Counter([log])
            self.unsynced_bytes -= size_bytes
            if synced.error is not None:
                self._cut_back(log)
                refused(synced.error)
            elif log.state is not State.CLOSED:
                log.acknowledge(end)
            completion.complete(synced.error)

        synced.when_done(done)

    def _cut_back(self, log: Log) -> None:
        """An fsync failed: forget what was not acknowledged, in memory and in the segments."""
        if log.state is State.CLOSED:
            return
        log.refuse(log.end)
        try:
            log.flush()
        except OSError:
            self._flusher.stuck(log)

    def close(self) -> None:
        """nsqd stops, and has synced the segments: what is there comes again."""
        for log in self._waiting:
            log.acknowledge(log.written)
