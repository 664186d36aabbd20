"""Consumed history stays as long as it may, and nothing else ever goes."""

import os
import time
from pathlib import Path

import pytest

from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.retention import Retention
from pumpline.nsqd.queue.topic import Topic
from tests.kit.fake_broker import Stage, log_of

BODY = b"x" * 1000
PER_SEGMENT = 10  # messages, roughly
DAY_S = 24 * 3600


def make_stage(path: Path, *, retention_bytes: int = 1 << 40, retention_s: int = DAY_S) -> Stage:
    options = Options()
    options.max_bytes_per_file = PER_SEGMENT * len(BODY)
    options.retention_bytes = retention_bytes
    options.retention_time_ns = retention_s * 1_000_000_000
    return Stage(path, options)


def fill(stage: Stage, topic: Topic, segments: int) -> None:
    for _ in range(segments * PER_SEGMENT):
        stage.publish(topic, BODY)
    assert len(log_of(topic).segments) >= segments


def consume_all(stage: Stage, topic: Topic, channel_name: str) -> None:
    consumer, sink = stage.consume(topic.channel(channel_name), rdy=2500)
    while received := sink.take():
        sink.output_room_bytes = 1 << 30
        stage.finish(consumer, *(offset for offset, _, _ in received))
    consumer.channel.remove(consumer)


def retire(stage: Stage, topic: Topic) -> None:
    Retention(stage.topics).run()


def age(topic: Topic, seconds: int) -> None:
    then = time.time() - seconds
    for segment in log_of(topic).segments:
        os.utime(segment.path, (then, then))


def test_what_a_channel_has_not_finished_stays_whatever_its_age_and_size(tmp_path: Path) -> None:
    stage = make_stage(tmp_path, retention_bytes=0, retention_s=0)
    topic = stage.topic()
    topic.channel("slow")
    topic.channel("fast")
    fill(stage, topic, 5)
    consume_all(stage, topic, "fast")
    age(topic, 2 * DAY_S)
    retire(stage, topic)
    assert log_of(topic).first == 0


def test_a_topic_without_channels_keeps_everything(tmp_path: Path) -> None:
    stage = make_stage(tmp_path, retention_bytes=0, retention_s=0)
    topic = stage.topic()
    fill(stage, topic, 3)
    age(topic, 2 * DAY_S)
    retire(stage, topic)
    assert log_of(topic).first == 0


def test_consumed_history_is_kept_up_to_its_bytes(tmp_path: Path) -> None:
    keep = 3 * PER_SEGMENT * len(BODY)
    stage = make_stage(tmp_path, retention_bytes=keep)
    topic = stage.topic()
    topic.channel("c")
    fill(stage, topic, 8)
    consume_all(stage, topic, "c")
    before = len(log_of(topic).segments)
    retire(stage, topic)
    log = log_of(topic)
    assert 0 < len(log.segments) < before
    assert keep - 2 * PER_SEGMENT * len(BODY) < sum(s.size_bytes for s in log.segments[:-1]) <= keep


def test_consumed_history_goes_when_it_is_old(tmp_path: Path) -> None:
    stage = make_stage(tmp_path)
    topic = stage.topic()
    topic.channel("c")
    fill(stage, topic, 4)
    consume_all(stage, topic, "c")
    retire(stage, topic)
    assert log_of(topic).first == 0
    age(topic, DAY_S + 60)
    retire(stage, topic)  # the newest is closed by this pass, and goes with the next
    retire(stage, topic)
    assert log_of(topic).first == log_of(topic).end
    stage.publish(topic, b"and on it goes")
    _, sink = stage.consume(topic.channel("c"), rdy=1)
    assert [body for _, _, body in sink.take()] == [b"and on it goes"]


def test_history_goes_first_when_the_disk_runs_low(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_stage(tmp_path)
    topic = stage.topic()
    topic.channel("c")
    fill(stage, topic, 4)
    consume_all(stage, topic, "c")
    fill(stage, topic, 2)
    unread = topic.low
    monkeypatch.setattr(type(stage.disk.directory), "free_share", lambda self: 0.05)
    retire(stage, topic)
    assert 0 < log_of(topic).first <= unread


def test_a_message_in_flight_holds_its_segment(tmp_path: Path) -> None:
    stage = make_stage(tmp_path, retention_bytes=0, retention_s=0)
    topic = stage.topic()
    fill(stage, topic, 4)
    consumer, sink = stage.consume(topic.channel("c"), rdy=2500)
    offsets = [offset for offset, _, _ in sink.take()]
    held = offsets[15]
    stage.finish(consumer, *(offset for offset in offsets if offset != held))
    retire(stage, topic)
    log = log_of(topic)
    assert log.first <= held
    assert any(segment.first <= held for segment in log.segments)
    assert log.first > 0
