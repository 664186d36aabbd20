"""Messages that are too old are passed over and counted, and nothing else is."""

import os
import time
from pathlib import Path

import pytest

from pumpline.core.text.settings import TopicSettings
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue import expiry
from pumpline.nsqd.queue.retention import Retention
from tests.kit.fake_broker import NS_PER_S, FakeBroker, log_of

TTL = TopicSettings(message_ttl_ns=10 * NS_PER_S)


def test_what_waited_too_long_is_passed_over(broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.store_settings(TTL)
    channel = topic.ensure_channel("c")
    broker.publish(topic, b"old", b"old too")
    broker.advance(6)
    broker.publish(topic, b"young")
    broker.advance(5)
    _, sink = broker.consume(channel, rdy=10)
    assert sink.take() == [(2, 1, b"young")]
    assert channel.expiry.count == 2
    assert channel.depth == 0


def test_age_counts_from_when_a_deferred_message_was_due(broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.store_settings(TTL)
    channel = topic.ensure_channel("c")
    broker.publish(topic, b"deferred", delay_ns=20 * NS_PER_S)
    broker.advance(25)
    consumer, sink = broker.consume(channel, rdy=10)
    assert sink.take() == [(0, 1, b"deferred")]
    broker.finish(consumer, 0)
    assert channel.expiry.count == 0


def test_what_comes_back_too_late_is_passed_over(broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.store_settings(TTL)
    channel = topic.ensure_channel("c")
    broker.publish(topic, b"x")
    consumer, sink = broker.consume(channel, rdy=10)
    assert sink.take() == [(0, 1, b"x")]
    broker.advance(5)
    channel.requeue_one(consumer, 0, 0)
    broker.run()
    assert sink.take() == [(0, 2, b"x")]
    channel.requeue_one(consumer, 0, 6 * NS_PER_S)
    broker.advance(7)
    assert sink.take() == []
    assert (channel.expiry.count, channel.delivery.low) == (1, 1)


def test_what_is_in_flight_can_still_be_finished(broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.store_settings(TTL)
    channel = topic.ensure_channel("c")
    broker.publish(topic, b"x")
    consumer, _ = broker.consume(channel, rdy=10)
    broker.advance(30)
    broker.finish(consumer, 0)
    assert (channel.expiry.count, channel.delivery.low) == (0, 1)


def test_many_old_batches_take_several_turns_and_are_all_passed(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "BATCHES_MAX", 3)
    topic = broker.topic()
    topic.store_settings(TTL)
    channel = topic.ensure_channel("c")
    for _ in range(20):
        broker.publish(topic, b"old")
    broker.advance(11)
    broker.publish(topic, b"young")
    _, sink = broker.consume(channel, rdy=1)
    assert 0 < channel.expiry.count <= 3
    broker.advance(0)
    assert sink.take() == [(20, 1, b"young")]
    assert channel.expiry.count == 20


def test_settings_that_go_away_bring_the_rest(broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.store_settings(TTL)
    channel = topic.ensure_channel("c")
    broker.publish(topic, b"old")
    broker.advance(11)
    topic.store_settings(TopicSettings())
    _, sink = broker.consume(channel, rdy=1)
    assert sink.take() == [(0, 1, b"old")]


@pytest.mark.parametrize("with_channel", [True, False])
def test_old_segments_go_though_nobody_consumes(tmp_path: Path, with_channel: bool) -> None:
    broker = FakeBroker(tmp_path, Options(max_bytes_per_file=1, retention_time_ns=0))
    topic = broker.topic()
    topic.store_settings(TTL)
    if with_channel:
        topic.ensure_channel("c")
    for _ in range(5):
        broker.publish(topic, b"x")
        log_of(topic).flush()
    log = log_of(topic)
    old_s = time.time() - (TTL.message_ttl_ns or 0) / NS_PER_S
    delay_s = broker.options.max_req_timeout_ns / NS_PER_S
    for segment in log.segments[:3]:  # a deferred message in the third may not have been due
        os.utime(segment.path, (old_s - 60 - delay_s, old_s - 60 - delay_s))
    os.utime(log.segments[2].path, (old_s - 60, old_s - 60))
    Retention(broker.topics).run()
    assert log.first == 2
    assert topic.upkeep.low == 2
    if with_channel:
        assert topic.channels["c"].expiry.count == 2
    else:
        _, sink = broker.consume(topic.ensure_channel("c"), rdy=9)
        assert [offset for offset, _, _ in sink.take()] == [2, 3, 4]


def test_passed_over_is_remembered(tmp_path: Path, broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.store_settings(TTL)
    broker.publish(topic, b"old")
    broker.advance(11)
    broker.consume(topic.ensure_channel("c"), rdy=1)
    broker.checkpoint()
    found = FakeBroker(tmp_path).load()["t"]
    assert found.settings == TTL
    assert found.channels["c"].delivery.low == 1
