"""A channel: a cursor into its topic's log, and the consumers that share what it passes.

`share` is the channel's part of a tick. Consumers with credit stand in a line; each turn gives the
first one at most its fair part, `max(1, waiting // consumers in line)`, and sends it to the back.
A turn costs nothing for consumers without credit, so a thousand idle ones slow nobody down.

Frames are slices of the log's batches: a first delivery copies nothing; a redelivery is one frame,
copied to set its attempts.
"""

import logging
import random
from collections import deque
from collections.abc import Set

from pumpline.core.messages.batches import Batch
from pumpline.core.messages.delivery import NEVER_NS, Delivery
from pumpline.core.messages.spans import Span
from pumpline.core.text.names import is_ephemeral
from pumpline.core.text.settings import NO_SETTINGS
from pumpline.log.cursor import CursorFile
from pumpline.nsqd.queue.consumer import EXITING, NOT_IN_FLIGHT, NOT_OWNED, ChannelError, Consumer
from pumpline.nsqd.queue.dead_letters import DeadLetters
from pumpline.nsqd.queue.expiry import Expiry
from pumpline.nsqd.queue.latency import new_latency
from pumpline.nsqd.queue.source import Source
from pumpline.nsqd.queue.tick import TimerHandle
from pumpline.nsqd.queue.tiers import Tiers
from pumpline.nsqd.queue.topology import Delivered, is_topology_aware

_NS_PER_S = 1_000_000_000

_LOG = logging.getLogger(__name__)


class Channel:
    def __init__(self, topic: Source, name: str, delivery: Delivery, *, paused: bool) -> None:
        self.topic = topic
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.base_id = topic.log.base_id
        self.delivery = delivery
        delivery.on_settled = self._settled
        self.paused = paused
        self.exiting = False
        self.deleted = False
        self.cursor_file: CursorFile | None = None  # none: the channel does not outlive us
        self.consumers: dict[Consumer, None] = {}
        self.requeue_count = 0
        self.timeout_count = 0
        self.dropped_count = 0  # an ephemeral channel's overflow, and what is gone from the log
        self.overflow_count = 0  # dropped from a full backlog
        self.expiry = Expiry(self)
        self.dead_letters = DeadLetters(self)
        self.changed = False  # since the last checkpoint
        self.latency = new_latency(topic.options)  # none: nobody asked for it
        self._counted_from = topic.pumped
        self._line: deque[Consumer] | Tiers = (
            Tiers() if is_topology_aware(topic.options) else deque()
        )
        self._forward = topic.log.reader(self.announce)
        self._backward = topic.log.reader(self.announce)
        self._tick = topic.tick
        self._announced = False  # `share` will be called in this tick
        self._timer: TimerHandle | None = None
        self._timer_ns = NEVER_NS

    # -- numbers ------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        return self.delivery.waiting(self.topic.pumped)

    @property
    def in_flight_count(self) -> int:
        return sum(len(consumer.leases) for consumer in self.consumers)

    @property
    def message_count(self) -> int:
        """Messages given to this channel since the process started."""
        return self.topic.pumped - self._counted_from

    @property
    def topology_aware(self) -> bool:
        return isinstance(self._line, Tiers)

    @property
    def delivered(self) -> Delivered | None:
        """Messages by how near their consumers were, if that matters here."""
        line = self._line
        return line.delivered(self.consumers) if isinstance(line, Tiers) else None

    def due_dates(self, offsets: Set[int]) -> dict[int, int]:
        """Those of `offsets` that are deferred, and until when, in ns since 1970."""
        ahead_ns = self._tick.wall_ahead_ns
        return {o: due_ns + ahead_ns for o, due_ns in self.delivery.due_times(offsets).items()}

    # -- consumers ----------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> None:
        self.consumers[consumer] = None

    def remove(self, consumer: Consumer) -> None:
        """A consumer is gone: what it had in flight is available at once, attempts kept."""
        if consumer not in self.consumers:
            return
        del self.consumers[consumer]
        consumer.rdy = 0
        if consumer.queued:
            self._line.remove(consumer)
            consumer.queued = False
        if isinstance(self._line, Tiers):
            self._line.note_gone(consumer)
        if self.exiting:
            return
        self._take_back(consumer.leases.clear())
        self.note_change()
        self.announce()
        if self.ephemeral and not self.consumers:
            self.topic.delete_channel(self.name)

    def offer(self, consumer: Consumer) -> None:
        """The consumer may have credit: let it stand in line."""
        if not consumer.queued and consumer.credit > 0:
            consumer.queued = True
            self._line.append(consumer)
        self.announce()

    def announce(self) -> None:
        """Something may be ready and somebody may want it."""
        delivery = self.delivery
        if self._line and not self.paused and (delivery.next < self.topic.pumped or delivery.ready):
            self._announced = True
            self._tick.share(self)

    # -- delivery -----------------------------------------------------------------------------

    def share(self) -> None:
        limit = self.topic.pumped
        self._announced = False
        self.delivery.settle()
        if self.cursor_file is None:
            self.delivery.forget_changes()
        if self.ephemeral:
            self._drop_overflow(limit)
        if self.paused or self.exiting:
            return
        while self._line:
            waiting = self.delivery.waiting(limit)
            if waiting <= 0:
                break
            if not self._give_again(waiting) and not self._give_fresh(waiting, limit):
                break  # nothing in memory: the reader calls when it came, or the timer does
        self._arm_for_deferred()

    def note_deferred(self, first: int, end: int, due_ns: int) -> None:
        """[first, end) was published with a delay. Its timer starts now, unless the channel is so
        far behind that the batch can wait on disk until its turn comes."""
        delivery = self.delivery
        if first < delivery.high or due_ns <= self._tick.wall_ns:
            return
        if first - delivery.next <= self.topic.options.mem_queue_size:
            self.delivery.defer_ahead(first, end, self._steady(due_ns))
            self.note_change()
            self._arm_for_deferred()

    def _steady(self, date_ns: int) -> int:
        """A date on the steady clock."""
        return date_ns - self._tick.wall_ns + self._tick.steady_ns

    def _arm_for_deferred(self) -> None:
        if self._timer_ns > self.delivery.next_due_ns():
            self._arm(self.delivery.next_due_ns())

    def _give_again(self, waiting: int) -> int:
        """Give the first in line its part of what came back, frame by frame: each has its own
        attempts. Returns how many messages are off the channel's hands."""
        delivery, line = self.delivery, self._line
        while delivery.ready and line and line[0].credit <= 0:
            line.popleft().queued = False
        if not delivery.ready or not line:
            return 0
        consumer = line[0]
        count = min(consumer.credit, max(1, waiting // len(line)))
        given = 0
        while delivery.ready and given < count and consumer.outlet.output_room_bytes > 0:
            offset = delivery.ready[0]
            batch = self._backward.batch(offset)
            if batch is None:
                break
            given += 1
            if batch.first > offset:
                delivery.ready.popleft()
                delivery.finish([(offset, offset + 1)])
                self.dropped_count += 1
                self.note_change()
                continue
            if self.topic.settings is not NO_SETTINGS and self._let_go(offset, batch):
                continue
            offset, attempts = delivery.redeliver()
            if self.latency is not None:
                self.latency.delivered(offset, offset + 1, batch.timestamp_ns)
            self._lend(consumer, offset, offset + 1)
            consumer.outlet.send_messages(batch.redelivery(offset, attempts))
        line.rotate(-1)
        return given

    def _give_fresh(self, waiting: int, limit: int) -> int:
        """Give out what was never delivered, as far as the next batch goes; returns how many
        messages are off the channel's hands."""
        delivery = self.delivery
        end = delivery.fresh_until(limit) if delivery.skips else limit
        at = delivery.next
        if at >= end:
            return 0
        batch = self._forward.batch(at)
        if batch is None:
            return 0
        if batch.first > at:
            return self._step_over(at, min(batch.first, end))
        end = min(end, batch.end)
        if self.topic.ttl_ns and self.expiry.has_come(batch):
            return end - at if self.expiry.pass_over(at, end) else 0
        if batch.due_ns and batch.due_ns > self._tick.wall_ns:
            delivery.defer_fresh(end, self._steady(batch.due_ns))
            self.note_change()
            return end - at
        return self._deal(batch, end, waiting)

    def _deal(self, batch: Batch, end: int, waiting: int) -> int:
        """Deal a batch's messages from `next` up to `end` to those in line, a fair part each."""
        line, delivery, frames = self._line, self.delivery, batch.frames
        now_ns = self._tick.steady_ns
        start = at = delivery.next
        position = batch.position(at)
        while at < end and line:
            consumer = line[0]
            outlet = consumer.outlet
            leases = consumer.leases
            room = outlet.output_room_bytes  # `consumer.credit`, without a call for each
            credit = consumer.rdy - len(leases.deadlines)
            if credit <= 0 or room <= 0:
                line.popleft().queued = False
                continue
            count = max((waiting + start - at) // len(line), 1) if credit > 1 else 1
            stop = at + min(count, credit, end - at) if count > 1 else at + 1
            ends_at = batch.position(stop)
            if ends_at - position > room:
                stop, ends_at = batch.fitting(at, stop, position + room)
            delivery.next = stop
            if consumer.sample_rate:
                self._send_sample(consumer, batch, at, stop)
                line.rotate(-1)
            else:
                deadline_ns = now_ns + consumer.msg_timeout_ns
                leases.add(at, stop, deadline_ns)
                consumer.message_count += stop - at
                if deadline_ns < self._timer_ns:
                    self._arm(deadline_ns)
                if stop - at < credit:
                    line.rotate(-1)
                    outlet.send_messages(frames[position:ends_at])
                else:
                    line.popleft().queued = False
                    outlet.send_last(frames[position:ends_at])
            at, position = stop, ends_at
        if self.latency is not None:
            self.latency.delivered(start, at, batch.timestamp_ns)
        if not self.changed:
            self.note_change()
        return at - start

    def _let_go(self, offset: int, batch: Batch) -> bool:
        """Whether the first message that came back is not to be delivered again, and goes."""
        delivery = self.delivery
        if self.topic.ttl_ns and self.expiry.has_come(batch):
            delivery.ready.popleft()
            delivery.finish([(offset, offset + 1)])
            self.expiry.count += 1
        elif self.topic.attempts_max and self.dead_letters.claim(offset):
            delivery.ready.popleft()
        else:
            return False
        self.note_change()
        return True

    def _send_sample(self, consumer: Consumer, batch: Batch, start: int, end: int) -> None:
        """Deliver each message with probability (rate + 1) / 100; the others are finished."""
        for offset in range(start, end):
            if random.randrange(100) > consumer.sample_rate:
                self.delivery.finish([(offset, offset + 1)])
            else:
                self._lend(consumer, offset, offset + 1)
                consumer.outlet.send_messages(batch.cut(offset, offset + 1))
        self.note_change()

    def _lend(self, consumer: Consumer, start: int, end: int) -> None:
        deadline_ns = self._tick.steady_ns + consumer.msg_timeout_ns
        consumer.leases.add(start, end, deadline_ns)
        consumer.message_count += end - start
        if deadline_ns < self._timer_ns:
            self._arm(deadline_ns)
        if not self.changed:
            self.note_change()

    def _step_over(self, start: int, end: int) -> int:
        """[start, end) is gone from the log."""
        self.delivery.skip(start, end)
        self.dropped_count += end - start
        self.note_change()
        if not self.ephemeral:  # it does not hold the log, and is the only one that does not
            _LOG.error(
                "CHANNEL(%s:%s): %d messages from offset %d on are not in the log any more",
                self.topic.name,
                self.name,
                end - start,
                start,
            )
        return end - start

    def _drop_overflow(self, limit: int) -> None:
        """An ephemeral channel keeps the oldest `mem-queue-size` messages and drops the rest."""
        keep = self.topic.options.mem_queue_size
        over = self.delivery.waiting(limit) - keep
        if over > 0:
            self.dropped_count += self.delivery.skip(limit - over, limit)

    # -- what consumers say -------------------------------------------------------------------

    def answered(self, consumer: Consumer, count: int) -> None:
        """The consumer finished `count` messages: they are in `delivery.answered`, their leases are
        gone."""
        consumer.finish_count += count
        if not consumer.queued:  # it has credit, as a rule; if not, `share` finds out
            consumer.queued = True
            self._line.append(consumer)
        if not self._announced:
            self._announced = True
            self._tick.share(self)

    def _settled(self, spans: list[Span]) -> None:
        """The delivery state counts `spans`, answered by consumers, as finished."""
        if self.latency is not None:
            tick = self._tick
            self.latency.finished(
                spans, low=self.delivery.low, wall_ns=tick.wall_ns, steady_ns=tick.steady_ns
            )
        if not self.changed:
            self.note_change()

    def finish_one(self, consumer: Consumer, offset: int) -> None:
        self._check_owned(consumer, offset)
        consumer.leases.remove(offset)
        self.delivery.answered.append((offset, offset + 1))
        self.answered(consumer, 1)

    def requeue(self, consumer: Consumer, offset: int, delay_ns: int) -> None:
        self._check_owned(consumer, offset)
        consumer.leases.remove(offset)
        consumer.requeue_count += 1
        self.requeue_count += 1
        if self.topic.attempts_max and self.dead_letters.claim(offset):
            pass
        elif delay_ns > 0:
            due_ns = self._tick.steady_ns + delay_ns
            self.delivery.defer(offset, due_ns)
            if due_ns < self._timer_ns:
                self._arm(due_ns)
        else:
            self.delivery.requeue(offset)
        self.note_change()
        self.offer(consumer)

    def _take_back(self, offsets: list[int]) -> None:
        """Messages in flight were not answered: they go out again, or are dead letters."""
        if self.topic.attempts_max:
            offsets = [offset for offset in offsets if not self.dead_letters.claim(offset)]
        self.delivery.release(offsets)

    def touch(self, consumer: Consumer, offset: int) -> None:
        self._check_owned(consumer, offset)
        consumer.leases.touch(
            offset,
            now_ns=self._tick.steady_ns,
            timeout_ns=consumer.msg_timeout_ns,
            timeout_max_ns=self.topic.options.max_msg_timeout_ns,
        )

    def _check_owned(self, consumer: Consumer, offset: int) -> None:
        if self.exiting:
            raise ChannelError(EXITING)
        if offset in consumer.leases.deadlines:
            return
        if any(offset in other.leases.deadlines for other in self.consumers):
            raise ChannelError(NOT_OWNED)
        raise ChannelError(NOT_IN_FLIGHT)

    # -- time ---------------------------------------------------------------------------------

    def _arm(self, due_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = due_ns
        delay_s = max(due_ns - self._tick.steady_ns, 0) / _NS_PER_S
        self._timer = self.topic.tick.later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        """A lease may have run out, or a deferred message be due."""
        now_ns = self._tick.steady_ns
        self._timer = None
        self._timer_ns = NEVER_NS
        for consumer in self.consumers:
            if consumer.leases.floor_ns <= now_ns:
                expired = consumer.leases.expire(now_ns)
                self.timeout_count += len(expired)
                self._take_back(expired)
                if expired:
                    self.note_change()
                    self.offer(consumer)
        self.delivery.wake(now_ns)
        self.announce()
        floors = (consumer.leases.floor_ns for consumer in self.consumers)
        due_ns = min(self.delivery.next_due_ns(), *floors, NEVER_NS)
        if due_ns < NEVER_NS:
            self._arm(due_ns)

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
        """[start, end), which the topic has not pumped yet, will not come."""
        self.delivery.skip(start, end)
        self._counted_from += end - start
        self.note_change()

    def empty(self) -> None:
        """Drop everything: waiting, in flight and deferred."""
        self._go_to(max(self.topic.pumped, self.delivery.next))

    def seek(self, offset: int) -> None:
        """Go on from `offset`, forward or back, whatever is in flight or deferred."""
        if self.cursor_file is not None:
            self.cursor_file.note_failure()  # no change can tell of going back
        self._go_to(offset)

    def _go_to(self, offset: int) -> None:
        for consumer in self.consumers:
            consumer.leases.clear()
        self.dead_letters.clear()
        self.delivery.seek(offset)
        self._forward.release()
        self._backward.release()
        self.note_change()
        for consumer in self.consumers:
            self.offer(consumer)

    def close(self) -> None:
        """Disconnect everybody; the state stays as it is."""
        self.delivery.settle()
        self.exiting = True
        if self._timer is not None:
            self._timer.cancel()
        for consumer in list(self.consumers):
            if consumer.leases:
                self.delivery.release(consumer.leases.clear())
                self.note_change()
            consumer.outlet.close()
        self.consumers.clear()
        self._line.clear()

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
