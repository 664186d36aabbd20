"""Holds keep what their readers need, and no more than they may."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from pumpline.log import holds as holds_file
from pumpline.log.holds import HoldsDamaged, StoredHold, read_holds, write_holds
from pumpline.log.log import Log
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.retention import Retention
from pumpline.nsqd.queue.topic import NameTaken, Topic
from tests.kit.fake_broker import FakeBroker, log_of
from tests.kit.logs import BASE_ID

BODY = b"x" * 1000
PER_SEGMENT = 10  # messages, roughly
NOW_NS = 1_700_000_000_000_000_000


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    """Nothing consumed is kept."""
    options = Options()
    options.max_bytes_per_file = PER_SEGMENT * len(BODY)
    options.retention_bytes = options.retention_time_ns = 0
    return FakeBroker(tmp_path, options)


def filled(broker: FakeBroker, segments: int = 5) -> Topic:
    topic = broker.topic()
    for _ in range(segments * PER_SEGMENT):
        broker.publish(topic, BODY)
        log_of(topic).flush()
    return topic


def retire(broker: FakeBroker, topic: Topic) -> int:
    """Returns the oldest offset left."""
    Retention(broker.topics).run()
    return topic.log.first


def create(topic: Topic, name: str = "h", *, offset: int = 0, bytes_max: int = 0) -> StoredHold:
    return topic.upkeep.holds.create(name, offset=offset, bytes_max=bytes_max, now_ns=NOW_NS)


def consume_all(broker: FakeBroker, topic: Topic) -> None:
    consumer, sink = broker.consume(topic.ensure_channel("c"), rdy=2500)
    while received := sink.take():
        sink.output_room_bytes = 1 << 30
        broker.finish(consumer, *(offset for offset, _, _ in received))


def test_a_hold_keeps_what_channels_have_finished(broker: FakeBroker) -> None:
    topic = filled(broker)
    hold = create(topic)
    consume_all(broker, topic)
    assert retire(broker, topic) == 0
    topic.upkeep.holds.commit(hold, 25, NOW_NS)
    assert 0 < retire(broker, topic) <= 25
    topic.upkeep.holds.delete("h")
    assert retire(broker, topic) > 25


def test_the_lowest_hold_decides(broker: FakeBroker) -> None:
    topic = filled(broker)
    consume_all(broker, topic)
    create(topic, "ahead", offset=45)
    create(topic, "behind", offset=12)
    assert 0 < retire(broker, topic) <= 12


def test_what_channels_have_not_finished_stays_whatever_holds_say(broker: FakeBroker) -> None:
    topic = filled(broker)
    topic.ensure_channel("c")
    create(topic, offset=50)
    assert retire(broker, topic) == 0


def test_without_channels_what_holds_have_passed_is_history(broker: FakeBroker) -> None:
    topic = filled(broker)
    create(topic, offset=25)
    first = retire(broker, topic)
    assert 0 < first <= 25
    assert topic.depth == 50 - first
    channel = topic.ensure_channel("c")
    assert channel.delivery.next == first
    assert channel.depth == 50 - first


def test_without_channels_and_holds_everything_stays(broker: FakeBroker) -> None:
    assert retire(broker, filled(broker)) == 0


def test_ephemeral_channels_of_a_paused_topic_keep_what_they_wait_for(broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.ensure_channel("c#ephemeral")
    topic.pause()
    for _ in range(50):
        broker.publish(topic, BODY)
    create(topic, offset=50)
    assert retire(broker, topic) == 0


def test_a_hold_over_its_limit_is_dropped_and_counted(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = filled(broker)
    consume_all(broker, topic)
    hold = create(topic, offset=5, bytes_max=20 * len(BODY))
    assert retire(broker, topic) > 5
    assert (hold.dropped, topic.upkeep.holds.dropped_count) == (True, 1)
    assert "dropped hold(h) at 5" in caplog.text
    retire(broker, topic)
    assert topic.upkeep.holds.dropped_count == 1


def test_a_hold_within_its_limit_stays(broker: FakeBroker) -> None:
    topic = filled(broker)
    consume_all(broker, topic)
    hold = create(topic, offset=35, bytes_max=20 * len(BODY))
    assert 0 < retire(broker, topic) <= 35
    assert not hold.dropped


def test_a_commit_revives_a_hold_that_is_within_its_limit_again(broker: FakeBroker) -> None:
    topic = filled(broker)
    hold = create(topic, offset=5, bytes_max=20 * len(BODY))
    topic.upkeep.holds.drop_excess()
    topic.upkeep.holds.commit(hold, 10, NOW_NS)
    assert hold.dropped
    topic.upkeep.holds.commit(hold, 40, NOW_NS)
    assert not hold.dropped
    assert topic.upkeep.holds.low == 40


def test_a_hold_does_not_go_back(broker: FakeBroker) -> None:
    topic = filled(broker)
    hold = create(topic, offset=20)
    topic.upkeep.holds.commit(hold, 10, NOW_NS + 1)
    assert (hold.offset, hold.committed_at_ns) == (20, NOW_NS + 1)


def test_bytes_are_those_from_the_offset_on(broker: FakeBroker) -> None:
    topic = filled(broker)
    assert isinstance(topic.log, Log)
    assert topic.log.bytes_from(0) == topic.log.size_bytes
    assert topic.log.bytes_from(50) == 0
    for offset in range(0, 50, 7):
        expected = topic.log.size_bytes * (50 - offset) // 50
        assert abs(topic.log.bytes_from(offset) - expected) <= len(BODY)


def test_a_hold_has_the_name_to_itself(broker: FakeBroker) -> None:
    topic = broker.topic()
    create(topic, "mine")
    with pytest.raises(NameTaken):
        topic.ensure_channel("mine")


async def test_what_a_kill_would_bring_back_is_kept_until_a_commit_is_on_disk(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hold came back below the first message, as if its reader had been too slow."""
    topic = filled(broker)
    consume_all(broker, topic)
    hold = create(topic)
    await topic.upkeep.holds.save()
    topic.upkeep.holds.commit(hold, 45, NOW_NS)
    with monkeypatch.context() as broken:
        broken.setattr("pumpline.nsqd.storage.holds.write_holds", no_write)
        with pytest.raises(OSError, match="Input/output"):
            await topic.upkeep.holds.save()
        assert retire(broker, topic) == 0
    await topic.upkeep.holds.save()
    assert 0 < retire(broker, topic) <= 45


async def test_what_a_deleted_hold_kept_goes_when_that_is_on_disk(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(broker)
    consume_all(broker, topic)
    create(topic)
    await topic.upkeep.holds.save()
    topic.upkeep.holds.delete("h")
    with monkeypatch.context() as broken:
        broken.setattr("pumpline.nsqd.storage.holds.write_holds", no_write)
        with pytest.raises(OSError, match="Input/output"):
            await topic.upkeep.holds.save()
        assert retire(broker, topic) == 0
    broker.advance(1)  # it is tried again, unasked
    while stored(broker):
        await asyncio.sleep(0.001)
    await topic.upkeep.holds.save()
    assert retire(broker, topic) > 0


async def test_a_full_disk_is_freed_before_a_commit_is_on_it(broker: FakeBroker) -> None:
    topic = filled(broker)
    consume_all(broker, topic)
    hold = create(topic)
    await topic.upkeep.holds.save()
    topic.upkeep.holds.commit(hold, 45, NOW_NS)
    topic.upkeep.holds.release_unsaved()
    assert 0 < retire(broker, topic) <= 45


def no_write(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_holds_come_back(broker: FakeBroker) -> None:
    topic = filled(broker)
    create(topic, "a", offset=3, bytes_max=77)
    topic.upkeep.holds.commit(create(topic, "b"), 9, NOW_NS + 5)
    topic.upkeep.holds.describe(topic.upkeep.holds.by_name["b"], "the archive's")
    asyncio.run(topic.upkeep.holds.save())
    loaded = broker.load()["t"]
    assert loaded.upkeep.holds.by_name == {
        "a": StoredHold("a", 3, 77, NOW_NS),
        "b": StoredHold("b", 9, 0, NOW_NS + 5, description="the archive's"),
    }


def test_messages_lost_with_the_power_leave_their_offsets_to_the_hold(broker: FakeBroker) -> None:
    """What a reader has committed must not come again as another message."""
    topic = filled(broker, segments=1)
    create(topic, offset=topic.log.end + 4)
    asyncio.run(topic.upkeep.holds.save())
    loaded = broker.load()["t"]
    assert loaded.log.end == topic.log.end + 4


def test_a_hold_on_an_empty_log_outlives_the_manifest(broker: FakeBroker) -> None:
    """A loss of power may take it: it is not synced, as a hold is."""
    topic = filled(broker)
    topic.ensure_channel("c")
    topic.channels["c"].empty()
    topic.upkeep.drop_history(newest=True)
    assert topic.log.size_bytes == 0
    path = broker.disk.directory.topic_path("t")
    write_holds(path, topic.log.base_id, [StoredHold("h", topic.log.end, 0, NOW_NS)])
    os.unlink(os.path.join(path, "topic.json"))
    again = broker.load()["t"]
    assert [hold.offset for hold in again.upkeep.holds.by_name.values()] == [5 * PER_SEGMENT]
    assert again.log.base_id == topic.log.base_id


def test_a_hold_whose_messages_are_gone_counts_as_dropped(broker: FakeBroker) -> None:
    topic = filled(broker)
    consume_all(broker, topic)
    broker.checkpoint()
    first = retire(broker, topic)
    create(topic, offset=first - 1)
    asyncio.run(topic.upkeep.holds.save())
    assert broker.load()["t"].upkeep.holds.by_name["h"].dropped


async def test_commits_that_come_together_share_their_writes(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(broker)
    hold = create(topic)
    written: list[int] = []

    def write(directory: str, base_id: int, stored: list[StoredHold]) -> None:
        written.append(stored[0].offset)
        write_holds(directory, base_id, stored)

    monkeypatch.setattr("pumpline.nsqd.storage.holds.write_holds", write)

    async def commit(offset: int) -> None:
        topic.upkeep.holds.commit(hold, offset, NOW_NS)
        await topic.upkeep.holds.save()

    await asyncio.gather(*(commit(offset) for offset in range(1, 21)))
    assert len(written) <= 2
    assert written[-1] == 20
    await topic.upkeep.holds.save()
    assert len(written) <= 2  # nothing changed since


async def test_a_write_that_fails_is_done_again_by_the_next(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(broker)
    create(topic)

    def fail(*_: object) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr("pumpline.nsqd.storage.holds.write_holds", fail)
        with pytest.raises(OSError, match="no space"):
            await topic.upkeep.holds.save()
    await topic.upkeep.holds.save()
    assert [hold.name for hold in stored(broker)] == ["h"]


def stored(broker: FakeBroker, base_id: int = BASE_ID) -> list[StoredHold]:
    return read_holds(broker.disk.directory.topic_path("t"), base_id)


def test_holds_of_another_log_count_for_nothing(broker: FakeBroker) -> None:
    topic = filled(broker, segments=1)
    create(topic)
    asyncio.run(topic.upkeep.holds.save())
    assert len(stored(broker)) == 1
    assert stored(broker, BASE_ID + 1) == []


@pytest.mark.parametrize("content", [b"", b"00000000\n{}", b"00000000\n", b"\xff\xff"])
def test_a_damaged_file_is_said_to_be_one(
    broker: FakeBroker, tmp_path: Path, content: bytes
) -> None:
    if content == b"00000000\n":
        content = b"%08x\n[1]" % holds_file.crc32(b"[1]")
    (tmp_path / "holds.json").write_bytes(content)
    with pytest.raises(HoldsDamaged):
        read_holds(str(tmp_path), BASE_ID)


def test_a_topic_loads_without_its_damaged_holds(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = filled(broker, segments=1)
    path = os.path.join(broker.disk.directory.topic_path("t"), "holds.json")
    with open(path, "wb") as file:
        file.write(b"nonsense")
    loaded = broker.load()["t"]
    assert loaded.log.end == topic.log.end
    assert loaded.upkeep.holds.by_name == {}
    assert "holds unreadable" in caplog.text
