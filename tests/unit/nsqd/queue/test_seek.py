"""A channel is moved in place: consumers stay, what they had in flight is nobody's any more."""

from pathlib import Path

import pytest

from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.channel import Channel
from pumpline.nsqd.queue.consumer import NOT_IN_FLIGHT, ChannelError
from tests.kit.fake_broker import NS_PER_S, Stage

BODIES = [b"%d" % number for number in range(10)]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, Options(max_bytes_per_file=200))


@pytest.fixture
def channel(stage: Stage) -> Channel:
    """A channel with ten messages waiting, one batch each."""
    topic = stage.topic()
    channel = topic.channel("c")
    for body in BODIES:
        stage.publish(topic, body)
    return channel


def offsets(received: list[tuple[int, int, bytes]]) -> list[int]:
    return [offset for offset, _, _ in received]


def restarted(stage: Stage) -> Channel:
    """The channel as it is after a kill."""
    return stage.load()["t"].channels["c"]


def test_back_to_what_was_finished(stage: Stage, channel: Channel) -> None:
    consumer, sink = stage.consume(channel, rdy=100)
    stage.finish(consumer, *offsets(sink.take()))
    assert channel.delivery.low == 10
    channel.seek(4)
    stage.settle()
    assert sink.take() == [(offset, 1, BODIES[offset]) for offset in range(4, 10)]


def test_forward_over_what_waits(stage: Stage, channel: Channel) -> None:
    channel.seek(7)
    assert channel.depth == 3
    _, sink = stage.consume(channel, rdy=100)
    assert offsets(sink.take()) == [7, 8, 9]


def test_to_the_end(stage: Stage, channel: Channel) -> None:
    channel.seek(10)
    _, sink = stage.consume(channel, rdy=100)
    assert (channel.depth, sink.take()) == (0, [])
    stage.publish(channel.topic, b"new")
    assert offsets(sink.take()) == [10]


def test_what_was_in_flight_cannot_be_finished_any_more(stage: Stage, channel: Channel) -> None:
    consumer, sink = stage.consume(channel, rdy=3)
    assert offsets(sink.take()) == [0, 1, 2]
    channel.seek(5)
    with pytest.raises(ChannelError, match=NOT_IN_FLIGHT):
        channel.finish_one(consumer, 1)
    stage.run()
    assert offsets(sink.take()) == [5, 6, 7]
    assert channel.in_flight_count == 3


def test_what_was_in_flight_does_not_time_out_later(stage: Stage, channel: Channel) -> None:
    _, sink = stage.consume(channel, rdy=3, msg_timeout_ns=2 * NS_PER_S)
    channel.seek(10)
    sink.take()
    stage.advance(5)
    assert (sink.take(), channel.depth, channel.timeout_count) == ([], 0, 0)


def test_attempts_and_delays_are_forgotten(stage: Stage, channel: Channel) -> None:
    consumer, sink = stage.consume(channel, rdy=2)
    assert offsets(sink.take()) == [0, 1]
    channel.requeue(consumer, 0, 3600 * NS_PER_S)
    channel.requeue(consumer, 1, 0)
    channel.seek(0)
    assert channel.delivery.deferred_count == 0
    stage.run()
    assert sink.take() == [(0, 1, b"0"), (1, 1, b"1")]


def test_a_message_published_with_a_delay_waits_for_it_again(stage: Stage) -> None:
    topic = stage.topic()
    channel = topic.channel("c")
    stage.publish(topic, b"late", delay_ns=60 * NS_PER_S)
    _, sink = stage.consume(channel, rdy=5)
    channel.seek(0)
    stage.run()
    assert sink.take() == []
    stage.advance(60)
    assert sink.take() == [(0, 1, b"late")]


@pytest.mark.parametrize("offset", [0, 3, 10])
def test_the_place_survives_a_kill(stage: Stage, channel: Channel, offset: int) -> None:
    consumer, sink = stage.consume(channel, rdy=100)
    stage.finish(consumer, *offsets(sink.take())[:8])
    stage.checkpoint()
    channel.seek(offset)
    stage.disk.checkpoints.write_now()
    found = restarted(stage)
    assert (found.delivery.low, found.delivery.next) == (offset, offset)
    assert found.depth == 10 - offset


def test_a_checkpoint_that_comes_late_does_not_undo_it(stage: Stage, channel: Channel) -> None:
    consumer, sink = stage.consume(channel, rdy=100)
    stage.checkpoint()
    stage.finish(consumer, *offsets(sink.take()))
    stage.advance(0.1)
    assert len(stage.threads.waiting) == 1  # it says that all is finished, and is not written yet
    channel.seek(2)
    stage.disk.checkpoints.write_now()
    stage.threads.run()
    assert restarted(stage).delivery.low == 2


def test_changes_after_it_are_added_to_it(stage: Stage, channel: Channel) -> None:
    channel.seek(6)
    stage.disk.checkpoints.write_now()
    consumer, sink = stage.consume(channel, rdy=2)
    stage.finish(consumer, *offsets(sink.take()))
    stage.checkpoint()
    channel.seek(1)
    stage.disk.checkpoints.write_now()
    stage.settle()
    stage.finish(consumer, 1)
    stage.checkpoint()
    found = restarted(stage)
    assert found.delivery.low == 2
    assert found.depth == 8


def test_an_ephemeral_channel_can_be_moved_too(stage: Stage) -> None:
    topic = stage.topic()
    channel = topic.channel("c#ephemeral")
    _, sink = stage.consume(channel, rdy=100)
    stage.publish(topic, *BODIES)
    sink.take()
    channel.seek(8)
    stage.settle()
    assert offsets(sink.take()) == [8, 9]
