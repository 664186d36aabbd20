"""A write-ahead log with damaged files: damage costs the records that it hit, and is kept."""

import errno
import os
from pathlib import Path

import pytest

from pumpline.core.messages.batches import HEADER_BYTES, LogBatch
from pumpline.log.flusher import SYNCED_FLUSH_S
from pumpline.log.wal import MIXED
from pumpline.nsqd.options import Options
from tests.kit.fake_broker import FakeBroker
from tests.kit.wal import bodies_of, publish, raising, records_in, topic_of, wal_files


@pytest.fixture(params=[2500, 1], ids=["written", "synced"])
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> FakeBroker:
    """Publishes are acknowledged when they are written, or when they are synced."""
    return FakeBroker(tmp_path, Options(sync_every=request.param))


@pytest.mark.parametrize("tail", [b"\0\0", b"\0\0\1\0 cut short", bytes(100), b"\xff" * 100])
def test_what_follows_on_the_last_record_costs_nothing(
    broker: FakeBroker, tmp_path: Path, tail: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_of(broker)
    publish(broker, topic, b"first", b"second")
    [file] = wal_files(tmp_path)
    with file.open("ab") as opened:
        opened.write(tail)
    broker.load()
    assert bodies_of(broker) == [b"first", b"second"]
    assert "WAL: " in caplog.text
    is_damage = len(tail) == 100  # not just a record that ends early
    assert [path.read_bytes() for path in tmp_path.glob("*.bad")] == [tail] * is_damage
    publish(broker, broker.topics["t"], b"third")
    broker.load()
    assert bodies_of(broker) == [b"first", b"second", b"third"]


def test_a_torn_record_costs_itself_alone(broker: FakeBroker, tmp_path: Path) -> None:
    topic = topic_of(broker)
    publish(broker, topic, b"first", b"second", b"third")
    [file] = wal_files(tmp_path)
    os.truncate(file, file.stat().st_size - 1)
    broker.load()
    assert bodies_of(broker) == [b"first", b"second"]
    assert list(tmp_path.glob("*.bad")) == []


PLACES = {"length": 1, "crc": 5, "first": 10, "count": 35, "flags": 39, "ends": 43, "body": 75}


@pytest.mark.parametrize("hit", [0, 1, 55, 109])
@pytest.mark.parametrize("place", PLACES)
def test_a_flipped_byte_costs_its_record_and_is_kept(
    broker: FakeBroker, tmp_path: Path, place: str, hit: int, caplog: pytest.LogCaptureFixture
) -> None:
    topics = [topic_of(broker, name) for name in ("a", "b", "c")]
    expected: dict[str, list[bytes]] = {topic.name: [] for topic in topics}
    for number in range(110):
        topic = topics[number % 3]
        body = b"body %d" % number
        publish(broker, topic, body)
        if number != hit:
            expected[topic.name].append(body)
    [file] = wal_files(tmp_path)
    starts = [0]
    for record in records_in(tmp_path):
        starts.append(starts[-1] + record.size_bytes)
    data = bytearray(file.read_bytes())
    data[starts[hit] + PLACES[place]] ^= 0x10
    file.write_bytes(data)
    for _ in range(2):
        broker.load()
        assert {name: bodies_of(broker, name) for name in expected} == expected
    if place == "length" and hit == 109:
        assert "torn tail" in caplog.text  # nothing tells it from a write that was cut short
    else:
        [bad] = tmp_path.glob("*.bad")
        assert bad.read_bytes() == data[starts[hit] : starts[hit + 1]]
        size_bytes = starts[hit + 1] - starts[hit]
        assert f"{size_bytes} bytes at {starts[hit]} damaged" in caplog.text
    for topic in broker.topics.values():
        publish(broker, topic, b"new")
        expected[topic.name].append(b"new")
    broker.load()
    assert {name: bodies_of(broker, name) for name in expected} == expected


def test_damage_on_a_full_disk_costs_its_record(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The damaged file stays, and what follows on the damage is delivered from memory."""
    publish(broker, topic_of(broker), b"first", b"second", b"third")
    [file] = wal_files(tmp_path)
    records = records_in(tmp_path)
    data = bytearray(file.read_bytes())
    data[records[0].size_bytes + HEADER_BYTES + 10] ^= 1
    file.write_bytes(data)
    with monkeypatch.context() as full:
        full.setattr(os, "writev", raising(errno.ENOSPC))
        for _ in range(2):
            broker.load()
            assert bodies_of(broker) == [b"first", b"third"]
    for _ in range(2):
        broker.load()
        assert bodies_of(broker) == [b"first", b"third"]


def test_a_message_that_looks_like_records_adds_none(broker: FakeBroker, tmp_path: Path) -> None:
    """The body of a damaged record may be anything."""
    looks_whole = LogBatch(
        first=MIXED,
        count=1,
        timestamp_ns=0,
        ends=memoryview((40).to_bytes(4)),
        frames=memoryview(bytes(40)),
    )
    body = b"".join(bytes(part) for part in looks_whole.parts())
    publish(broker, topic_of(broker), b"first", body, b"third")
    [file] = wal_files(tmp_path)
    records = records_in(tmp_path)
    data = bytearray(file.read_bytes())
    data[records[0].size_bytes + 5] ^= 1
    file.write_bytes(data)
    broker.load()
    assert bodies_of(broker) == [b"first", b"third"]


def test_a_damaged_file_stays_if_there_is_no_room_for_a_copy(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(broker, topic_of(broker), b"first")
    [file] = wal_files(tmp_path)
    with file.open("ab") as opened:
        opened.write(b"\xff" * 100)
    data = file.read_bytes()
    with monkeypatch.context() as full:
        full.setattr("pumpline.log.recovery.write_whole", raising(errno.ENOSPC))
        broker.load()
    assert bodies_of(broker) == [b"first"]
    publish(broker, broker.topics["t"], b"second")
    broker.advance(SYNCED_FLUSH_S)
    broker.settle()
    assert file.read_bytes() == data
    for _ in range(2):
        broker.load()
        assert bodies_of(broker) == [b"first", b"second"]
