"""Bounds of the backlog: publishes refused, or the oldest messages dropped."""

from pathlib import Path

import pytest

from pumpline.core.text.settings import DROP_OLDEST, TopicSettings
from pumpline.nsqd.options import Options
from tests.kit.fake_broker import NS_PER_S, FakeBroker, log_of

BODY = b"x" * 1000


def test_what_would_exceed_the_bound_is_refused(broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.store_settings(TopicSettings(max_depth=3))
    channel = topic.ensure_channel("c")
    assert broker.publish(topic, b"a", b"b").error is None
    assert broker.publish(topic, b"c", b"d").error == "backlog full: max_depth of 3 reached"
    assert broker.publish(topic, b"c").error is None
    assert (topic.log.end, topic.publishing.refused_count) == (3, 2)
    consumer, sink = broker.consume(channel, rdy=2)
    assert broker.publish(topic, b"d").error is not None  # in flight is not finished
    broker.finish(consumer, 0)
    assert broker.publish(topic, b"d").error is None
    assert [body for _, _, body in sink.take()] == [b"a", b"b", b"c"]


def test_slowest_channel_decides_and_ephemeral_ones_do_not_count(broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.store_settings(TopicSettings(max_depth=1))
    fast = topic.ensure_channel("fast")
    topic.ensure_channel("idle#ephemeral")
    consumer, _ = broker.consume(fast, rdy=10)
    for offset in range(3):
        assert broker.publish(topic, b"x").error is None
        broker.finish(consumer, offset)
    topic.ensure_channel("slow")
    assert broker.publish(topic, b"x").error is None
    broker.finish(consumer, 3)
    assert broker.publish(topic, b"x").error is not None


def test_topic_without_channels_is_bounded_too(broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.store_settings(TopicSettings(max_depth=2))
    assert broker.publish(topic, b"x", b"y").error is None
    assert broker.publish(topic, b"z").error is not None


def test_bytes_are_bounded(broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.store_settings(TopicSettings(max_bytes=10_500))
    consumer, _ = broker.consume(topic.ensure_channel("c"), rdy=3)
    outcomes = [broker.publish(topic, BODY).error for _ in range(12)]
    assert outcomes[:9] == [None] * 9
    assert outcomes[-1] == "backlog full: max_bytes of 10500 reached"
    size_bytes = topic.log.size_bytes
    assert size_bytes <= 10_500
    broker.finish(consumer, 0, 1, 2)
    assert broker.publish(topic, BODY).error is None


def test_oldest_are_dropped(broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.store_settings(TopicSettings(max_depth=3, when_full=DROP_OLDEST))
    channel = topic.ensure_channel("c")
    for number in range(10):
        assert broker.publish(topic, b"%d" % number).error is None
    assert channel.depth == 3
    assert channel.overflow_count == 7
    _, sink = broker.consume(channel, rdy=10)
    assert [body for _, _, body in sink.take()] == [b"7", b"8", b"9"]


def test_in_flight_is_never_dropped_and_what_came_back_goes_first(broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.store_settings(TopicSettings(max_depth=3, when_full=DROP_OLDEST))
    channel = topic.ensure_channel("c")
    consumer, sink = broker.consume(channel, rdy=2)
    broker.publish(topic, b"0", b"1", b"2")
    assert len(sink.take()) == 2
    consumer.rdy = 0
    channel.requeue_one(consumer, 0, 0)
    broker.publish(topic, b"3")  # of 1 in flight, 0 that came back, 2, 3: one too many
    assert (channel.depth, channel.in_flight_count) == (2, 1)
    broker.publish(topic, b"4", b"5", b"6")
    assert (channel.depth, channel.in_flight_count) == (2, 1)
    broker.finish(consumer, 1)
    broker.ready(consumer, 10)
    assert [body for _, _, body in sink.take()] == [b"5", b"6"]
    assert channel.overflow_count == 4


def test_deferred_are_dropped_last(broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.store_settings(TopicSettings(max_depth=3, when_full=DROP_OLDEST))
    channel = topic.ensure_channel("c")
    broker.publish(topic, b"a", b"b", delay_ns=5 * NS_PER_S)
    broker.publish(topic, b"c", b"d")
    assert (channel.depth, channel.delivery.deferred_count) == (1, 2)
    broker.publish(topic, b"e", b"f", b"g", b"h", delay_ns=9 * NS_PER_S)
    assert (channel.depth, channel.delivery.deferred_count) == (0, 3)
    _, sink = broker.consume(channel, rdy=10)
    broker.advance(10)
    broker.settle()
    assert [body for _, _, body in sink.take()] == [b"f", b"g", b"h"]


def test_oldest_bytes_are_dropped(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, Options(max_bytes_per_file=5000))
    topic = broker.topic()
    topic.store_settings(TopicSettings(max_bytes=10_500, when_full=DROP_OLDEST))
    channel = topic.ensure_channel("c")
    for _ in range(50):
        assert broker.publish(topic, BODY).error is None
        log_of(topic).flush()
    assert 7 <= channel.depth <= 10
    assert channel.overflow_count == 50 - channel.depth
    log = log_of(topic)
    assert len(log.consumed(topic.upkeep.low)) == len(log.segments) - 2


def test_drops_without_channels_are_counted_with_the_topic(
    tmp_path: Path, broker: FakeBroker
) -> None:
    topic = broker.topic()
    topic.store_settings(TopicSettings(max_depth=2, when_full=DROP_OLDEST))
    broker.publish(topic, b"a", b"b", b"c")
    assert (topic.depth, topic.publishing.overflow_count) == (2, 1)
    broker.advance(0.1)
    again = FakeBroker(tmp_path)
    found = again.load()["t"]
    _, sink = again.consume(found.ensure_channel("c"), rdy=10)
    again.settle()
    assert [body for _, _, body in sink.take()] == [b"b", b"c"]


def test_paused_topic_drops_for_its_channels(broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.store_settings(TopicSettings(max_depth=2, when_full=DROP_OLDEST))
    channel = topic.ensure_channel("c")
    topic.pause()
    for number in range(5):
        broker.publish(topic, b"%d" % number)
    topic.unpause()
    _, sink = broker.consume(channel, rdy=10)
    assert [body for _, _, body in sink.take()] == [b"3", b"4"]


def test_smaller_bound_takes_effect_at_once(tmp_path: Path, broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    broker.publish(topic, b"a", b"b", b"c")
    topic.store_settings(TopicSettings(max_depth=1, when_full=DROP_OLDEST))
    assert (channel.depth, channel.overflow_count) == (1, 2)
    broker.checkpoint()
    again = FakeBroker(tmp_path).load()["t"]
    assert again.channels["c"].depth == 1


def test_with_group_commit_only_what_is_acknowledged_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = FakeBroker(tmp_path, Options(sync_every=1))
    topic = broker.topic()
    topic.store_settings(TopicSettings(max_depth=1, when_full=DROP_OLDEST))
    channel = topic.ensure_channel("c")
    broker.publish(topic, b"a")
    broker.settle()
    completion = broker.publish(topic, b"b")
    assert channel.delivery.low == 0
    broker.settle()
    assert completion.error is None
    assert channel.delivery.low == 1


def test_bytes_are_known_after_a_restart(tmp_path: Path, broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.store_settings(TopicSettings(max_bytes=1_000_000))
    consumer, sink = broker.consume(topic.ensure_channel("c"), rdy=2500)
    for _ in range(9):
        sink.output_room_bytes = 1 << 20
        broker.publish(topic, *[BODY] * 100)
        broker.finish(consumer, *(offset for offset, _, _ in sink.take()))
    broker.disk.checkpoints.write_all_now()
    topic.close()
    again = FakeBroker(tmp_path)
    found = again.load()["t"]
    # 900 kB are there, and finished.
    assert again.publish(found, *[BODY] * 800).error is None
    assert again.publish(found, *[BODY] * 800).error is not None
