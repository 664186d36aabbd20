"""The write-ahead log after a kill or a loss of power: everything that was acknowledged is there,
in order, with its due time and its publish tokens, and nothing twice. A loss of power is a file
that is cut by hand here; the simulator plays real ones."""

import errno
import os
from pathlib import Path

import pytest

from pumpline.core.messages.batches import HEADER_BYTES
from pumpline.core.messages.publish_tokens import digest_of
from pumpline.log.files import FilePool
from pumpline.log.flusher import FLUSH_S, SYNCED_FLUSH_S
from pumpline.log.wal import MIXED, WriteAheadLog
from pumpline.nsqd.options import Options
from tests.kit.fake_broker import NS_PER_S, FakeBroker, log_of
from tests.kit.logs import BASE_ID, batch_of, bytes_of
from tests.kit.wal import bodies_of, publish, raising, records_in, succeed, topic_of, wal_files

MINUTE_NS = 60 * NS_PER_S


@pytest.fixture(params=[2500, 1], ids=["written", "synced"])
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> FakeBroker:
    """Publishes are acknowledged when they are written, or when they are synced."""
    return FakeBroker(tmp_path, Options(sync_every=request.param))


@pytest.fixture
def synced(tmp_path: Path) -> FakeBroker:
    return FakeBroker(tmp_path, Options(sync_every=1))


# -- a kill ---------------------------------------------------------------------------------------


def test_a_kill_loses_nothing_whatever_was_flushed(broker: FakeBroker) -> None:
    topics = [topic_of(broker, f"t{number}") for number in range(5)]
    expected: dict[str, list[bytes]] = {topic.name: [] for topic in topics}
    for number in range(40):
        for topic in topics[: 1 + number % 5]:
            body = b"%d" % number * (1 if number % 7 else 20_000)
            publish(broker, topic, body)
            expected[topic.name].append(body)
        if number % 11 == 0:
            broker.advance(FLUSH_S)
    for _ in range(3):  # a kill right after a start changes nothing
        broker.load()
        assert {name: bodies_of(broker, name) for name in expected} == expected
    for name, topic in broker.topics.items():
        publish(broker, topic, b"last")
        expected[name].append(b"last")
    broker.load()
    assert {name: bodies_of(broker, name) for name in expected} == expected


def test_due_times_outlive_a_kill(broker: FakeBroker) -> None:
    topic = topic_of(broker)
    publish(broker, topic, b"first")
    completions = [
        broker.pub(topic, b"now"),
        topic.publishing.add(b"later", 0, 5, delay_ns=MINUTE_NS),
        topic.publishing.add(b"much later", 0, 10, delay_ns=5 * MINUTE_NS),
        broker.pub(topic, b"now, too"),
    ]
    succeed(broker, *completions)
    channel = broker.load()["t"].channels["c"]
    assert channel.delivery.deferred_count == 2
    _, sink = broker.consume(channel, rdy=10, msg_timeout_ns=60 * MINUTE_NS)
    broker.settle()
    assert [body for _, _, body in sink.take()] == [b"first", b"now", b"now, too"]
    broker.advance(59)
    broker.settle()
    assert sink.take() == []
    broker.advance(2)
    broker.settle()
    assert [body for _, _, body in sink.take()] == [b"later"]
    broker.advance(300)
    broker.settle()
    assert [body for _, _, body in sink.take()] == [b"much later"]


def test_publish_tokens_outlive_a_kill(broker: FakeBroker) -> None:
    topic = topic_of(broker)
    publish(broker, topic, b"first")
    for name in ("a", "b"):
        assert topic.upkeep.tokens.outcome(digest_of(name)) is None
        topic.publishing.add(name.encode(), 0, 1, alone=True)
        topic.publishing.add_token(digest_of(name))
        completion = topic.publishing.completion()
        publish(broker, topic, b"in between")
        succeed(broker, completion)
    again = broker.load()["t"]
    assert [again.upkeep.tokens.outcome(digest_of(name)) is not None for name in "abc"] == [
        True,
        True,
        False,
    ]
    assert bodies_of(broker) == [b"first", b"a", b"in between", b"b", b"in between"]


def test_publish_times_outlive_a_kill_each_its_own(broker: FakeBroker) -> None:
    topic = topic_of(broker)
    times = []
    for number in range(10):
        times.append(broker.clock.wall_ns())
        publish(broker, topic, b"%d" % number)
        broker.advance(0.005)
    log = log_of(broker.load()["t"])
    reader = log.reader(lambda: None)
    found = []
    for offset in range(10):
        batch = reader.batch(offset)
        broker.settle()
        batch = batch or reader.batch(offset)
        assert batch is not None
        found.append(batch.published_ns(offset))
    assert found == times


def test_a_batch_after_a_kill_has_rising_times(broker: FakeBroker) -> None:
    topic = topic_of(broker)
    publish(broker, topic, b"0", b"1")
    broker.clock.wall_set_ns -= 3600 * NS_PER_S
    publish(broker, topic, b"2", b"3")
    log = log_of(broker.load()["t"])
    assert (log.end, log.ordered_from) == (4, 2)
    assert bodies_of(broker) == [b"0", b"1", b"2", b"3"]


def test_a_deleted_topic_does_not_come_back(broker: FakeBroker) -> None:
    publish(broker, topic_of(broker), b"old", b"older")
    broker.topics.delete("t")
    publish(broker, topic_of(broker), b"new")
    broker.load()
    assert bodies_of(broker) == [b"new"]
    broker.topics.delete("t")
    assert "t" not in broker.load()


def test_what_was_not_synced_may_come_and_is_then_in_order(synced: FakeBroker) -> None:
    """It was written, and nobody was told."""
    topic = topic_of(synced)
    publish(synced, topic, b"first")
    waiting = [synced.pub(topic, b"second")]
    synced.run()
    assert not waiting[0].done
    synced.load()
    assert bodies_of(synced) == [b"first", b"second"]


def test_the_files_go_once_all_is_in_the_segments(broker: FakeBroker, tmp_path: Path) -> None:
    publish(broker, topic_of(broker), b"first")
    assert wal_files(tmp_path)
    broker.load()
    broker.advance(SYNCED_FLUSH_S)
    broker.settle()
    assert wal_files(tmp_path) == []
    assert log_of(broker.topics["t"]).written == 1


def test_a_full_disk_at_the_start_keeps_nobody_from_reading(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(broker, topic_of(broker), b"first", b"second")
    with monkeypatch.context() as full:
        full.setattr(os, "writev", raising(errno.ENOSPC))
        for _ in range(2):
            broker.load()
            assert bodies_of(broker) == [b"first", b"second"]
            refused = broker.publish(broker.topics["t"], b"refused")
            broker.settle()
            assert refused.error == "no space left on device"
            assert wal_files(tmp_path)
    broker.advance(SYNCED_FLUSH_S)
    broker.settle()
    broker.advance(SYNCED_FLUSH_S)
    broker.settle()
    publish(broker, broker.topics["t"], b"third")
    assert bodies_of(broker) == [b"first", b"second", b"third"]
    broker.load()
    assert bodies_of(broker) == [b"first", b"second", b"third"]


# -- what was refused -----------------------------------------------------------------------------


def test_what_took_the_offsets_of_a_refused_publish_counts(tmp_path: Path) -> None:
    """The refused record could not be cut off; a later one has the same ids."""
    files = FilePool(4)
    wal = WriteAheadLog(str(tmp_path), files)
    wal.append(batch_of(0, [b"kept"]).parts())
    wal.append(batch_of(1, [b"refused"]).parts())
    wal.turn()
    wal.append(batch_of(1, [b"taken"]).parts())
    log = FakeBroker(tmp_path).disk.open_log
    os.makedirs(tmp_path / "topics" / "t")
    batches = WriteAheadLog(str(tmp_path), files).unflushed.take(log("t", BASE_ID))
    bodies = [bytes(batch.frames)[34:] for batch in batches]
    assert bodies == [b"kept", b"taken"]


# -- a loss of power ------------------------------------------------------------------------------


def test_a_loss_of_power_takes_nothing_that_the_write_ahead_log_has(synced: FakeBroker) -> None:
    topic = topic_of(synced)
    publish(synced, topic, b"first")
    synced.advance(SYNCED_FLUSH_S)
    synced.settle()
    publish(synced, topic, b"second", b"third")
    path = Path(log_of(topic).segments[-1].path)
    synced_bytes = path.stat().st_size
    synced.advance(SYNCED_FLUSH_S)  # flushed, and no fsync yet
    assert path.stat().st_size > synced_bytes
    os.truncate(path, synced_bytes + HEADER_BYTES)
    synced.load()
    assert bodies_of(synced) == [b"first", b"second", b"third"]


@pytest.mark.parametrize("lost", range(1, 4))
@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
def test_a_loss_of_power_may_take_what_is_before_what_it_spares(
    tmp_path: Path, lost: int, segment_bytes: int
) -> None:
    """Of batches that were flushed and not synced, any may be lost, and later ones not."""
    synced = FakeBroker(tmp_path, Options(sync_every=1, max_bytes_per_file=segment_bytes))
    topic = topic_of(synced)
    publish(synced, topic, b"first")
    synced.advance(SYNCED_FLUSH_S)
    synced.settle()
    places = [(log_of(topic).segments[-1].path, log_of(topic).segments[-1].size_bytes)]
    for body in (b"second", b"third", b"fourth"):
        publish(synced, topic, body)
        log_of(topic).flush()
        places.append((log_of(topic).segments[-1].path, log_of(topic).segments[-1].size_bytes))
    path, end = places[lost]
    begin = places[lost - 1][1] if places[lost - 1][0] == path else 0
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:begin] + bytes(end - begin) + data[end:])
    for _ in range(2):
        synced.load()
        assert bodies_of(synced) == [b"first", b"second", b"third", b"fourth"]


@pytest.mark.parametrize("lost", range(1, 4))
@pytest.mark.parametrize("segment_bytes", [1, 200, 1 << 20])
def test_an_fsync_that_fails_after_such_a_loss_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int, segment_bytes: int
) -> None:
    """What came from the write-ahead log is written again, in the place of all that it replaced."""
    synced = FakeBroker(tmp_path, Options(sync_every=1, max_bytes_per_file=segment_bytes))
    topic = topic_of(synced)
    publish(synced, topic, b"first")
    synced.advance(SYNCED_FLUSH_S)
    synced.settle()
    places = [(log_of(topic).segments[-1].path, log_of(topic).segments[-1].size_bytes)]
    expected = [b"first"]
    for number in range(8):
        expected.append(b"%d" % number * 20)
        publish(synced, topic, expected[-1])
        log_of(topic).flush()
        places.append((log_of(topic).segments[-1].path, log_of(topic).segments[-1].size_bytes))
    path, end = places[lost]
    begin = places[lost - 1][1] if places[lost - 1][0] == path else 0
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:begin] + bytes(end - begin) + data[end:])
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", raising(errno.EIO))
        synced.load()
        synced.advance(SYNCED_FLUSH_S)
        synced.settle()
    for _ in range(3):
        synced.advance(SYNCED_FLUSH_S)
        synced.settle()
    assert wal_files(tmp_path) == []
    assert bodies_of(synced) == expected
    synced.load()
    assert bodies_of(synced) == expected


# -- the files ------------------------------------------------------------------------------------


def test_small_messages_of_a_tick_are_one_record(broker: FakeBroker, tmp_path: Path) -> None:
    topics = [topic_of(broker, f"t{number}") for number in range(4)]
    for topic in topics:
        publish(broker, topic, b"first")
    before = len(records_in(tmp_path))
    succeed(broker, *[broker.pub(topic, b"x") for topic in topics for _ in range(3)])
    [record] = records_in(tmp_path)[before:]
    assert (record.first, record.count) == (MIXED, 12)


def test_an_append_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = WriteAheadLog(str(tmp_path), FilePool(4))
    wal.append(batch_of(0, [b"a"]).parts())
    writev = os.writev

    def tear(fd: int, parts: list[bytes]) -> int:
        writev(fd, [b"".join(parts)[:10]])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "writev", tear)
        with pytest.raises(OSError):
            wal.append(batch_of(1, [b"refused"]).parts())
    assert not wal.is_torn
    wal.append(batch_of(1, [b"b"]).parts())
    [file] = wal_files(tmp_path)
    assert file.read_bytes() == bytes_of(batch_of(0, [b"a"])) + bytes_of(batch_of(1, [b"b"]))
    assert wal.size_bytes == file.stat().st_size


def test_what_is_not_synced_is_taken_back_and_nothing_else(tmp_path: Path) -> None:
    wal = WriteAheadLog(str(tmp_path), FilePool(4))
    synced, covered, later = (bytes_of(batch_of(offset, [b"x"])) for offset in range(3))
    wal.append([synced])
    assert set(wal.take_dirty()) == {str(wal_files(tmp_path)[0]), str(tmp_path)}
    wal.synced()
    assert wal.take_dirty() == []
    wal.append([covered])
    assert wal.take_dirty() == [str(wal_files(tmp_path)[0])]
    wal.turn()
    wal.append([later])
    wal.cut_back()
    assert b"".join(file.read_bytes() for file in wal_files(tmp_path)) == synced
