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


def test_messages_of_a_tick_are_one_batch_whatever_their_delays(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    _, sink = broker.consume(channel, rdy=9)
    publishing = topic.publishing
    delays_ms = [5000, 0, 2000, 5000]
    commands = bytearray(b"".join(b"DPUB t %d\n\0\0\0\1x" % ms for ms in delays_ms))
    publishing.add(b"x", 0, 1, delay_ns=5 * NS_PER_S)
    broker.clock.passed_ns += 3  # the tick's clock stands still
    after = publishing.add_delayed_run(commands, 0, len(commands), b"DPUB t ")
    assert after[:2] == (len(commands), 4)
    plain = bytearray(b"PUB t\n\0\0\0\1y" * 2)
    assert publishing.add_run(plain, 0, len(plain), b"PUB t\n")[1] == 2
    publishing.add(b"z", 0, 1, delay_ns=2 * NS_PER_S)
    many = bytearray(b"\0\0\0\1m")
    publishing.add_many(many, 0, len(many), 1)
    broker.run()
    batch = topic.log.reader(broker.run).batch(0)
    assert batch is not None
    at_ns = batch.timestamp_ns
    dues_ns = [batch.due_ns(offset) for offset in range(batch.end)]
    delays_s = [5, 5, 0, 2, 5, 0, 0, 2, 0]
    assert dues_ns == [at_ns + each * NS_PER_S if each else 0 for each in delays_s]
    assert channel.delivery.deferred_count == 5
    assert sink.take() == [(2, 1, b"x"), (5, 1, b"y"), (6, 1, b"y"), (8, 1, b"m")]
    broker.advance(2)
    assert sink.take() == [(3, 1, b"x"), (7, 1, b"z")]
    broker.advance(3)
    assert sink.take() == [(offset, 1, b"x") for offset in (0, 1, 4)]


def test_a_delay_of_nothing_is_no_delay(broker: FakeBroker) -> None:
    topic = broker.topic()
    _, sink = broker.consume(topic.ensure_channel("c"), rdy=9)
    commands = bytearray(b"DPUB t 0\n\0\0\0\1x" * 3)
    topic.publishing.add_delayed_run(commands, 0, len(commands), b"DPUB t ")
    broker.run()
    batch = topic.log.reader(broker.run).batch(0)
    assert batch is not None and not batch.dues
    assert len(sink.take()) == 3


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("is_clean", [True, False])
def test_the_delays_of_a_tick_survive_a_restart_each_of_its_own(
    tmp_path: Path, checkpoint: bool, is_clean: bool
) -> None:
    broker = FakeBroker(tmp_path)
    topic = broker.topic()
    topic.ensure_channel("c")
    broker.checkpoint()
    for number, delay_s in enumerate((30, 0, 10, 20, 0, 10)):
        topic.publishing.add(b"%d" % number, 0, 1, delay_ns=delay_s * NS_PER_S)
    broker.run()
    if checkpoint:
        broker.checkpoint()
    if is_clean:
        broker.advance(1)
        broker.settle()
    again = FakeBroker(tmp_path)
    _, sink = again.consume(again.load()["t"].channels["c"], rdy=9)
    again.settle()
    assert sink.take() == [(1, 1, b"1"), (4, 1, b"4")]
    for number, offsets in enumerate(((2, 5), (3,), (0,))):
        again.advance(9.8 if not number else 9.7)
        assert sink.take() == []
        again.advance(0.3)
        again.settle()
        assert sink.take() == [(offset, 1, b"%d" % offset) for offset in offsets]


def test_a_channel_far_behind_meets_the_delays_of_a_batch_in_its_turn(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, Options(mem_queue_size=2))
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    broker.publish(topic, *(b"%d" % i for i in range(5)))
    for delay_s in (5, 0, 0, 5, 9):
        topic.publishing.add(b"x", 0, 1, delay_ns=delay_s * NS_PER_S)
    broker.run()
    assert channel.delivery.deferred_count == 0
    _, sink = broker.consume(channel, rdy=9)
    broker.settle()
    assert [offset for offset, _, _ in sink.take()] == [0, 1, 2, 3, 4, 6, 7]
    assert channel.delivery.deferred_count == 3
    broker.advance(5)
    broker.settle()
    assert [offset for offset, _, _ in sink.take()] == [5, 8]
    broker.advance(4)
    broker.settle()
    assert [offset for offset, _, _ in sink.take()] == []  # RDY is used up


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
    if not is_cold:  # others have their turn before the next
        assert len(sink.received) == point_reader.GROUP_MESSAGES
    jobs = 0
    for _ in range(5):
        jobs += broker.threads.run()
        broker.run()
        broker.advance(0)
    assert bodies(sink.take()) == [b"%d" % number for number in range(count)]
    assert jobs <= 5  # one of them is a checkpoint
