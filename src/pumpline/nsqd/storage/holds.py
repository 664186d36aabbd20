"""Holds: places in a topic's log that its readers by offset keep, as consumers keep a channel's.

A hold is a channel that is never delivered, only committed: messages from its offset on stay in the
log. It shares the name space of channels and shows among them in /stats. A change of it is on disk
before it is answered. A hold may pin a limited number of bytes, so that a dead reader cannot fill
the disk: beyond the limit it is *dropped*. A dropped hold pins nothing, but stays, and says so to
its owner; a commit that brings it back under its limit revives it.

Until a commit or a delete is on disk, the log keeps what a kill would bring back, unless the disk
is full (`release_unsaved`). Holds are written in a thread; a failed write is tried again every
second.

Knows the log, and the file (`log.holds`); must not know topics.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from copy import copy

from pumpline.log.holds import StoredHold, write_holds
from pumpline.log.log import Log
from pumpline.log.ring import Ring
from pumpline.log.scheduling import Later

HOLDS_MAX = 1000  # of a topic

_RETRY_S = 1.0

_LOG = logging.getLogger(__name__)


class Holds:
    """The holds of one topic, by name; few topics have any, and ephemeral ones have none."""

    __slots__ = (
        "_is_retrying",
        "_later",
        "_log",
        "_retry",
        "_saved_offsets",
        "_saved_version",
        "_saving",
        "_topic",
        "_version",
        "by_name",
        "dropped_count",
    )

    def __init__(self, topic: str, log: Log | Ring, *, later: Later) -> None:
        self.by_name: dict[str, StoredHold] = {}
        self.dropped_count = 0
        self._topic = topic
        self._log = log
        self._later = later
        self._version = 0  # counts changes
        self._saved_version = 0  # on disk
        self._saved_offsets: dict[str, int] = {}  # of the holds that pin something, as on disk
        self._saving: asyncio.Lock | None = None
        self._is_retrying = False  # a timer runs
        self._retry: asyncio.Task[None] | None = None

    @property
    def low(self) -> int | None:
        """The lowest offset that is held, if any is."""
        by_name = self.by_name
        kept = [hold.offset for hold in by_name.values() if not hold.dropped]
        for name, offset in self._saved_offsets.items():
            if name not in by_name or not by_name[name].dropped:
                kept.append(offset)
        return min(kept, default=None)

    def restore(self, holds: Iterable[StoredHold]) -> None:
        """After a restart."""
        for hold in holds:
            self.by_name[hold.name] = hold
            hold.dropped = hold.dropped or hold.offset < self._log.first
        self._note_saved(self.by_name.values())

    def create(self, name: str, *, offset: int, bytes_max: int, now_ns: int) -> StoredHold:
        hold = StoredHold(name, offset, bytes_max, now_ns)
        self.by_name[name] = hold
        self._version += 1
        _LOG.info("TOPIC(%s): new hold(%s) at %d", self._topic, name, offset)
        return hold

    def describe(self, hold: StoredHold, description: str) -> None:
        if hold.description != description:
            hold.description = description
            self._version += 1

    def commit(self, hold: StoredHold, offset: int, now_ns: int) -> None:
        """Everything below `offset` may be deleted; a hold never moves back."""
        hold.offset = max(hold.offset, offset)
        hold.committed_at_ns = now_ns
        if hold.dropped and self._log.first <= hold.offset:
            hold.dropped = self._is_over(hold)
        self._version += 1

    def delete(self, name: str) -> None:
        del self.by_name[name]
        self._version += 1
        _LOG.info("TOPIC(%s): deleting hold %s", self._topic, name)

    def depth(self, hold: StoredHold) -> int:
        """Messages that its owner has not committed."""
        return self._log.count(hold.offset, self._log.end)

    def pinned_bytes(self, hold: StoredHold) -> int:
        """About how many bytes the log has from the hold's offset on."""
        return self._log.bytes_from(hold.offset)

    def drop_excess(self) -> None:
        """Drop the holds that pin more than they may."""
        for hold in self.by_name.values():
            if not hold.dropped and self._is_over(hold):
                hold.dropped = True
                self.dropped_count += 1
                self._version += 1
                _LOG.error(
                    "TOPIC(%s): dropped hold(%s) at %d: %d bytes pinned, %d allowed",
                    self._topic,
                    hold.name,
                    hold.offset,
                    self.pinned_bytes(hold),
                    hold.bytes_max,
                )

    def _is_over(self, hold: StoredHold) -> bool:
        return 0 < hold.bytes_max < self.pinned_bytes(hold)

    # -- on disk ------------------------------------------------------------------------------

    async def save(self) -> None:
        """Return when the holds as they are now are on disk; OSError when they cannot be written.
        Callers that come while a write is under way share the next one."""
        wanted = self._version
        if self._saving is None:
            self._saving = asyncio.Lock()
        async with self._saving:
            if self._saved_version >= wanted:
                return
            log, version = self._log, self._version
            assert isinstance(log, Log)
            stored = [copy(hold) for hold in self.by_name.values()]
            try:
                await asyncio.to_thread(write_holds, log.directory, log.base_id, stored)
            except OSError:
                self._retry_later(log)
                raise
            self._saved_version = version
            self._note_saved(stored)

    def release_unsaved(self) -> None:
        """The disk is full: keep no longer what commits and deletes have passed, though they are
        not on disk. A hold that a kill brings back may then be dropped."""
        self._saved_offsets = {}

    def _note_saved(self, stored: Iterable[StoredHold]) -> None:
        self._saved_offsets = {hold.name: hold.offset for hold in stored if not hold.dropped}

    def _retry_later(self, log: Log) -> None:
        if not self._is_retrying and not log.is_closed:
            self._is_retrying = True
            self._later(_RETRY_S, lambda: self._on_timer(log))

    def _on_timer(self, log: Log) -> None:
        self._is_retrying = False
        if not log.is_closed:
            self._retry = asyncio.get_running_loop().create_task(self._save_again())

    async def _save_again(self) -> None:
        with suppress(OSError):
            await self.save()
