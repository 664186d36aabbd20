"""Where publishers put messages: what came to a topic in this tick, to be appended at its end.

Connections and HTTP handlers fill the batch that is open (`builder`), by way of the kernels, and
wait for the outcome on the `ticket`. The topic takes out what was put (`take`).
"""

from typing import Protocol

from pumpline.core.messages.batches import FULL_BYTES, Builder, LogBatch
from pumpline.core.messages.kernels import message, mpub, pubs
from pumpline.log.log import Log
from pumpline.log.ring import Ring
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.outcome import Ticket
from pumpline.nsqd.queue.tick import Tick


class TakingTopic(Protocol):
    """A topic, as seen from here."""

    options: Options
    tick: Tick
    log: Log | Ring
    journaled: Builder | None  # what the journal has of it, and the log has not

    def commit(self) -> None:
        """Append what was put; called in the tick."""

    def unjournal(self) -> None:
        """Messages are about to be put that do not go to the journal."""


class TopicIntake:
    def __init__(self, topic: TakingTopic) -> None:
        self._topic = topic
        self._options = topic.options
        self._tick = topic.tick
        self._log = topic.log
        self._builders: list[Builder] = []
        self._ticket: Ticket | None = None

    def __bool__(self) -> bool:
        """Whether something was put."""
        return bool(self._builders)

    def builder(self, delay_ns: int = 0) -> Builder:
        """The batch to add messages to; call `ticket` afterwards."""
        builders = self._builders
        if not builders:
            self._tick.publish(self._topic)  # from here on the clock stands still
            if self._topic.journaled is not None:
                self._topic.unjournal()
        due_ns = self._tick.wall_ns + delay_ns if delay_ns else 0
        last = builders[-1] if builders else None
        if last is not None and last.due_ns == due_ns and len(last.frames) < FULL_BYTES:
            return last
        first = self._next_offset() if last is None else last.end
        builder = Builder(first=first, timestamp_ns=self._tick.wall_ns, due_ns=due_ns)
        builders.append(builder)
        return builder

    def put(self, buf: bytes | bytearray, pos: int, end: int, *, delay_ns: int = 0) -> None:
        """Put one message, buf[pos:end]; `ticket` has the outcome."""
        builder = self.builder(delay_ns)
        ends = builder.ends
        message(
            buf,
            pos,
            end,
            builder.frames,
            ends,
            self._log.base_id + builder.first + (len(ends) >> 2),
            builder.timestamp_ns,
        )

    def put_owned(self, buf: bytearray, pos: int, end: int) -> None:
        """As `put`, without a copy: `buf` is the topic's, and has room for a head before `pos`."""
        last = self.builder()
        alone = Builder(first=last.end, timestamp_ns=last.timestamp_ns)
        alone.adopt(buf, pos, end, self._log.base_id + alone.first)
        self._builders += (alone, Builder(first=alone.end, timestamp_ns=last.timestamp_ns))

    def put_run(
        self, buf: bytearray, pos: int, end: int, line: bytes, *, delay_ns: int = 0
    ) -> tuple[int, int]:
        """Put the run of `PUB` or `DPUB` commands in buf[pos:end] that begin with exactly `line`.

        Stops before the first that is not whole, is empty or is too large. Returns the position
        after the run and the number of messages; `ticket` has the outcome.
        """
        builder = self.builder(delay_ns)
        return pubs(
            buf,
            pos,
            end,
            line,
            builder.frames,
            builder.ends,
            self._log.base_id + builder.first + (len(builder.ends) >> 2),
            builder.timestamp_ns,
            self._options.max_msg_size,
        )

    def put_many(self, buf: bytearray, pos: int, end: int, count: int) -> int:
        """Put the `count` messages in buf[pos:end], each with its size before it: all or none.

        Returns -1, or the index of the first message that is cut short, empty or too large;
        `ticket` has the outcome.
        """
        builder = self.builder()
        return mpub(
            buf,
            pos,
            end,
            count,
            builder.frames,
            builder.ends,
            self._log.base_id + builder.end,
            builder.timestamp_ns,
            self._options.max_msg_size,
        )

    def put_token(self, token: bytes) -> int:
        """Note that the last messages put came with this publish token; returns the offset after
        them."""
        builder = self._builders[-1]
        builder.tokens += token
        return builder.end

    def ticket(self) -> Ticket:
        """The outcome of what was put in this tick."""
        if self._ticket is None:
            self._ticket = Ticket()
        return self._ticket

    def _next_offset(self) -> int:
        journaled = self._topic.journaled
        return self._log.end if journaled is None else journaled.end

    def take(self) -> tuple[list[LogBatch], Ticket]:
        """Take out what was put."""
        builders, self._builders = self._builders, []
        ticket, self._ticket = self._ticket or Ticket(), None
        return [builder.seal() for builder in builders if builder.ends], ticket
