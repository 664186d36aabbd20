"""Checkpoints: the changes of channels go to their cursor files every 100 ms, in a thread.

After a kill, what was finished since the last checkpoint is delivered again; nothing else is.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from pumpline.log import cursor
from pumpline.log.cursor import CursorFile
from pumpline.log.log import Later, Offload

if TYPE_CHECKING:
    from pumpline.broker.channel import Channel

CHECKPOINT_S = 0.1

_LOG = logging.getLogger(__name__)


class _Write(NamedTuple):
    channel: "Channel"
    file: CursorFile
    data: bytes
    snapshot: bool


class Checkpoints:
    def __init__(self, *, offload: Offload, later: Later, wall_ahead_ns: Callable[[], int]) -> None:
        self.failures = 0
        self._offload = offload
        self._later = later
        self._wall_ahead_ns = wall_ahead_ns
        self._changed: dict[Channel, None] = {}
        self._scheduled = False
        self._writing = False

    def add(self, channel: "Channel") -> None:
        """The channel's state changed; it says so once, until the next checkpoint."""
        self._changed[channel] = None
        self._schedule()

    def write_now(self) -> None:
        """Write everything changed and return when it is written."""
        self._settle(_write_all(self._collect()))

    def write_first(self, channel: "Channel", file: CursorFile) -> None:
        """Write a new channel's cursor at once: it must not miss messages after a crash."""
        write = self._snapshot(channel, file)
        cursor.write(file.path, write.data, snapshot=True)

    def _schedule(self) -> None:
        if not self._scheduled and not self._writing:
            self._scheduled = True
            self._later(CHECKPOINT_S, self._begin)

    def _begin(self) -> None:
        self._scheduled = False
        writes = self._collect()
        if writes:
            self._writing = True
            self._offload(lambda: _write_all(writes), self._done)

    def _done(self, result: "list[tuple[_Write, OSError]] | BaseException") -> None:
        self._writing = False
        if isinstance(result, BaseException):
            raise result
        self._settle(result)
        if self._changed:
            self._schedule()

    def _collect(self) -> list[_Write]:
        changed, self._changed = self._changed, {}
        writes = []
        for channel in changed:
            channel.changed = False
            file = channel.cursor_file
            if file is None or channel.deleted:
                continue
            if file.wants_snapshot:
                writes.append(self._snapshot(channel, file))
            else:
                journal = channel.delivery.take_journal()
                data = cursor.encode(journal, wall_ahead_ns=self._wall_ahead_ns())
                file.note_change(data)
                writes.append(_Write(channel, file, data, snapshot=False))
        return writes

    def _snapshot(self, channel: "Channel", file: CursorFile) -> _Write:
        state = channel.delivery.snapshot()
        data = cursor.encode(state, wall_ahead_ns=self._wall_ahead_ns())
        file.note_snapshot(data)
        return _Write(channel, file, data, snapshot=True)

    def _settle(self, failed: list[tuple[_Write, OSError]]) -> None:
        """What could not be written is written whole next time."""
        for write, error in failed:
            if write.channel.deleted:
                continue
            self.failures += 1
            _LOG.error("CHECKPOINT: failed to write %s: %s", write.file.path, error)
            write.file.note_failure()
            write.channel.note_change()


def _write_all(writes: list[_Write]) -> list[tuple[_Write, OSError]]:
    failed = []
    for write in writes:
        try:
            cursor.write(write.file.path, write.data, snapshot=write.snapshot)
            if write.channel.deleted:  # meanwhile, on the event loop
                write.channel.remove_cursor()
        except OSError as error:
            failed.append((write, error))
    return failed
