"""Cursor files are appended to until a new snapshot is shorter to read."""

import os
from pathlib import Path
from struct import pack

import pytest

from pumpline.core.messages.deferred import Pending, Pendings
from pumpline.core.messages.delivery import DeliveryDelta
from pumpline.log import cursor
from pumpline.log.cursor import Clocks, CursorFile


def test_a_record_has_the_documented_bytes() -> None:
    delta = DeliveryDelta(3, 9, [(5, 6)], Pendings.of([Pending(7, 2, 100), Pending(8, 3, 0)]))
    record = cursor.encode(delta, Clocks(50, 1000))
    body = pack(">QQIIqq QQ qQQ qQQ", 3, 9, 1, 2, 1050, 50, 5, 6, 100, 7, 2, 0, 8, 3)
    assert record[:4] == pack(">I", 4 + len(body))
    assert record[8:] == body
    assert cursor.encoded_bytes(delta) == len(record)


def test_attempts_wrap_as_they_do_on_the_wire() -> None:
    delta = DeliveryDelta(0, 1, [], Pendings.of([Pending(0, 65_537, 0)]))
    [found], _ = cursor.decode(cursor.encode(delta, Clocks(0, 0)), Clocks(0, 0))
    assert list(found.pending) == [Pending(0, 1, 0)]


def test_a_record_too_short_to_be_one_is_no_record() -> None:
    """Its checksum, that of nothing, is right."""
    data = pack(">II", 4, 0) + bytes(40)
    assert cursor.decode(data, Clocks(0, 0)) == ([], 0)


def test_a_record_whose_counts_do_not_fit_is_no_record() -> None:
    good = cursor.encode(DeliveryDelta(1, 2, [(3, 4)], Pendings.of([])), Clocks(0, 0))
    payload = bytearray(good[8:])
    payload[16:20] = pack(">I", 9)
    bad = pack(">II", 4 + len(payload), cursor.crc32(payload)) + payload
    assert cursor.decode(good + bad, Clocks(0, 0)) == (
        [DeliveryDelta(1, 2, [(3, 4)], Pendings.of([]))],
        len(good),
    )


def test_a_new_file_begins_with_a_snapshot() -> None:
    assert CursorFile("x").wants_snapshot


def test_changes_are_appended_until_they_outgrow_the_snapshot() -> None:
    file = CursorFile("x")
    file.note_snapshot(100)
    file.note_change(64 * 1024)
    assert not file.wants_snapshot
    file.note_change(1)
    assert file.wants_snapshot
    file.note_snapshot(100_000)
    file.note_change(400_000)
    assert not file.wants_snapshot
    file.note_change(1)
    assert file.wants_snapshot


def test_after_a_failure_the_whole_state_is_written() -> None:
    file = CursorFile("x")
    file.note_snapshot(100)
    file.note_failure()
    assert file.wants_snapshot


def test_a_snapshot_replaces_and_a_change_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "a.cursor"
    cursor.write(str(path), b"old", snapshot=True)
    cursor.write(str(path), b"+1", snapshot=False)
    assert path.read_bytes() == b"old+1"
    cursor.write(str(path), b"new", snapshot=True)
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a.cursor"]


def test_a_snapshot_that_cannot_be_written_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.cursor"
    cursor.write(str(path), b"old", snapshot=True)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(OSError):
        cursor.write(str(path), b"new", snapshot=True)
    assert path.read_bytes() == b"old"
