"""The tail of a log: its newest messages, in memory. See `log.log` for the offsets.

Sealed batches, then the batch that is `open`: small messages are added to it, from tick to tick, by
a kernel that all logs share (`log.shared_batches`). Readers get either, and take copies from the
one that still grows.
"""

from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter

from pumpline.core.messages.batches import AnyBatch, Builder, LogBatch
from pumpline.core.messages.frame import MESSAGE_OVERHEAD_BYTES
from pumpline.core.messages.spans import Span, left_out
from pumpline.log.shared_batches import SharedBatches

_END = attrgetter("end")


class Tail:
    dropped = 0  # messages
    offsets_to_skip = 0  # before the next message: they may have been given out and lost

    def __init__(self, base_id: int) -> None:
        self.base_id = base_id
        self.tail: list[LogBatch] = []
        self.open: Builder | None = None
        self.logged = 0
        self.gaps: list[Span] = []  # offsets that were left out (`log.gaps`)
        self.on_visible: Callable[[], None] | None = None  # called when `end` has grown
        self.is_followed = False  # somebody reads the tail, even if `on_visible` is not called now
        self._end = 0  # while it is not derived
        self._begin = 0  # the offset of the next message, if that is above the end of the tail
        self._tail_bytes = 0  # of frames
        self._body_bytes = 0  # of sealed batches, accepted since the process started
        self._shared: SharedBatches | None = None
        self._lines: tuple[bytes, ...] = ()  # under which the open batch is shared

    @property
    def end(self) -> int:
        """Everything below was acknowledged, and can be read."""
        shared, builder = self._shared, self.open
        if shared is None or builder is None or not shared.is_immediate:
            return self._end
        accepted = builder.first + (len(builder.ends) >> 2)
        return accepted - shared.pending(self._lines) if shared.lines else accepted

    @property
    def accepted(self) -> int:
        """The offset of the next message."""
        if self.open is not None:
            return self.open.end
        end = self.tail[-1].end if self.tail else 0
        return end if end > self._begin else self._begin

    @property
    def message_bytes(self) -> int:
        """Of the bodies of all messages that were acknowledged since the process started."""
        builder, end = self.open, self.end
        if builder is None or builder.first >= end:
            return self._body_bytes
        overhead = MESSAGE_OVERHEAD_BYTES * (end - builder.first)
        return self._body_bytes + builder.position(end) - overhead

    def count(self, start: int, end: int) -> int:
        """How many messages there are from `start` on, below `end`."""
        return max(end - start - left_out(self.gaps, start, end), 0)

    def follow(self, on_visible: Callable[[], None] | None) -> None:
        """Call this whenever `end` has grown; None: nobody reads the tail."""
        self.on_visible = on_visible
        self.is_followed = on_visible is not None
        self._note_follower()

    def rest(self) -> None:
        """Do not call the follower until it follows again. It still reads the tail."""
        self.on_visible = None
        self._note_follower()

    # -- the open batch -----------------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        return self._shared is not None

    def share_batch(self, shared: SharedBatches, lines: tuple[bytes, ...]) -> None:
        """Let the kernel add messages to the open batch from now on: commands with these lines."""
        if self.open is None:
            self.open = Builder(first=self.accepted, timestamp_ns=0)
        self._shared, self._lines = shared, lines
        self._show_batch()
        self._note_follower()

    def unshare_batch(self) -> None:
        """No kernel adds to the open batch any more."""
        if self._shared is not None:
            self._end = self.end
            self.logged = max(self.logged, self._end)
            self._hide_batch()

    def _show_batch(self) -> None:
        builder, shared = self.open, self._shared
        assert builder is not None and shared is not None
        entry = builder.frames, builder.ends, self.base_id + builder.first
        for line in self._lines:
            shared.by_line[line] = entry
            shared.logs[line] = self

    def _hide_batch(self) -> None:
        shared, self._shared = self._shared, None
        assert shared is not None
        for line in self._lines:
            shared.by_line.pop(line, None)
            shared.followed.pop(line, None)

    def _note_follower(self) -> None:
        if self._shared is not None:
            for line in self._lines:
                if self.on_visible is None:
                    self._shared.followed.pop(line, None)
                else:
                    self._shared.followed[line] = self

    def seal_open(self) -> None:
        """Nothing is added to the open batch any more."""
        self.unshare_batch()
        builder, self.open = self.open, None
        if builder is not None and builder.ends:
            self._seal(builder)

    def seal_acknowledged(self) -> None:
        """As `seal_open`, for what was acknowledged: a batch with the rest, if any, is open
        then."""
        builder, end = self.open, self.end
        if builder is None or builder.first >= end:
            return
        rest = builder.split(end) if builder.end > end else Builder(first=end, timestamp_ns=0)
        self._seal(builder)
        self.open = rest if rest.ends or self.is_shared else None
        if self.is_shared:
            self._show_batch()

    def _seal(self, builder: Builder) -> None:
        builder.timestamp_ns = builder.published_ns(builder.first)
        self._keep(builder.seal())

    # -- accepting ----------------------------------------------------------------------------

    def accept(self, batches: list[LogBatch]) -> None:
        """Give these, which follow on what was accepted so far, a place in memory."""
        self.seal_open()
        end = self.accepted
        assert batches[0].first == end, "offsets are consecutive"
        for batch in batches:
            assert batch.first >= end, "offsets rise"  # damage may leave gaps
            end = batch.end
            self._keep(batch)

    def _keep(self, batch: LogBatch) -> None:
        self.tail.append(batch)
        self._tail_bytes += len(batch.frames)
        self._body_bytes += batch.body_bytes

    def advance(self, end: int) -> None:
        """Everything below `end` is acknowledged."""
        assert self._end <= end <= self.accepted
        self._end = end
        self.logged = max(self.logged, end)
        if self.on_visible is not None:
            self.on_visible()

    def refuse(self, offset: int) -> None:
        """Forget what was accepted from `offset` on; what lies before is acknowledged, or `logged`
        and waits for an fsync."""
        if self._shared is not None:
            if self._shared.is_immediate:
                self._end = offset
            self._hide_batch()
        assert self._end <= offset
        self.logged = offset
        builder = self.open
        if builder is not None:
            if builder.first <= offset:
                builder.forget(offset)
            else:
                self.open = None
        self._split_at(offset)
        while self.tail and self.tail[-1].first >= offset:
            batch = self.tail.pop()
            self._tail_bytes -= len(batch.frames)
            self._body_bytes -= batch.body_bytes
        self._begin = offset
        assert self.accepted == offset

    def _split_at(self, offset: int) -> None:
        """Let no sealed batch begin before `offset` and end after it."""
        index = bisect_right(self.tail, offset, key=_END)
        if index < len(self.tail) and self.tail[index].first < offset:
            self.tail[index : index + 1] = self.tail[index].split(offset)

    def start_at(self, offset: int) -> None:
        """There is nothing in memory; the next message gets `offset`."""
        assert not self.tail
        self._next_is(offset)

    def _next_is(self, offset: int) -> None:
        """The next message gets `offset`; there is none between the end of the tail and that."""
        assert self.open is None
        self._begin = self._end = self.logged = offset

    # -- reading ------------------------------------------------------------------------------

    def in_tail(self, offset: int) -> AnyBatch | None:
        """The batch with `offset`, or the next, if it is in memory."""
        batch, tail = self.open, self.tail
        if batch is not None and offset >= batch.first:
            return batch if offset < batch.end else None
        if not tail or offset < tail[0].first:
            return None
        if offset >= tail[-1].first:
            return tail[-1] if offset < tail[-1].end else None
        return tail[bisect_right(tail, offset, key=_END)]

    def from_tail(self, offset: int, to: int) -> list[LogBatch]:
        """The sealed batches from the one that begins at `offset` on that end at `to` or before."""
        index = bisect_right(self.tail, offset, key=_END)
        return [batch for batch in self.tail[index:] if batch.end <= to]

    def visible_in_tail(self, offset: int) -> list[AnyBatch]:
        """The batches that end after `offset` and can be read, or the first messages of which
        can."""
        index = bisect_right(self.tail, offset, key=_END)
        batches: list[AnyBatch] = [*self.tail[index:]]
        if self.open is not None:
            batches.append(self.open)
        end = self.end
        return [batch for batch in batches if batch.first < end]

    def bytes_in_tail(self, offset: int) -> int:
        """From `offset` on; about, if that is in the middle of a batch."""
        index = bisect_right(self.tail, offset, key=_END)
        size_bytes = sum(batch.size_bytes for batch in self.tail[index:])
        return size_bytes + (len(self.open.frames) if self.open is not None else 0)

    def _trim(self, lowest: int, safe: int, *, messages_max: int, bytes_max: int) -> None:
        """Forget sealed batches below `lowest`, and those that exceed the bounds: then an eighth of
        them at once, as each time all the rest has to move up. Those above `safe` stay."""
        tail = self.tail
        if not tail or tail[0].end > safe:
            return
        exceeds = self._tail_bytes > bytes_max or tail[-1].end - tail[0].first > messages_max
        if exceeds:
            messages_max -= messages_max >> 3
            bytes_max -= bytes_max >> 3
        elif tail[0].end > lowest:
            return
        if tail[-1].end <= lowest and tail[-1].end <= safe:
            self._begin, self._tail_bytes = tail[-1].end, 0
            tail.clear()
            return
        drop = bisect_right(tail, min(lowest, safe), key=_END)
        kept_bytes = self._tail_bytes
        for batch in tail[:drop]:
            kept_bytes -= len(batch.frames)
        while (
            drop < len(tail)
            and tail[drop].end <= safe
            and (kept_bytes > bytes_max or tail[-1].end - tail[drop].first > messages_max)
        ):
            kept_bytes -= len(tail[drop].frames)
            drop += 1
        self._begin = tail[-1].end
        del tail[:drop]
        self._tail_bytes = kept_bytes

    def _clear(self) -> None:
        shared = self._shared
        self.unshare_batch()
        if shared is not None:
            for line in self._lines:
                del shared.logs[line]
        self._begin = self.accepted
        self.tail.clear()
        self.open = None
        self._tail_bytes = 0
