"""Checkpoints: the changes of channels go to their cursor files every 100 ms, in a thread.

After a kill, what was finished since the last checkpoint is delivered again; nothing else is.

The thread may be late: while it is, a channel can be deleted, made again under the same name, or
written for the last time by a stop. So every write is done under one lock, and not done at all if
its channel is deleted or a newer snapshot is in the file already.

The event loop takes the changes, or a copy of the state; the thread encodes and writes them. With
many channels the loop does so in slices of a few milliseconds, one checkpoint after another: those
that wait longest come first.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from pumpline.core.messages.delivery import Delivery, DeliveryDelta
from pumpline.log import cursor
from pumpline.log.cursor import Clocks, CursorFile
from pumpline.log.scheduling import Later, Offload

CHECKPOINT_S = 0.1
SLICE_S = 0.005  # of the event loop's time, for one checkpoint

_SLICE_CHANNELS = 32  # between two looks at the clock

_LOG = logging.getLogger(__name__)


class Checkpointed(Protocol):
    """A channel, as seen from here."""

    delivery: Delivery
    cursor_file: CursorFile | None
    changed: bool  # since the last checkpoint
    deleted: bool

    def note_change(self) -> None: ...

    def remove_cursor(self) -> None: ...


class _Write(NamedTuple):
    channel: Checkpointed
    file: CursorFile
    state: DeliveryDelta
    now: Clocks
    snapshot: bool
    number: int  # counts the writes of a file
    since_s: float  # when the oldest change in it was made

    def write(self) -> None:
        cursor.write(self.file.path, cursor.encode(self.state, self.now), snapshot=self.snapshot)


class Checkpoints:
    def __init__(
        self,
        *,
        offload: Offload,
        later: Later,
        clocks: Callable[[], Clocks],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failures = 0
        self._clock_s = clock_s
        self._offload = offload
        self._later = later
        self._clocks = clocks
        self._changed: dict[Checkpointed, float] = {}  # since when
        self._scheduled = False
        self._more = False  # the last slice was not all there was
        self._under_way: dict[Checkpointed, _Write] = {}
        self._files = threading.Lock()

    @property
    def age_s(self) -> float:
        """How old the oldest change is that a kill would undo; 0 if there is none."""
        changed_s = min(self._changed.values(), default=math.inf)
        under_way_s = min((each.since_s for each in self._under_way.values()), default=math.inf)
        return max(self._clock_s() - min(changed_s, under_way_s), 0.0)

    def add(self, channel: Checkpointed) -> None:
        """The channel's state changed; it says so once, until the next checkpoint."""
        self._changed[channel] = self._clock_s()
        self._schedule(CHECKPOINT_S)

    def write_now(self, *channels: Checkpointed) -> OSError | None:
        """Write what changed in these channels; when this returns it is written, or the error says
        why it is not yet."""
        for channel in channels:
            write = self._under_way.get(channel)
            if write is not None:  # it may be written or not: write a snapshot instead
                write.file.note_failure()
                write.channel.note_change()
        chosen = [channel for channel in channels if channel in self._changed]
        failed = self._write_all(self._collect(chosen))
        self._settle(failed)
        return failed[0][1] if failed else None

    def write_all_now(self) -> None:
        """Write everything changed and return when it is written; for a stop."""
        self.write_now(*{**self._under_way, **self._changed})

    def write_first(self, channel: Checkpointed, file: CursorFile) -> None:
        """Write a new channel's cursor at once: it must not miss messages after a crash."""
        file.note_failure()  # a first try may have failed: the file has to begin with a snapshot
        self._take(channel, file, self._clock_s()).write()

    def forget(self, channel: Checkpointed) -> None:
        """The channel is to be deleted: delete its cursor. OSError when it cannot be; nothing is
        changed then."""
        with self._files:
            channel.remove_cursor()
            channel.deleted = True
        self._changed.pop(channel, None)

    def forget_all(self, channels: Iterable[Checkpointed]) -> None:
        """The channels are deleted with their topic: their cursors are gone with its directory."""
        for channel in channels:
            with self._files:
                channel.deleted = True
            self._changed.pop(channel, None)

    def _schedule(self, delay_s: float) -> None:
        if not self._scheduled and not self._under_way:
            self._scheduled = True
            self._later(delay_s, self._begin)

    def _begin(self) -> None:
        self._scheduled = False
        until_s = time.perf_counter() + SLICE_S
        writes: list[_Write] = []
        changed = list(self._changed)
        while changed and (not writes or time.perf_counter() < until_s):
            writes += self._collect(changed[:_SLICE_CHANNELS])
            del changed[:_SLICE_CHANNELS]
        self._more = bool(changed)
        if writes:
            self._under_way = {write.channel: write for write in writes}
            self._offload(lambda: self._write_all(writes), self._done)

    def _done(self, result: "list[tuple[_Write, OSError]] | BaseException") -> None:
        self._under_way = {}
        if isinstance(result, BaseException):
            raise result
        self._settle(result)
        if self._changed:
            self._schedule(0 if self._more and not result else CHECKPOINT_S)

    def _write_all(self, writes: list[_Write]) -> list[tuple[_Write, OSError]]:
        """Runs in a thread; when nsqd stops, on the event loop."""
        failed = []
        for write in writes:
            with self._files:
                if write.channel.deleted or write.number < write.file.written:
                    continue
                try:
                    write.write()
                    write.file.written = write.number
                except OSError as error:
                    failed.append((write, error))
        return failed

    def _collect(self, channels: Iterable[Checkpointed]) -> list[_Write]:
        """What to write of these channels, all of which have changed."""
        writes = []
        for channel in channels:
            since_s = self._changed.pop(channel)
            channel.delivery.settle()  # which may note a change: it is in this checkpoint
            channel.changed = False
            file = channel.cursor_file
            if file is None or channel.deleted:
                continue
            writes.append(self._take(channel, file, since_s))
        return writes

    def _take(self, channel: Checkpointed, file: CursorFile, since_s: float) -> _Write:
        snapshot = file.wants_snapshot
        delivery = channel.delivery
        state = delivery.snapshot() if snapshot else delivery.take_delta()
        size_bytes = cursor.encoded_bytes(state)
        number = file.note_snapshot(size_bytes) if snapshot else file.note_change(size_bytes)
        return _Write(channel, file, state, self._clocks(), snapshot, number, since_s)

    def _settle(self, failed: list[tuple[_Write, OSError]]) -> None:
        """Let failed writes be followed by a snapshot."""
        for write, error in failed:
            if write.channel.deleted:
                continue
            self.failures += 1
            _LOG.error("CHECKPOINT: failed to write %s: %s", write.file.path, error)
            write.file.note_failure()
            write.channel.note_change()
            self._changed[write.channel] = write.since_s
