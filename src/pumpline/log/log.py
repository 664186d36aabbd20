"""A topic's log on disk: segments, the newest of which is written to, and the tail in memory.

`append` writes batches with one `writev`; an OSError from it means that nothing was appended. What
was appended survives a kill of the process at once, and a loss of power once `sync` has run. Bytes
on disk are described in `core.messages.batches` and `log.segment`, damage in `log.recovery`.

Messages are in the order of their publish times, unless the clock was set back. The empty file
`<offset, 20 digits>.unordered` says that they are from this offset on only.

The log knows nothing of channels: its owner says how far everybody has read (`retire`, `trim`).
"""

import logging
import os
import time
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from weakref import WeakSet, WeakValueDictionary

from pumpline.core.messages.batches import LogBatch
from pumpline.log.files import FilePool, sync_file, write_all, write_whole
from pumpline.log.reader import Block, Reader
from pumpline.log.recovery import Damage, parse, recover, survey
from pumpline.log.scheduling import Later, Offload
from pumpline.log.segment import OFFSET_END, SUFFIX, DeferredSpan, Segment, offset_in

_LOG = logging.getLogger(__name__)
_FIRST = attrgetter("first")
_END = attrgetter("end")
_RETRY_S = 1.0

UNORDERED = ".unordered"


class Log:
    keeps_unfinished = False  # the tail is for those who read on; what comes back is on disk
    dropped = 0  # messages: a ring drops what exceeds its bound, a log on disk nothing

    def __init__(
        self,
        directory: str,
        *,
        base_id: int,
        files: FilePool,
        offload: Offload,
        later: Later,
        segment_bytes_max: int,
        clean: tuple[int, int, int] | None = None,
    ) -> None:
        """Open the log in `directory`, which exists.

        `clean` is what `mark` gave when the log was last closed: if the newest segment still has
        that size, it needs no check.
        """
        self.directory = directory
        self.base_id = base_id
        self.files = files
        self.offload = offload
        self.tail: list[LogBatch] = []
        self.end = 0
        self.unsynced = 0  # messages
        self._later = later
        self._segment_bytes_max = segment_bytes_max
        self._readers: WeakSet[Reader] = WeakSet()
        self._blocks: WeakValueDictionary[tuple[int, int], Block] = WeakValueDictionary()
        self._dirty: set[str] = set()  # paths written since the last sync
        self._tail_bytes = 0
        self._newest_ns = 0  # no batch in the ordered part was published later
        *old, self.ordered_from = _numbered(directory, UNORDERED) or [0]
        for offset in old:  # a kill left it
            with suppress(OSError):
                os.unlink(self._unordered(offset))
        self.segments = [Segment(directory, first) for first in _numbered(directory, SUFFIX)]
        self._open_newest(clean)

    @property
    def first(self) -> int:
        """The oldest offset still there, or the end."""
        return self.segments[0].first if self.segments else self.end

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def bytes_from(self, offset: int) -> int:
        """About how many bytes there are from `offset` on."""
        index = max(bisect_right(self.segments, offset, key=_FIRST) - 1, 0)
        if offset >= self.end or index >= len(self.segments):
            return 0
        segment = self.segments[index]
        end = self.segments[index + 1].first if index + 1 < len(self.segments) else self.end
        below = segment.estimate(max(offset, segment.first), end)
        return sum(each.size_bytes for each in self.segments[index:]) - below

    def mark(self) -> tuple[int, int, int] | None:
        """The newest segment's first offset and size, and the log's end."""
        if not self.segments:
            return None
        newest = self.segments[-1]
        return newest.first, newest.size_bytes, self.end

    def take_deferred(self) -> list[DeferredSpan]:
        """What was published with a delay, as far as a recovery came by it."""
        found: list[DeferredSpan] = []
        for segment in self.segments:
            found += segment.deferred
            segment.deferred = []
        return found

    def take_tokens(self, since: int | None) -> list[tuple[int, bytes]]:
        """The tokens of batches from offset `since` on, each with its batch's end, in order; None:
        as far as a recovery came by them. To be asked for right after opening."""
        found: list[tuple[int, bytes]] = []
        for segment in self.segments:
            tokens, segment.tokens = segment.tokens, []
            if since is None:
                found += tokens
            elif min(self.limit_of(segment), self.end) > since:
                if segment.unchecked_bytes:
                    tokens = self._survey(segment).tokens
                found += [each for each in tokens if each[0] > since]
        return found

    def _survey(self, segment: Segment) -> Segment:
        fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found, damages = survey(segment, fd, self.limit_of(segment))
        finally:
            os.close(fd)
        segment.learn(found)
        self.report_damage(damages)
        return found

    # -- writing ------------------------------------------------------------------------------

    def append(self, batches: list[LogBatch]) -> None:
        """Write all of `batches`, or raise OSError having written none of them."""
        parts: list[bytes | memoryview] = []
        for batch in batches:
            parts += batch.parts()
            if batch.timestamp_ns < self._newest_ns:
                self.note_disorder()
            self._newest_ns = batch.timestamp_ns
        segment = self._writable(batches[0].first)
        fd = self.files.get(segment.path)
        try:
            write_all(fd, parts)
        except OSError:
            self._undo(fd, segment)
            raise
        if not segment.size_bytes:  # the file may be as new
            self._dirty.add(self.directory)
        for batch in batches:
            segment.note(batch, segment.size_bytes)
            segment.size_bytes += batch.size_bytes
            self.unsynced += batch.count
            self._tail_bytes += len(batch.frames)
        self._dirty.add(segment.path)
        self.tail += batches
        self.end = batches[-1].end

    def skip_to(self, offset: int) -> None:
        """Leave a gap: the next message gets `offset`. For offsets given out and then lost."""
        if offset > self.end:
            self.end = offset
            self.segments.append(Segment(self.directory, offset))

    def note_disorder(self) -> None:
        """Publish times so far say nothing about those of what is appended from now on. OSError if
        that cannot be noted."""
        before, offset = self.ordered_from, self.end
        if self.first == offset:
            return
        os.close(os.open(self._unordered(offset), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        self._dirty.add(self.directory)
        self.ordered_from = offset
        if before != offset:
            with suppress(FileNotFoundError):
                os.unlink(self._unordered(before))

    def _unordered(self, offset: int) -> str:
        return os.path.join(self.directory, f"{offset:020d}{UNORDERED}")

    def sync_also(self, path: str) -> None:
        """The next sync has to cover `path` as well."""
        self._dirty.add(path)

    def take_dirty(self) -> list[str]:
        """The paths that a sync has to cover, counted as synced from now on."""
        paths = sorted(self._dirty)
        self._dirty.clear()
        self.unsynced = 0
        return paths

    def sync_failed(self, paths: list[str]) -> None:
        self._dirty.update(paths)
        self.unsynced = max(self.unsynced, 1)

    def cut_back(self, mark: tuple[int, int, int] | None) -> None:
        """Take back everything appended since `mark` was taken."""
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
        self.end = end
        self.tail = [batch for batch in self.tail if batch.end <= end]
        self._tail_bytes = sum(len(batch.frames) for batch in self.tail)

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
        """After a failed write: back to the last good size, or away from this file."""
        try:
            os.ftruncate(fd, segment.size_bytes)
        except OSError as error:
            # The torn bytes stay, out of sight of readers: what comes next goes to a new segment.
            _LOG.error("LOG: cannot cut %s after a failed write: %s", segment.path, error)
            if segment.first < self.end:
                self.segments.append(Segment(self.directory, self.end))
            else:
                self._replace_empty(segment)

    def _replace_empty(self, segment: Segment) -> None:
        """Put an empty file in the place of one that was to get its first batch: it may be the only
        one left to say where the log is."""
        self.files.forget(segment.path)
        try:
            write_whole(segment.path, b"", sync=False)
        except OSError:
            _unlink(self.files, segment)

    # -- reading ------------------------------------------------------------------------------

    def reader(self, on_ready: Callable[[], None]) -> Reader:
        reader = Reader(self, on_ready)
        self._readers.add(reader)
        return reader

    def in_tail(self, offset: int) -> LogBatch | None:
        """The batch with `offset`, or the next, if it is in the tail."""
        tail = self.tail
        if not tail or offset < tail[0].first:
            return None
        if offset >= tail[-1].first:
            return tail[-1] if offset < tail[-1].end else None
        return tail[bisect_right(tail, offset, key=_END)]

    def trim(self, lowest: int, *, messages_max: int, bytes_max: int) -> None:
        """Forget the part of the tail below `lowest`, and what exceeds the bounds: then an eighth
        of them at once, as each time all the rest has to move up."""
        tail = self.tail
        if not tail:
            return
        exceeds = self._tail_bytes > bytes_max or tail[-1].end - tail[0].first > messages_max
        if exceeds:
            messages_max -= messages_max >> 3
            bytes_max -= bytes_max >> 3
        elif tail[0].end > lowest:
            return
        drop = bisect_right(tail, lowest, key=_END)
        kept_bytes = self._tail_bytes - sum(len(batch.frames) for batch in tail[:drop])
        while drop < len(tail) and (
            kept_bytes > bytes_max or tail[-1].end - tail[drop].first > messages_max
        ):
            kept_bytes -= len(tail[drop].frames)
            drop += 1
        del tail[:drop]
        self._tail_bytes = kept_bytes

    def contains(self, segment: Segment) -> bool:
        """Whether a segment is (still) part of the log."""
        index = bisect_right(self.segments, segment.first, key=_FIRST) - 1
        return index >= 0 and self.segments[index] is segment

    def segment_of(self, offset: int) -> Segment | None:
        """The segment with `offset`, or the oldest if `offset` is gone."""
        if offset >= self.end or not self.segments:
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
        self._later(_RETRY_S, retry)

    def first_gap(self, offset: int) -> tuple[int, int, int] | None:
        """The first place after `offset` at which the log lacks an offset below its end, as
        `cut_back` takes it: segment, position, offset. Reads what there is from `offset` on."""
        for segment in self.segments[max(bisect_right(self.segments, offset, key=_FIRST) - 1, 0) :]:
            at = segment.near(offset)  # 0 in those that follow
            fd = self.files.get(segment.path)
            data = memoryview(os.pread(fd, segment.size_bytes - at, at))
            limit = self.limit_of(segment)
            batches, _, _ = parse(data, limit)
            end = batches[0].first if at and batches else segment.first
            for batch in batches:
                if batch.first > end:
                    return segment.first, at, end
                end = batch.end
                at += batch.size_bytes
            if end < min(limit, self.end):
                return segment.first, at, end
        return None

    # -- the end of segments ------------------------------------------------------------------

    def consumed(self, low: int) -> list[Segment]:
        """The segments, oldest first, that end at or below `low`; never the newest."""
        last = bisect_right(self.segments, low, key=_FIRST) - 1
        return self.segments[: max(last, 0)]

    def retire(self, count: int) -> None:
        """Delete the `count` oldest segments; OSError when they cannot be."""
        if count:  # the newest may have no file yet, which alone will say where the log is
            self.files.get(self.segments[-1].path)
        for _ in range(count):
            _unlink(self.files, self.segments[0])
            del self.segments[0]

    def roll(self) -> None:
        """Start a new segment, so that the newest one can be retired when consumed."""
        if self.segments and self.segments[-1].first < self.end:
            segment = Segment(self.directory, self.end)
            self.files.get(segment.path)  # creates the file, which alone will say where the log is
            self.files.forget(self.segments[-1].path)
            self.segments.append(segment)
            self._dirty.add(self.directory)

    def close(self) -> None:
        for segment in self.segments:
            self.files.forget(segment.path)
        for reader in self._readers:  # a log that is made in its place has the same paths
            reader.forget()
        self.tail.clear()

    def _open_newest(self, clean: tuple[int, int, int] | None) -> None:
        for segment in self.segments:
            status = os.stat(segment.path)
            segment.size_bytes = segment.unchecked_bytes = status.st_size
            # The clock may be set back while nobody writes: files know when they were written.
            self._newest_ns = max(self._newest_ns, status.st_mtime_ns)
        if not self.segments:
            return
        newest = self.segments[-1]
        if clean is not None and clean[:2] == (newest.first, newest.size_bytes):
            self.end = clean[2]
            return
        # Whoever wrote it was killed, perhaps before an fsync. All segments: those that were synced
        # cost 1.4 ms each, and times cannot tell which they are: the clock may have been set since.
        self._dirty = {self.directory, *(segment.path for segment in self.segments)}
        self.unsynced = 1
        started = time.monotonic()
        self.end, damages = recover(newest)
        newest.unchecked_bytes = 0
        if newest.size_bytes in newest.holes.values():
            # There was no room to keep a copy of the tail: it stays, and had a message at least.
            self.skip_to(self.end + 1)
        self.report_damage(damages)
        elapsed_s = time.monotonic() - started
        if elapsed_s > 1:
            _LOG.info("LOG: checked %s in %.1f s", newest.path, elapsed_s)


def _unlink(files: FilePool, segment: Segment) -> None:
    files.forget(segment.path)
    with suppress(FileNotFoundError):
        os.unlink(segment.path)


def sync_paths(paths: list[str]) -> None:
    """fsync files and directories; for a thread."""
    for path in paths:
        try:
            sync_file(path)
        except FileNotFoundError:
            continue  # retired or deleted meanwhile


def _numbered(directory: str, suffix: str) -> list[int]:
    """The offsets in the names of files that end with `suffix`, in order."""
    return sorted(
        first for name in os.listdir(directory) if (first := offset_in(name, suffix)) is not None
    )
