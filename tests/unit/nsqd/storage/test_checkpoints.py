"""What a channel did is in its cursor file a tenth of a second later, come what may."""

import os
from pathlib import Path

import pytest

from pumpline.core.messages.delivery import Delivery, restore
from pumpline.log import cursor
from pumpline.log.cursor import Clocks, CursorFile
from pumpline.log.directory import channel_names
from pumpline.nsqd.queue.channel import Channel
from pumpline.nsqd.storage import checkpoints as checkpoints_module
from tests.kit.fake_broker import NS_PER_S, FakeBroker


@pytest.fixture
def channel(broker: FakeBroker) -> Channel:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    broker.publish(topic, *(b"%d" % i for i in range(10)))
    return channel


def written(broker: FakeBroker, channel: Channel) -> Delivery:
    """The state that a restart would find."""
    data = broker.disk.directory.read_cursor("t", channel.name)
    deltas, used = cursor.decode(data, broker.tick.read_clocks())
    assert used == len(data)
    return restore(deltas)


def records(broker: FakeBroker, channel: Channel) -> int:
    data = broker.disk.directory.read_cursor("t", channel.name)
    return len(cursor.decode(data, Clocks(0, 0))[0])


def test_a_new_channel_has_a_cursor_before_anybody_is_told(broker: FakeBroker) -> None:
    topic = broker.topic()
    broker.publish(topic, b"a", b"b")
    channel = topic.ensure_channel("c")
    assert written(broker, channel).low == 0
    later = topic.ensure_channel("d")
    assert written(broker, later).low == 2


def test_a_channel_whose_cursor_cannot_be_written_is_not_created(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()

    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", full)
        with pytest.raises(OSError):
            topic.ensure_channel("c")
    assert topic.channels == {}
    topic.ensure_channel("c")


def test_changes_are_written_once_after_a_while(broker: FakeBroker, channel: Channel) -> None:
    consumer, _ = broker.consume(channel, rdy=5)
    broker.finish(consumer, 0, 1, 3)
    broker.advance(0.09)
    assert broker.threads.waiting == []
    broker.advance(0.01)
    assert len(broker.threads.waiting) == 1
    broker.threads.run()
    found = written(broker, channel)
    assert (found.low, found.next, found.finished.spans()) == (2, 8, [(3, 4)])
    broker.advance(1)
    assert broker.threads.waiting == []


def test_later_changes_are_appended(broker: FakeBroker, channel: Channel) -> None:
    consumer, _ = broker.consume(channel, rdy=5)
    broker.checkpoint()
    before = records(broker, channel)
    broker.finish(consumer, 0)
    broker.checkpoint()
    broker.finish(consumer, 1)
    broker.checkpoint()
    assert records(broker, channel) == before + 2
    assert written(broker, channel).low == 2


def test_changes_during_a_write_go_with_the_next(broker: FakeBroker, channel: Channel) -> None:
    consumer, _ = broker.consume(channel, rdy=5)
    broker.advance(0.1)
    broker.finish(consumer, 0)
    broker.advance(1)
    assert len(broker.threads.waiting) == 1
    broker.threads.run()
    assert written(broker, channel).low == 0
    broker.checkpoint()
    assert written(broker, channel).low == 1


def test_a_failed_write_is_made_good_by_a_snapshot(
    broker: FakeBroker,
    channel: Channel,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    consumer, _ = broker.consume(channel, rdy=5)
    broker.checkpoint()
    broker.finish(consumer, 2, 4)
    writev = os.writev

    def torn(fd: int, parts: list[bytes]) -> int:
        writev(fd, [b"".join(parts)[:10]])
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", torn)
        broker.checkpoint()
    assert "failed to write" in caplog.text
    assert broker.disk.checkpoints.failures == 1
    broker.checkpoint()
    assert written(broker, channel).finished.spans() == [(2, 3), (4, 5)]


def test_a_failed_write_of_one_channel_does_not_keep_others_from_theirs(
    broker: FakeBroker, channel: Channel
) -> None:
    other = channel.topic.ensure_channel("d")
    broker.publish(channel.topic, b"for both")
    consumers = [broker.consume(each, rdy=20)[0] for each in (channel, other)]
    broker.checkpoint()
    path = Path(broker.disk.directory.cursor_path("t", "c"))
    path.unlink()
    path.mkdir()
    for consumer in consumers:
        broker.finish(consumer, 10)
    broker.checkpoint()
    assert broker.disk.checkpoints.failures == 1
    assert written(broker, other).low == 11


def test_a_deleted_channel_leaves_no_file_even_if_a_write_is_under_way(
    broker: FakeBroker, channel: Channel
) -> None:
    broker.consume(channel, rdy=5)
    broker.advance(0.1)
    channel.topic.delete_channel("c")
    broker.threads.run()
    assert channel_names(broker.disk.directory.file_names("t")) == []


def test_everything_can_be_written_at_once_for_a_stop(broker: FakeBroker, channel: Channel) -> None:
    consumer, _ = broker.consume(channel, rdy=5)
    broker.finish(consumer, 0, 1)
    broker.disk.checkpoints.write_all_now()
    assert written(broker, channel).low == 2


def test_a_stop_writes_what_the_thread_has_not_come_to(
    broker: FakeBroker, channel: Channel
) -> None:
    consumer, _ = broker.consume(channel, rdy=5)
    broker.finish(consumer, 0, 1)
    broker.advance(0.1)
    assert len(broker.threads.waiting) == 1  # and it will never be its turn
    broker.disk.checkpoints.write_all_now()
    assert written(broker, channel).low == 2


@pytest.mark.parametrize("worked", [False, True], ids=["not begun", "not reported"])
def test_a_write_under_way_does_not_undo_the_last_one_of_a_stop(
    broker: FakeBroker, channel: Channel, worked: bool
) -> None:
    """The snapshot of the write under way replaced the file that the last change was in."""
    consumer, _ = broker.consume(channel, rdy=5)
    assert channel.cursor_file is not None
    channel.cursor_file.note_failure()  # the next write is a snapshot
    broker.advance(0.1)
    assert len(broker.threads.waiting) == 1
    if worked:
        broker.threads.work()
    broker.finish(consumer, 0, 1)
    broker.disk.checkpoints.write_all_now()
    broker.threads.run()
    assert written(broker, channel).low == 2


def test_a_write_under_way_for_a_deleted_channel_does_not_touch_its_successor(
    broker: FakeBroker, channel: Channel
) -> None:
    """Deleted and created again, with the same file name, before the thread came to it."""
    topic = channel.topic
    broker.consume(channel, rdy=5)
    broker.advance(0.1)
    topic.delete_channel("c")
    successor = topic.ensure_channel("c")
    broker.threads.run()
    assert channel_names(broker.disk.directory.file_names("t")) == ["c"]
    found = written(broker, successor)
    assert (found.low, found.next, list(found.ready)) == (10, 10, [])


def test_a_channel_without_a_cursor_keeps_no_journal(broker: FakeBroker, channel: Channel) -> None:
    """Its changes would pile up for as long as it lives."""
    ephemeral = channel.topic.ensure_channel("e#ephemeral")
    consumer, sink = broker.consume(ephemeral, rdy=4)
    for round_number in range(50):
        broker.publish(channel.topic, b"a", b"b", b"c")
        offsets = [offset for offset, _, _ in sink.take()]
        for offset in reversed(offsets):
            if round_number % 2:
                broker.finish(consumer, offset)
            else:
                ephemeral.requeue_one(consumer, offset, 0)
                broker.run()
    delivery = ephemeral.delivery
    assert len(delivery._finished_since) + len(delivery._changed) < 20


def test_the_age_is_that_of_the_oldest_change_not_on_disk(
    broker: FakeBroker, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = broker.disk.checkpoints
    monkeypatch.setattr(checkpoints, "_clock_s", lambda: broker.clock.passed_ns / 1e9)
    broker.checkpoint()
    broker.advance(5)
    assert checkpoints.age_s == 0
    consumer, _ = broker.consume(channel, rdy=5)
    broker.advance(0.0625)
    broker.finish(consumer, 0)
    assert checkpoints.age_s == 0.0625
    broker.advance(0.5)  # the thread is late
    broker.finish(consumer, 1)
    assert checkpoints.age_s == 0.5625
    broker.threads.run()
    assert checkpoints.age_s == 0
    broker.checkpoint()
    assert checkpoints.age_s == 0


def test_one_channel_can_be_written_at_once_and_no_other_is(
    broker: FakeBroker, channel: Channel
) -> None:
    other = channel.topic.ensure_channel("d")
    consumer, _ = broker.consume(channel, rdy=5)
    broker.publish(channel.topic, b"for both")
    elsewhere, _ = broker.consume(other, rdy=5)
    broker.finish(consumer, 0, 1)
    broker.finish(elsewhere, 10)
    broker.disk.checkpoints.write_now(channel)
    assert (written(broker, channel).low, written(broker, other).low) == (2, 10)
    assert (channel.changed, other.changed) == (False, True)
    broker.checkpoint()
    assert written(broker, other).low == 11


def test_one_channel_is_written_at_once_while_a_checkpoint_of_all_is_under_way(
    broker: FakeBroker, channel: Channel
) -> None:
    other = channel.topic.ensure_channel("d")
    consumer, _ = broker.consume(channel, rdy=5)
    broker.publish(channel.topic, b"for both")
    elsewhere, _ = broker.consume(other, rdy=5)
    broker.finish(consumer, 0)
    broker.finish(elsewhere, 10)
    broker.advance(0.1)
    assert len(broker.threads.waiting) == 1
    broker.finish(consumer, 1)
    broker.disk.checkpoints.write_now(channel)
    assert (written(broker, channel).low, written(broker, other).low) == (2, 10)
    broker.threads.run()
    assert (written(broker, channel).low, written(broker, other).low) == (2, 11)


def test_many_changed_channels_are_written_in_slices(
    broker: FakeBroker, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each slice takes 32 channels here; all are on disk one after the other."""
    monkeypatch.setattr(checkpoints_module, "SLICE_S", 0.0)
    topic = channel.topic
    others = [topic.ensure_channel(f"d{number}") for number in range(99)]
    consumers = [broker.consume(each, rdy=5)[0] for each in others]
    broker.checkpoint()
    broker.settle()
    broker.publish(topic, b"for all")
    broker.advance(0.01)  # so many channels are served a little later
    for consumer in consumers:
        broker.finish(consumer, 10)
    broker.advance(0.1)
    done = []
    while broker.threads.run():
        done.append(sum(written(broker, each).low == 11 for each in others))
        broker.advance(0)
    assert done == [32, 64, 96, 99]


def test_a_full_disk_is_not_tried_without_a_pause(
    broker: FakeBroker, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints_module, "SLICE_S", 0.0)
    others = [channel.topic.ensure_channel(f"d{number}") for number in range(99)]

    def full(*_: object, **__: object) -> int:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", full)
        broken.setattr(os, "write", full)
        for each in others:
            broker.consume(each, rdy=5)
        broker.publish(channel.topic, b"refused")
        for each in others:
            each.note_change()
        broker.advance(0.1)
        broker.threads.run()
        broker.advance(0.09)
        assert broker.threads.run() == 0


def test_the_event_loop_does_not_encode_what_is_deferred(broker: FakeBroker) -> None:
    """A snapshot of many deferred messages is a copy of arrays on the event loop; the rest is for
    the thread."""
    topic = broker.topic("many")
    channel = topic.ensure_channel("c")
    count = 3000
    for number in range(count):
        topic.publishing.add(b"x", 0, 1, delay_ns=NS_PER_S * (1 + number))
    broker.run()
    file = channel.cursor_file
    assert file is not None
    file.note_failure()
    before = broker.disk.directory.read_cursor("many", "c")
    broker.advance(0.1)
    assert broker.disk.directory.read_cursor("many", "c") == before
    broker.threads.run()
    data = broker.disk.directory.read_cursor("many", "c")
    [state], _ = cursor.decode(data, broker.tick.read_clocks())
    assert len(state.pending) == count
    assert restore([state]).deferred_count == count


def test_a_first_cursor_that_cannot_be_written_leaves_no_file_however_often_it_is_tried(
    broker: FakeBroker, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = broker.disk.directory.cursor_path("t", "new")
    file = CursorFile(path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    for _ in range(2):
        with pytest.raises(OSError):
            broker.disk.checkpoints.write_first(channel, file)
        assert not os.path.exists(path)
