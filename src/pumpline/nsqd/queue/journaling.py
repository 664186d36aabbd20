"""Small publishes to topics that nobody reads from at the moment: one write a tick for all of them.

To write a message to the log of its topic costs a system call and a dozen steps, which is little
for a batch and much for one message. So what is published to *quiet* topics is gathered: a batch of
each stays open from tick to tick, and the tick writes what came to all of them to the journal
(`log.journal`), with one write. Then the publishers are answered. Soon the batches are *filed*
(`filing`): appended to their logs, where channels see them.

A topic is quiet if nothing waits for its messages, and its last batch was small. It leaves as soon
as anybody asks for it (`Topics`), a consumer has credit (`Channel.share`), or a publish comes that
is not of one small message to be delivered now; then it is filed at once. So nobody but the journal
ever sees an open batch. Where consumers wait for many topics at once, these are gathered as well,
and filed much sooner (`rounds`).

A batch that cannot be filed, as on a full disk, is safe in the journal: its topic takes nothing new
before it is.

With --sync-every=1 a message is acknowledged when the journal is synced (`journal_sync`), and only
then filed; the journal is emptied when the logs are synced, too. Until then other publishes to the
topic wait: they must not be in the log after what a loss of power might take from it. Should the
log's fsync fail, it is cut back, and what the journal has is filed again. Nothing that consumers
wait for goes to the journal then: each round would be an fsync of every log.
"""

from collections import Counter
from collections.abc import Callable, Collection
from typing import Protocol

from pumpline.core.messages.batches import FULL_BYTES, Builder, LogBatch
from pumpline.core.messages.kernels import message, pubs_by_line
from pumpline.log.journal import seal
from pumpline.log.log import Log
from pumpline.log.ring import Ring
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.filing import Filing
from pumpline.nsqd.queue.group_commit import GroupCommit
from pumpline.nsqd.queue.intake import TopicIntake
from pumpline.nsqd.queue.journal_sync import JournalSync
from pumpline.nsqd.queue.outcome import EXITING, Ticket
from pumpline.nsqd.queue.rounds import Rounds
from pumpline.nsqd.queue.tick import Tick
from pumpline.nsqd.storage.disk import Disk
from pumpline.nsqd.storage.disk_health import write_with_room

SMALL_BYTES = 4096  # of a batch: a larger one is worth a write of its own
RUN_BYTES = 8192  # of PUBs at once: a larger message is no small one
JOURNAL_BYTES_MAX = 16 << 20  # then its messages are filed at once


class JournaledTopic(Protocol):
    """A topic, as seen from here."""

    pub_line: bytes  # of its PUBs
    log: Log | Ring
    intake: TopicIntake
    group_commit: GroupCommit
    journaled: Builder | None  # what the journal has of it, and the log has not
    exiting: bool

    @property
    def may_gather(self) -> bool:
        """Whether what is published may go to the journal first."""

    @property
    def is_awaited(self) -> bool:
        """Whether a consumer waits for what is published."""

    def commit(self) -> None:
        """Append what was put; called in the tick."""

    def file(self) -> object:
        """Append what the journal has of it to its log, and show it to channels."""

    def uncount(self, batch: LogBatch) -> None:
        """The log has this one no more: it will be appended again."""


class Journaling:
    def __init__(
        self, options: Options, tick: Tick, disk: Disk, make_room: Callable[[], bool]
    ) -> None:
        self._tick = tick
        self._disk = disk
        self._journal = disk.journal
        self._make_room = make_room
        self._message_bytes_max = options.max_msg_size
        self._is_open = True
        self._syncs = disk.fsyncs.group_commit
        self._sync = JournalSync(
            disk.journal, disk, acknowledged=self._acknowledged, refused=self._refused
        )
        # Of each quiet topic, by the line of its PUBs: frames, ends and first id of its batch.
        self.batches: dict[bytes, tuple[bytearray, bytearray, int]] = {}
        self._topics: dict[
            bytes, JournaledTopic
        ] = {}  # these, and those that left and are not filed
        self._ticket: Ticket | None = None
        self._frames = bytearray()  # not in the journal yet
        self._ends = bytearray()
        self._lines: list[bytes] = []  # of these
        self._stuck: dict[JournaledTopic, None] = {}  # whose batches could not be filed
        # With --sync-every=1: how much of a topic's batch was acknowledged; the batches that its
        # log has, and has not synced.
        self._synced_counts: dict[JournaledTopic, int] = {}
        self._unsynced: dict[JournaledTopic, list[LogBatch]] = {}
        self._rounds: Rounds[JournaledTopic] = Rounds(tick, self._gather)
        self._filing = Filing(self, tick, disk.journal, self._sync, syncs=self._syncs)

    # -- publishing ---------------------------------------------------------------------------

    def put_run(self, buf: bytearray, pos: int, end: int) -> tuple[int, list[bytes]]:
        """Put the run of PUBs to quiet topics in buf[pos:end].

        Returns the position after it, and the lines of the messages; `ticket` has the outcome.
        """
        lines = self._lines
        before = len(lines)
        after = pubs_by_line(
            buf,
            pos,
            min(end, pos + RUN_BYTES),
            self.batches,
            self._frames,
            self._ends,
            lines,
            self._tick.wall_ns,
            self._message_bytes_max,
            FULL_BYTES,
        )
        if lines and not before:
            self._tick.publish(self)
        return after, lines[before:]

    def put(
        self, topic: JournaledTopic, buf: bytes | bytearray, pos: int, end: int
    ) -> Ticket | None:
        """Put one message, buf[pos:end], if it is small and the topic quiet; returns the
        outcome."""
        line = topic.pub_line
        batch = self.batches.get(line)
        if batch is None or end - pos > RUN_BYTES or len(batch[0]) >= FULL_BYTES:
            return None
        if not self._lines:
            self._tick.publish(self)
        frames, ends, first_id = batch
        message_id = first_id + (len(ends) >> 2)
        wall_ns = self._tick.wall_ns
        message(buf, pos, end, frames, ends, message_id, wall_ns)
        message(buf, pos, end, self._frames, self._ends, message_id, wall_ns)
        self._lines.append(line)
        return self._ticket or self.ticket()

    def ticket(self) -> Ticket:
        """The outcome of what was put in this tick."""
        if self._ticket is None:
            self._ticket = Ticket()
        return self._ticket

    def commit(self) -> None:
        """Write what was put to the journal, and settle its outcome."""
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        frames, self._frames = self._frames, bytearray()
        ends, self._ends = self._ends, bytearray()
        ticket, self._ticket = self.ticket(), None
        batch = LogBatch(
            first=self._journal.size_bytes,  # grows from record to record, as offsets do
            count=len(lines),
            timestamp_ns=self._tick.wall_ns,
            due_ns=0,
            ends=memoryview(ends),
            frames=memoryview(frames),
        )
        try:
            write_with_room(self._make_room, self._journal.append, batch)
        except OSError as error:
            self._take_back(lines)
            if self._journal.is_torn:
                self.batches.clear()  # what comes next goes to the logs
            size_bytes = batch.size_bytes
            ticket.settle(self._disk.health.failed(error, "the journal", size_bytes=size_bytes))
        else:
            self._filing.written(lines)
            self._sync.written(ticket, lines)
        if self._journal.size_bytes > JOURNAL_BYTES_MAX:
            self._filing.begin()
            if self._journal.size_bytes > 2 * JOURNAL_BYTES_MAX:
                self.batches.clear()  # the other file takes long: the journal must not grow
        else:
            self._filing.soon()

    def _take_back(self, lines: list[bytes]) -> None:
        """What was put last is refused."""
        for line in lines:
            builder = self._topics[line].journaled
            if builder is not None:
                del builder.ends[-4:]
                del builder.frames[int.from_bytes(builder.ends[-4:], "big") :]

    def _acknowledged(self, lines: list[bytes]) -> None:
        """With --sync-every=1: these are synced."""
        for line, count in Counter(lines).items():
            topic = self._topics[line]
            self._synced_counts[topic] = self._synced_counts.get(topic, 0) + count
            if line not in self.batches:  # it left, and this is what it waited for
                topic.file()
                self._go_on(topic)
        self._filing.go_on()

    def _refused(self, lines: list[bytes], reason: str) -> None:
        """With --sync-every=1: these could not be synced, and are not in the journal any more. What
        was put since goes, too: its ids follow on theirs."""
        pending, self._lines = self._lines, []
        self._frames, self._ends = bytearray(), bytearray()
        ticket, self._ticket = self._ticket, None
        self._take_back([*lines, *pending])
        if ticket is not None:
            ticket.settle(reason)
        if self._journal.is_torn:
            self.batches.clear()  # what comes next goes to the logs
            self._filing.retry()
        for line in dict.fromkeys(lines):
            if line not in self.batches:
                topic = self._topics[line]
                _, others = topic.intake.take()
                self.leave(topic)
                others.settle(reason)
        self._filing.go_on()

    # -- topics -------------------------------------------------------------------------------

    def offer(self, topic: JournaledTopic) -> None:
        """The topic's last batch was small, and is in its log: gather what comes next, unless a
        consumer waits for it, and not for many others."""
        if topic.pub_line in self.batches:
            return
        if not topic.is_awaited:
            self._gather(topic)
        elif not self._syncs and self._rounds.is_crowded and self._gather(topic):
            self._rounds.add(topic)

    def deliver(self, topic: JournaledTopic) -> None:
        """A consumer waits for what the journal has of the topic: file it, with many others if
        there are."""
        if topic in self._rounds:
            return
        has_news = topic.journaled is not None and bool(topic.journaled.ends)
        if has_news and not self._syncs and self._rounds.is_crowded:
            self._rounds.add(topic)
        else:
            topic.file()

    def _gather(self, topic: JournaledTopic) -> bool:
        """Gather what is published to the topic from now on, if that can be; return whether."""
        log = topic.log
        if not topic.may_gather:
            return False  # as while something was put that is not in the log yet
        if self._stuck or self._journal.is_torn or not self._is_open or not isinstance(log, Log):
            return False
        if not topic.group_commit.is_settled or topic.group_commit.closed is not None:
            return False  # should that be cut off, the next offsets are others
        builder = topic.journaled or Builder(first=log.end, timestamp_ns=0)
        topic.journaled = builder
        line = topic.pub_line
        self.batches[line] = (builder.frames, builder.ends, log.base_id + builder.first)
        self._topics[line] = topic
        return True

    def leave(self, topic: JournaledTopic) -> None:
        """Gather no more for the topic."""
        if self._lines:
            self.commit()
        self.batches.pop(topic.pub_line, None)
        if topic.journaled is not None and not topic.journaled.ends:
            self._drop(topic)

    def batch_of(self, topic: JournaledTopic) -> LogBatch | None:
        """What the journal has of a topic that left, and was acknowledged."""
        builder = topic.journaled
        if builder is None or not self._syncs:
            return None if builder is None else seal(builder)
        count = self._synced_counts.get(topic, 0)
        if not count:
            return None
        return seal(builder if count == builder.count else builder.head(count))

    def filed(self, topic: JournaledTopic, batch: LogBatch) -> Ticket:
        """The topic's log has the batch; the ticket is to be settled when it is synced, if that is
        waited for."""
        builder = topic.journaled
        if builder is None or builder.count == batch.count:
            self._drop(topic)
        else:
            topic.journaled = builder.without(batch.count)
            self._stuck.pop(topic, None)
        self._synced_counts.pop(topic, None)
        ticket = Ticket()
        if self._syncs:
            self._unsynced.setdefault(topic, []).append(batch)
            ticket.wait(lambda: self._log_synced(topic, batch, ticket.error))
        return ticket

    def _log_synced(self, topic: JournaledTopic, batch: LogBatch, error: str | None) -> None:
        batches = self._unsynced.get(topic, [])
        if batch not in batches:
            return
        if error is None and len(batches) > 1:
            batches.remove(batch)
            return
        del self._unsynced[topic]
        self._filing.need_not_await(topic)
        if error is not None and not topic.exiting:
            self._file_again(topic, batches)
        else:
            self._go_on(topic)
        self._filing.end()

    def _file_again(self, topic: JournaledTopic, batches: list[LogBatch]) -> None:
        """The log could not be synced, and is cut back to before these."""
        self.leave(topic)
        builder = Builder(first=batches[0].first, timestamp_ns=0)
        count = sum(batch.count for batch in batches) + self._synced_counts.get(topic, 0)
        for batch in batches:
            builder.extend(batch.ends, batch.frames)
            topic.uncount(batch)
        if topic.journaled is not None:
            builder.extend(topic.journaled.ends, topic.journaled.frames)
        topic.journaled = builder
        self._synced_counts[topic] = count
        self.stuck(topic)

    def delays(self, topic: JournaledTopic) -> bool:
        """Whether other publishes to the topic have to wait for what the journal has of it."""
        return self._syncs and (topic.journaled is not None or topic in self._unsynced)

    def _go_on(self, topic: JournaledTopic) -> None:
        if topic.intake and not self.delays(topic):
            self._tick.publish(topic)

    def _drop(self, topic: JournaledTopic) -> None:
        """The journal has nothing of the topic that its log lacks."""
        topic.journaled = None
        self._topics.pop(topic.pub_line, None)
        self._rounds.discard(topic)
        self._stuck.pop(topic, None)
        self._synced_counts.pop(topic, None)

    def restore(self, topic: JournaledTopic, journaled: Builder) -> None:
        """The journal has messages of the topic that could not be filed before."""
        topic.journaled = journaled
        self._synced_counts[topic] = journaled.count
        self.stuck(topic)

    def stuck(self, topic: JournaledTopic) -> None:
        """What the journal has of the topic cannot be filed. Until it can, nothing is gathered: the
        journal cannot be emptied, and must not grow."""
        self._stuck[topic] = None
        self._topics[topic.pub_line] = topic
        self._rounds.discard(topic)
        if self._lines:
            self.commit()
        self.batches.clear()
        self._filing.retry()

    def forget(self, topic: JournaledTopic) -> None:
        """The topic is deleted."""
        self.leave(topic)
        self._sync.forget(topic.pub_line)
        self._drop(topic)
        self._unsynced.pop(topic, None)
        self._filing.need_not_await(topic)
        self._filing.end()

    def stop(self) -> None:
        """Gather nothing any more, and file what there is."""
        self._is_open = False
        for topic in list(self._topics.values()):
            topic.file()

    def close(self) -> None:
        """Everything is in the logs and synced, or stays in the journal for the next start."""
        if self._syncs:
            self._sync.refuse(EXITING)
        if not self._stuck and not any(topic.log.unsynced for topic in self._unsynced):
            self._journal.remove()

    # -- as `filing` sees it ------------------------------------------------------------------

    @property
    def is_stuck(self) -> bool:
        return bool(self._stuck)

    @property
    def unsynced(self) -> Collection[JournaledTopic]:
        return self._unsynced

    def file(self, line: bytes) -> None:
        """File what there is of the topic, and gather what comes next."""
        topic = self._topics.get(line)
        if topic is not None:
            topic.file()
            self.offer(topic)

    def file_stuck(self) -> None:
        for topic in list(self._stuck):
            topic.file()
