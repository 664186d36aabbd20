"""Group commit: in each tick, one append to the write-ahead log for all that was published.

`commit` is the storage part of a tick:

1. Every log that was published to accepts its messages: they have offsets, and are in memory.
2. One append to the write-ahead log takes all of them. What is large goes *directly* to its
   segment instead, so that it is written once.
3. With `--sync-every=1`, one fsync of the write-ahead log, and one of each segment that was written
   to directly. What comes meanwhile shares the next.
4. Publishers get their answers, and the messages can be read.

If 2 or 3 fails, the logs forget what they accepted, and the publishers get the reason.

With `--sync-every=1`, the unacknowledged messages of a log are either all in the write-ahead log or
all in its segments, so that neither fsync has to wait for the other.

Small messages come in by way of a kernel (`add_run`): it adds each to the open batch of its log,
and to one record for the write-ahead log, without any work for each topic (`log.shared_batches`).
Everything else comes in batches of its log (`BatchPublisher`): due times, publish tokens, large
messages, topics with a bounded backlog. In one tick, a log gets small messages first and then
batches, or one of them.

Knows logs and completions; must not know topics.
"""

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from pumpline.core.messages.batches import FULL_BYTES, LogBatch
from pumpline.core.messages.kernels import message, publishes_by_line
from pumpline.log.completion import EXITING, Completion
from pumpline.log.direct_writes import DIRECT_BYTES, CommitStorage, DirectWrites
from pumpline.log.files import lacks_room
from pumpline.log.flusher import Flusher
from pumpline.log.founding import Founding
from pumpline.log.log import Log, State
from pumpline.log.ring import Ring
from pumpline.log.shared_batches import SharedBatches
from pumpline.log.wal import MIXED, WriteAheadLog

SMALL_BYTES = 8192  # of a message, or the messages of an MPUB: larger ones are batches of their own
WAL_BYTES_MAX = 16 << 20  # of one file: then it is flushed at once
RECORD_BYTES = 1 << 20  # of small messages that wait for an fsync to end: then they are written

Parts = list[bytes | memoryview]


class Ticking(Protocol):
    """The tick, as seen from here."""

    @property
    def wall_ns(self) -> int: ...

    def publish(self) -> int:
        """Call `commit` in this tick; returns `wall_ns`, which stands still until then."""


class BatchPublisher(Protocol):
    """Somebody with batches for one log."""

    @property
    def log(self) -> Log | Ring: ...

    @property
    def shared_lines(self) -> tuple[bytes, ...]:
        """The command lines of small messages for the log that a kernel may add; none if every
        publish has to be looked at."""

    def take(self) -> tuple[list[LogBatch], Completion]:
        """What was added since the last call; no batches if it is refused, and completed with the
        reason."""

    def accepted(self, batches: list[LogBatch]) -> None:
        """The log has accepted these."""

    def refused(self) -> None:
        """What was accepted could not be written, and the log has forgotten it."""


class _Commit:
    """What one append to the write-ahead log covers."""

    __slots__ = ("completions", "ends", "lines", "publishers", "size_bytes", "to_share")

    def __init__(self) -> None:
        self.size_bytes = 0
        self.completions: list[Completion] = []
        self.lines: list[bytes] = []  # of small messages
        self.ends: dict[
            Log, int
        ] = {}  # logs, and what each has accepted with it, if it is explicit
        self.publishers: list[BatchPublisher] = []
        self.to_share: list[BatchPublisher] = []  # with small batches


class GroupCommit:
    def __init__(
        self,
        wal: WriteAheadLog,
        flusher: Flusher,
        tick: Ticking,
        storage: CommitStorage,
        *,
        message_bytes_max: int,
        body_bytes_max: int,
        segment_bytes_max: int,
        syncs: bool,
    ) -> None:
        """`syncs`: publishers are answered after an fsync."""
        self.syncs = syncs
        self.shared = SharedBatches(is_immediate=not syncs)
        self.direct = DirectWrites(flusher, storage, syncs=syncs)
        self._founding = Founding(
            offload=storage.offload_fsync, founded=self.add_publisher, failed=self._not_founded
        )
        self._wal = wal
        self._flusher = flusher
        self._tick = tick
        self._storage = storage
        self._message_bytes_max = min(message_bytes_max, SMALL_BYTES)
        self._body_bytes_max = min(body_bytes_max, SMALL_BYTES)
        self._full_bytes = min(FULL_BYTES, segment_bytes_max)
        self._newest_ns = 0
        self._is_stopped = False
        # What was added since the last commit, beside the record of small messages.
        self._completion: Completion | None = None  # of the record
        self._publishers: dict[BatchPublisher, None] = {}
        # What is written, and waits for an fsync.
        self._unsynced_bytes = 0
        self._unsynced: list[_Commit] = []
        self._syncing: list[_Commit] = []
        flusher.commit = self.commit
        self._progress = flusher.progress

    # -- adding -------------------------------------------------------------------------------

    def add_run(
        self,
        buf: bytearray,
        pos: int,
        end: int,
        line: bytes | None = None,
    ) -> tuple[int, int, list[bytes]]:
        """Add the run of PUBs, or of MPUBs, in buf[pos:end] that begin with `line`, or with any
        line of a shared batch.

        Returns the position after it, how many commands there were, and the line of each message;
        `completion` has the outcome.
        """
        shared = self.shared
        before = len(shared.lines)
        wall_ns = self._publish_time_ns()
        batches = shared.by_line
        if line is not None:
            batches = {line: batches[line]} if line in batches else {}
        after, count = publishes_by_line(
            buf,
            pos,
            end,
            batches,
            shared.frames,
            shared.ends,
            shared.lines,
            wall_ns,
            self._message_bytes_max,
            self._body_bytes_max,
            self._full_bytes,
        )
        return after, count, shared.lines[before:]

    def add(self, line: bytes, buf: bytes | bytearray, pos: int, end: int) -> Completion | None:
        """Add one message, buf[pos:end], if it is small and the batch of this line is shared;
        returns the outcome."""
        shared = self.shared
        if end - pos > self._message_bytes_max or line not in shared.by_line:
            return None
        wall_ns = self._publish_time_ns()
        batch = shared.by_line.get(line)  # unless the clock was set back
        if batch is None or len(batch[0]) >= self._full_bytes:
            return None
        frames, ends, first_id = batch
        message_id = first_id + (len(ends) >> 2)
        message(buf, pos, end, frames, ends, message_id, wall_ns)
        message(buf, pos, end, shared.frames, shared.ends, message_id, wall_ns)
        shared.lines.append(line)
        return self.completion()

    def completion(self) -> Completion:
        """The outcome of the small messages that were added since the last commit."""
        if self._completion is None:
            self._completion = Completion()
        return self._completion

    def add_publisher(self, publisher: BatchPublisher) -> int:
        """The publisher will have batches in the next commit; returns their publish time."""
        self._publishers[publisher] = None
        return self._tick.publish()

    def _publish_time_ns(self) -> int:
        """The publish time of small messages that are added now."""
        if self.shared.lines and not self.syncs:
            return self._newest_ns  # of the same tick
        wall_ns = self._tick.publish() if self._may_commit else self._tick.wall_ns
        if wall_ns < self._newest_ns:  # the clock was set back: times rise in a batch
            for log in set(self.shared.logs.values()):
                log.seal_open()
        self._newest_ns = wall_ns
        return wall_ns

    # -- the commit ---------------------------------------------------------------------------

    def on_tick(self) -> None:
        """Commit what was added, unless an fsync is running, which small messages wait for, or the
        segments are too far behind."""
        if self.syncs and self._flusher.is_behind:
            self._flusher.when_caught_up = self._tick.publish
        elif self._publishers or self._may_commit:
            self.commit()

    @property
    def _may_commit(self) -> bool:
        """Whether small messages need not wait for an fsync to end."""
        return not self._syncing or len(self.shared.frames) >= RECORD_BYTES

    def commit(self) -> None:
        """Write what was added."""
        if not self.shared.lines and not self._publishers:
            return
        commit = _Commit()
        parts = self._take_small(commit) if self.shared.lines else []
        publishers, self._publishers = self._publishers, {}
        for publisher in publishers:
            if not self.syncs or not self._founding.wait(publisher):
                parts += self._take_batches(publisher, commit)
        if parts:
            self._append(parts, commit)
        if commit.to_share:
            self._share(commit.to_share)

    def _take_small(self, commit: _Commit) -> Parts:
        """The record of small messages, or nothing if it was better written to a segment."""
        shared = self.shared
        touched = set(shared.lines)
        is_direct = len(touched) == 1 and len(shared.frames) >= DIRECT_BYTES
        is_direct = is_direct and not self.syncs and not self._publishers
        if is_direct:
            self._log_of(shared.lines[0]).seal_open()  # while it is known what is pending
        lines, ends, frames = shared.take()
        completion, self._completion = self.completion(), None
        if is_direct:
            self.direct.write(self._log_of(lines[0]), completion, len(frames))
            return []
        by_line = shared.by_line
        for line in touched:
            if self.syncs or line not in by_line:
                log = self._log_of(line)
                commit.ends[log] = log.accepted
        commit.lines = lines
        commit.completions.append(completion)
        record = LogBatch(
            first=MIXED,
            count=len(lines),
            timestamp_ns=self._newest_ns,
            ends=memoryview(ends),
            frames=memoryview(frames),
        )
        return record.parts()

    def _log_of(self, line: bytes) -> Log:
        log = self.shared.logs[line]
        assert isinstance(log, Log)
        return log

    def _take_batches(self, publisher: BatchPublisher, commit: _Commit) -> Parts:
        batches, completion = publisher.take()
        log = publisher.log
        if not batches:
            return []
        if isinstance(log, Ring):
            publisher.accepted(log.append(batches))
            log.advance(log.accepted)
            completion.complete(None)
            return []
        if log.state is State.STUCK and (reason := self._unstick(log)) is not None:
            publisher.refused()
            completion.complete(reason)
            return []
        size_bytes = sum([batch.size_bytes for batch in batches])
        is_direct = log not in commit.ends and (
            self.direct.takes(log, size_bytes) or self._wal_is_full
        )
        log.accept(batches)
        publisher.accepted(batches)
        if is_direct:
            self.direct.write(log, completion, size_bytes, partial(self._refuse_direct, publisher))
        if size_bytes < DIRECT_BYTES and log not in self.direct:
            commit.to_share.append(publisher)
        if is_direct:
            return []
        commit.ends[log] = log.accepted
        commit.completions.append(completion)
        commit.publishers.append(publisher)
        return [part for batch in batches for part in batch.parts()]

    @property
    def _wal_is_full(self) -> bool:
        """The write-ahead log takes no more for now: write to the segments."""
        return not self.syncs and (self._wal.is_torn or self._wal.size_bytes > 2 * WAL_BYTES_MAX)

    def _unstick(self, log: Log) -> str | None:
        """Flush a log that could not be flushed before; returns why it still cannot."""
        try:
            log.flush()
        except OSError as error:
            return self._storage.failed(error, f"topic {log.name}")
        return None

    def _append(self, parts: Parts, commit: _Commit) -> None:
        try:
            size_bytes = self._append_with_room(parts)
        except OSError as error:
            size_bytes = sum(map(len, parts))
            reason = self._storage.failed(error, "the write-ahead log", size_bytes=size_bytes)
            if self._wal.is_torn:
                self._flusher.retry()
            self._forget(commit)
            self._tell_refused([commit], reason)
            return
        self._progress.appended += 1
        self._flusher.grown(commit.ends, self.shared.logs, commit.lines)
        if self.syncs:
            for log, end in commit.ends.items():
                log.logged = end
            commit.size_bytes = size_bytes
            self._unsynced_bytes += size_bytes
            self._unsynced.append(commit)
            self._storage.request_sync(self)
        else:
            self._acknowledge(commit)
        if self._wal.size_bytes > WAL_BYTES_MAX:
            self._flusher.begin()

    def _append_with_room(self, parts: Parts) -> int:
        try:
            return self._wal.append(parts)
        except OSError as error:
            if not lacks_room(error) or not self._storage.make_room():
                raise
            return self._wal.append(parts)

    def _share(self, publishers: Iterable[BatchPublisher]) -> None:
        """Let the kernel add what comes next to the logs of these."""
        if self._is_stopped or self._wal_is_full:
            return
        for publisher in publishers:
            log = publisher.log
            if isinstance(log, Log) and log.state is State.OPEN and publisher.shared_lines:
                log.share_batch(self.shared, publisher.shared_lines)

    def _acknowledge(self, commit: _Commit) -> None:
        self._progress.completed += 1
        self._unsynced_bytes -= commit.size_bytes
        for log, end in commit.ends.items():
            if log.state is not State.CLOSED and end > log.end:
                log.advance(end)
        followed = self.shared.followed
        if followed and not self.syncs:  # else their ends are explicit
            for tail in {followed[line] for line in followed.keys() & commit.lines}:
                if tail.on_visible is not None:
                    tail.on_visible()
        for completion in commit.completions:
            completion.complete(None)

    def _forget(self, commit: _Commit) -> None:
        """The append of this commit failed: its logs forget what they accepted with it."""
        for log in commit.ends:
            log.refuse(log.logged)
        counts: Counter[Log] = Counter()
        for line, count in Counter(commit.lines).items():
            counts[self._log_of(line)] += count
        for log, count in counts.items():
            if log not in commit.ends:
                log.refuse(log.accepted - count)

    def _refuse_direct(self, publisher: BatchPublisher, reason: str) -> None:
        """A direct write or its fsync failed. What was added since is refused, too: its offsets
        follow on these."""
        if publisher in self._publishers:
            del self._publishers[publisher]
            self._refuse_added(publisher, reason)
        else:
            publisher.refused()

    def _not_founded(self, publisher: BatchPublisher, error: OSError) -> None:
        self._refuse_added(publisher, self._storage.failed(error, "the directories of new topics"))

    def _refuse_added(self, publisher: BatchPublisher, reason: str) -> None:
        batches, completion = publisher.take()
        publisher.refused()
        if batches:
            completion.complete(reason)

    def _tell_refused(self, commits: list[_Commit], reason: str) -> None:
        for commit in commits:
            for publisher in commit.publishers:
                publisher.refused()
            for completion in commit.completions:
                completion.complete(reason)

    # -- syncing, as `nsqd.storage.fsync` sees it ---------------------------------------------

    @property
    def unsynced_bytes(self) -> int:
        """Of messages that are written and wait for an fsync."""
        return self._unsynced_bytes + self.direct.unsynced_bytes

    @property
    def unsynced(self) -> int:
        return len(self._unsynced)

    def take_dirty(self) -> list[str]:
        self._syncing, self._unsynced = self._unsynced, []
        return self._wal.take_dirty()

    def sync_done(self, paths: list[str], error: OSError | None) -> None:
        if error is not None:
            self.refuse_unsynced(self._storage.failed(error, "the write-ahead log"))
            return
        self._wal.synced()
        commits, self._syncing = self._syncing, []
        for commit in commits:
            self._acknowledge(commit)
        self._flusher.resume()
        self.on_tick()  # the next fsync begins at once

    def refuse_unsynced(self, reason: str) -> None:
        """Nothing that waits for an fsync will be synced: cut it off. What was added since goes,
        too: its offsets follow on these."""
        commits = [*self._syncing, *self._unsynced]
        self._progress.completed += len(commits)
        self._unsynced_bytes = 0
        self._syncing, self._unsynced = [], []
        self._wal.cut_back()
        if self._wal.is_torn or self._wal.has_old:
            self._flusher.retry()
        last = _Commit()
        if self.shared.lines:
            self._take_small(last)
        commits.append(last)
        publishers, self._publishers = self._publishers, {}
        for publisher in publishers:
            batches, completion = publisher.take()
            if batches:
                last.publishers.append(publisher)
                last.completions.append(completion)
        for log in {log: None for commit in commits for log in commit.ends}:
            if log.state is not State.CLOSED:
                log.refuse(log.end)
        self._tell_refused(commits, reason)
        self._flusher.resume()

    # -- the end ------------------------------------------------------------------------------

    def stop(self) -> None:
        """Commit what there is, and share no batches any more."""
        self._is_stopped = True
        self.commit()
        for log in set(self.shared.logs.values()):
            log.unshare_batch()

    def close(self) -> None:
        """Nothing is added any more."""
        if self.syncs:
            self.refuse_unsynced(EXITING)
            for publisher in self._founding.take_waiting():
                self._refuse_added(publisher, EXITING)
            self.direct.close()
