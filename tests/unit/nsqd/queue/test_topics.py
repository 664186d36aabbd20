"""The topics of an nsqd: what they promise together."""

import errno
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from pumpline.core.text.settings import TopicSettings
from pumpline.log.flusher import FLUSH_S
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.topics import Topics
from pumpline.nsqd.storage.metadata import MetadataWriter
from tests.kit.fake_broker import FakeBroker, log_of

MESSAGES = 1_000_000  # of each log; its ids must not meet those of another
LOGS = 50  # of each kind


def new_topics(path: Path, node_id: int) -> Topics:
    """An nsqd's topics on a clock that stands still: nothing is told apart by its time."""
    path.mkdir()
    broker = FakeBroker(path, Options(node_id=node_id))
    return Topics(broker.options, broker.tick, broker.disk)


@pytest.mark.parametrize("node_ids", [(7, 7), (7, 8)], ids=["same node", "other nodes"])
def test_no_log_shares_an_id_with_another(tmp_path: Path, node_ids: tuple[int, int]) -> None:
    bases = []
    for number, node_id in enumerate(node_ids):
        topics = new_topics(tmp_path / str(number), node_id)
        for name in names():
            bases.append(topics.ensure(name).log.base_id)
            topics.delete(name)
            bases.append(topics.ensure(name).log.base_id)  # made anew
    assert len(bases) == 8 * LOGS
    bases.sort()
    assert all(other - base >= MESSAGES for base, other in pairwise(bases))
    assert bases[0] >= 0
    assert bases[-1] < 1 << 63


def test_a_log_keeps_its_ids_over_a_restart(tmp_path: Path) -> None:
    topics = new_topics(tmp_path / "data", 7)
    base_id = topics.ensure("t").log.base_id
    again = Topics(topics.options, topics.tick, topics.disk)
    again.load()
    assert again["t"].log.base_id == base_id


def test_settings_outlive_a_loss_of_power_that_took_messages(broker: FakeBroker) -> None:
    """The manifest was written anew, without them, before they were known."""
    topic = broker.topic()
    topic.store_settings(TopicSettings(max_attempts=3))
    broker.publish(topic, b"not synced")
    broker.advance(FLUSH_S)
    assert log_of(topic).written == 1
    topic.pause()
    topic.empty()
    os.truncate(log_of(topic).segments[0].path, 0)
    assert broker.load()["t"].attempts_max == 3
    assert broker.load()["t"].attempts_max == 3


def test_a_channel_has_no_depth_of_what_a_loss_of_power_took(broker: FakeBroker) -> None:
    """Its offsets are not given out again: those of another channel may be finished."""
    topic = broker.topic()
    consumer, _ = broker.consume(topic.ensure_channel("ahead"), rdy=2)
    topic.ensure_channel("behind")
    for body in (b"0", b"1", b"2", b"3"):
        broker.publish(topic, body)
    broker.finish(consumer, 1)
    broker.publish(topic, b"4", delay_ns=10**9)
    broker.checkpoint()
    os.truncate(log_of(topic).segments[0].path, 0)
    for _ in range(2):  # and a kill does not bring it back
        channels = broker.load()["t"].channels
        assert {name: channel.depth for name, channel in channels.items()} == {
            "ahead": 0,
            "behind": 0,
        }
        assert not any(channel.delivery.deferred_count for channel in channels.values())
        broker.publish(broker.topics["t"], b"next")
        channels = broker.load()["t"].channels  # a kill, before a checkpoint
        assert {channel.depth for channel in channels.values()} == {1}
        for channel in channels.values():
            consumer, sink = broker.consume(channel, rdy=1)
            broker.settle()
            [(offset, _, body)] = sink.take()
            assert body == b"next"
            broker.finish(consumer, offset)
        broker.checkpoint()


def test_a_full_disk_at_the_start_costs_nothing_that_a_channel_has_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a loss of power the manifest is written anew, for which room is made."""
    broker = FakeBroker(tmp_path, Options(max_bytes_per_file=100))
    topic = broker.topic()
    topic.ensure_channel("c")
    for number in range(5):
        broker.publish(topic, b"%d" % number + bytes(100))
        broker.advance(FLUSH_S)
    topic.upkeep.manifest.write()
    segments = [segment.path for segment in log_of(topic).segments]
    assert len(segments) == 5
    os.truncate(segments[-1], 0)  # a loss of power took the last message
    with monkeypatch.context() as broken:

        def refuse(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        broken.setattr(broker.disk.directory, "write_manifest", refuse)
        loaded = broker.load()["t"]
    assert [segment.path for segment in log_of(loaded).segments][:4] == segments[:4]
    _, sink = broker.consume(loaded.channels["c"], rdy=10)
    assert [body[:1] for _, _, body in sink.take()] == [b"0", b"1", b"2", b"3"]


def names() -> Iterator[str]:
    for number in range(LOGS):
        yield f"t{number}"
        yield f"t{number}#ephemeral"


def fail(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, call, refuse)


def test_a_topic_that_cannot_be_deleted_goes_on(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    _, sink = broker.consume(topic.ensure_channel("c"), rdy=10)
    with monkeypatch.context() as broken:
        fail(broken, "rename")
        with pytest.raises(OSError, match="Input/output"):
            broker.topics.delete("t")
    assert broker.publish(broker.topics["t"], b"taken").error is None
    assert [body for _, _, body in sink.take()] == [b"taken"]
    broker.topics.delete("t")
    assert list(broker.topics) == []


def test_a_topic_is_deleted_whatever_the_disk_says_of_its_channels(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their cursors are gone with its directory."""
    topic = broker.topic()
    channels = [topic.ensure_channel("c"), topic.ensure_channel("d")]
    broker.consume(channels[0], rdy=10)
    with monkeypatch.context() as broken:
        fail(broken, "replace")
        broker.topics.delete("t")
    assert all(channel.deleted for channel in channels)
    assert list(broker.topics) == []
    assert broker.publish(broker.topic(), b"taken").error is None
    broker.checkpoint()
    assert list(broker.load()["t"].channels) == []


def test_a_channel_that_cannot_be_deleted_goes_on(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    consumer, sink = broker.consume(topic.ensure_channel("c"), rdy=10)
    with monkeypatch.context() as broken:
        fail(broken, "replace")
        with pytest.raises(OSError, match="Input/output"):
            topic.delete_channel("c")
    assert not sink.closed
    broker.publish(topic, b"taken")
    broker.finish(consumer, 0)
    broker.checkpoint()
    assert broker.load()["t"].channels["c"].depth == 0


def test_a_deleted_channel_that_nsqd_dat_still_names_does_not_come_back(
    broker: FakeBroker,
) -> None:
    """It came back at the oldest message, as a channel does whose cursor is lost."""
    topic = broker.topic()
    topic.ensure_channel("kept")
    topic.ensure_channel("c").pause()
    broker.publish(topic, b"old")
    broker.disk.directory.write_metadata(broker.topics.describe())
    topic.delete_channel("c")
    assert list(broker.load()["t"].channels) == ["kept"]
    assert list(broker.load()["t"].channels) == ["kept"]  # killed again before nsqd.dat is written
    again = broker.topics["t"].ensure_channel("c")
    assert again.depth == 0
    assert not broker.load()["t"].channels["c"].paused  # as the deleted one was


async def test_nothing_is_left_of_a_deleted_channel_once_nsqd_dat_is_written(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = MetadataWriter(broker.disk, describe=broker.topics.describe, count=lambda: 1)
    topic = broker.topic()
    topic.ensure_channel("c")
    await writer.persist()
    topic.delete_channel("c")
    with monkeypatch.context() as broken:
        fail(broken, "fsync")
        with pytest.raises(OSError, match="Input/output"):
            await writer.persist()
    assert list(broker.load()["t"].channels) == []
    await writer.persist()
    assert [path.name for path in (tmp_path / "topics" / "t").iterdir()] == ["topic.json"]
    topic.ensure_channel("c").pause()
    await writer.persist()
    assert broker.load()["t"].channels["c"].paused


def test_what_a_deleted_channel_had_is_not_for_the_next_one_if_ephemeral_ones_stay(
    broker: FakeBroker,
) -> None:
    topic = broker.topic()
    topic.ensure_channel("c")
    topic.ensure_channel("e#ephemeral")
    broker.publish(topic, b"old")
    assert topic.delete_channel("c") is None
    found = broker.load()["t"]
    assert found.ensure_channel("next").depth == 0


def test_what_a_deleted_channel_had_is_not_for_the_next_one_if_a_kill_comes_in_between(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    topic.ensure_channel("c")
    broker.publish(topic, b"old")
    remove_cursor = broker.disk.directory.remove_cursor
    found: list[int] = []

    def remove(topic: str, channel: str) -> None:
        remove_cursor(topic, channel)
        found.append(broker.load()["t"].depth)  # killed here

    monkeypatch.setattr(broker.disk.directory, "remove_cursor", remove)
    topic.delete_channel("c")
    assert found == [0]


def test_it_is_told_when_a_kill_would_give_what_a_deleted_channel_had_to_the_next(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    topic.ensure_channel("c")
    with monkeypatch.context() as broken:
        fail(broken, "writev")
        error = topic.delete_channel("c")
    assert error is not None
    assert error.errno == errno.EIO
    assert list(topic.channels) == []


def test_a_new_topic_whose_first_publish_cannot_be_synced_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = FakeBroker(tmp_path, Options(sync_every=1))
    fail(monkeypatch, "fsync")
    completion = broker.publish(broker.topics.ensure_provisional("new"), b"refused")
    broker.settle()
    assert completion.error is not None
    assert list(broker.topics) == []


def test_a_new_topic_that_cannot_remember_the_token_of_its_first_publish_goes(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topics.ensure_provisional("new")
    with monkeypatch.context() as broken:
        fail(broken, "replace")
        with pytest.raises(OSError, match="Input/output"):
            topic.upkeep.tokens.prepare()
        topic.drop_if_unused()
    assert list(broker.topics) == []


def test_a_new_topic_that_cannot_be_deleted_goes_once_the_disk_works(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, used = broker.topics.ensure_provisional("new"), broker.topics.ensure_provisional("used")
    with monkeypatch.context() as broken:
        fail(broken, "writev")
        fail(broken, "rename")
        for _ in range(3):
            assert broker.publish(new, b"refused").error
            assert broker.publish(used, b"refused").error
        broker.advance(5)
        assert list(broker.topics) == ["new", "used"]
    used.ensure_channel("c")
    assert len(broker.clock.waiting) < 5
    broker.advance(1)
    assert list(broker.topics) == ["used"]


def test_a_publish_that_is_refused_takes_no_topic_that_another_publishes_to(
    broker: FakeBroker,
) -> None:
    topic = broker.topics.ensure_provisional("new")
    topic.publishing.add(b"other", 0, 5)
    topic.drop_if_unused()
    completion = topic.publishing.completion()
    broker.run()
    assert completion.error is None
    assert list(broker.topics) == ["new"]


def test_new_messages_do_not_count_as_given_because_lost_ones_were(
    broker: FakeBroker, tmp_path: Path
) -> None:
    """A loss of power took what was not synced from the log, and not the manifest, which says how
    much channels had been given."""
    topic = broker.topic()
    broker.publish(topic, b"a", b"b", b"c")
    topic.empty()
    for segment in (tmp_path / "topics" / "t").glob("*.log"):
        os.truncate(segment, 0)
    assert broker.publish(broker.load()["t"], b"new").error is None
    again = broker.load()["t"]
    _, sink = broker.consume(again.ensure_channel("first"), rdy=10)
    broker.settle()
    assert [body for _, _, body in sink.take()] == [b"new"]
