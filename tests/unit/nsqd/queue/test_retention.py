"""Consumed history stays as long as it may, and nothing else ever goes."""

import errno
import os
import time
from pathlib import Path

import pytest

from pumpline.core.text.settings import DROP_OLDEST, TopicSettings
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue import retention as retention_module
from pumpline.nsqd.queue.retention import Retention
from pumpline.nsqd.queue.topic import Topic
from tests.kit.fake_broker import FakeBroker, log_of

BODY = b"x" * 1000
PER_SEGMENT = 10  # messages, roughly
DAY_S = 24 * 3600


def make_broker(
    path: Path, *, retention_bytes: int = 1 << 40, retention_s: int = DAY_S
) -> FakeBroker:
    options = Options()
    options.max_bytes_per_file = PER_SEGMENT * len(BODY)
    options.retention_bytes = retention_bytes
    options.retention_time_ns = retention_s * 1_000_000_000
    return FakeBroker(path, options)


def fill(broker: FakeBroker, topic: Topic, segments: int) -> None:
    for _ in range(segments * PER_SEGMENT):
        broker.publish(topic, BODY)
        log_of(topic).flush()
    assert len(log_of(topic).segments) >= segments


def consume_all(broker: FakeBroker, topic: Topic, channel_name: str) -> None:
    consumer, sink = broker.consume(topic.ensure_channel(channel_name), rdy=2500)
    while received := sink.take():
        sink.output_room_bytes = 1 << 30
        broker.finish(consumer, *(offset for offset, _, _ in received))
    consumer.channel.remove(consumer)


def retire(broker: FakeBroker, topic: Topic) -> None:
    Retention(broker.topics).run()


def age(topic: Topic, seconds: int) -> None:
    then = time.time() - seconds
    for segment in log_of(topic).segments:
        os.utime(segment.path, (then, then))


def test_what_a_channel_has_not_finished_stays_whatever_its_age_and_size(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, retention_bytes=0, retention_s=0)
    topic = broker.topic()
    topic.ensure_channel("slow")
    topic.ensure_channel("fast")
    fill(broker, topic, 5)
    consume_all(broker, topic, "fast")
    age(topic, 2 * DAY_S)
    retire(broker, topic)
    assert log_of(topic).first == 0


def test_a_topic_without_channels_keeps_everything(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, retention_bytes=0, retention_s=0)
    topic = broker.topic()
    fill(broker, topic, 3)
    age(topic, 2 * DAY_S)
    retire(broker, topic)
    assert log_of(topic).first == 0


def test_consumed_history_is_kept_up_to_its_bytes(tmp_path: Path) -> None:
    keep = 3 * PER_SEGMENT * len(BODY)
    broker = make_broker(tmp_path, retention_bytes=keep)
    topic = broker.topic()
    topic.ensure_channel("c")
    fill(broker, topic, 8)
    consume_all(broker, topic, "c")
    before = len(log_of(topic).segments)
    retire(broker, topic)
    log = log_of(topic)
    assert 0 < len(log.segments) < before
    assert keep - 2 * PER_SEGMENT * len(BODY) < sum(s.size_bytes for s in log.segments[:-1]) <= keep


def test_consumed_history_goes_when_it_is_old(tmp_path: Path) -> None:
    broker = make_broker(tmp_path)
    topic = broker.topic()
    topic.ensure_channel("c")
    fill(broker, topic, 4)
    consume_all(broker, topic, "c")
    retire(broker, topic)
    assert log_of(topic).first == 0
    age(topic, DAY_S + 60)
    retire(broker, topic)  # the newest is closed by this pass, and goes with the next
    retire(broker, topic)
    assert log_of(topic).first == log_of(topic).end
    broker.publish(topic, b"and on it goes")
    _, sink = broker.consume(topic.ensure_channel("c"), rdy=1)
    assert [body for _, _, body in sink.take()] == [b"and on it goes"]


def test_history_goes_first_when_the_disk_runs_low(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(tmp_path)
    topic = broker.topic()
    topic.ensure_channel("c")
    fill(broker, topic, 4)
    consume_all(broker, topic, "c")
    fill(broker, topic, 2)
    unread = topic.upkeep.low
    monkeypatch.setattr(type(broker.disk.directory), "free_share", lambda self: 0.05)
    retire(broker, topic)
    assert 0 < log_of(topic).first <= unread


def test_a_message_in_flight_holds_its_segment(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, retention_bytes=0, retention_s=0)
    topic = broker.topic()
    fill(broker, topic, 4)
    consumer, sink = broker.consume(topic.ensure_channel("c"), rdy=2500)
    offsets = [offset for offset, _, _ in sink.take()]
    held = offsets[15]
    broker.finish(consumer, *(offset for offset in offsets if offset != held))
    retire(broker, topic)
    log = log_of(topic)
    assert log.first <= held
    assert any(segment.first <= held for segment in log.segments)
    assert log.first > 0


def test_a_kill_between_retiring_and_a_checkpoint_leaves_no_depth_of_what_is_gone(
    tmp_path: Path,
) -> None:
    broker = make_broker(tmp_path, retention_bytes=0, retention_s=0)
    topic = broker.topic()
    topic.ensure_channel("c")
    fill(broker, topic, 3)
    consumer, sink = broker.consume(topic.ensure_channel("c"), rdy=25)
    offsets = [offset for offset, _, _ in sink.take()]
    broker.finish(consumer, *offsets)  # the cursor does not know of it yet
    retire(broker, topic)
    first, end = log_of(topic).first, log_of(topic).end
    assert 0 < first <= offsets[-1] + 1
    channel = broker.load()["t"].channels["c"]
    assert channel.depth == end - first
    assert channel.delivery.low == first


def test_what_was_emptied_goes_at_once_if_nothing_is_to_be_kept(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, retention_bytes=0, retention_s=0)
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    fill(broker, topic, 2)
    channel.empty()
    Retention(broker.topics).retire_now(topic)
    log = log_of(topic)
    assert (log.first, log.size_bytes) == (log.end, 0)
    broker.publish(topic, b"and on it goes")
    _, sink = broker.consume(channel, rdy=1)
    assert [body for _, _, body in sink.take()] == [b"and on it goes"]
    assert broker.load()["t"].log.end == log.end


def test_what_was_emptied_stays_readable_if_it_is_to_be_kept(tmp_path: Path) -> None:
    broker = make_broker(tmp_path)
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    fill(broker, topic, 2)
    channel.empty()
    Retention(broker.topics).retire_now(topic)
    assert log_of(topic).first == 0


def test_what_a_paused_topic_drops_is_no_depth_of_an_ephemeral_channel(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, retention_bytes=0)
    topic = broker.topic()
    topic.ensure_channel("c")
    ephemeral = topic.ensure_channel("e#ephemeral")
    topic.pause()
    fill(broker, topic, 3)
    topic.store_settings(TopicSettings(max_depth=2, when_full=DROP_OLDEST))
    retire(broker, topic)
    assert log_of(topic).first > 0
    assert [(each.depth, each.message_count) for each in topic.channels.values()] == [(0, 0)] * 2
    topic.unpause()
    assert ephemeral.depth == log_of(topic).end - log_of(topic).first


def test_an_idle_newest_segment_counts_as_history(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, retention_bytes=0)
    topic = broker.topic()
    topic.ensure_channel("c")
    broker.publish(topic, BODY)
    log_of(topic).flush()
    consume_all(broker, topic, "c")
    retire(broker, topic)
    assert log_of(topic).first == 0  # it was written to a moment ago
    age(topic, 100)
    retire(broker, topic)
    assert (log_of(topic).first, log_of(topic).size_bytes) == (1, 0)


def test_a_pass_over_many_topics_lets_others_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_module, "SLICE_S", 0.0)
    broker = make_broker(tmp_path, retention_bytes=0)
    topics = [broker.topic(f"t{number}") for number in range(5)]
    for topic in topics:
        fill(broker, topic, 2)
        consume_all(broker, topic, "c")
    turns = 0

    def count_turn() -> None:
        nonlocal turns
        turns += 1

    Retention(broker.topics).start()
    broker.clock.advance(retention_module.PASS_S, count_turn)
    assert turns >= len(topics)
    assert [len(log_of(topic).segments) for topic in topics] == [1] * len(topics)
    fill(broker, topics[0], 2)  # and there is a next pass
    consume_all(broker, topics[0], "c")
    broker.advance(retention_module.PASS_S)
    assert len(log_of(topics[0]).segments) == 1


def test_a_topic_deleted_during_a_pass_does_not_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_module, "SLICE_S", 0.0)
    broker = make_broker(tmp_path, retention_bytes=0)
    for name in ("a", "b", "c"):
        fill(broker, broker.topic(name), 2)
        consume_all(broker, broker.topic(name), "c")

    def delete_b() -> None:
        if "b" in broker.topics and len(log_of(broker.topics["a"]).segments) == 1:
            broker.topics.delete("b")

    Retention(broker.topics).start()
    broker.clock.advance(retention_module.PASS_S, delete_b)
    assert len(log_of(broker.topics["c"]).segments) == 1
    assert "b" not in broker.topics


@pytest.mark.parametrize(("code", "kept"), [(errno.EIO, True), (errno.ENOSPC, False)])
def test_only_a_failed_write_that_lacked_room_costs_the_newest_segment(
    tmp_path: Path, code: int, kept: bool
) -> None:
    broker = make_broker(tmp_path)
    topic = broker.topic()
    topic.ensure_channel("c")
    broker.publish(topic, BODY)
    log_of(topic).flush()
    consume_all(broker, topic, "c")
    broker.disk.health.failed(OSError(code, os.strerror(code)), "something")
    retire(broker, topic)
    assert (log_of(topic).first == 0) is kept


def test_an_empty_is_not_refused_because_a_segment_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(tmp_path, retention_bytes=0)
    topic = broker.topic()
    topic.ensure_channel("c")
    fill(broker, topic, 3)
    topic.channels["c"].empty()

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "unlink", fail)
        Retention(broker.topics).retire_now(topic)
    retire(broker, topic)
    assert log_of(topic).first == log_of(topic).segments[-1].first
