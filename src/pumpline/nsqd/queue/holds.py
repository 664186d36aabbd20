"""Holds: places in a topic's log that its readers by offset keep, as consumers keep a channel's.

A hold is a channel that is never delivered, only committed: what lies from its offset on stays in
the log. It shares the name space of channels, shows among them in /stats, and is on disk before a
change of it is answered. So that a reader that died cannot fill the disk, a hold may pin so many
bytes and no more: beyond that it is *dropped*. A dropped hold pins nothing, but stays, and says so
to its owner; a commit that brings it back under its limit revives it.

What a kill would bring back stays in the log, too: a commit or a delete lets go of it once it is on
disk, unless the disk is full (`let_go_unsaved`).
"""

import logging
from collections.abc import Iterable
from copy import copy
from typing import TYPE_CHECKING

from pumpline.log.holds import StoredHold
from pumpline.nsqd.storage.holds import HoldsWriter

if TYPE_CHECKING:  # a topic makes its own
    from pumpline.nsqd.queue.topic import Topic

HOLDS_MAX = 1000  # of a topic

_LOG = logging.getLogger(__name__)


class Holds:
    """The holds of one topic, by name; few topics have any."""

    __slots__ = ("_saved", "_topic", "_version", "_writer", "by_name", "dropped_count")

    def __init__(self, topic: "Topic") -> None:
        self._topic = topic
        self.by_name: dict[str, StoredHold] = {}
        self.dropped_count = 0
        self._saved: dict[str, int] = {}  # offsets of those that pin something, as on disk
        self._version = 0  # counts changes
        self._writer: HoldsWriter | None = None

    @property
    def low(self) -> int | None:
        """The lowest offset that is held, if any is."""
        by_name = self.by_name
        kept = [hold.offset for hold in by_name.values() if not hold.dropped]
        for name, offset in self._saved.items():
            if name not in by_name or not by_name[name].dropped:
                kept.append(offset)
        return min(kept, default=None)

    def restore(self, holds: Iterable[StoredHold]) -> None:
        """After a restart."""
        for hold in holds:
            self.by_name[hold.name] = hold
            hold.dropped = hold.dropped or hold.offset < self._topic.log.first
        self._note_saved(list(self.by_name.values()))

    def create(self, name: str, *, offset: int, bytes_max: int, now_ns: int) -> StoredHold:
        hold = StoredHold(name, offset, bytes_max, now_ns)
        self.by_name[name] = hold
        self._version += 1
        _LOG.info("TOPIC(%s): new hold(%s) at %d", self._topic.name, name, offset)
        return hold

    def describe(self, hold: StoredHold, description: str) -> None:
        if hold.description != description:
            hold.description = description
            self._version += 1

    def commit(self, hold: StoredHold, offset: int, now_ns: int) -> None:
        """Everything below `offset` may go; a hold never goes back."""
        hold.offset = max(hold.offset, offset)
        hold.committed_at_ns = now_ns
        if hold.dropped and self._topic.log.first <= hold.offset:
            hold.dropped = self._is_over(hold)
        self._version += 1

    def delete(self, name: str) -> None:
        del self.by_name[name]
        self._version += 1
        _LOG.info("TOPIC(%s): deleting hold %s", self._topic.name, name)

    def depth(self, hold: StoredHold) -> int:
        """Messages that its owner has not committed."""
        return max(self._topic.log.end - hold.offset, 0)

    def pinned_bytes(self, hold: StoredHold) -> int:
        """About how much of the log is there from the hold's offset on."""
        return self._topic.log.bytes_from(hold.offset)

    def drop_excess(self) -> None:
        """Let go of what pins more than it may."""
        for hold in self.by_name.values():
            if not hold.dropped and self._is_over(hold):
                hold.dropped = True
                self.dropped_count += 1
                self._version += 1
                _LOG.error(
                    "TOPIC(%s): dropped hold(%s) at %d: %d bytes pinned, %d allowed",
                    self._topic.name,
                    hold.name,
                    hold.offset,
                    self.pinned_bytes(hold),
                    hold.bytes_max,
                )

    def _is_over(self, hold: StoredHold) -> bool:
        return 0 < hold.bytes_max < self.pinned_bytes(hold)

    async def save(self) -> None:
        """Return when what is here now is on disk; OSError when it cannot be."""
        if self._writer is None:
            topic = self._topic
            self._writer = HoldsWriter(
                topic.disk.directory.topic_path(topic.name),
                topic.log.base_id,
                read=self._read,
                written=self._note_saved,
                is_over=lambda: topic.exiting,
                later=topic.disk.later,
            )
        await self._writer.save(self._version)

    def let_go_unsaved(self) -> None:
        """The disk is full: let go of what commits and deletes have passed, though that is not on
        disk. A hold that a kill brings back may then be dropped."""
        self._saved = {}

    def _read(self) -> tuple[int, list[StoredHold]]:
        return self._version, [copy(hold) for hold in self.by_name.values()]

    def _note_saved(self, stored: list[StoredHold]) -> None:
        self._saved = {hold.name: hold.offset for hold in stored if not hold.dropped}
