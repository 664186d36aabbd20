"""A topic's log: segments on disk, the newest of which is written to, and its newest messages in
memory.

| offset      | everything below it                                                              |
|-------------|----------------------------------------------------------------------------------|
| `synced`    | is in a segment and fsynced, as far as this process waited for that              |
| `written`   | is in a segment                                                                  |
| `end`       | was acknowledged and can be read: from `written` on, in memory only              |
| `logged`    | is in the write-ahead log or a segment; from `end` on it waits for an fsync      |
| `accepted`  | has its offset; from `end` on it may still be refused                            |

`synced <= end <= logged <= accepted` and `synced <= written <= logged`. Where `end < written`, a
large batch waits for the fsync of its segment. What was acknowledged and is not written is in the
write-ahead log of the data directory (`log.wal`), which survives a kill. `log.group_commit`
accepts, acknowledges and refuses; `log.flusher` and whoever reads the files calls `flush`, which
writes.

The messages in memory are the *tail*: sealed batches, then the batch that is `open`. All from
`written` on is there; with `--sync-every=1` all from `synced` on, so that it can be written again
if its fsync fails.

Bytes on disk are described in `core.messages.batches` and `log.segment`, damage in `log.recovery`.
Messages are in the order of their publish times, unless the clock was set back
(`log.publish_order`).

The log knows nothing of channels: its owner says how far everybody has read (`retire`, `trim`).
"""

import enum
import logging
import os
import time
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from weakref import WeakSet, WeakValueDictionary

from pumpline.core.messages.batches import LogBatch
from pumpline.log.files import FilePool, lacks_room, stat_file, write_all
from pumpline.log.gaps import read_gaps, retire_gaps, write_gaps
from pumpline.log.point_reader import PointReader, Upcoming
from pumpline.log.publish_order import PublishOrder
from pumpline.log.reader import Block, Reader
from pumpline.log.recovered import Recovered
from pumpline.log.recovery import Damage, recover
from pumpline.log.scheduling import Later, Offload
from pumpline.log.segment import OFFSET_END, SUFFIX, Segment, count_fitting, offsets_in_names
from pumpline.log.syncing import LogSync
from pumpline.log.tail import Tail

_LOG = logging.getLogger(__name__)
_FIRST = attrgetter("first")
_RETRY_S = 1.0


class State(enum.Enum):
    OPEN = "open"
    STUCK = "stuck"  # it could not be flushed: nothing more is accepted until it can be
    CLOSED = "closed"  # the topic is deleted, or nsqd has stopped


class Log(Tail):
    keeps_unfinished = False  # the tail is for those who read on; requeued messages are on disk

    def __init__(
        self,
        directory: str,
        *,
        base_id: int,
        files: FilePool,
        offload: Offload,
        later: Later,
        segment_bytes_max: int,
        keeps_unsynced: bool = False,
        clean: tuple[int, int, int] | None = None,
        names: list[str] | None = None,
    ) -> None:
        """Open the log in `directory`, with files of `names`. `keeps_unsynced`: messages stay in
        memory until synced. `clean`: the `mark` at the last close; if it fits, no file is read."""
        super().__init__(base_id)
        self.directory = directory
        self.name = os.path.basename(directory)  # of its topic
        self.files = files
        self.offload = offload
        self.state = State.OPEN
        self.written = 0
        self.unsynced = 0  # messages that are written
        self.keeps_unsynced = keeps_unsynced
        # Paths to be synced before the first acknowledgement. Without them a loss of power leaves
        # nothing that says which messages of the write-ahead log are of this log.
        self.founding: list[str] = []
        self.on_written: Callable[[], None] = lambda: None  # more of the tail may be trimmed
        self.make_room: Callable[[], bool] = lambda: False  # delete history; returns whether it did
        self.later = later
        self._segment_bytes_max = segment_bytes_max
        self.is_unsound = False  # the segments have to be cut back before more is written
        self._sound_mark: tuple[int, int, int] | None = None  # to here
        self._has_loose_gap = False  # the files do not say so yet
        self._readers: WeakSet[Reader] = WeakSet()
        self._blocks: WeakValueDictionary[tuple[int, int], Block] = WeakValueDictionary()
        self.dirty: set[str] = set()  # paths written since the last sync
        names = os.listdir(directory) if names is None else names
        self._order = PublishOrder(directory, names)
        self.segments = [Segment(directory, first) for first in offsets_in_names(names, SUFFIX)]
        self._open_newest(clean)
        self.gaps = read_gaps(directory, names, self.written)
        self.synced = self.written
        self.start_at(self.written)
        self.syncing = LogSync(self)
        self.recovered = Recovered(self)

    @property
    def is_closed(self) -> bool:
        return self.state is State.CLOSED

    @property
    def first(self) -> int:
        """The oldest offset still there, or the end."""
        return self.segments[0].first if self.segments else self.written

    @property
    def ordered_from(self) -> int:
        """From this offset on, publish times rise."""
        return self._order.start_with(self.visible_in_tail(self.written), self.first)

    @property
    def size_bytes(self) -> int:
        """Of the segments, and of what they will get."""
        in_segments = sum(segment.size_bytes for segment in self.segments)
        return in_segments + self.bytes_in_tail(self.written)

    def bytes_from(self, offset: int) -> int:
        """About how many bytes there are from `offset` on."""
        if offset >= self.end:
            return 0
        unwritten_bytes = self.bytes_in_tail(max(offset, self.written))
        index = max(bisect_right(self.segments, offset, key=_FIRST) - 1, 0)
        if offset >= self.written or index >= len(self.segments):
            return unwritten_bytes
        segment = self.segments[index]
        end = self.segments[index + 1].first if index + 1 < len(self.segments) else self.written
        below = segment.estimate(max(offset, segment.first), end)
        return sum(each.size_bytes for each in self.segments[index:]) - below + unwritten_bytes

    def mark(self) -> tuple[int, int, int] | None:
        """The newest segment's first offset and size, and the log's end."""
        if not self.segments:
            return None
        newest = self.segments[-1]
        return newest.first, newest.size_bytes, self.written

    # -- writing ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what was acknowledged; OSError if that is not possible now: then it is *stuck*."""
        self.seal_acknowledged()
        end = self.end
        try:
            if self.is_unsound:
                self.cut_back(self._sound_mark)
                self.is_unsound = self._has_loose_gap = False
            if self._has_loose_gap:
                self._end_gap()
            self._split_at(end)
            batches = self.from_tail(self.written, end)
            while batches:
                size_bytes = self.segments[-1].size_bytes if self.segments else 0
                count = count_fitting(batches, self._segment_bytes_max, size_bytes)
                self._write_with_room(batches[:count])
                del batches[:count]
            if self.written < end:
                self._leave_gap(end)
            assert self.written >= end
        except OSError:
            self.state = State.STUCK
            self.unshare_batch()
            raise
        if self.state is State.STUCK:
            self.state = State.OPEN
        self._trim_idle()

    def write_accepted(self) -> None:
        """Write all that was accepted, and is sealed; OSError if none of it could be."""
        assert self.open is None
        if self.is_unsound:
            self.flush()
        self._write_with_room(self.from_tail(self.written, self.accepted))
        self.logged = self.written

    def acknowledge(self, end: int) -> None:
        """Everything below `end` is written, and can be read."""
        self.advance(end)
        self._trim_idle()

    def append(self, batches: list[LogBatch]) -> None:
        """Accept, write and acknowledge these, or raise OSError and refuse them."""
        self.accept(batches)
        try:
            self.write_accepted()
        except OSError:
            self.refuse(self.logged)
            raise
        self.acknowledge(self.written)

    def write_again(self, mark: tuple[int, int, int] | None) -> None:
        """What was written since `mark` was taken may not be on the disk, though an fsync would
        succeed, or was refused: the next flush cuts it off, and writes again what counts."""
        self.is_unsound, self._sound_mark = True, mark
        self.state = State.STUCK

    def _write_with_room(self, batches: list[LogBatch]) -> None:
        try:
            self._write(batches)
        except OSError as error:
            if not lacks_room(error) or not self.make_room():
                raise
            self._write(batches)

    def _write(self, batches: list[LogBatch]) -> None:
        assert self.written <= batches[0].first, "segments only grow"
        parts: list[bytes | memoryview] = []
        for batch in batches:
            parts += batch.parts()
            if batch.timestamp_ns < self._order.newest_ns:
                self.note_disorder(batch.first)
            self._order.newest_ns = batch.published_ns(batch.end - 1)
        self._note_gaps(batches[0].first)
        segment = self._writable(batches[0].first)
        fd = self.files.get(segment.path)
        try:
            write_all(fd, parts)
        except OSError:
            self._undo(fd, segment)
            raise
        if not segment.size_bytes:  # the file may be as new
            self.dirty.add(self.directory)
        for batch in batches:
            segment.note(batch, segment.size_bytes)
            segment.size_bytes += batch.size_bytes
            self.unsynced += batch.count
        self.dirty.add(segment.path)
        self.written = batches[-1].end
        newest_ns = self._order.newest_ns
        if newest_ns > time.time_ns():  # the clock was set back: see `_open_newest`
            with suppress(OSError):
                os.utime(segment.path, ns=(newest_ns, newest_ns))

    def skip_to(self, offset: int) -> None:
        """Leave a gap: the next message gets `offset`. For offsets given out and then lost. If the
        log is stuck, or is from here on, the segments get the gap with the next flush: a start
        would look for messages after the gap in vain."""
        if offset > self.end:
            is_written = self.written == self.accepted
            self.gaps.append((self.end, offset))
            self._next_is(offset)
            if is_written:
                try:
                    self._leave_gap(offset)
                except OSError:
                    self.state = State.STUCK

    def _leave_gap(self, offset: int) -> None:
        self.written = offset
        self.segments.append(Segment(self.directory, offset))
        self._has_loose_gap = True
        self._end_gap()

    def _end_gap(self) -> None:
        """Note the last gap, and make the segment after it."""
        write_gaps(self.directory, self.gaps)
        self.files.get(self.segments[-1].path)
        self.dirty.add(self.directory)
        self._has_loose_gap = False

    def _note_gaps(self, first: int = 0) -> None:
        """Before the newest segment gets its file, or a message from `first` on: a gap without a
        file is taken for messages."""
        if self.gaps and (first > self.written or not self.segments[-1].size_bytes):
            write_gaps(self.directory, self.gaps)

    def note_disorder(self, offset: int) -> None:
        """Publish times before `offset` say nothing about those from there on. OSError if that
        cannot be noted."""
        if self.first != offset:
            self._order.start_at(offset)
            self.dirty.add(self.directory)

    def sync_also(self, path: str) -> None:
        """The next sync has to cover `path` as well."""
        self.dirty.add(path)

    def take_dirty(self) -> list[str]:
        """The paths that a sync has to cover, counted as synced from now on."""
        paths = sorted(self.dirty)
        self.dirty.clear()
        self.unsynced = 0
        return paths

    def note_synced(self, end: int) -> None:
        """Everything below `end` is on the disk."""
        self.synced = max(self.synced, end)
        self._trim_idle()

    def sync_failed(self, paths: list[str]) -> None:
        """What `take_dirty` returned could not be synced."""
        self.dirty.update(paths)
        self.unsynced = max(self.unsynced, 1)

    def cut_back(self, mark: tuple[int, int, int] | None) -> None:
        """Take what was written since `mark` was taken out of the segments. What was acknowledged
        has to be in memory: it is not written any more."""
        first, size_bytes, end = mark or (-1, 0, self.first)
        while self.segments and self.segments[-1].first > first:
            if mark is not None and len(self.segments) == 1 and self.segments[0].first == end:
                size_bytes = 0  # the mark's segment was retired: this one says where the log is
                break
            _unlink(self.files, self.segments[-1])
            del self.segments[-1]
        if self.segments:
            newest = self.segments[-1]
            os.ftruncate(self.files.get(newest.path), size_bytes)
            newest.cut(size_bytes)
        for reader in self._readers:
            reader.forget()
        self._blocks.clear()
        self.written = end

    def _writable(self, first: int) -> Segment:
        """The segment for the next batch, a new one when the newest is full."""
        if self.segments and self.segments[-1].size_bytes < self._segment_bytes_max:
            return self.segments[-1]
        segment = Segment(self.directory, first)
        self.files.get(segment.path)  # creates the file, or raises before anything changed
        if self.segments:
            self.files.forget(self.segments[-1].path)
        self.segments.append(segment)
        return segment

    def _undo(self, fd: int, segment: Segment) -> None:
        """After a failed write: back to the last good size, or to that before anything else is
        written. What was refused must not come back with a later start."""
        try:
            os.ftruncate(fd, segment.size_bytes)
        except OSError as error:
            _LOG.error("LOG: cannot cut %s after a failed write: %s", segment.path, error)
            self.write_again(self.mark())

    # -- reading ------------------------------------------------------------------------------

    def reader(self, on_ready: Callable[[], None], upcoming: Upcoming | None = None) -> Reader:
        """`upcoming`: for scattered offsets."""
        reader = PointReader(self, on_ready, upcoming) if upcoming else Reader(self, on_ready)
        self._readers.add(reader)
        return reader

    def trim(self, lowest: int, *, messages_max: int, bytes_max: int) -> None:
        """Forget the part of the tail below `lowest`, and what exceeds the bounds. What is not safe
        in a segment stays."""
        safe = self.synced if self.keeps_unsynced else self.written
        self._trim(lowest, safe, messages_max=messages_max, bytes_max=bytes_max)

    def refuse(self, offset: int) -> None:
        super().refuse(offset)
        for reader in self._readers:  # other messages will have these offsets
            reader.forget()

    def _trim_idle(self) -> None:
        """Nobody follows the log: whoever comes later reads the segments. Else its owner trims."""
        if self.is_followed:
            self.on_written()
        else:
            self.trim(self.written, messages_max=0, bytes_max=0)

    def contains(self, segment: Segment) -> bool:
        """Whether a segment is (still) part of the log."""
        index = bisect_right(self.segments, segment.first, key=_FIRST) - 1
        return index >= 0 and self.segments[index] is segment

    def segment_of(self, offset: int) -> Segment | None:
        """The segment with `offset`, or the oldest if `offset` is gone."""
        if offset >= self.written or not self.segments:
            return None
        return self.segments[max(bisect_right(self.segments, offset, key=_FIRST) - 1, 0)]

    def segment_after(self, segment: Segment) -> Segment | None:
        index = bisect_right(self.segments, segment.first, key=_FIRST)
        return self.segments[index] if index < len(self.segments) else None

    def limit_of(self, segment: Segment) -> int:
        """Where the next segment begins; no offset from there on belongs in this one."""
        following = self.segment_after(segment)
        return OFFSET_END if following is None else following.first

    def cached_block(self, segment: Segment, position: int | None) -> Block | None:
        return None if position is None else self._blocks.get((segment.first, position))

    def keep_block(self, block: Block) -> Block:
        if block.batches:  # that there is nothing may be true no longer when the next one looks
            self._blocks[block.segment.first, block.position] = block
        return block

    def report_damage(self, damages: list[Damage]) -> None:
        for damage in damages:
            _LOG.error("LOG: %s: %s", self.directory, damage)

    def report_read_error(self, error: BaseException, retry: Callable[[], None]) -> None:
        _LOG.error("LOG: cannot read %s: %s (will try again)", self.directory, error)
        self.later(_RETRY_S, retry)

    # -- the end of segments ------------------------------------------------------------------

    def consumed(self, low: int) -> list[Segment]:
        """The segments, oldest first, that end at or below `low`; never the newest."""
        last = bisect_right(self.segments, low, key=_FIRST) - 1
        return self.segments[: max(last, 0)]

    def retire(self, count: int) -> None:
        """Delete the `count` oldest segments; OSError when they cannot be."""
        if count:  # the newest may have no file yet, which alone will say where the log is
            self._note_gaps()
            self.files.get(self.segments[-1].path)
        for _ in range(count):
            _unlink(self.files, self.segments[0])
            del self.segments[0]
        self.gaps = retire_gaps(self.directory, self.gaps, self.first)

    def roll(self) -> None:
        """Start a new segment, if all is written: the newest can be retired when consumed."""
        if self.end > self.written:
            return
        if self.segments and self.segments[-1].first < self.written:
            segment = Segment(self.directory, self.written)
            self.files.get(segment.path)  # creates the file, which alone will say where the log is
            self.files.forget(self.segments[-1].path)
            self.segments.append(segment)
            self.dirty.add(self.directory)

    def close(self) -> None:
        for segment in self.segments:
            self.files.forget(segment.path)
        for reader in self._readers:  # a log that is made in its place has the same paths
            reader.forget()
        self.state = State.CLOSED
        self.syncing.close()
        self._clear()

    def _open_newest(self, clean: tuple[int, int, int] | None) -> None:
        for segment in self.segments:
            status = stat_file(segment.path)
            segment.size_bytes = segment.unchecked_bytes = status.st_size
            # The clock may be set back while nobody writes. No file is older than its messages.
            self._order.newest_ns = max(self._order.newest_ns, status.st_mtime_ns)
        if not self.segments:
            return
        newest = self.segments[-1]
        if clean is not None and clean[:2] == (newest.first, newest.size_bytes):
            self.written = clean[2]
            return
        # Whoever wrote it was killed, perhaps before an fsync. All segments: those that were synced
        # cost 1.4 ms each, and times cannot tell which they are: the clock may have been set since.
        self.dirty = {self.directory, *(segment.path for segment in self.segments)}
        self.unsynced = 1
        started = time.monotonic()
        self.written, damages = recover(newest)
        newest.unchecked_bytes = 0
        if newest.ordered_from > max(newest.first, self._order.start):
            # A loss of power took the file that said so.
            with suppress(OSError):
                self.note_disorder(newest.ordered_from)
            self._order.start = newest.ordered_from
        if newest.size_bytes in newest.holes.values():
            # There was no room to keep a copy of the tail: it stays, and had a message at least.
            self.written += 1
            self.segments.append(Segment(self.directory, self.written))
        self.report_damage(damages)
        elapsed_s = time.monotonic() - started
        if elapsed_s > 1:
            _LOG.info("LOG: checked %s in %.1f s", newest.path, elapsed_s)


def _unlink(files: FilePool, segment: Segment) -> None:
    files.forget(segment.path)
    with suppress(FileNotFoundError):
        os.unlink(segment.path)
