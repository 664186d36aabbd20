"""Filing: when what the journal has is appended to the logs, and the journal emptied.

After FILE_S, or later if there are thousands of topics, the journal's two files change places, and
the topics with messages in the one that was written to are filed, some at a time. When all are in
their logs, and with --sync-every=1 these are synced, the file is emptied. What cannot be filed is
tried again after RETRY_S; until then neither file is emptied. Knows the journal and the clock;
topics are the lines of their PUBs here, or somebody to wait for.
"""

import time
from collections.abc import Collection, Iterable
from typing import Protocol

from pumpline.log.journal import PublishJournal
from pumpline.nsqd.queue.journal_sync import JournalSync
from pumpline.nsqd.queue.rounds import TOPICS_AT_ONCE
from pumpline.nsqd.queue.tick import Tick

FILE_S = 0.1  # after which what the journal has is in the logs, too
SYNCED_FILE_S = 1.0  # likewise with --sync-every=1: each log is an fsync
FILE_REST = 10  # times as long as that took, it rests: with many topics it takes long
RETRY_S = 0.5


class FilingOwner(Protocol):
    """Who knows the topics that the journal has messages of."""

    @property
    def is_stuck(self) -> bool:
        """Whether there are messages that could not be filed."""

    @property
    def unsynced(self) -> Collection[object]:
        """Topics with messages that are filed, and that the journal must keep until their logs are
        synced."""

    def file(self, line: bytes) -> None:
        """File what the journal has of this topic."""

    def file_stuck(self) -> None:
        """Try again to file what could not be."""


class Filing:
    def __init__(
        self,
        owner: FilingOwner,
        tick: Tick,
        journal: PublishJournal,
        sync: JournalSync,
        *,
        syncs: bool,
    ) -> None:
        """`syncs`: logs are to be synced before the journal is emptied."""
        self._owner = owner
        self._tick = tick
        self._journal = journal
        self._sync = sync
        self._file_s = SYNCED_FILE_S if syncs else FILE_S
        self._written: set[bytes] = set()  # lines of what is in the file that is written to
        self._lines: list[bytes] = []  # of what is in the other one
        self._is_under_way = False  # until that one is emptied
        self._awaited: set[object] = set()  # topics to be synced before it is
        self._begins_after = 0  # tickets: as many must be settled before it is filed
        self._timer_set = False
        self._begun_s = 0.0  # when the last filing began
        self._took_s = 0.0

    def written(self, lines: Iterable[bytes]) -> None:
        """The journal has messages of these topics."""
        self._written.update(lines)

    def soon(self) -> None:
        """Begin after a rest."""
        self._set_timer(max(self._file_s, FILE_REST * self._took_s))

    def retry(self) -> None:
        """Begin after a while, as something could not be done."""
        self._set_timer(RETRY_S)

    def _set_timer(self, delay_s: float) -> None:
        if not self._timer_set:
            self._timer_set = True
            self._tick.later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_set = False
        self._owner.file_stuck()
        self.begin()

    def begin(self) -> None:
        """File what is in the journal so far, as soon as it was acknowledged."""
        if self._is_under_way:
            return
        self._is_under_way = True
        self._begun_s = time.monotonic()
        self._journal.turn()
        self._lines = list(self._written)
        self._written.clear()
        self._begins_after = self._sync.written_count
        self.go_on()

    def go_on(self) -> None:
        """File some of what is to be filed, if it was acknowledged."""
        if not self._is_under_way or self._sync.settled_count < self._begins_after:
            return
        for line in self._lines[:TOPICS_AT_ONCE]:
            self._owner.file(line)
        del self._lines[:TOPICS_AT_ONCE]
        if self._lines:
            self._tick.later(0, self.go_on)
            return
        self._awaited = set(self._owner.unsynced)
        self.end()

    def need_not_await(self, topic: object) -> None:
        """Its log is synced, or will not be."""
        self._awaited.discard(topic)

    def end(self) -> None:
        """Empty the file that is not written to, if all its messages are in their logs, and these
        are synced."""
        if not self._is_under_way or self._lines or self._awaited:
            return
        self._is_under_way = False
        self._took_s = time.monotonic() - self._begun_s
        journal, is_stuck = self._journal, self._owner.is_stuck
        if not is_stuck:
            journal.empty(both=not self._written)
        if is_stuck or journal.is_torn or journal.is_unemptied:
            self.retry()
        elif self._written:
            self.soon()
