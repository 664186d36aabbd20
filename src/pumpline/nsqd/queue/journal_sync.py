"""When publishes that went to the journal are acknowledged.

With `--sync-every=1` that is when the journal is synced, one fsync for all topics; what is written
while one runs shares the next. Else it is at once. Knows the journal and tickets; must not know
topics: they are the lines of their PUBs here.
"""

from collections.abc import Callable

from pumpline.log.journal import PublishJournal
from pumpline.nsqd.queue.outcome import Ticket
from pumpline.nsqd.storage.disk import Disk


class JournalSync:
    """`storage.fsync` sees the journal as this."""

    def __init__(
        self,
        journal: PublishJournal,
        disk: Disk,
        *,
        acknowledged: Callable[[list[bytes]], None],
        refused: Callable[[list[bytes], str], None],
    ) -> None:
        """`acknowledged`, and `refused` with the reason, are told of messages before publishers
        are: of each its line, in the order in which they were written."""
        self._journal = journal
        self._disk = disk
        self._acknowledged = acknowledged
        self._refused = refused
        self.written_count = 0  # tickets so far
        self.settled_count = 0
        self._lines: list[bytes] = []
        self._tickets: list[Ticket] = []
        self._under_way: tuple[list[bytes], list[Ticket]] = [], []  # what an fsync covers

    @property
    def unsynced(self) -> int:
        return max(len(self._lines), len(self._tickets))

    def written(self, ticket: Ticket, lines: list[bytes]) -> None:
        """The journal grew by these."""
        if not self._disk.fsyncs.group_commit:
            ticket.settle(None)
            return
        self.written_count += 1
        self._lines += lines
        self._tickets.append(ticket)
        self._disk.fsyncs.appended(self)

    def forget(self, line: bytes) -> None:
        """Its topic is deleted."""
        for lines in (self._lines, self._under_way[0]):
            lines[:] = [each for each in lines if each != line]

    def take_dirty(self) -> list[str]:
        paths = self._journal.take_dirty()
        self._under_way = self._lines, self._tickets
        self._lines, self._tickets = [], []
        if not paths:  # all of it was of deleted topics
            self._settle(*self._take_under_way(), None)
        return paths

    def sync_done(self, paths: list[str], error: OSError | None) -> None:
        if error is None:
            self._journal.synced()
            self._settle(*self._take_under_way(), None)
        else:
            self.refuse(self._disk.health.failed(error, "the journal"))

    def refuse(self, reason: str) -> None:
        """Nothing that is not synced will be: cut it off."""
        lines, tickets = self._take_under_way()
        lines += self._lines
        tickets += self._tickets
        self._lines, self._tickets = [], []
        self._journal.cut_back()
        self._settle(lines, tickets, reason)

    def _take_under_way(self) -> tuple[list[bytes], list[Ticket]]:
        under_way, self._under_way = self._under_way, ([], [])
        return under_way

    def _settle(self, lines: list[bytes], tickets: list[Ticket], reason: str | None) -> None:
        self.settled_count += len(tickets)
        if reason is None:
            self._acknowledged(lines)
        else:
            self._refused(lines, reason)
        for ticket in tickets:
            ticket.settle(reason)
