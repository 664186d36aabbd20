"""Delays when the wall clock is set: back makes none longer, forward ends those that are over."""

import random
from pathlib import Path

import pytest

from pumpline.log import point_reader, reader
from pumpline.nsqd.options import Options
from tests.kit.fake_broker import NS_PER_S, FakeBroker

SET_BACK_NS = 3 * 3600 * NS_PER_S


def bodies(taken: list[tuple[int, int, bytes]]) -> list[bytes]:
    return [body for _, _, body in taken]


@pytest.mark.parametrize("set_ns", [-SET_BACK_NS, 0])
@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_clock_set_back_before_a_restart_makes_no_delay_longer(
    tmp_path: Path, set_ns: int, checkpoint: bool
) -> None:
    broker = FakeBroker(tmp_path)
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    consumer, _ = broker.consume(channel, rdy=1)
    broker.publish(topic, b"again")
    channel.requeue_one(consumer, 0, 30 * NS_PER_S)
    if not checkpoint:
        broker.checkpoint()  # before the publish: only the log knows of it
    broker.publish(topic, b"late", delay_ns=40 * NS_PER_S)
    if checkpoint:
        broker.checkpoint()
    again = FakeBroker(tmp_path)
    again.clock.wall_set_ns = set_ns
    _, sink = again.consume(again.load()["t"].channels["c"], rdy=9)
    again.settle()
    assert sink.take() == []
    again.advance(29.8)
    assert sink.take() == []
    again.advance(0.2)
    again.settle()
    assert sink.take() == [(0, 2, b"again")]
    again.advance(9.8)
    assert sink.take() == []
    again.advance(0.2)
    again.settle()
    assert sink.take() == [(1, 1, b"late")]


def test_a_clock_set_forward_before_a_restart_ends_the_delays_that_are_over(
    tmp_path: Path,
) -> None:
    broker = FakeBroker(tmp_path)
    topic = broker.topic()
    topic.ensure_channel("c")
    broker.publish(topic, b"soon", delay_ns=40 * NS_PER_S)
    broker.publish(topic, b"late", delay_ns=50 * NS_PER_S)
    broker.checkpoint()
    again = FakeBroker(tmp_path)
    again.clock.wall_set_ns = 45 * NS_PER_S
    _, sink = again.consume(again.load()["t"].channels["c"], rdy=9)
    again.advance(0)
    again.settle()
    assert bodies(sink.take()) == [b"soon"]
    again.advance(4.8)
    assert sink.take() == []
    again.advance(0.2)
    again.settle()
    assert bodies(sink.take()) == [b"late"]


def test_a_clock_set_back_makes_no_delay_longer_for_a_channel_far_behind(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, Options(mem_queue_size=2))
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    broker.publish(topic, *(b"%d" % i for i in range(5)))
    broker.publish(topic, b"late", delay_ns=5 * NS_PER_S)
    assert channel.delivery.deferred_count == 0  # the channel has not come to it yet
    broker.clock.wall_set_ns = -SET_BACK_NS
    _, sink = broker.consume(channel, rdy=9)
    broker.settle()
    assert len(sink.take()) == 5
    broker.advance(4.9)
    assert sink.take() == []
    broker.advance(0.1)
    broker.settle()
    assert bodies(sink.take()) == [b"late"]


def test_messages_with_one_delay_are_one_batch_of_their_tick_and_wake_together(
    broker: FakeBroker,
) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    _, sink = broker.consume(channel, rdy=9)
    line = b"DPUB t 5000\n"
    commands = bytearray((line + b"\0\0\0\1x") * 4)
    topic.publishing.add(b"x", 0, 1, delay_ns=5 * NS_PER_S)
    broker.clock.passed_ns += 3  # the tick's clock stands still
    after = topic.publishing.add_run(commands, 0, len(commands), line, delay_ns=5 * NS_PER_S)
    assert after[:2] == (len(commands), 4)
    broker.run()
    batch = topic.log.reader(broker.run).batch(0)
    assert batch is not None
    assert (batch.count, batch.delay_ns) == (5, 5 * NS_PER_S)
    assert channel.delivery.deferred_count == 5
    broker.advance(5)
    assert sink.take() == [(offset, 1, b"x") for offset in range(5)]


@pytest.mark.parametrize("is_cold", [False, True])
def test_messages_due_in_any_order_are_not_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cold: bool
) -> None:
    if is_cold:  # nothing is in the page cache: threads read
        monkeypatch.setattr(reader, "_NOWAIT", 0)
        monkeypatch.setattr(point_reader, "_NOWAIT", 0)
    broker = FakeBroker(tmp_path)
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    count = 600
    for number in random.Random(7).sample(range(count), count):
        broker.publish(topic, b"%d" % number, delay_ns=(10 * NS_PER_S) + number)
    broker.advance(1)
    broker.settle()
    assert topic.log.tail == []
    broker.advance(10)
    _, sink = broker.consume(channel, rdy=count)
    jobs = 0
    while run := broker.threads.run():
        jobs += run
        broker.run()
    assert bodies(sink.take()) == [b"%d" % number for number in range(count)]
    assert jobs <= 5  # one of them is a checkpoint
