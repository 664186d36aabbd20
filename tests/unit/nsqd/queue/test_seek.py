"""A channel is moved in place: consumers stay, what they had in flight is nobody's any more."""

from pathlib import Path

import pytest

from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.channel import Channel
from pumpline.nsqd.queue.consumer import NOT_IN_FLIGHT, ChannelError
from tests.kit.fake_broker import NS_PER_S, FakeBroker

BODIES = [b"%d" % number for number in range(10)]


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    return FakeBroker(tmp_path, Options(max_bytes_per_file=200))


@pytest.fixture
def channel(broker: FakeBroker) -> Channel:
    """A channel with ten messages waiting, one batch each."""
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    for body in BODIES:
        broker.publish(topic, body)
    return channel


def offsets(received: list[tuple[int, int, bytes]]) -> list[int]:
    return [offset for offset, _, _ in received]


def restarted(broker: FakeBroker) -> Channel:
    """The channel as it is after a kill."""
    return broker.load()["t"].channels["c"]


def test_back_to_what_was_finished(broker: FakeBroker, channel: Channel) -> None:
    consumer, sink = broker.consume(channel, rdy=100)
    broker.finish(consumer, *offsets(sink.take()))
    assert channel.delivery.low == 10
    channel.seek(4)
    broker.settle()
    assert sink.take() == [(offset, 1, BODIES[offset]) for offset in range(4, 10)]


def test_forward_over_what_waits(broker: FakeBroker, channel: Channel) -> None:
    channel.seek(7)
    assert channel.depth == 3
    _, sink = broker.consume(channel, rdy=100)
    assert offsets(sink.take()) == [7, 8, 9]


def test_to_the_end(broker: FakeBroker, channel: Channel) -> None:
    channel.seek(10)
    _, sink = broker.consume(channel, rdy=100)
    assert (channel.depth, sink.take()) == (0, [])
    broker.publish(channel.topic, b"new")
    assert offsets(sink.take()) == [10]


def test_what_was_in_flight_cannot_be_finished_any_more(
    broker: FakeBroker, channel: Channel
) -> None:
    consumer, sink = broker.consume(channel, rdy=3)
    assert offsets(sink.take()) == [0, 1, 2]
    channel.seek(5)
    with pytest.raises(ChannelError, match=NOT_IN_FLIGHT):
        channel.finish_one(consumer, 1)
    broker.run()
    assert offsets(sink.take()) == [5, 6, 7]
    assert channel.in_flight_count == 3


def test_what_was_in_flight_does_not_time_out_later(broker: FakeBroker, channel: Channel) -> None:
    _, sink = broker.consume(channel, rdy=3, msg_timeout_ns=2 * NS_PER_S)
    channel.seek(10)
    sink.take()
    broker.advance(5)
    assert (sink.take(), channel.depth, channel.timeout_count) == ([], 0, 0)


def test_attempts_and_delays_are_forgotten(broker: FakeBroker, channel: Channel) -> None:
    consumer, sink = broker.consume(channel, rdy=2)
    assert offsets(sink.take()) == [0, 1]
    channel.requeue_one(consumer, 0, 3600 * NS_PER_S)
    channel.requeue_one(consumer, 1, 0)
    channel.seek(0)
    assert channel.delivery.deferred_count == 0
    broker.run()
    assert sink.take() == [(0, 1, b"0"), (1, 1, b"1")]


def test_a_message_published_with_a_delay_waits_for_it_again(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    for delay_s in (60, 0, 30):
        topic.publishing.add(b"%d" % delay_s, 0, len(b"%d" % delay_s), delay_ns=delay_s * NS_PER_S)
    broker.run()
    _, sink = broker.consume(channel, rdy=9, msg_timeout_ns=600 * NS_PER_S)
    assert sink.take() == [(1, 1, b"0")]
    broker.advance(31)
    assert sink.take() == [(2, 1, b"30")]
    channel.seek(0)
    broker.run()
    assert sink.take() == [(1, 1, b"0"), (2, 1, b"30")]
    broker.advance(29)
    assert sink.take() == [(0, 1, b"60")]


@pytest.mark.parametrize("offset", [0, 3, 10])
def test_the_place_survives_a_kill(broker: FakeBroker, channel: Channel, offset: int) -> None:
    consumer, sink = broker.consume(channel, rdy=100)
    broker.finish(consumer, *offsets(sink.take())[:8])
    broker.checkpoint()
    channel.seek(offset)
    broker.disk.checkpoints.write_all_now()
    found = restarted(broker)
    assert (found.delivery.low, found.delivery.next) == (offset, offset)
    assert found.depth == 10 - offset


def test_a_checkpoint_that_comes_late_does_not_undo_it(
    broker: FakeBroker, channel: Channel
) -> None:
    consumer, sink = broker.consume(channel, rdy=100)
    broker.checkpoint()
    broker.finish(consumer, *offsets(sink.take()))
    broker.advance(0.1)
    assert len(broker.threads.waiting) == 1  # it says that all is finished, and is not written yet
    channel.seek(2)
    broker.disk.checkpoints.write_all_now()
    broker.threads.run()
    assert restarted(broker).delivery.low == 2


def test_changes_after_it_are_added_to_it(broker: FakeBroker, channel: Channel) -> None:
    channel.seek(6)
    broker.disk.checkpoints.write_all_now()
    consumer, sink = broker.consume(channel, rdy=2)
    broker.finish(consumer, *offsets(sink.take()))
    broker.checkpoint()
    channel.seek(1)
    broker.disk.checkpoints.write_all_now()
    broker.settle()
    broker.finish(consumer, 1)
    broker.checkpoint()
    found = restarted(broker)
    assert found.delivery.low == 2
    assert found.depth == 8


def test_an_ephemeral_channel_can_be_moved_too(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c#ephemeral")
    _, sink = broker.consume(channel, rdy=100)
    broker.publish(topic, *BODIES)
    sink.take()
    channel.seek(8)
    broker.settle()
    assert offsets(sink.take()) == [8, 9]
