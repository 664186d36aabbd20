"""A channel: a cursor into its topic's log, and its consumers.

`dispatch` is the channel's part of a tick; `queue.dispatcher` decides which consumer gets which
messages. This module carries out what consumers say of their messages (FIN, REQ, TOUCH), requeues
messages that time out, and has the operations of an operator.
Knows the delivery state and the clock; must not know sockets.
"""

from array import array
from collections.abc import Set
from typing import TYPE_CHECKING, NamedTuple

from pumpline.core.messages.batches import DUE_BYTES, Dues
from pumpline.core.messages.deferred import Pending, flat_of_dues
from pumpline.core.messages.delivery import WAKE_MAX, Delivery
from pumpline.core.messages.leases import NEVER_NS
from pumpline.core.messages.spans import Span, left_out, length
from pumpline.core.text.names import is_ephemeral
from pumpline.log.cursor import CursorFile
from pumpline.nsqd.queue.consumer import (
    EXITING,
    NOT_IN_FLIGHT,
    NOT_OWNED,
    ChannelConsumer,
    ChannelError,
)
from pumpline.nsqd.queue.dead_letters import DeadLetters
from pumpline.nsqd.queue.dispatcher import Dispatcher
from pumpline.nsqd.queue.expiry import Expiry
from pumpline.nsqd.queue.latency import Latency, new_latency
from pumpline.nsqd.queue.tick import TimerHandle
from pumpline.nsqd.queue.tiers import Tiers
from pumpline.nsqd.queue.topology import Delivered

if TYPE_CHECKING:  # a topic makes its channels
    from pumpline.nsqd.queue.topic import Topic

WAKE_PAUSE_NS = 5_000_000  # between two wakes of deferred messages: each costs 50 us

_NS_PER_S = 1_000_000_000


class SeekEffect(NamedTuple):
    """What a seek does to a channel, in messages."""

    depth: int  # that wait then
    again: int  # finished, to be delivered again
    skipped: int  # not finished, and not to be delivered any more
    in_flight: int  # of which no answer will be taken


class Channel:
    def __init__(self, topic: "Topic", name: str, delivery: Delivery, *, paused: bool) -> None:
        self.topic = topic
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.base_id = topic.log.base_id
        self.delivery: Delivery = delivery
        delivery.on_settled = self._settled
        self.paused = paused
        self.exiting = False
        self.deleted = False
        self.cursor_file: CursorFile | None = None  # none: the channel is forgotten when nsqd ends
        self.consumers: dict[ChannelConsumer, None] = {}
        self.requeue_count = 0
        self.timeout_count = 0
        self.dropped_count = 0  # overflow of an ephemeral channel, and offsets gone from the log
        self.overflow_count = 0  # dropped from a full backlog
        self.expiry = Expiry(self)
        self.dead_letters = DeadLetters(self)
        self.changed = False  # since the last checkpoint
        self.latency: Latency | None = new_latency(topic.options)  # none: not configured
        self._counted_from = topic.pumped
        self.delivered_until = topic.pumped  # what lies above is new
        self.dispatcher = Dispatcher(self)
        self._ready_consumers = self.dispatcher.ready_consumers
        self._ready_queue_max = max(topic.options.mem_queue_size, 1)
        self._tick = topic.tick
        self._announced = False  # `dispatch` will be called in this tick
        self._timer: TimerHandle | None = None
        self.timer_ns = NEVER_NS  # when it is due
        self._rests_until_ns = 0  # no deferred message is woken before

    # -- numbers ------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        return self.delivery.waiting(self.topic.pumped)

    @property
    def in_flight_count(self) -> int:
        return sum(len(consumer.leases) for consumer in self.consumers)

    @property
    def has_ready_consumers(self) -> bool:
        """Whether `dispatch` has anything to do when more messages come."""
        return bool(self._ready_consumers) or self.ephemeral

    @property
    def may_wait(self) -> bool:
        """New messages may be delivered later than the tick they came in: no requeued message waits
        for them."""
        return not self.delivery.behind and not self.ephemeral

    @property
    def message_count(self) -> int:
        """Messages given to this channel since the process started."""
        return self.topic.pumped - self._counted_from

    @property
    def topology_aware(self) -> bool:
        return isinstance(self._ready_consumers, Tiers)

    @property
    def delivered(self) -> Delivered | None:
        """Deliveries by how near their consumers were; none without topology-aware delivery."""
        ready = self._ready_consumers
        return ready.delivered(self.consumers) if isinstance(ready, Tiers) else None

    def deferred(self, offsets: Set[int]) -> dict[int, Pending]:
        """Those of `offsets` that are deferred, until when in ns since 1970."""
        ahead_ns = self._tick.read_clocks().wall_ahead_ns
        found = self.delivery.deferred(offsets)
        return {o: each._replace(due_ns=each.due_ns + ahead_ns) for o, each in found.items()}

    # -- consumers ----------------------------------------------------------------------------

    def add(self, consumer: ChannelConsumer) -> None:
        self.consumers[consumer] = None
        self.topic.follow()

    def remove(self, consumer: ChannelConsumer) -> None:
        """A consumer left: requeue what it had in flight at once; attempts are kept."""
        if consumer not in self.consumers:
            return
        del self.consumers[consumer]
        consumer.rdy = 0
        if consumer.queued:
            self._ready_consumers.remove(consumer)
            consumer.queued = False
        self.topic.follow()
        if isinstance(self._ready_consumers, Tiers):
            self._ready_consumers.note_gone(consumer)
        if self.exiting:
            return
        self._take_back(consumer.leases.clear())
        self.note_change()
        self.announce()
        if self.ephemeral and not self.consumers:
            self.topic.delete_channel(self.name)

    def offer(self, consumer: ChannelConsumer) -> None:
        """Queue the consumer for messages if it has credit."""
        if not consumer.queued and consumer.credit > 0:
            consumer.queued = True
            self._ready_consumers.append(consumer)
        self.announce()

    def announce(self) -> None:
        """Schedule `dispatch` if there are messages and consumers with credit."""
        if self._ready_consumers and not self.paused and self._has_messages:
            self._announced = True
            self._tick.dispatch(self)

    @property
    def _has_messages(self) -> bool:
        delivery, topic = self.delivery, self.topic
        return bool(delivery.next < topic.pumped or delivery.ready)

    def served(self) -> None:
        """It waited for others, and is served in this tick: new messages are announced again."""
        self.topic.resume()

    # -- delivery -----------------------------------------------------------------------------

    def dispatch(self) -> None:
        limit = self.topic.pumped
        if not self.delivery.behind:  # else a requeued message waits for all of them
            limit = self._tick.deliverable(self, limit)
        self.delivered_until = limit
        self._announced = False
        self.delivery.settle()
        if self.cursor_file is None:
            self.delivery.forget_changes()
        if self.ephemeral:
            self._drop_overflow(limit)
        if self.paused or self.exiting:
            return
        if self._ready_consumers:
            self.dispatcher.dispatch(limit)
        self._arm_for_deferred()

    def note_deferred(self, first: int, dues: Dues, *, published_ns: int) -> None:
        """Messages from `first` on were published with these due times. Their timers start now,
        unless the channel is so far behind that they can wait on disk until their turn comes."""
        delivery = self.delivery
        start = max(first, delivery.high)
        if start - delivery.next > self.topic.options.mem_queue_size:
            return
        flat = self.deferred_of(dues[DUE_BYTES * (start - first) :], start, published_ns)
        if flat:
            delivery.defer_ahead(flat)
            self.note_change()
            self._arm_for_deferred()

    def deferred_of(self, dues: Dues, first: int, published_ns: int) -> "array[int]":
        """The messages from `first` on, with these due times, that are not due yet, as the delivery
        state takes them."""
        tick = self._tick
        shift_ns = tick.steady_shift_ns(published_ns)
        return flat_of_dues(dues, first, after_ns=tick.wall_ns, shift_ns=shift_ns)

    def _arm_for_deferred(self) -> None:
        due_ns = self._wake_ns
        if self.timer_ns > due_ns:
            self.arm(due_ns)

    @property
    def _wake_ns(self) -> int:
        """When to wake deferred messages next: not one by one, if many are due."""
        return max(self.delivery.next_due_ns(), self._rests_until_ns)

    def _drop_overflow(self, limit: int) -> None:
        """An ephemeral channel keeps the oldest `mem-queue-size` messages and drops the rest."""
        over = self.delivery.waiting(limit) - self.topic.options.mem_queue_size
        if over > 0:
            self.dropped_count += self.delivery.skip(limit - over, limit)

    # -- what consumers say -------------------------------------------------------------------

    def answered(self, consumer: ChannelConsumer, count: int) -> None:
        """The consumer finished `count` messages: they are in `delivery.answered`, their leases are
        gone."""
        consumer.finish_count += count
        if not consumer.queued:  # it has credit, as a rule; if not, `dispatch` finds out
            consumer.queued = True
            self._ready_consumers.append(consumer)
        if not self._announced:
            self._announced = True
            self._tick.dispatch(self)

    def _settled(self, spans: list[Span]) -> None:
        """The delivery state counts `spans`, answered by consumers, as finished."""
        if self.latency is not None:
            tick = self._tick
            self.latency.finished(
                spans, low=self.delivery.low, wall_ns=tick.wall_ns, steady_ns=tick.steady_ns
            )
        if not self.changed:
            self.note_change()

    def finish_one(self, consumer: ChannelConsumer, offset: int) -> None:
        self._check_owned(consumer, offset)
        consumer.leases.remove(offset)
        self.delivery.answered.append((offset, offset + 1))
        self.answered(consumer, 1)

    def requeue_one(self, consumer: ChannelConsumer, offset: int, delay_ns: int) -> None:
        self._check_owned(consumer, offset)
        consumer.leases.remove(offset)
        self.requeued(consumer, [(offset, offset + 1)], delay_ns)

    def requeued(self, consumer: ChannelConsumer, spans: list[Span], delay_ns: int) -> None:
        """The consumer requeued these messages; their leases are gone."""
        count = length(spans)
        consumer.requeue_count += count
        self.requeue_count += count
        if self.topic.attempts_max:
            claim = self.dead_letters.claim
            offsets = [o for start, end in spans for o in range(start, end) if not claim(o)]
            spans = [(offset, offset + 1) for offset in offsets]
        delivery = self.delivery
        if delay_ns > 0:
            due_ns = self._tick.steady_ns + delay_ns
            for start, end in spans:
                delivery.defer(start, end, due_ns)
            if due_ns < self.timer_ns:
                self.arm(due_ns)
        else:
            last = self._ready_queue_end
            for start, end in spans:
                delivery.requeue(range(start, end), last)
        if not self.changed:
            self.note_change()
        self.answered(consumer, 0)

    def _take_back(self, offsets: list[int]) -> None:
        """Requeue messages that were in flight and not answered, or write them as dead letters."""
        if self.topic.attempts_max:
            offsets = [offset for offset in offsets if not self.dead_letters.claim(offset)]
        self.delivery.requeue(offsets, self._ready_queue_end)

    @property
    def _ready_queue_end(self) -> int:
        """A message that is requeued now waits for the messages below this offset: those that are
        ready, but at most `--mem-queue-size` of them, as in NSQ's memory queue."""
        ready = self.topic.pumped
        end = self.delivery.next + self._ready_queue_max
        return ready if ready < end else end

    def touch_one(self, consumer: ChannelConsumer, offset: int) -> None:
        self._check_owned(consumer, offset)
        consumer.leases.touch(
            offset,
            now_ns=self._tick.steady_ns,
            timeout_ns=consumer.msg_timeout_ns,
            timeout_max_ns=self.topic.options.max_msg_timeout_ns,
        )

    def touch_run(self, consumer: ChannelConsumer, buf: bytearray, pos: int, end: int) -> int:
        """Carry out the run of `TOUCH` commands in buf[pos:end]; returns the position after it."""
        return consumer.leases.touch_run(
            buf,
            pos,
            end,
            self.base_id,
            now_ns=self._tick.steady_ns,
            timeout_ns=consumer.msg_timeout_ns,
            timeout_max_ns=self.topic.options.max_msg_timeout_ns,
        )

    def _check_owned(self, consumer: ChannelConsumer, offset: int) -> None:
        if self.exiting:
            raise ChannelError(EXITING)
        if offset in consumer.leases.deadlines:
            return
        if any(offset in other.leases.deadlines for other in self.consumers):
            raise ChannelError(NOT_OWNED)
        raise ChannelError(NOT_IN_FLIGHT)

    # -- time ---------------------------------------------------------------------------------

    def arm(self, due_ns: int) -> None:
        """Let the timer run at `due_ns`, which is before anything else is due."""
        if self._timer is not None:
            self._timer.cancel()
        self.timer_ns = due_ns
        delay_s = max(due_ns - self._tick.steady_ns, 0) / _NS_PER_S
        self._timer = self.topic.tick.later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        """A lease may have run out, or a deferred message be due."""
        now_ns = self._tick.steady_ns
        self._timer = None
        self.timer_ns = NEVER_NS
        for consumer in self.consumers:
            if consumer.leases.floor_ns <= now_ns:
                expired = consumer.leases.expire(now_ns)
                self.timeout_count += len(expired)
                self._take_back(expired)
                if expired:
                    self.note_change()
                    self.offer(consumer)
        woken = self.delivery.wake(now_ns, self._ready_queue_end)
        self._rests_until_ns = now_ns + WAKE_PAUSE_NS if 0 < woken < WAKE_MAX else 0
        self.announce()
        floors = (consumer.leases.floor_ns for consumer in self.consumers)
        due_ns = min(self._wake_ns, *floors, NEVER_NS)
        if due_ns < NEVER_NS:
            self.arm(due_ns)

    # -- management ---------------------------------------------------------------------------

    def start(self) -> None:
        """After a restart: deferred messages need a timer."""
        self._arm_for_deferred()

    def pause(self) -> None:
        self.paused = True

    def unpause(self) -> None:
        self.paused = False
        self.announce()

    def skip(self, start: int, end: int) -> None:
        """Skip [start, end), which the topic has not pumped yet: it was emptied."""
        self.delivery.skip(start, end)
        self._counted_from += end - start
        self.note_change()

    def empty(self) -> None:
        """Drop everything: waiting, in flight and deferred."""
        self._go_to(max(self.topic.pumped, self.delivery.next))

    def seek(self, offset: int) -> None:
        """Move to `offset`, forward or back; what is in flight or deferred is dropped."""
        if self.cursor_file is not None:
            self.cursor_file.note_failure()  # a change cannot express going back: write a snapshot
        self._go_to(offset)

    def seek_effect(self, offset: int) -> SeekEffect:
        """What `seek` to `offset` would do."""
        log, finished = self.topic.log, self.delivery.finished
        high = max(self.delivery.high, offset)
        unfinished = max(offset - finished.low, 0) - finished.count(finished.low, offset)
        return SeekEffect(
            depth=log.count(offset, self.topic.pumped),
            again=finished.count(offset, high) - left_out(log.gaps, offset, high),
            skipped=unfinished,
            in_flight=self.in_flight_count,
        )

    def _go_to(self, offset: int) -> None:
        for consumer in self.consumers:
            consumer.leases.clear()
        self.dead_letters.clear()
        self.delivery.seek(offset)
        for gap in self.topic.log.gaps:
            self.delivery.skip(*gap)
        self.dispatcher.release()
        self.note_change()
        for consumer in self.consumers:
            self.offer(consumer)

    def close(self) -> None:
        """Disconnect all consumers; the delivery state is kept."""
        self.delivery.settle()
        self.exiting = True
        if self._timer is not None:
            self._timer.cancel()
        for consumer in list(self.consumers):
            if consumer.leases:
                self.delivery.requeue(consumer.leases.clear())
                self.note_change()
            consumer.outlet.close()
        self.consumers.clear()
        self._ready_consumers.clear()

    def note_change(self) -> None:
        """The delivery state differs from the cursor file."""
        if self.cursor_file is None:
            self.delivery.forget_changes()
        elif not self.changed:
            self.changed = True
            self.topic.disk.checkpoints.add(self)

    def remove_cursor(self) -> None:
        if self.cursor_file is not None:
            self.topic.disk.directory.remove_cursor(self.topic.name, self.name)
