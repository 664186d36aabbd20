"""What is published to many topics whose consumers wait is acknowledged at once, and delivered a
little later together. With few topics it is delivered at once. Kills are in the crash suite."""

from pathlib import Path

import pytest

from pumpline.log.completion import Completion
from pumpline.nsqd.queue.consumer import ChannelConsumer
from pumpline.nsqd.queue.tick import CHANNELS_AT_ONCE, PAUSE_S_MAX, PAUSE_S_MIN
from pumpline.nsqd.queue.topic import Topic
from tests.kit.fake_broker import FakeBroker, Sink

MANY = 3 * CHANNELS_AT_ONCE


class Reading:
    """A topic with a consumer that waits."""

    def __init__(self, broker: FakeBroker, name: str, rdy: int) -> None:
        self._broker = broker
        self.topic: Topic = broker.topic(name)
        found: tuple[ChannelConsumer, Sink] = broker.consume(
            self.topic.ensure_channel("c"), rdy=rdy
        )
        self.consumer, self.sink = found

    def pub(self, body: bytes) -> Completion:
        return self._broker.pub(self.topic, body)

    def bodies(self) -> list[bytes]:
        """What the consumer got since the last call."""
        return [body for _, _, body in self.sink.take()]

    def finish(self) -> list[bytes]:
        """Finishes all that the consumer got since the last call, and returns it."""
        messages = self.sink.take()
        for offset, _, _ in messages:
            self._broker.finish(self.consumer, offset)
        return [body for _, _, body in messages]


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    return FakeBroker(tmp_path)


def busy_topics(broker: FakeBroker, count: int = MANY, rdy: int = 100) -> list[Reading]:
    """Topics that each got a message, which their consumers have."""
    topics = [Reading(broker, f"t{number}", rdy) for number in range(count)]
    publish(broker, topics, b"first")
    broker.advance(1)
    for topic in topics:
        assert topic.bodies() == [b"first"]
    return topics


def publish(broker: FakeBroker, topics: list[Reading], *bodies: bytes) -> None:
    """Each body to each topic, a tick for each body; all are acknowledged by then."""
    for body in bodies:
        completions = [topic.pub(body) for topic in topics]
        broker.run()
        assert all(completion.succeeded for completion in completions)


def one_that_waits(topics: list[Reading]) -> Reading:
    """Some are served at once."""
    return next(topic for topic in topics if not topic.sink.received)


def test_many_topics_get_what_was_acknowledged_a_little_later(broker: FakeBroker) -> None:
    topics = busy_topics(broker)
    publish(broker, topics, b"second", b"third")
    waiting = [topic for topic in topics if not topic.sink.received]
    assert len(waiting) >= MANY - CHANNELS_AT_ONCE
    broker.advance(PAUSE_S_MIN)
    for topic in topics:
        assert topic.bodies() == [b"second", b"third"]


def test_few_topics_get_it_at_once(broker: FakeBroker) -> None:
    topics = busy_topics(broker, CHANNELS_AT_ONCE)
    publish(broker, topics, b"second", b"third")
    for topic in topics:
        assert topic.bodies() == [b"second", b"third"]


def test_when_few_are_busy_again_they_get_it_at_once(broker: FakeBroker) -> None:
    topics = busy_topics(broker)
    publish(broker, topics, b"second")
    broker.advance(PAUSE_S_MAX)
    for topic in topics:
        assert topic.bodies() == [b"second"]
    broker.advance(1)
    publish(broker, topics[:2], b"third")
    assert [topic.bodies() for topic in topics[:2]] == [[b"third"]] * 2
    broker.advance(1)
    assert all(topic.topic.log.end == 2 for topic in topics[2:])


def test_a_consumer_whose_credit_was_used_up_gets_the_next_at_once(broker: FakeBroker) -> None:
    """It waits for nothing but its own FIN: NSQ's consumers with max_in_flight=1."""
    topics = busy_topics(broker, rdy=1)
    publish(broker, topics, b"second")
    assert all(topic.bodies() == [] for topic in topics)
    for topic in topics:
        broker.finish(topic.consumer, 0)
    assert [topic.bodies() for topic in topics] == [[b"second"]] * MANY


def test_a_consumer_that_finishes_one_by_one_gets_them_all(broker: FakeBroker) -> None:
    topics = busy_topics(broker, rdy=1)
    bodies = [b"%d" % number for number in range(5)]
    publish(broker, topics, *bodies)
    for topic in topics:
        broker.finish(topic.consumer, 0)
    received: dict[Reading, list[bytes]] = {topic: [] for topic in topics}
    for _ in range(3 * len(bodies)):
        broker.advance(PAUSE_S_MAX)
        for topic in topics:
            received[topic] += topic.finish()
    assert all(got == bodies for got in received.values())


def test_a_requeued_message_waits_for_what_waits_for_delivery(broker: FakeBroker) -> None:
    topics = busy_topics(broker)
    publish(broker, topics, b"second")
    again = one_that_waits(topics)
    again.consumer.channel.requeue_one(again.consumer, 0, 0)
    broker.run()
    assert again.bodies() == [b"second", b"first"]


def test_what_waits_for_delivery_stays_in_memory_when_it_is_flushed(broker: FakeBroker) -> None:
    """Else it has to be read from disk, and a requeued message does not wait for that."""
    topics = busy_topics(broker)
    publish(broker, topics, b"second")
    again = one_that_waits(topics)
    again.topic.log.flush()
    again.consumer.channel.requeue_one(again.consumer, 0, 0)
    broker.run()
    assert again.bodies() == [b"second", b"first"]


def test_what_waits_for_delivery_is_there_for_whoever_asks(broker: FakeBroker) -> None:
    topics = busy_topics(broker)
    publish(broker, topics, b"second")
    asked = one_that_waits(topics)
    channel = asked.topic.channels["c"]
    assert (asked.topic.log.end, asked.topic.message_count, channel.message_count) == (2, 2, 2)
    assert (channel.depth, channel.in_flight_count) == (1, 1)
    assert asked.bodies() == []  # asking delivers nothing
    broker.advance(PAUSE_S_MAX)
    assert asked.bodies() == [b"second"]


def test_a_consumer_that_leaves_before_delivery_leaves_it_to_the_next(broker: FakeBroker) -> None:
    topics = busy_topics(broker)
    publish(broker, topics, b"second")
    left = one_that_waits(topics)
    left.consumer.channel.remove(left.consumer)
    broker.advance(PAUSE_S_MAX)
    _, sink = broker.consume(left.topic.ensure_channel("c"), rdy=10)
    broker.settle()
    assert sorted(body for _, _, body in sink.take()) == [b"first", b"second"]


@pytest.mark.parametrize("what", ["topic", "channel"])
def test_what_is_deleted_before_delivery_is_gone(broker: FakeBroker, what: str) -> None:
    topics = busy_topics(broker)
    publish(broker, topics, b"second")
    gone = one_that_waits(topics)
    if what == "topic":
        broker.topics.delete(gone.topic.name)
    else:
        gone.topic.delete_channel("c")
    broker.advance(PAUSE_S_MAX)
    for topic in topics:
        assert topic.bodies() == ([] if topic is gone else [b"second"])


@pytest.mark.parametrize("what", ["topic", "channel"])
def test_what_is_paused_before_delivery_is_not_delivered(broker: FakeBroker, what: str) -> None:
    topics = busy_topics(broker)
    publish(broker, topics, b"second")
    paused = one_that_waits(topics)
    channel = paused.topic.channels["c"]
    if what == "topic":
        paused.topic.pause()
        publish(broker, [paused], b"third")
        broker.advance(PAUSE_S_MAX)
        assert paused.bodies() == [b"second"]
        paused.topic.unpause()
        expected = [b"third"]
    else:
        channel.pause()
        broker.advance(PAUSE_S_MAX)
        assert paused.bodies() == []
        channel.unpause()
        expected = [b"second"]
    broker.run()
    broker.advance(PAUSE_S_MAX)
    assert paused.bodies() == expected


def test_a_delivery_between_a_publish_and_its_tick_mixes_nothing_up(broker: FakeBroker) -> None:
    topics = busy_topics(broker)
    publish(broker, topics, b"second")
    waiting = one_that_waits(topics)
    mixed = waiting.topic
    many = bytearray(b"\0\0\0\5third\0\0\0\6fourth")
    mixed.publishing.add_many(many, 0, len(many), 2)
    completions = [mixed.publishing.completion()]
    [timer] = [h for h in broker.clock.waiting if h.callback == broker.tick._begin_coalesced]
    timer.callback()
    timer.cancel()
    completions.append(waiting.pub(b"fifth"))
    broker.run()
    broker.advance(PAUSE_S_MAX)
    assert all(completion.succeeded for completion in completions)
    messages = waiting.sink.take()
    assert [offset for offset, _, _ in messages] == [1, 2, 3, 4]
    bodies = [body for _, _, body in messages]
    assert bodies == [b"second", b"third", b"fourth", b"fifth"]


def test_a_flush_in_between_changes_nothing(broker: FakeBroker) -> None:
    """The write-ahead log is flushed every 100 ms."""
    topics = busy_topics(broker)
    bodies = [b"%d" % number for number in range(300)]
    received: dict[Reading, list[bytes]] = {topic: [] for topic in topics}
    for body in bodies:
        publish(broker, topics, body)
        broker.advance(PAUSE_S_MIN / 2)
        for topic in topics:
            received[topic] += topic.finish()
    broker.advance(1)
    for topic in topics:
        assert received[topic] + topic.finish() == bodies


def test_nothing_is_held_back_for_ever_whoever_publishes(broker: FakeBroker) -> None:
    """While many are busy all the time, each is served within the longest pause."""
    topics = busy_topics(broker, 5 * MANY)
    for number in range(100):
        publish(broker, topics, b"%d" % number)
        broker.advance(PAUSE_S_MIN)
        for topic in topics:
            topic.finish()
    publish(broker, topics, b"last")
    broker.advance(PAUSE_S_MAX + PAUSE_S_MIN)
    for topic in topics:
        assert topic.bodies()[-1] == b"last"


def test_a_kill_before_delivery_costs_nothing(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = busy_topics(broker)
    publish(broker, topics, b"second")
    found = broker.load()
    for topic in topics:
        _, sink = broker.consume(found[topic.topic.name].channels["c"], rdy=10)
        broker.settle()
        assert sorted(body for _, _, body in sink.take()) == [b"first", b"second"]
