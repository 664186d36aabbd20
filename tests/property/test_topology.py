"""Whatever consumers do: messages go to the nearest with credit, and none waits while any has."""

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.consumer import ChannelConsumer
from pumpline.nsqd.queue.topology import EXPERIMENT, Locality
from tests.kit.fake_broker import FakeBroker, Sink

CONSUMERS_MAX = 6


class Deliveries(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        options = Options(enable_experiment=[EXPERIMENT])
        self.broker = FakeBroker(Path(self.directory.name), options)
        self.topic = self.broker.topic()
        self.channel = self.topic.ensure_channel("c")
        self.consumers: list[tuple[ChannelConsumer, Sink]] = []
        self.delivered = dict.fromkeys(Locality, 0)

    def teardown(self) -> None:
        self.directory.cleanup()

    @rule(locality=st.sampled_from(Locality), rdy=st.integers(0, 5))
    def come(self, locality: Locality, rdy: int) -> None:
        if len(self.consumers) < CONSUMERS_MAX:
            self.consumers.append(self.broker.consume(self.channel, rdy=rdy, locality=locality))
            self.broker.settle()

    @rule(which=st.integers(0, CONSUMERS_MAX - 1))
    def go(self, which: int) -> None:
        if which < len(self.consumers):
            consumer, _ = self.consumers.pop(which)
            self.channel.remove(consumer)
            self.broker.settle()

    @rule(count=st.integers(1, 12))
    def publish(self, count: int) -> None:
        self.broker.publish(self.topic, *[b"x"] * count)

    @rule(which=st.integers(0, CONSUMERS_MAX - 1), rdy=st.integers(0, 5))
    def ready(self, which: int, rdy: int) -> None:
        if which < len(self.consumers):
            self.broker.ready(self.consumers[which][0], rdy)
            self.broker.settle()

    @rule(which=st.integers(0, CONSUMERS_MAX - 1), count=st.integers(1, 4), again=st.booleans())
    def answer(self, which: int, count: int, again: bool) -> None:
        if which < len(self.consumers):
            consumer, _ = self.consumers[which]
            for offset in list(consumer.leases.deadlines)[:count]:
                if again:
                    self.channel.requeue_one(consumer, offset, 0)
                else:
                    self.channel.finish_one(consumer, offset)
            self.broker.settle()

    @invariant()
    def the_nearest_came_first(self) -> None:
        """Those nearer than whoever was served in the last step have nothing left to ask for."""
        for _, sink in self.consumers:
            sink.output_room_bytes = 1 << 20
        served = {consumer.locality for consumer, sink in self.consumers if sink.received}
        for consumer, sink in self.consumers:
            self.delivered[consumer.locality] += len(sink.take())
            if served and consumer.locality < max(served):
                assert consumer.credit <= 0
        assert self.channel.delivered == tuple(self.delivered.values())

    @invariant()
    def nothing_waits_while_anybody_has_credit(self) -> None:
        if any(consumer.credit > 0 for consumer, _ in self.consumers):
            assert self.channel.depth == 0


TestDeliveries = Deliveries.TestCase
TestDeliveries.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
