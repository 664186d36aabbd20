"""Messages that always come back must not keep the others waiting: with any mix of them, every
message is delivered within a bounded number of deliveries.

When a message is published, `ahead` others are waiting that were never delivered, and `refused`
messages come back for ever, in any way. Before its first delivery go the `ahead`, and each refused
one at most once for what it waited for already, and once for every `--mem-queue-size` of the rest.
"""

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
from hypothesis import given

from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.consumer import ChannelConsumer
from tests.kit.fake_broker import NS_PER_S, FakeBroker, Sink
from tests.kit.logs import at_once

MSG_TIMEOUT_NS = NS_PER_S
MESSAGES = 24


class Poisoned:
    """A channel whose consumers refuse some of the messages, always."""

    def __init__(self, path: Path, *, queue_size: int, rdys: list[int], seed: int) -> None:
        self.broker = FakeBroker(path, Options(mem_queue_size=queue_size), offload=at_once)
        self.topic = self.broker.topic()
        self.channel = self.topic.ensure_channel("c")
        self.random = random.Random(seed)
        self.delivered = 0
        self.first_at: dict[int, int] = {}  # offset -> how many deliveries there were by then
        self.consumers = [self._join(rdy) for rdy in rdys]

    def _join(self, rdy: int) -> tuple[ChannelConsumer, Sink]:
        return self.broker.consume(self.channel, rdy=rdy, msg_timeout_ns=MSG_TIMEOUT_NS)

    def turn(self, poison: set[int]) -> None:
        """Every consumer answers what it has: finishes it, or refuses it in one way or another."""
        for index, (consumer, sink) in enumerate(self.consumers):
            for offset, _, _ in sink.take():
                self.delivered += 1
                self.first_at.setdefault(offset, self.delivered)
                if offset not in consumer.leases.deadlines:
                    continue  # it has timed out meanwhile
                if offset not in poison:
                    self.channel.finish_one(consumer, offset)
                elif (way := self.random.randrange(4)) < 2:
                    self.channel.requeue_one(consumer, offset, way * NS_PER_S // 1000)
                elif way == 2:
                    self.channel.touch_one(consumer, offset)  # and let it time out
            if consumer.leases and self.random.randrange(8) == 0:
                self.channel.remove(consumer)
                self.consumers[index] = self._join(consumer.rdy or 1)
        self.broker.run()
        self.broker.advance(self.random.choice((0, 0.001, 0.5)))


@given(
    poison=st.sets(st.integers(0, MESSAGES - 1)),
    bursts=st.lists(st.integers(1, 9), min_size=1),
    queue_size=st.sampled_from([0, 1, 2, 5, 10_000]),
    rdys=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    seed=st.integers(0, 1 << 32),
)
def test_every_message_is_delivered_within_a_bounded_number_of_deliveries(
    poison: set[int], bursts: list[int], queue_size: int, rdys: list[int], seed: int
) -> None:
    with TemporaryDirectory() as path:
        channel = Poisoned(Path(path), queue_size=queue_size, rdys=rdys, seed=seed)
        under_way = 2 * sum(rdys)  # a delivery counts when its consumer has its turn
        latest: dict[int, int] = {}  # offset -> by when it has to be delivered
        while len(latest) < MESSAGES:
            burst = min(bursts[len(latest) % len(bursts)], MESSAGES - len(latest))
            ahead = channel.channel.delivery.fresh(channel.topic.pumped)
            for offset in range(len(latest), len(latest) + burst):
                rounds = 1 + -(-(ahead + 1) // max(queue_size, 1))
                before = channel.delivered + under_way
                latest[offset] = before + ahead + 1 + rounds * len(poison)
                ahead += 1
            channel.broker.publish(channel.topic, *[b"m"] * burst)
            channel.turn(poison)
        limit = max(latest.values())
        while channel.delivered < limit and len(channel.first_at) < MESSAGES:
            channel.turn(poison)
        late = {
            o: channel.first_at.get(o)
            for o in latest
            if not channel.first_at.get(o, limit + 1) <= latest[o]
        }
        assert not late
