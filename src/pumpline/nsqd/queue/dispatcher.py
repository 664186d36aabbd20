"""The dispatcher: delivers a channel's ready messages to its consumers with credit.

Consumers with credit are in a queue. The first one gets at most its fair part,
`max(1, waiting // ready consumers)`, and goes to the back. Consumers without credit cost nothing:
a thousand idle ones slow nobody down. A requeued message is delivered when its turn comes
(`core.messages.delivery`), or while the messages before it have to be read from disk.

Frames are slices of the log's batches: a first delivery copies nothing. Redeliveries are copied, to
set their attempts, and sent in one piece. Knows the log and the consumers; must not know when it is
called.
"""

import logging
import random
from collections import deque
from typing import TYPE_CHECKING

from pumpline.core.messages.batches import DUE_BYTES, AnyBatch
from pumpline.core.messages.kernels import due_run, redeliveries
from pumpline.core.text.settings import NO_SETTINGS
from pumpline.nsqd.queue.consumer import ChannelConsumer
from pumpline.nsqd.queue.tiers import Tiers
from pumpline.nsqd.queue.topology import is_topology_aware

if TYPE_CHECKING:  # a channel makes its own
    from pumpline.nsqd.queue.channel import Channel

AGAIN_MAX = 500  # redeliveries of a channel in one tick: 12 ms if each is read from disk
DUE_RUN_MAX = 1024  # messages of a batch whose due times are looked at for one delivery

_LOG = logging.getLogger(__name__)


class Dispatcher:
    """The dispatcher of one channel."""

    def __init__(self, channel: "Channel") -> None:
        topic = channel.topic
        self.ready_consumers: deque[ChannelConsumer] | Tiers = (
            Tiers() if is_topology_aware(topic.options) else deque()
        )
        self._channel = channel
        self._topic = topic
        self._delivery = channel.delivery
        self._latency = channel.latency
        self._tick = topic.tick
        self._forward = topic.log.reader(channel.announce)
        self._backward = topic.log.reader(channel.announce, channel.delivery.upcoming)

    def dispatch(self, limit: int) -> None:
        """Deliver ready messages below `limit`, as long as a consumer has credit for them."""
        delivery = self._delivery
        again = 0  # messages that were taken from `ready`
        while self.ready_consumers:
            waiting = delivery.waiting(limit)
            if waiting <= 0:
                break
            if again >= AGAIN_MAX:
                self._channel.announce()
                break
            end = delivery.fresh_until(limit) if delivery.skips or delivery.behind else limit
            given = self._redeliver(waiting)
            again += given
            if given or self._deliver_fresh(waiting, end):
                continue
            if not self.ready_consumers or not delivery.let_pass():
                break  # nothing in memory: the reader or the timer calls `announce` later

    def release(self) -> None:
        """The channel moved to another offset: forget what was read."""
        self._forward.release()
        self._backward.release()

    def _redeliver(self, waiting: int) -> int:
        """Give the first ready consumer its part of the requeued messages, a copy of each frame: it
        has its own attempts. Returns how many messages no longer wait."""
        delivery, ready = self._delivery, self.ready_consumers
        while delivery.ready and ready and ready[0].credit <= 0:
            ready.popleft().queued = False
        if not delivery.ready or not ready:
            return 0
        consumer = ready[0]
        count = min(consumer.credit, max(1, waiting // len(ready)))
        room_bytes = consumer.outlet.output_room_bytes
        frames = bytearray()
        lent: list[int] = []
        given = 0
        while delivery.ready and given < count and len(frames) < room_bytes:
            batch = self._backward.batch(delivery.ready[0])
            if batch is None:
                break
            if batch.first > delivery.ready[0]:
                self._drop_gone()
                given += 1
                continue
            offsets = delivery.take_ready(batch.first, batch.end, count - given)
            given += len(offsets)
            if self._topic.settings is not NO_SETTINGS:
                offsets = [offset for offset in offsets if not self._drop(offset, batch)]
            given -= self._copy_again(batch, offsets, frames, room_bytes)
            lent += offsets
        ready.rotate(-1)
        if lent:
            self._lend(consumer, lent)
            consumer.outlet.send_messages(frames)
        return given

    def _copy_again(
        self, batch: AnyBatch, offsets: list[int], frames: bytearray, room_bytes: int
    ) -> int:
        """Append the frames of these offsets, each with its attempts, until `frames` has
        `room_bytes`. Returns how many were too many: they are put back, and gone from `offsets`."""
        delivery = self._delivery
        attempts = delivery.next_attempts(offsets)
        count = redeliveries(
            offsets, attempts, batch.first, batch.ends, batch.frames, frames, room_bytes
        )
        left = offsets[count:]
        if left:
            delivery.put_back(left)
            del offsets[count:]
        delivery.redelivered(offsets, attempts)
        if self._latency is not None:
            for offset in offsets:
                self._latency.delivered(offset, offset + 1, batch.published_ns(offset))
        return len(left)

    def _deliver_fresh(self, waiting: int, end: int) -> int:
        """Deliver new messages below `end`, as far as the next batch goes; returns how many no
        longer wait."""
        delivery = self._delivery
        at = delivery.next
        if at >= end:
            return 0
        batch = self._forward.batch(at)
        if batch is None:
            return 0
        if batch.first > at:
            return self._step_over(at, min(batch.first, end))
        end = min(end, batch.end)
        if self._topic.ttl_ns:
            expired = self._channel.expiry.expired_until(batch, at, end)
            if expired > at:
                return expired - at if self._channel.expiry.pass_over(at, expired) else 0
        if batch.dues:
            end = self._due_until(batch, at, min(end, at + DUE_RUN_MAX))
            if batch.due_ns(at) > self._tick.wall_ns:
                self._defer(batch, at, end)
                return end - at
        return self._dispatch_batch(batch, end, waiting)

    def _due_until(self, batch: AnyBatch, start: int, end: int) -> int:
        """Where the messages from `start` on end that are due, or are not, as the first."""
        first = batch.first
        return first + due_run(batch.dues, start - first, end - first, self._tick.wall_ns)

    def _defer(self, batch: AnyBatch, start: int, end: int) -> None:
        """[start, end), next to be delivered, is not due yet."""
        dues = batch.dues[DUE_BYTES * (start - batch.first) : DUE_BYTES * (end - batch.first)]
        flat = self._channel.deferred_of(dues, start, batch.timestamp_ns)
        self._delivery.defer_fresh(flat)
        self._channel.note_change()

    def _dispatch_batch(self, batch: AnyBatch, end: int, waiting: int) -> int:
        """Deliver a batch from `next` up to `end` to the ready consumers, a fair part each."""
        channel, delivery, frames = self._channel, self._delivery, batch.frames
        ready = self.ready_consumers
        now_ns = self._tick.steady_ns
        start = at = delivery.next
        position = batch.position(at)
        while at < end and ready:
            consumer = ready[0]
            outlet = consumer.outlet
            leases = consumer.leases
            room = outlet.output_room_bytes  # `consumer.credit`, without a call for each
            credit = consumer.rdy - len(leases.deadlines)
            if credit <= 0 or room <= 0:
                ready.popleft().queued = False
                continue
            count = max((waiting + start - at) // len(ready), 1) if credit > 1 else 1
            stop = at + min(count, credit, end - at) if count > 1 else at + 1
            ends_at = batch.position(stop)
            if ends_at - position > room:
                stop, ends_at = batch.fitting(at, stop, position + room)
            delivery.next = stop
            if consumer.sample_rate:
                self._send_sample(consumer, batch, at, stop)
                ready.rotate(-1)
            else:
                deadline_ns = now_ns + consumer.msg_timeout_ns
                leases.add(at, stop, deadline_ns)
                consumer.message_count += stop - at
                if deadline_ns < channel.timer_ns:
                    channel.arm(deadline_ns)
                if stop - at < credit:
                    ready.rotate(-1)
                    outlet.send_messages(frames[position:ends_at])
                else:
                    ready.popleft().queued = False
                    outlet.send_last(frames[position:ends_at])
            at, position = stop, ends_at
        if delivery.behind:
            delivery.advance(at)
        if self._latency is not None:
            self._note_latency(batch, start, at)
        if not channel.changed:
            channel.note_change()
        return at - start

    def _note_latency(self, batch: AnyBatch, start: int, end: int) -> None:
        """Note when [start, end) was published: a batch may hold messages of many ticks."""
        assert self._latency is not None
        while start < end:
            published_ns = batch.published_ns(start)
            stop = batch.first_at(published_ns + 1, start, end)
            self._latency.delivered(start, stop, published_ns)
            start = stop

    def _drop_gone(self) -> None:
        """The first requeued message is gone from the log."""
        offset = self._delivery.ready.popleft()
        self._delivery.finish([(offset, offset + 1)])
        self._channel.dropped_count += 1
        self._channel.note_change()

    def _drop(self, offset: int, batch: AnyBatch) -> bool:
        """Drop a requeued message if it is too old or out of attempts; return whether it was
        dropped."""
        if (
            self._topic.ttl_ns
            and self._channel.expiry.expired_until(batch, offset, offset + 1) > offset
        ):
            self._delivery.finish([(offset, offset + 1)])
            self._channel.expiry.count += 1
        elif not self._topic.attempts_max or not self._channel.dead_letters.claim(offset):
            return False
        self._channel.note_change()
        return True

    def _send_sample(
        self, consumer: ChannelConsumer, batch: AnyBatch, start: int, end: int
    ) -> None:
        """Deliver each message with probability (rate + 1) / 100; the others are finished."""
        for offset in range(start, end):
            if random.randrange(100) > consumer.sample_rate:
                self._delivery.finish([(offset, offset + 1)])
            else:
                self._lend(consumer, [offset])
                consumer.outlet.send_messages(batch.cut(offset, offset + 1))
        self._channel.note_change()

    def _lend(self, consumer: ChannelConsumer, offsets: list[int]) -> None:
        channel = self._channel
        deadline_ns = self._tick.steady_ns + consumer.msg_timeout_ns
        consumer.leases.add_each(offsets, deadline_ns)
        consumer.message_count += len(offsets)
        if deadline_ns < channel.timer_ns:
            channel.arm(deadline_ns)
        if not channel.changed:
            channel.note_change()

    def _step_over(self, start: int, end: int) -> int:
        """[start, end) is gone from the log."""
        channel = self._channel
        self._delivery.skip(start, end)
        channel.dropped_count += end - start
        channel.note_change()
        if not channel.ephemeral:  # an ephemeral channel does not keep segments from being retired
            _LOG.error(
                "CHANNEL(%s:%s): %d messages from offset %d on are not in the log any more",
                self._topic.name,
                channel.name,
                end - start,
                start,
            )
        return end - start
