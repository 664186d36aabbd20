"""Small publishes to topics that nobody reads from at the moment: one write a tick for all of them.

To write a message to the log of its topic costs a system call and a dozen steps, which is little
for a batch and much for one message. So what is published to *quiet* topics is gathered: a batch of
each stays open from tick to tick, and the tick writes what came to all of them to the journal
(`log.journal`), with one write. Then the publishers are answered. After FILE_S, or later if there
are thousands of topics, the batches are *filed*: appended to their logs, where channels see them.

A topic is quiet if nothing waits for its messages, and its last batch was small. It leaves as soon
as anybody asks for it (`Topics`), a consumer has credit (`Channel.share`), or a publish comes that
is not of one small message to be delivered now; then it is filed at once. So nobody but the journal
ever sees an open batch. Where consumers wait for many topics at once, these are gathered as well,
and filed much sooner (`rounds`).

A batch that cannot be filed, as on a full disk, is safe in the journal: its topic takes nothing new
before it is. With --sync-every=1 nothing is gathered: an fsync of each log follows anyway.
"""

import time
from typing import TYPE_CHECKING

from pumpline.core.messages.batches import FULL_BYTES, Builder, LogBatch
from pumpline.core.messages.kernels import message, pubs_by_line
from pumpline.log.log import Log
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.outcome import Ticket
from pumpline.nsqd.queue.rounds import TOPICS_AT_ONCE, Rounds
from pumpline.nsqd.queue.tick import Tick
from pumpline.nsqd.storage.disk import Disk
from pumpline.nsqd.storage.disk_health import write_with_room

if TYPE_CHECKING:  # a topic is given in
    from collections.abc import Callable

    from pumpline.nsqd.queue.topic import Topic

FILE_S = 0.1  # after which what the journal has is in the logs, too
FILE_REST = 10  # times as long as that took, it rests: with many topics it takes long
RETRY_S = 0.5
SMALL_BYTES = 4096  # of a batch: a larger one is worth a write of its own
RUN_BYTES = 8192  # of PUBs at once: a larger message is no small one
JOURNAL_BYTES_MAX = 16 << 20  # then its messages are filed at once


class Journaling:
    def __init__(
        self, options: Options, tick: Tick, disk: Disk, make_room: "Callable[[], bool]"
    ) -> None:
        self._tick = tick
        self._disk = disk
        self._journal = disk.journal
        self._make_room = make_room
        self._message_bytes_max = options.max_msg_size
        self._is_open = not disk.fsyncs.group_commit
        # Of each quiet topic, by the line of its PUBs: frames, ends and first id of its batch.
        self._batches: dict[bytes, tuple[bytearray, bytearray, int]] = {}
        self._topics: dict[bytes, Topic] = {}  # these, and those that left and are not filed
        self._ticket: Ticket | None = None
        self._frames = bytearray()  # not in the journal yet
        self._ends = bytearray()
        self._lines: list[bytes] = []  # of these
        self._written: set[bytes] = set()  # lines of what is in the file that is written to
        self._filing: list[bytes] = []  # of what is in the other one
        self._stuck: dict[Topic, None] = {}  # whose batches could not be filed
        self._rounds: Rounds[Topic] = Rounds(tick, self._gather)
        self._timer_set = False
        self._filing_s = 0.0  # how long the last filing took, so far

    # -- publishing ---------------------------------------------------------------------------

    def put_run(self, buf: bytearray, pos: int, end: int) -> tuple[int, list[bytes]]:
        """Put the run of PUBs to quiet topics in buf[pos:end].

        Returns the position after it, and the lines of the messages; `ticket` has the outcome.
        """
        if not self._batches:
            return pos, []
        lines = self._lines
        before = len(lines)
        after = pubs_by_line(
            buf,
            pos,
            min(end, pos + RUN_BYTES),
            self._batches,
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

    def put(self, topic: "Topic", buf: bytes | bytearray, pos: int, end: int) -> bool:
        """Put one message, buf[pos:end], if it is small and the topic quiet; `ticket` has the
        outcome."""
        line = _line(topic)
        batch = self._batches.get(line)
        if batch is None or end - pos > RUN_BYTES or len(batch[0]) >= FULL_BYTES:
            return False
        if not self._lines:
            self._tick.publish(self)
        frames, ends, first_id = batch
        message_id = first_id + (len(ends) >> 2)
        wall_ns = self._tick.wall_ns
        message(buf, pos, end, frames, ends, message_id, wall_ns)
        message(buf, pos, end, self._frames, self._ends, message_id, wall_ns)
        self._lines.append(line)
        return True

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
                self._batches.clear()  # what comes next goes to the logs
            size_bytes = batch.size_bytes
            ticket.settle(self._disk.health.failed(error, "the journal", size_bytes=size_bytes))
        else:
            self._written.update(lines)
            ticket.settle(None)
        if self._journal.size_bytes > JOURNAL_BYTES_MAX:
            self._begin_filing()
        else:
            self._set_timer(max(FILE_S, FILE_REST * self._filing_s))

    def _take_back(self, lines: list[bytes]) -> None:
        """What was put is refused."""
        for line in lines:
            frames, ends, _ = self._batches[line]
            del ends[-4:]
            del frames[int.from_bytes(ends[-4:], "big") :]

    # -- topics -------------------------------------------------------------------------------

    def offer(self, topic: "Topic") -> None:
        """The topic's last batch was small, and is in its log: gather what comes next, unless a
        consumer waits for it, and not for many others."""
        if not topic.may_gather:
            return
        if not topic.is_awaited:
            self._gather(topic)
        elif self._rounds.is_crowded and self._gather(topic):
            self._rounds.add(topic)

    def deliver(self, topic: "Topic") -> None:
        """A consumer waits for what the journal has of the topic: file it, with many others if
        there are."""
        if topic in self._rounds:
            return
        if topic.journaled is not None and topic.journaled.ends and self._rounds.is_crowded:
            self._rounds.add(topic)
        else:
            topic.file()

    def _gather(self, topic: "Topic") -> bool:
        log = topic.log
        if self._stuck or self._journal.is_torn or not self._is_open or not isinstance(log, Log):
            return False
        topic.journaled = builder = Builder(first=log.end, timestamp_ns=0)
        line = _line(topic)
        self._batches[line] = (builder.frames, builder.ends, log.base_id + log.end)
        self._topics[line] = topic
        return True

    def leave(self, topic: "Topic") -> None:
        """Gather no more for the topic; what was gathered has its outcome from here on."""
        if self._lines:
            self.commit()
        self._batches.pop(_line(topic), None)
        if topic.journaled is not None and not topic.journaled.ends:
            self.filed(topic)

    def filed(self, topic: "Topic") -> None:
        """The topic's log has all that the journal has of it."""
        topic.journaled = None
        self._topics.pop(_line(topic), None)
        self._rounds.discard(topic)
        self._stuck.pop(topic, None)

    def stuck(self, topic: "Topic") -> None:
        """What the journal has of the topic cannot be filed. Until it can, nothing is gathered: the
        journal cannot be emptied, and must not grow."""
        self._stuck[topic] = None
        self._topics[_line(topic)] = topic
        self._rounds.discard(topic)
        if self._lines:
            self.commit()
        self._batches.clear()
        self._set_timer(RETRY_S)

    def forget(self, topic: "Topic") -> None:
        """The topic is deleted."""
        self.leave(topic)
        self.filed(topic)

    def stop(self) -> None:
        """Gather nothing any more, and file what there is."""
        self._is_open = False
        for topic in list(self._topics.values()):
            topic.file()

    def close(self) -> None:
        """Everything is in the logs, or stays in the journal for the next start."""
        self.stop()
        if not self._stuck:
            self._journal.remove()

    # -- filing -------------------------------------------------------------------------------

    def _set_timer(self, delay_s: float) -> None:
        if not self._timer_set:
            self._timer_set = True
            self._tick.later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_set = False
        for topic in list(self._stuck):
            topic.file()
        self._begin_filing()

    def _begin_filing(self) -> None:
        """File what is in the journal so far."""
        if self._filing:
            return
        self._journal.turn()
        self._filing = list(self._written)
        self._written.clear()
        self._filing_s = 0.0
        self._file_some()

    def _file_some(self) -> None:
        started_s = time.monotonic()
        for line in self._filing[:TOPICS_AT_ONCE]:
            topic = self._topics.get(line)
            if topic is not None:
                topic.file()
                self.offer(topic)
        del self._filing[:TOPICS_AT_ONCE]
        self._filing_s += time.monotonic() - started_s
        if self._filing:
            self._tick.later(0, self._file_some)
            return
        if not self._stuck:
            self._journal.empty(both=not self._written)
        if self._stuck or self._journal.is_torn:
            self._set_timer(RETRY_S)
        elif self._written:
            self._set_timer(max(FILE_S, FILE_REST * self._filing_s))


def _line(topic: "Topic") -> bytes:
    return b"PUB %b\n" % topic.name.encode()
