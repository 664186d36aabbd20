"""A topic's publishes between append and fsync, and who waits for the fsync.

With `--sync-every=1` messages are neither acknowledged nor delivered before they are synced; what
arrives while one fsync runs shares the next (group commit). Else they are shown at once, and an
fsync follows when `storage.fsync` says so. A ring, the log of an ephemeral topic, has nothing to
sync. Knows the log and tickets; must not know channels.

When a group commit's fsync fails, the log is cut back to what was synced before, and all publishes
since are refused. While it cannot be cut, as on a file system that has become read-only, it is
*closed*: it takes nothing and syncs nothing, or what was refused would be delivered after all.
"""

import logging
from typing import Protocol

from pumpline.log.log import Log
from pumpline.log.ring import Ring
from pumpline.nsqd.queue.outcome import EXITING, Ticket
from pumpline.nsqd.storage.disk import Disk

_RETRY_S = 0.5  # more often than `storage.disk_health` tries: it must not call the disk healthy

_LOG = logging.getLogger(__name__)


class CommittingTopic(Protocol):
    """A topic, as seen from here."""

    name: str
    log: Log | Ring
    disk: Disk
    exiting: bool

    def show(self, end: int) -> None:
        """Messages below `end` may be delivered."""

    def synced(self, end: int) -> None:
        """All messages below `end` are on disk, and acknowledged."""

    def abandon(self) -> list[Ticket]:
        """Drop the messages that are not appended yet; returns the tickets of who waits."""

    def drop_if_unused(self) -> None:
        """Publishes were refused: if there is no other reason for the topic, delete it."""


_UnderWay = tuple[tuple[int, int, int] | None, int, list[Ticket], list[Ticket]]


class GroupCommit:
    """`storage.fsync` sees a topic as this."""

    def __init__(self, topic: CommittingTopic) -> None:
        self._topic = topic
        self._log = topic.log
        self._disk = topic.disk
        self._waiting: list[Ticket] = []  # for an fsync
        self._filed: list[Ticket] = []  # likewise, of what the journal has as well
        self.closed: str | None = None  # why the log takes nothing, if so
        self._mark = self._log.mark()  # all before was synced
        # What an fsync covers.
        self._under_way: _UnderWay = self._mark, self._log.end, [], []
        self._syncing: list[str] = []  # paths, likewise

    @property
    def unsynced(self) -> int:
        return self._log.unsynced

    def appended(self, ticket: Ticket) -> None:
        """The log grew by what the ticket stands for."""
        log, disk = self._log, self._disk
        if not log.unsynced:
            self._topic.show(log.end)
            ticket.settle(None)
            return
        if disk.fsyncs.group_commit:
            self._waiting.append(ticket)
        else:
            self._topic.show(log.end)
            ticket.settle(None)
        disk.fsyncs.appended(self)

    def filed(self, ticket: Ticket) -> None:
        """The log grew by what the journal has. That was acknowledged, so it is shown at once; the
        ticket says when the journal need not have it any more, or that the log has it no more."""
        self._topic.show(self._log.end)
        if not self._log.unsynced:
            ticket.settle(None)
            return
        if self._disk.fsyncs.group_commit:
            self._filed.append(ticket)
        else:
            ticket.settle(None)
        self._disk.fsyncs.appended(self)

    @property
    def is_settled(self) -> bool:
        """Whether nobody waits for the outcome of a publish."""
        return not self._waiting and not self._under_way[2]

    def sync(self) -> Ticket:
        """Sync all that was appended and acknowledged so far, soon; the outcome."""
        ticket = Ticket()
        if self._topic.exiting:
            ticket.settle(EXITING)
        elif self._disk.fsyncs.group_commit or not (self._log.unsynced or self._syncing):
            ticket.settle(None)
        elif self._log.unsynced:
            self._waiting.append(ticket)
            self._disk.fsyncs.hurry(self)
        else:
            self._under_way[2].append(ticket)
        return ticket

    def take_dirty(self) -> list[str]:
        if self._topic.exiting or self.closed is not None:
            return []
        self._under_way = self._log.mark(), self._log.end, self._waiting, self._filed
        self._waiting, self._filed = [], []
        self._syncing = self._log.take_dirty()
        return self._syncing

    def take_all_dirty(self) -> list[str]:
        """As `take_dirty`, for a stop: with what an fsync covers that is under way, and may fail
        when it is too late."""
        return [] if self.closed is not None else [*self._syncing, *self._log.take_dirty()]

    def sync_done(self, paths: list[str], error: OSError | None) -> None:
        topic = self._topic
        self._syncing = []
        mark, end, publishes, filed = self._under_way
        self._under_way = mark, end, [], []
        tickets = [*publishes, *filed]
        if topic.exiting:
            reason: str | None = EXITING
        elif error is None:
            reason = None
            self._mark = mark
            if self._disk.fsyncs.group_commit:
                topic.show(end)
        else:
            reason = self._disk.health.failed(error, f"topic {topic.name}")
            self._log.sync_failed(paths)
            if self._disk.fsyncs.group_commit:
                tickets += self._take_back()
        for ticket in tickets:
            ticket.settle(reason)
        if reason is None:
            topic.synced(end)
        elif not topic.exiting:
            topic.drop_if_unused()

    def cut(self) -> bool:
        """Cut off what was refused, if that could not be done before; return whether nothing is
        left of it."""
        if self.closed is not None:
            tickets = self._topic.abandon()
            reason, self.closed = self.closed, None
            self._cut_back()
            for ticket in tickets:  # their offsets follow on those that were cut
                ticket.settle(reason)
        return self.closed is None

    def close(self) -> None:
        """The topic is deleted."""
        self._disk.fsyncs.forget(self)
        for ticket in (*self._waiting, *self._filed, *self._topic.abandon()):
            ticket.settle(EXITING)

    def _take_back(self) -> list[Ticket]:
        """The fsync failed: truncate the log to the last synced mark; return the tickets of all
        publishes since, to be failed.

        None of them was acknowledged or delivered, but for what the journal has, which is filed
        again. What is being put goes, too: its offsets follow on those that are taken back.
        """
        tickets = [*self._waiting, *self._filed]
        self._waiting, self._filed = [], []
        tickets += self._topic.abandon()
        self._cut_back()
        return tickets

    def _cut_back(self) -> None:
        try:
            self._log.cut_back(self._mark)
        except OSError as error:
            what = f"topic {self._topic.name}, to cut off what was refused"
            self.closed = self._disk.health.failed(error, what)
            self._disk.later(_RETRY_S, self._on_timer)

    def _on_timer(self) -> None:
        if not self._topic.exiting and self.closed is not None and self.cut():
            _LOG.info("TOPIC(%s): what was refused is cut off", self._topic.name)
            self._disk.fsyncs.appended(self)
