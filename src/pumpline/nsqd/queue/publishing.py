"""Publishing to one topic: the messages that were added in this tick, in batches of the topic.

Connections and HTTP handlers add messages, and wait for the outcome on the `completion`. In the
tick the group commit takes the batches (`log.group_commit`). Small messages take a shorter way:
see `GroupCommit.add_run`, and `add_run` and `add` here, which use it where they can.
"""

from typing import TYPE_CHECKING

from pumpline.core.messages.batches import FULL_BYTES, Builder, LogBatch
from pumpline.core.messages.kernels import dpubs, message, mpub, pubs
from pumpline.log.completion import EXITING, Completion
from pumpline.nsqd.queue.backlog import Backlog
from pumpline.nsqd.queue.topic_state import CLOSED

_NS_PER_MS = 1_000_000

if TYPE_CHECKING:  # a topic makes its own
    from pumpline.nsqd.queue.topic import Topic


class Publishing:
    def __init__(self, topic: "Topic") -> None:
        name = topic.name.encode()
        self.log = topic.log
        self.pub_line = b"PUB %b\n" % name
        self.backlog: Backlog | None = None  # none: no bound
        self.refused_count = 0  # messages, by a full backlog
        self.overflow_count = 0  # messages dropped from a full backlog before there were channels
        self._mpub_line = b"MPUB %b\n" % name
        self._topic = topic
        self._group_commit = topic.owner.group_commit
        self._tick = topic.tick
        self._message_bytes_max = topic.options.max_msg_size
        self._delay_ms_max = topic.options.max_req_timeout_ns // _NS_PER_MS
        self._builders: list[Builder] = []
        self._completion: Completion | None = None

    def __bool__(self) -> bool:
        """Whether something was added in this tick."""
        return bool(self._builders)

    # -- adding -------------------------------------------------------------------------------

    def builder(self) -> Builder:
        """The batch to add messages to; call `completion` afterwards."""
        builders, log = self._builders, self.log
        wall_ns = self._group_commit.add_publisher(self)
        if builders:
            last = builders[-1]
            if last.timestamp_ns == wall_ns and len(last.frames) < FULL_BYTES:
                return last
            first = last.end
        else:
            if log.offsets_to_skip:
                self._topic.skip_lost_offsets()
            log.unshare_batch()  # later messages follow on these
            first = log.accepted
        builder = Builder(first=first, timestamp_ns=wall_ns)
        builders.append(builder)
        return builder

    def add(
        self,
        buf: bytes | bytearray,
        pos: int,
        end: int,
        *,
        delay_ns: int = 0,
        alone: bool = False,
    ) -> Completion:
        """Add one message, buf[pos:end]; returns the outcome. `alone`: in a batch of this topic,
        which may have publish tokens."""
        if not (delay_ns or alone or self._builders):
            completion = self._group_commit.add(self.pub_line, buf, pos, end)
            if completion is not None:
                return completion
        self._add(buf, pos, end, delay_ns)
        return self.completion()

    def _add(self, buf: bytes | bytearray, pos: int, end: int, delay_ns: int) -> None:
        builder = self.builder()
        ends = builder.ends
        message(
            buf,
            pos,
            end,
            builder.frames,
            ends,
            self.log.base_id + builder.first + (len(ends) >> 2),
            builder.timestamp_ns,
        )
        if delay_ns:
            builder.defer_last(builder.timestamp_ns + delay_ns)

    def add_owned(self, buf: bytearray, pos: int, end: int) -> None:
        """Add one message without a copy: `buf` is the topic's, and has room for a head before
        `pos`; `completion` has the outcome."""
        last = self.builder()
        alone = Builder(first=last.end, timestamp_ns=last.timestamp_ns)
        alone.adopt(buf, pos, end, self.log.base_id + alone.first)
        self._builders += (alone, Builder(first=alone.end, timestamp_ns=last.timestamp_ns))

    def add_run(
        self, buf: bytearray, pos: int, end: int, line: bytes
    ) -> tuple[int, int, Completion]:
        """Add the run of `PUB` commands in buf[pos:end] that begin with exactly `line`.

        Stops before the first that is not whole, is empty or is too large. Returns the position
        after the run, the number of messages, and their outcome.
        """
        if line in self._group_commit.shared.by_line and not self._builders:
            after, count, _ = self._group_commit.add_run(buf, pos, end, line)
            if count:
                return after, count, self._group_commit.completion()
        builder = self.builder()
        after, count = pubs(
            buf,
            pos,
            end,
            line,
            builder.frames,
            builder.ends,
            self.log.base_id + builder.first + (len(builder.ends) >> 2),
            builder.timestamp_ns,
            self._message_bytes_max,
        )
        return after, count, self.completion()

    def add_delayed_run(
        self, buf: bytearray, pos: int, end: int, head: bytes
    ) -> tuple[int, int, Completion]:
        """As `add_run`, of `DPUB` commands that begin with exactly `head`, which ends before the
        delay. Stops before a delay that is too long, too."""
        builder = self.builder()
        after, count = dpubs(
            buf,
            pos,
            end,
            head,
            builder.frames,
            builder.ends,
            builder.fill_dues(),
            self.log.base_id + builder.end,
            builder.timestamp_ns,
            self._message_bytes_max,
            self._delay_ms_max,
        )
        return after, count, self.completion()

    def add_many(self, buf: bytearray, pos: int, end: int, count: int) -> int:
        """Add the `count` messages in buf[pos:end], each with its size before it: all or none.

        Returns -1, or the index of the first message that is cut short, empty or too large;
        `completion` has the outcome.
        """
        builder = self.builder()
        return mpub(
            buf,
            pos,
            end,
            count,
            builder.frames,
            builder.ends,
            self.log.base_id + builder.end,
            builder.timestamp_ns,
            self._message_bytes_max,
        )

    def add_token(self, token: bytes) -> None:
        """The messages that were added last came with this publish token."""
        builder = self._builders[-1]
        if self._topic.upkeep.tokens.published(token, builder.end, self.completion()):
            builder.tokens += token

    def completion(self) -> Completion:
        """The outcome of the messages that were added in this tick."""
        if self._completion is None:
            self._completion = Completion()
        return self._completion

    # -- as the group commit sees it ----------------------------------------------------------

    @property
    def shared_lines(self) -> tuple[bytes, ...]:
        topic = self._topic
        if self.backlog is not None or topic.watchers or topic.state is CLOSED:
            return ()
        return self.pub_line, self._mpub_line

    def take(self) -> tuple[list[LogBatch], Completion]:
        builders, self._builders = self._builders, []
        completion, self._completion = self.completion(), None
        batches = [builder.seal() for builder in builders if builder.ends]
        reason = self._refusal(batches) if batches else None
        if reason is not None or not batches:
            completion.complete(reason)
            return [], completion
        return batches, completion

    def _refusal(self, batches: list[LogBatch]) -> str | None:
        manifest = self._topic.upkeep.manifest
        if self._topic.state is CLOSED:
            return EXITING
        if manifest.is_missing and (error := manifest.try_write()) is not None:
            return (error.strerror or str(error)).lower()
        return None if self.backlog is None else self.backlog.refusal(batches)

    def accepted(self, batches: list[LogBatch]) -> None:
        deferred = [batch for batch in batches if batch.dues]
        if deferred:
            self._topic.note_deferred(deferred)

    def refused(self) -> None:
        self._topic.forget_refused()
        self._topic.drop_if_unused()
