"""What is published to many topics whose consumers wait: acknowledged at once, delivered in rounds.
With few topics it is delivered at once. Kills are in the crash suite."""

from pathlib import Path

import pytest

from pumpline.nsqd.queue.consumer import ChannelConsumer
from pumpline.nsqd.queue.outcome import Ticket
from pumpline.nsqd.queue.rounds import CROWD, REST_S_MAX, REST_S_MIN
from pumpline.nsqd.queue.topic import Topic
from tests.kit.fake_broker import FakeBroker, Sink, log_of

MANY = 3 * CROWD


class Reading:
    """A topic with a consumer that waits."""

    def __init__(self, broker: FakeBroker, name: str, rdy: int) -> None:
        self._broker = broker
        self.topic: Topic = broker.topic(name)
        found: tuple[ChannelConsumer, Sink] = broker.consume(self.topic.channel("c"), rdy=rdy)
        self.consumer, self.sink = found

    def pub(self, body: bytes) -> Ticket:
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
    """Topics that all got a message in one tick, which their consumers have."""
    topics = [Reading(broker, f"t{number}", rdy) for number in range(count)]
    publish(broker, topics, b"first")
    for topic in topics:
        assert topic.bodies() == [b"first"]
    return topics


def publish(broker: FakeBroker, topics: list[Reading], *bodies: bytes) -> None:
    """Each body to each topic, a tick for each body; all are acknowledged by then."""
    for body in bodies:
        tickets = [topic.pub(body) for topic in topics]
        broker.run()
        assert all(ticket.succeeded for ticket in tickets)


def test_many_topics_get_what_was_acknowledged_in_the_next_round(broker: FakeBroker) -> None:
    topics = busy_topics(broker)
    publish(broker, topics, b"second", b"third")
    waiting = [topic for topic in topics if not topic.sink.received]
    assert len(waiting) >= MANY - CROWD
    broker.advance(REST_S_MIN)
    for topic in topics:
        assert topic.bodies() == [b"second", b"third"]


def test_few_topics_get_it_at_once(broker: FakeBroker) -> None:
    topics = busy_topics(broker, CROWD)
    publish(broker, topics, b"second", b"third")
    for topic in topics:
        assert topic.bodies() == [b"second", b"third"]


def test_when_few_are_busy_again_they_get_it_at_once(broker: FakeBroker) -> None:
    topics = busy_topics(broker)
    publish(broker, topics, b"second")
    broker.advance(REST_S_MAX)
    for topic in topics:
        assert topic.bodies() == [b"second"]
    broker.advance(1)
    publish(broker, topics[:2], b"third")
    assert [topic.bodies() for topic in topics[:2]] == [[b"third"]] * 2
    broker.advance(1)
    assert all(log_of(topic.topic).end == 2 for topic in topics[2:])


def test_a_consumer_that_finishes_one_by_one_gets_them_all(broker: FakeBroker) -> None:
    topics = busy_topics(broker, rdy=1)
    bodies = [b"%d" % number for number in range(5)]
    publish(broker, topics, *bodies)
    for topic in topics:
        broker.finish(topic.consumer, 0)
    received: dict[Reading, list[bytes]] = {topic: [] for topic in topics}
    for _ in range(3 * len(bodies)):
        broker.advance(REST_S_MAX)
        for topic in topics:
            received[topic] += topic.finish()
    assert all(got == bodies for got in received.values())


def test_what_comes_back_waits_for_what_waits_for_a_round(broker: FakeBroker) -> None:
    topics = busy_topics(broker)
    publish(broker, topics, b"second")
    again = topics[-1]
    again.consumer.channel.requeue_one(again.consumer, 0, 0)
    broker.run()
    assert again.bodies() == [b"second", b"first"]


def test_what_waits_for_a_round_is_there_for_whoever_asks(broker: FakeBroker) -> None:
    topics = busy_topics(broker)
    publish(broker, topics, b"second")
    asked = topics[-1]
    assert broker.topics[asked.topic.name].log.end == 2
    broker.run()
    assert asked.bodies() == [b"second"]


def test_a_consumer_that_leaves_before_the_round_leaves_it_to_the_next(broker: FakeBroker) -> None:
    topics = busy_topics(broker)
    publish(broker, topics, b"second")
    left = topics[-1]
    left.consumer.channel.remove(left.consumer)
    broker.advance(REST_S_MAX)
    _, sink = broker.consume(left.topic.channel("c"), rdy=10)
    assert sorted(body for _, _, body in sink.take()) == [b"first", b"second"]


def test_a_topic_that_is_deleted_before_the_round_is_gone(broker: FakeBroker) -> None:
    topics = busy_topics(broker)
    publish(broker, topics, b"second")
    broker.topics.delete(topics[-1].topic.name)
    broker.advance(REST_S_MAX)
    assert topics[-1].bodies() == []
    for topic in topics[:-1]:
        assert topic.bodies() == [b"second"]


def test_a_round_between_a_publish_and_its_tick_mixes_nothing_up(broker: FakeBroker) -> None:
    topics = busy_topics(broker)
    publish(broker, topics, b"second")
    mixed = topics[-1].topic
    many = bytearray(b"\0\0\0\5third\0\0\0\6fourth")
    mixed.intake.put_many(many, 0, len(many), 2)
    [round_timer] = [h for h in broker.clock.waiting if h.due_ns == round(REST_S_MIN * 1e9)]
    round_timer.callback()
    round_timer.cancel()
    tickets = [topics[-1].pub(b"fifth"), mixed.intake.ticket()]
    broker.run()
    broker.advance(REST_S_MAX)
    assert all(ticket.succeeded for ticket in tickets)
    messages = topics[-1].sink.take()
    assert [offset for offset, _, _ in messages] == [1, 2, 3, 4]
    bodies = [body for _, _, body in messages]
    assert bodies == [b"second", b"third", b"fourth", b"fifth"]


def test_a_journal_that_was_filed_in_between_changes_nothing(broker: FakeBroker) -> None:
    """The journal is emptied every 100 ms; topics that are awaited go on being so."""
    topics = busy_topics(broker)
    bodies = [b"%d" % number for number in range(300)]
    received: dict[Reading, list[bytes]] = {topic: [] for topic in topics}
    for body in bodies:
        publish(broker, topics, body)
        broker.advance(REST_S_MIN / 2)
        for topic in topics:
            received[topic] += topic.finish()
    broker.advance(1)
    for topic in topics:
        assert received[topic] + topic.finish() == bodies
