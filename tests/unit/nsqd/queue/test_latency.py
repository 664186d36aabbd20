"""From publish to FIN: samples are of the right messages, in the right window, and bounded."""

import asyncio
from pathlib import Path

import pytest

from pumpline.core.text.histogram import merged
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue import latency
from pumpline.nsqd.queue.latency import Latency
from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.stats.stats import LatencyStats, Selection, channel_stats, topic_latency
from pumpline.web.yielding import Pace
from tests.kit.fake_broker import WALL_NS, FakeBroker

NS_PER_S = 1_000_000_000
WINDOW_NS = 10 * NS_PER_S


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    options = Options(
        e2e_processing_latency_percentile=[1.0, 0.5],
        e2e_processing_latency_window_time_ns=WINDOW_NS,
    )
    return FakeBroker(tmp_path, options)


def told(topic: Topic, channel: str = "") -> tuple[int, list[int]]:
    """How many samples, and the percentiles in whole seconds."""
    found = asyncio.run(topic_latency(topic, Pace()))
    if channel:
        stats = channel_stats(topic.channels[channel], Selection(clients=False))
        found = stats.e2e_processing_latency
    return found.count, [round(each.value / NS_PER_S) for each in found.percentiles or ()]


def test_a_sample_is_the_time_from_publish_to_fin(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    broker.publish(topic, b"a", b"b")
    broker.advance(2)
    broker.publish(topic, b"c")
    consumer, _ = broker.consume(channel, rdy=10)
    broker.advance(1)
    broker.finish(consumer, 2)
    assert told(topic, "c") == (1, [1, 1])
    broker.advance(1)
    broker.finish(consumer, 0, 1)
    assert told(topic, "c") == (3, [4, 4])
    assert told(topic) == (3, [4, 4])


def test_a_span_of_many_batches_has_a_sample_for_each_message(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    for _ in range(4):
        broker.publish(topic, b"a", b"b")
        broker.advance(1)
    consumer, _ = broker.consume(channel, rdy=10)
    consumer.leases.clear()
    channel.delivery.answered.append((1, 7))
    channel.answered(consumer, 6)
    broker.run()
    # published 4, 3, 3, 2, 2 and 1 seconds ago
    assert told(topic) == (6, [4, 2])


def test_a_topic_has_the_samples_of_all_its_channels(broker: FakeBroker) -> None:
    topic = broker.topic()
    consumers = [broker.consume(topic.ensure_channel(name), rdy=1)[0] for name in ("c", "d")]
    broker.publish(topic, b"a")
    for consumer in consumers:
        broker.advance(1)
        broker.finish(consumer, 0)
    assert told(topic, "c") == (1, [1, 1])
    assert told(topic, "d") == (1, [2, 2])
    assert told(topic) == (2, [2, 1])


def test_a_redelivered_message_counts_from_its_publish(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    broker.publish(topic, b"a", b"b")
    consumer, _ = broker.consume(channel, rdy=1)
    broker.advance(1)
    channel.requeue_one(consumer, 0, 2 * NS_PER_S)
    broker.run()
    broker.finish(consumer, 1)
    broker.advance(2)
    broker.advance(1)
    broker.finish(consumer, 0)
    assert told(topic) == (2, [4, 1])


def test_a_message_from_before_a_restart_counts_from_its_publish(
    broker: FakeBroker, tmp_path: Path
) -> None:
    topic = broker.topic()
    broker.consume(topic.ensure_channel("c"), rdy=2)
    broker.publish(topic, b"a", b"b", b"c")
    broker.checkpoint()
    after = FakeBroker(tmp_path, broker.options)
    after.advance(3)
    again = after.load()["t"]
    consumer, sink = after.consume(again.channels["c"], rdy=5)
    after.settle()
    assert [offset for offset, _, _ in sink.take()] == [0, 1, 2]
    after.finish(consumer, 0, 1, 2)
    assert told(again) == (3, [3, 3])


def test_without_the_option_there_is_nothing(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path)
    topic = broker.topic()
    assert topic.ensure_channel("c").latency is None
    nothing = LatencyStats(count=0, percentiles=None)
    assert asyncio.run(topic_latency(topic, Pace())) == nothing
    assert channel_stats(topic.channels["c"], Selection()).e2e_processing_latency == nothing


def test_samples_leave_the_window_half_by_half() -> None:
    window = Latency(WINDOW_NS)
    window.delivered(0, 100, 0)

    def finish(offset: int, now_s: int) -> None:
        now_ns = now_s * NS_PER_S
        window.finished([(offset, offset + 1)], low=0, wall_ns=now_ns, steady_ns=now_ns)

    def count(now_s: int) -> int:
        return merged(window.histograms(now_s * NS_PER_S)).count

    finish(0, 100)
    finish(1, 104)
    assert count(104) == 2
    finish(2, 106)
    assert count(109) == 3
    finish(3, 111)
    assert count(111) == 2  # of 106 and 111
    assert count(116) == 1
    assert count(300) == 0


def test_what_was_delivered_twice_counts_once() -> None:
    window = Latency(WINDOW_NS)
    window.delivered(0, 10, 0)
    window.delivered(3, 4, 0)
    window.finished([(0, 10)], low=10, wall_ns=5, steady_ns=1)
    assert merged(window.histograms(1)).count == 10


def test_what_comes_out_of_order_is_known_too() -> None:
    window = Latency(WINDOW_NS)
    window.delivered(50, 60, 1000)
    window.delivered(5, 8, 400)  # a rewind
    window.finished([(6, 8), (50, 51)], low=5, wall_ns=1100, steady_ns=1)
    found = merged(window.histograms(1))
    assert found.count == 3
    assert found.quantiles([0.3, 1.0]) == [
        pytest.approx(100, rel=0.01),
        pytest.approx(700, rel=0.01),
    ]


def test_notes_are_forgotten_when_they_are_done_with() -> None:
    window = Latency(WINDOW_NS)
    for offset in range(10_000):
        window.delivered(offset, offset + 1, offset)
        window.finished([(offset, offset + 1)], low=offset + 1, wall_ns=offset, steady_ns=1)
    assert len(window._starts) <= latency._NOTES_MIN + 1
    assert merged(window.histograms(1)).count == 10_000


def test_notes_are_bounded_even_if_one_message_is_never_finished() -> None:
    window = Latency(WINDOW_NS)
    for offset in range(3 * latency.NOTES_MAX):
        window.delivered(offset, offset + 1, offset)
        if offset:
            window.finished([(offset, offset + 1)], low=0, wall_ns=WALL_NS, steady_ns=1)
    assert len(window._starts) <= 2 * latency.NOTES_MAX
    assert merged(window.histograms(1)).count == 3 * latency.NOTES_MAX - 1
