"""Checkpoints: the changes of channels go to their cursor files every 100 ms, in a thread.

After a kill, what was finished since the last checkpoint is delivered again; nothing else is.

The thread may be late: while it is, a channel can be deleted, made again under the same name, or
written for the last time by a stop. So every write is done under one lock, and not done at all if
its channel is deleted or a newer snapshot is in the file already.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from pumpline.core.messages.delivery import Delivery
from pumpline.log import cursor
from pumpline.log.cursor import Clocks, CursorFile
from pumpline.log.log import Later, Offload

CHECKPOINT_S = 0.1

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
    data: bytes
    snapshot: bool
    number: int  # counts the writes of a file


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
        self._since_s = math.inf  # of the oldest change that is in no file, and not under way
        self._under_way_since_s = math.inf
        self._offload = offload
        self._later = later
        self._clocks = clocks
        self._changed: dict[Checkpointed, None] = {}
        self._scheduled = False
        self._under_way: list[_Write] = []
        self._files = threading.Lock()

    @property
    def age_s(self) -> float:
        """How old the oldest change is that a kill would undo; 0 if there is none."""
        return max(self._clock_s() - min(self._since_s, self._under_way_since_s), 0.0)

    def add(self, channel: Checkpointed) -> None:
        """The channel's state changed; it says so once, until the next checkpoint."""
        if not self._changed:
            self._since_s = self._clock_s()
        self._changed[channel] = None
        self._schedule()

    def write_now(self) -> None:
        """Write everything changed and return when it is written."""
        for write in self._under_way:  # it may be written or not: write a snapshot instead
            write.file.note_failure()
            write.channel.note_change()
        self._settle(self._write_all(self._collect()))

    def write_first(self, channel: Checkpointed, file: CursorFile) -> None:
        """Write a new channel's cursor at once: it must not miss messages after a crash."""
        write = self._snapshot(channel, file)
        cursor.write(file.path, write.data, snapshot=True)

    def forget(self, channel: Checkpointed) -> None:
        """The channel is deleted, and so is its cursor."""
        with self._files:
            channel.deleted = True
            channel.remove_cursor()
        self._changed.pop(channel, None)

    def _schedule(self) -> None:
        if not self._scheduled and not self._under_way:
            self._scheduled = True
            self._later(CHECKPOINT_S, self._begin)

    def _begin(self) -> None:
        self._scheduled = False
        writes = self._collect()
        if writes:
            self._under_way = writes
            self._offload(lambda: self._write_all(writes), self._done)
        else:
            self._under_way_since_s = math.inf

    def _done(self, result: "list[tuple[_Write, OSError]] | BaseException") -> None:
        self._under_way = []
        if isinstance(result, BaseException):
            raise result
        self._settle(result)
        if self._changed:
            self._schedule()

    def _write_all(self, writes: list[_Write]) -> list[tuple[_Write, OSError]]:
        """Runs in a thread; when nsqd stops, on the event loop."""
        failed = []
        for write in writes:
            with self._files:
                if write.channel.deleted or write.number < write.file.written:
                    continue
                try:
                    cursor.write(write.file.path, write.data, snapshot=write.snapshot)
                    write.file.written = write.number
                except OSError as error:
                    failed.append((write, error))
        return failed

    def _collect(self) -> list[_Write]:
        changed, self._changed = self._changed, {}
        self._under_way_since_s, self._since_s = self._since_s, math.inf
        writes = []
        for channel in changed:
            channel.delivery.settle()  # which may note a change: it is in this checkpoint
            channel.changed = False
            file = channel.cursor_file
            if file is None or channel.deleted:
                continue
            if file.wants_snapshot:
                writes.append(self._snapshot(channel, file))
            else:
                journal = channel.delivery.take_journal()
                data = cursor.encode(journal, self._clocks())
                number = file.note_change(data)
                writes.append(_Write(channel, file, data, snapshot=False, number=number))
        return writes

    def _snapshot(self, channel: Checkpointed, file: CursorFile) -> _Write:
        state = channel.delivery.snapshot()
        data = cursor.encode(state, self._clocks())
        number = file.note_snapshot(data)
        return _Write(channel, file, data, snapshot=True, number=number)

    def _settle(self, failed: list[tuple[_Write, OSError]]) -> None:
        """Let failed writes be followed by a snapshot."""
        since_s, self._under_way_since_s = self._under_way_since_s, math.inf
        for write, error in failed:
            if write.channel.deleted:
                continue
            self.failures += 1
            _LOG.error("CHECKPOINT: failed to write %s: %s", write.file.path, error)
            write.file.note_failure()
            write.channel.note_change()
            self._since_s = min(self._since_s, since_s)
