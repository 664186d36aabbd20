"""A topic with settings against a model of what may become of each message, with kills in between.

Nothing is ever lost: each message is delivered until finished, or among the dead letters after its
attempts, or too old, or dropped from a full backlog.
"""

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from pumpline.core.text.settings import DROP_OLDEST, TopicSettings
from pumpline.nsqd.queue.consumer import ChannelConsumer
from tests.kit.fake_broker import NS_PER_S, FakeBroker, Sink

TTL_S = 20
TIMEOUT_S = 5

STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 4)),
    st.tuples(st.just("defer"), st.integers(1, 30)),
    st.tuples(st.just("wait"), st.integers(1, 12)),
    st.tuples(st.just("finish"), st.integers(0, 3)),
    st.tuples(st.just("requeue"), st.integers(0, 3)),
    st.tuples(st.just("postpone"), st.integers(0, 3)),
    st.tuples(st.just("reconnect"), st.just(0)),
    st.tuples(st.just("checkpoint"), st.just(0)),
    st.tuples(st.just("kill"), st.just(0)),
)


class Published(NamedTuple):
    at_s: float  # when it was published, or due


class World:
    """A topic, a channel and one consumer, and what the model knows of every message."""

    def __init__(self, path: Path, rules: TopicSettings) -> None:
        self.path = path
        self.rules = rules
        self.now_s = 0.0
        self.published: dict[int, Published] = {}
        self.finished: set[int] = set()
        self.deliveries: Counter[int] = Counter()
        self.refused = self.dropped = self.expired = 0
        self.killed = False
        self.broker = FakeBroker(path)
        topic = self.broker.topic()
        topic.store_settings(rules)
        topic.ensure_channel("c")
        self.connect()

    def connect(self) -> None:
        self.topic = self.broker.topic("t")
        self.channel = self.topic.channels["c"]
        self.consumer: ChannelConsumer
        self.sink: Sink
        self.consumer, self.sink = self.broker.consume(
            self.channel, rdy=3, msg_timeout_ns=TIMEOUT_S * NS_PER_S
        )
        self.look()

    def look(self) -> None:
        self.broker.settle()
        for offset, _, _ in self.sink.take():
            self.deliveries[offset] += 1
            assert offset not in self.finished or self.killed
            if self.rules.message_ttl_ns:
                assert self.now_s - self.published[offset].at_s < TTL_S
            if self.rules.max_attempts and not self.killed:
                assert self.deliveries[offset] <= self.rules.max_attempts
        self.sink.output_room_bytes = 1 << 20

    def step(self, name: str, number: int) -> None:
        held = list(self.consumer.leases.deadlines)
        if name == "publish":
            self.publish(number, delay_s=0)
        elif name == "defer":
            self.publish(1, delay_s=number)
        elif name == "wait":
            for _ in range(number):
                self.now_s += 1
                self.broker.advance(1)
                self.look()
        elif name == "reconnect":
            self.channel.remove(self.consumer)
            self.connect()
        elif name == "checkpoint":
            self.broker.disk.checkpoints.write_all_now()
        elif name == "kill":
            self.kill()
        elif number < len(held) and name == "finish":
            self.finished.add(held[number])
            self.broker.finish(self.consumer, held[number])
        elif number < len(held):
            delay_ns = 3 * NS_PER_S if name == "postpone" else 0
            self.channel.requeue_one(self.consumer, held[number], delay_ns)
        self.look()
        self.check_bounds()

    def publish(self, count: int, *, delay_s: int) -> None:
        before = self.topic.log.end
        completion = self.broker.publish(self.topic, *[b"x"] * count, delay_ns=delay_s * NS_PER_S)
        if completion.error is not None:
            assert self.rules.max_depth is not None
            assert self.rules.when_full != DROP_OLDEST
            assert before == self.topic.log.end
            return
        for offset in range(before, self.topic.log.end):
            self.published[offset] = Published(self.now_s + delay_s)

    def kill(self) -> None:
        self.killed = True
        self.count()
        again = FakeBroker(self.path)
        again.clock.passed_ns = self.broker.clock.passed_ns
        self.broker = again
        again.load()
        assert again.topic("t").settings == self.rules
        self.connect()

    def count(self) -> None:
        """Counters begin anew with each process."""
        self.dropped += self.channel.overflow_count
        self.expired += self.channel.expiry.count

    def check_bounds(self) -> None:
        if self.rules.max_depth is None:
            return
        delivery = self.channel.delivery
        unfinished = self.topic.log.end - delivery.low - delivery.finished.above
        in_flight = self.channel.in_flight_count if self.rules.when_full == DROP_OLDEST else 0
        # After a kill more may be unfinished than ever was; a publish is what meets the bound.
        if not self.killed:
            assert unfinished <= self.rules.max_depth + in_flight

    def end(self) -> None:
        """Consume all that is left, and account for every message."""
        for _ in range(200):
            held = list(self.consumer.leases.deadlines)
            if not held and not self.channel.depth and not self.channel.delivery.deferred_count:
                break
            for offset in held:
                self.finished.add(offset)
                self.broker.finish(self.consumer, offset)
            self.now_s += 1
            self.broker.advance(1)
            self.look()
        assert self.channel.delivery.low == self.topic.log.end
        self.count()
        dead = self.dead_letters()
        for offset, times in dead.items():
            assert self.deliveries[offset] >= (self.rules.max_attempts or 0)
            assert times == 1 or self.killed
        missing = set(self.published) - self.finished - set(dead)
        too_old = {o for o in missing if self.now_s - self.published[o].at_s >= TTL_S}
        if self.rules.message_ttl_ns is None:
            assert len(missing) <= self.dropped
        elif self.rules.when_full is None:
            assert missing == too_old
        assert len(missing) <= self.dropped + self.expired
        if not self.killed:
            assert len(missing) == self.dropped + self.expired

    def dead_letters(self) -> Counter[int]:
        _, sink = self.broker.consume(self.broker.topic("t.dlq").ensure_channel("look"), rdy=2500)
        self.broker.settle()
        return Counter(json.loads(body)["offset"] for _, _, body in sink.take())


RULES = st.builds(
    TopicSettings,
    message_ttl_ns=st.sampled_from([None, TTL_S * NS_PER_S]),
    max_attempts=st.sampled_from([None, 1, 2, 3]),
    max_depth=st.sampled_from([None, 4]),
)


@given(RULES, st.booleans(), st.lists(STEPS, max_size=40))
def test_every_message_is_accounted_for(
    rules: TopicSettings, drops: bool, steps: list[tuple[str, int]]
) -> None:
    if drops and rules.max_depth is not None:
        rules = TopicSettings(
            message_ttl_ns=rules.message_ttl_ns,
            max_attempts=rules.max_attempts,
            max_depth=rules.max_depth,
            when_full=DROP_OLDEST,
        )
    with tempfile.TemporaryDirectory() as path:
        world = World(Path(path), rules)
        for name, number in steps:
            world.step(name, number)
        world.end()
