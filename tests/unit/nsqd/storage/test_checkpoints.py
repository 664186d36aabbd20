"""What a channel did is in its cursor file a tenth of a second later, come what may."""

import os
from pathlib import Path

import pytest

from pumpline.core.messages.delivery import Delivery, restore
from pumpline.log import cursor
from pumpline.nsqd.queue.channel import Channel
from tests.kit.fake_broker import Stage


@pytest.fixture
def channel(stage: Stage) -> Channel:
    topic = stage.topic()
    channel = topic.channel("c")
    stage.publish(topic, *(b"%d" % i for i in range(10)))
    return channel


def written(stage: Stage, channel: Channel) -> Delivery:
    """The state that a restart would find."""
    data = stage.disk.directory.read_cursor("t", channel.name)
    journals, used = cursor.decode(data, wall_ahead_ns=stage.tick.wall_ahead_ns)
    assert used == len(data)
    return restore(journals)


def records(stage: Stage, channel: Channel) -> int:
    data = stage.disk.directory.read_cursor("t", channel.name)
    return len(cursor.decode(data, wall_ahead_ns=0)[0])


def test_a_new_channel_has_a_cursor_before_anybody_is_told(stage: Stage) -> None:
    topic = stage.topic()
    stage.publish(topic, b"a", b"b")
    channel = topic.channel("c")
    assert written(stage, channel).low == 0
    later = topic.channel("d")
    assert written(stage, later).low == 2


def test_a_channel_whose_cursor_cannot_be_written_is_not_created(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = stage.topic()

    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", full)
        with pytest.raises(OSError):
            topic.channel("c")
    assert topic.channels == {}
    topic.channel("c")


def test_changes_are_written_once_after_a_while(stage: Stage, channel: Channel) -> None:
    consumer, _ = stage.consume(channel, rdy=5)
    stage.finish(consumer, 0, 1, 3)
    stage.advance(0.09)
    assert stage.threads.waiting == []
    stage.advance(0.01)
    assert len(stage.threads.waiting) == 1
    stage.threads.run()
    found = written(stage, channel)
    assert (found.low, found.next, found.finished.spans()) == (2, 8, [(3, 4)])
    stage.advance(1)
    assert stage.threads.waiting == []


def test_later_changes_are_appended(stage: Stage, channel: Channel) -> None:
    consumer, _ = stage.consume(channel, rdy=5)
    stage.checkpoint()
    before = records(stage, channel)
    stage.finish(consumer, 0)
    stage.checkpoint()
    stage.finish(consumer, 1)
    stage.checkpoint()
    assert records(stage, channel) == before + 2
    assert written(stage, channel).low == 2


def test_changes_during_a_write_go_with_the_next(stage: Stage, channel: Channel) -> None:
    consumer, _ = stage.consume(channel, rdy=5)
    stage.advance(0.1)
    stage.finish(consumer, 0)
    stage.advance(1)
    assert len(stage.threads.waiting) == 1
    stage.threads.run()
    assert written(stage, channel).low == 0
    stage.checkpoint()
    assert written(stage, channel).low == 1


def test_a_failed_write_is_made_good_by_a_snapshot(
    stage: Stage,
    channel: Channel,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    consumer, _ = stage.consume(channel, rdy=5)
    stage.checkpoint()
    stage.finish(consumer, 2, 4)
    writev = os.writev

    def torn(fd: int, parts: list[bytes]) -> int:
        writev(fd, [b"".join(parts)[:10]])
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", torn)
        stage.checkpoint()
    assert "failed to write" in caplog.text
    assert stage.disk.checkpoints.failures == 1
    stage.checkpoint()
    assert written(stage, channel).finished.spans() == [(2, 3), (4, 5)]


def test_a_failed_write_of_one_channel_does_not_keep_others_from_theirs(
    stage: Stage, channel: Channel
) -> None:
    other = channel.topic.channel("d")
    stage.publish(channel.topic, b"for both")
    consumers = [stage.consume(each, rdy=20)[0] for each in (channel, other)]
    stage.checkpoint()
    path = Path(stage.disk.directory.cursor_path("t", "c"))
    path.unlink()
    path.mkdir()
    for consumer in consumers:
        stage.finish(consumer, 10)
    stage.checkpoint()
    assert stage.disk.checkpoints.failures == 1
    assert written(stage, other).low == 11


def test_a_deleted_channel_leaves_no_file_even_if_a_write_is_under_way(
    stage: Stage, channel: Channel
) -> None:
    stage.consume(channel, rdy=5)
    stage.advance(0.1)
    channel.topic.delete_channel("c")
    stage.threads.run()
    assert stage.disk.directory.channel_names("t") == []


def test_everything_can_be_written_at_once_for_a_stop(stage: Stage, channel: Channel) -> None:
    consumer, _ = stage.consume(channel, rdy=5)
    stage.finish(consumer, 0, 1)
    stage.disk.checkpoints.write_now()
    assert written(stage, channel).low == 2


def test_a_stop_writes_what_the_thread_has_not_come_to(stage: Stage, channel: Channel) -> None:
    consumer, _ = stage.consume(channel, rdy=5)
    stage.finish(consumer, 0, 1)
    stage.advance(0.1)
    assert len(stage.threads.waiting) == 1  # and it will never be its turn
    stage.disk.checkpoints.write_now()
    assert written(stage, channel).low == 2


@pytest.mark.parametrize("worked", [False, True], ids=["not begun", "not reported"])
def test_a_write_under_way_does_not_undo_the_last_one_of_a_stop(
    stage: Stage, channel: Channel, worked: bool
) -> None:
    """The snapshot of the write under way replaced the file that the last change was in."""
    consumer, _ = stage.consume(channel, rdy=5)
    assert channel.cursor_file is not None
    channel.cursor_file.note_failure()  # the next write is a snapshot
    stage.advance(0.1)
    assert len(stage.threads.waiting) == 1
    if worked:
        stage.threads.work()
    stage.finish(consumer, 0, 1)
    stage.disk.checkpoints.write_now()
    stage.threads.run()
    assert written(stage, channel).low == 2


def test_a_write_under_way_for_a_deleted_channel_does_not_touch_its_successor(
    stage: Stage, channel: Channel
) -> None:
    """Deleted and created again, with the same file name, before the thread came to it."""
    topic = channel.topic
    stage.consume(channel, rdy=5)
    stage.advance(0.1)
    topic.delete_channel("c")
    successor = topic.channel("c")
    stage.threads.run()
    assert stage.disk.directory.channel_names("t") == ["c"]
    found = written(stage, successor)
    assert (found.low, found.next, list(found.ready)) == (10, 10, [])


def test_a_channel_without_a_cursor_keeps_no_journal(stage: Stage, channel: Channel) -> None:
    """Its changes would pile up for as long as it lives."""
    ephemeral = channel.topic.channel("e#ephemeral")
    consumer, sink = stage.consume(ephemeral, rdy=4)
    for round_number in range(50):
        stage.publish(channel.topic, b"a", b"b", b"c")
        offsets = [offset for offset, _, _ in sink.take()]
        for offset in reversed(offsets):
            if round_number % 2:
                stage.finish(consumer, offset)
            else:
                ephemeral.requeue(consumer, offset, 0)
                stage.run()
    delivery = ephemeral.delivery
    assert len(delivery._finished_since) + len(delivery._changed) < 20


def test_the_age_is_that_of_the_oldest_change_not_on_disk(
    stage: Stage, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = stage.disk.checkpoints
    monkeypatch.setattr(checkpoints, "_clock_s", lambda: stage.clock.passed_ns / 1e9)
    stage.checkpoint()
    stage.advance(5)
    assert checkpoints.age_s == 0
    consumer, _ = stage.consume(channel, rdy=5)
    stage.advance(0.0625)
    stage.finish(consumer, 0)
    assert checkpoints.age_s == 0.0625
    stage.advance(0.5)  # the thread is late
    stage.finish(consumer, 1)
    assert checkpoints.age_s == 0.5625
    stage.threads.run()
    assert checkpoints.age_s == 0
    stage.checkpoint()
    assert checkpoints.age_s == 0
