"""Messages that were delivered as often as they may be go to the dead-letter topic."""

import errno
import json
from base64 import b64encode
from pathlib import Path

import pytest

from pumpline.core.text.settings import TopicSettings
from pumpline.nsqd.queue import dead_letters
from pumpline.nsqd.queue.channel import Channel
from pumpline.nsqd.queue.topic import Topic
from tests.kit.fake_broker import NS_PER_S, WALL_NS, FakeBroker, log_of
from tests.kit.logs import BASE_ID

TWICE = TopicSettings(max_attempts=2)


def make(broker: FakeBroker, settings: TopicSettings = TWICE) -> tuple[Topic, Channel]:
    topic = broker.topic()
    topic.store_settings(settings)
    return topic, topic.ensure_channel("c")


def letters(broker: FakeBroker, name: str = "t.dlq") -> list[bytes]:
    """What is in the dead-letter topic."""
    _, sink = broker.consume(broker.topic(name).ensure_channel("look"), rdy=2500)
    return [body for _, _, body in sink.take()]


def offsets(broker: FakeBroker) -> list[int]:
    return [json.loads(letter)["offset"] for letter in letters(broker)]


def test_requeued_once_too_often(broker: FakeBroker) -> None:
    topic, channel = make(broker)
    broker.publish(topic, b"first", b"bad \xc3\xa9")
    consumer, sink = broker.consume(channel, rdy=10)
    broker.finish(consumer, 0)
    for _ in range(2):
        channel.requeue_one(consumer, 1, 0)
        broker.run()
    assert [attempts for offset, attempts, _ in sink.take() if offset == 1] == [1, 2]
    assert [json.loads(each) for each in letters(broker)] == [
        {
            "topic": "t",
            "channel": "c",
            "id": f"{BASE_ID + 1:016x}",
            "offset": 1,
            "attempts": 2,
            "timestamp": WALL_NS,
            "body": "bad é",
        }
    ]
    broker.settle()
    assert (channel.dead_letters.count, channel.dead_letters.pending) == (1, 0)
    assert (channel.delivery.low, channel.depth, channel.in_flight_count) == (2, 0, 0)


def test_requeued_with_a_delay_that_would_be_in_vain(broker: FakeBroker) -> None:
    topic, channel = make(broker, TopicSettings(max_attempts=1))
    broker.publish(topic, b"x")
    consumer, _ = broker.consume(channel, rdy=10)
    channel.requeue_one(consumer, 0, 3600 * NS_PER_S)
    broker.run()
    assert offsets(broker) == [0]
    assert channel.delivery.deferred_count == 0


def test_timed_out(broker: FakeBroker) -> None:
    topic, channel = make(broker)
    broker.publish(topic, b"x", b"y")
    consumer, sink = broker.consume(channel, rdy=10, msg_timeout_ns=NS_PER_S)
    broker.finish(consumer, 1)
    broker.advance(1.5)
    assert [each[:2] for each in sink.take()] == [(0, 1), (1, 1), (0, 2)]
    assert channel.dead_letters.count == 0
    broker.advance(1.5)
    assert offsets(broker) == [0]
    assert channel.timeout_count == 2


def test_consumer_gone(broker: FakeBroker) -> None:
    topic, channel = make(broker)
    broker.publish(topic, b"x")
    for _ in range(2):
        consumer, sink = broker.consume(channel, rdy=10)
        assert len(sink.take()) == 1
        channel.remove(consumer)
        broker.run()
    assert offsets(broker) == [0]


def test_body_that_is_no_text(broker: FakeBroker) -> None:
    topic, channel = make(broker, TopicSettings(max_attempts=1))
    body = bytes(range(256))
    broker.publish(topic, body)
    consumer, _ = broker.consume(channel, rdy=1)
    channel.requeue_one(consumer, 0, 0)
    broker.run()
    (letter,) = map(json.loads, letters(broker))
    assert letter["body_base64"] == b64encode(body).decode()
    assert "body" not in letter


def test_body_alone_to_a_topic_of_another_name(broker: FakeBroker) -> None:
    settings = TopicSettings(max_attempts=1, dead_letter_topic="dead", dead_letter_form="body")
    topic, channel = make(broker, settings)
    broker.publish(topic, b"\xff")
    consumer, _ = broker.consume(channel, rdy=1)
    channel.requeue_one(consumer, 0, 0)
    broker.run()
    assert letters(broker, "dead") == [b"\xff"]


def test_each_channel_gives_up_for_itself(broker: FakeBroker) -> None:
    topic, channel = make(broker, TopicSettings(max_attempts=1))
    other = topic.ensure_channel("other")
    broker.publish(topic, b"x")
    consumer, _ = broker.consume(channel, rdy=1)
    channel.requeue_one(consumer, 0, 0)
    broker.run()
    _, sink = broker.consume(other, rdy=1)
    assert sink.take() == [(0, 1, b"x")]


def test_limit_that_comes_later_holds_for_what_waits(broker: FakeBroker) -> None:
    topic, channel = make(broker, TopicSettings())
    broker.publish(topic, b"x", b"y")
    consumer, _ = broker.consume(channel, rdy=10)
    for _ in range(3):
        channel.requeue_one(consumer, 0, 0)
        broker.run()
    channel.remove(consumer)
    topic.store_settings(TWICE)
    _, sink = broker.consume(channel, rdy=10)
    assert sink.take() == [(1, 2, b"y")]
    assert offsets(broker) == [0]


def test_failed_write_is_tried_again_and_nothing_is_finished_before(
    tmp_path: Path, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, channel = make(broker, TopicSettings(max_attempts=1))
    broker.publish(topic, b"x")
    consumer, _ = broker.consume(channel, rdy=1)
    target = broker.topic("t.dlq")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(target.log, "append", refuse)
        channel.requeue_one(consumer, 0, 0)
        broker.run()
        broker.advance(0.5)
        assert (channel.delivery.low, channel.dead_letters.pending) == (0, 1)
        broker.threads.run()
        again = (
            FakeBroker(tmp_path).load()["t"].channels["c"].delivery
        )  # killed here, it comes again
        assert list(again.ready) == [0]
    broker.advance(1)
    broker.settle()
    assert offsets(broker) == [0]
    assert channel.delivery.low == 1


def give_up(broker: FakeBroker) -> Channel:
    """A channel with a message that is a dead letter now, and not synced yet."""
    topic, channel = make(broker, TopicSettings(max_attempts=1))
    broker.publish(topic, b"x")
    consumer, _ = broker.consume(channel, rdy=1)
    channel.requeue_one(consumer, 0, 0)
    broker.run()
    assert (channel.dead_letters.count, channel.dead_letters.pending) == (1, 1)
    assert channel.delivery.low == 0
    return channel


def test_finished_as_soon_as_the_letter_is_synced(broker: FakeBroker) -> None:
    """Not after --sync-timeout: until then a kill would bring it again."""
    channel = give_up(broker)
    broker.settle()
    assert (channel.delivery.low, channel.dead_letters.pending) == (1, 0)


def test_finished_with_the_next_fsync_while_one_is_under_way(broker: FakeBroker) -> None:
    target = broker.topic("t.dlq")
    broker.publish(target, b"other")
    assert not broker.disk.sync(target.log).done
    channel = give_up(broker)
    broker.settle()
    assert channel.delivery.low == 0
    broker.advance(0.02)
    broker.settle()
    assert channel.delivery.low == 1


def test_not_finished_while_fsyncs_fail(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    channel = give_up(broker)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", refuse)
        for _ in range(3):
            broker.settle()
            broker.advance(1)
        assert (channel.delivery.low, channel.dead_letters.pending) == (0, 1)
    broker.settle()
    broker.advance(1)
    broker.settle()
    assert (channel.delivery.low, channel.dead_letters.pending) == (1, 0)
    assert offsets(broker) == [0]


def test_finished_when_the_letters_are_deleted(broker: FakeBroker) -> None:
    channel = give_up(broker)
    broker.topics.delete("t.dlq")
    broker.settle()
    assert (channel.delivery.low, channel.dead_letters.pending) == (1, 0)
    assert "t.dlq" not in broker.topics


def test_killed_between_writing_and_finishing_it_is_there_twice(
    tmp_path: Path, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, channel = make(broker, TopicSettings(max_attempts=1))
    broker.publish(topic, b"x")
    consumer, _ = broker.consume(channel, rdy=1)
    channel.requeue_one(consumer, 0, 0)
    broker.run()  # written, and no checkpoint since
    again = FakeBroker(tmp_path)
    found = again.load()
    _, sink = again.consume(found["t"].channels["c"], rdy=1)
    # The delivery was in no checkpoint either: the message is as good as new.
    assert sink.take() == [(0, 1, b"x")]
    again.advance(60)
    assert offsets(again) == [0, 0]


def test_emptied_channel_has_no_claim_to_what_is_on_its_way(broker: FakeBroker) -> None:
    topic, channel = make(broker, TopicSettings(max_attempts=1))
    broker.publish(topic, b"x")
    consumer, _ = broker.consume(channel, rdy=1)
    channel.requeue_one(consumer, 0, 0)
    channel.empty()
    broker.run()
    assert channel.delivery.low == 1
    broker.publish(topic, b"y")
    assert channel.delivery.next == 2


def test_many_at_once_take_several_ticks(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "LETTERS_PER_TICK", 3)
    topic, channel = make(broker, TopicSettings(max_attempts=1))
    broker.publish(topic, *[b"x"] * 20)
    consumer, _ = broker.consume(channel, rdy=20)
    channel.remove(consumer)
    broker.run()
    assert offsets(broker) == list(range(20))


def test_messages_that_are_only_on_disk_are_found(broker: FakeBroker) -> None:
    topic, channel = make(broker, TopicSettings(max_attempts=1))
    broker.publish(topic, b"x")
    consumer, _ = broker.consume(channel, rdy=1)
    log_of(topic).flush()
    log_of(topic).trim(1, messages_max=0, bytes_max=0)
    assert topic.log.in_tail(0) is None
    channel.requeue_one(consumer, 0, 0)
    broker.settle()
    assert offsets(broker) == [0]
