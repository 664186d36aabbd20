"""Disk queues of Go nsqd are read in order, from the read position to the real end, whatever the
state the files are in; what cannot be read is named."""

import errno
import os
from pathlib import Path

import pytest

from pumpline.log import go_diskqueue
from pumpline.log.go_diskqueue import DiskQueue, find_queues, fingerprints, set_aside
from tests.kit.go_diskqueues import (
    Stored,
    data_path,
    meta_path,
    record,
    records,
    write_meta,
    write_queue,
)

ONE, TWO, THREE, FOUR = (Stored(body) for body in (b"one", b"two", b"three", b"four"))
GARBAGE = b"\xff" * 100


def only(directory: Path) -> DiskQueue:
    (queue,) = find_queues(str(directory))
    return queue


def bodies(queue: DiskQueue) -> list[bytes]:
    return [found.body for found in queue.records()]


def test_messages_keep_order_attempts_and_timestamps(tmp_path: Path) -> None:
    stored = [Stored(b"a", 0, 5), Stored(b"", 3, 1), Stored(b"b" * 1000, 65535, (1 << 63) - 1)]
    write_queue(tmp_path, "q", stored[:2], stored[2:])
    found = [Stored(r.body, r.attempts, r.timestamp_ns) for r in only(tmp_path).records()]
    assert found == stored


def test_a_whole_queue_gives_no_cause_for_notes(tmp_path: Path) -> None:
    write_queue(tmp_path, "q", [ONE], [TWO])
    queue = only(tmp_path)
    assert bodies(queue) == [b"one", b"two"]
    assert (queue.notes, queue.faults) == ([], {})
    assert queue.positions is not None
    assert queue.positions.depth == 2


def test_records_can_be_read_twice(tmp_path: Path) -> None:
    write_queue(tmp_path, "q", [ONE, TWO])
    queue = only(tmp_path)
    assert bodies(queue) == bodies(queue) == [b"one", b"two"]


def test_reading_begins_at_the_read_position(tmp_path: Path) -> None:
    write_queue(tmp_path, "q", [ONE, TWO], [THREE], first=7)
    end = len(record(THREE))
    write_meta(tmp_path, "q", depth=2, read=(7, len(record(ONE))), write=(8, end))
    queue = only(tmp_path)
    assert bodies(queue) == [b"two", b"three"]
    assert queue.size_bytes == len(record(TWO)) + end


def test_a_drained_queue_is_empty(tmp_path: Path) -> None:
    write_queue(tmp_path, "q", [ONE])
    end = len(record(ONE))
    write_meta(tmp_path, "q", depth=0, read=(0, end), write=(0, end))
    queue = only(tmp_path)
    assert (bodies(queue), queue.size_bytes, queue.notes) == ([], 0, [])


def test_metadata_alone_is_an_empty_queue(tmp_path: Path) -> None:
    write_meta(tmp_path, "q", depth=0, read=(4, 0), write=(4, 0))
    queue = only(tmp_path)
    assert (bodies(queue), queue.notes) == ([], [])


def test_records_larger_than_a_chunk_and_across_chunks_are_whole(tmp_path: Path) -> None:
    sizes = [
        1,
        go_diskqueue._CHUNK_BYTES - 40,
        50,
        3 * go_diskqueue._CHUNK_BYTES,
        7,
        700_000,
        700_000,
    ]
    stored = [Stored(os.urandom(size)) for size in sizes]
    write_queue(tmp_path, "q", stored)
    assert bodies(only(tmp_path)) == [message.body for message in stored]


def test_what_lies_behind_the_write_position_is_salvaged(tmp_path: Path) -> None:
    write_queue(tmp_path, "q", [ONE, TWO, THREE])
    write_meta(tmp_path, "q", depth=1, read=(0, 0), write=(0, len(record(ONE))))
    queue = only(tmp_path)
    assert bodies(queue) == [b"one", b"two", b"three"]
    (note,) = queue.notes
    assert "reading to its end" in note


def test_files_behind_the_write_file_are_salvaged(tmp_path: Path) -> None:
    write_queue(tmp_path, "q", [ONE], [TWO], [THREE])
    write_meta(tmp_path, "q", depth=1, read=(0, 0), write=(0, len(record(ONE))))
    queue = only(tmp_path)
    assert bodies(queue) == [b"one", b"two", b"three"]
    assert queue.notes == ["files behind the write position read as well: 1-2 (2 of them)"]


def test_files_before_the_read_position_are_left_out_but_belong_to_the_queue(
    tmp_path: Path,
) -> None:
    write_queue(tmp_path, "q", [ONE], [TWO])
    write_meta(tmp_path, "q", depth=1, read=(1, 0), write=(1, len(record(TWO))))
    queue = only(tmp_path)
    assert bodies(queue) == [b"two"]
    assert queue.notes == ["files before the read position left out: 0"]
    assert str(data_path(tmp_path, "q", 0)) in queue.paths


def test_missing_files_are_stepped_over_and_named(tmp_path: Path) -> None:
    write_queue(tmp_path, "q", [ONE], [TWO], [THREE])
    data_path(tmp_path, "q", 0).unlink()
    data_path(tmp_path, "q", 1).unlink()
    queue = only(tmp_path)
    assert bodies(queue) == [b"three"]
    assert queue.notes == ["files missing: 0-1 (2 of them)"]


def test_a_write_file_that_is_missing_is_named(tmp_path: Path) -> None:
    write_queue(tmp_path, "q", [ONE], [TWO])
    data_path(tmp_path, "q", 1).unlink()
    queue = only(tmp_path)
    assert bodies(queue) == [b"one"]
    assert queue.notes == ["files missing: 1"]


def test_a_write_file_that_is_too_short_is_named(tmp_path: Path) -> None:
    write_queue(tmp_path, "q", [ONE])
    write_meta(tmp_path, "q", depth=2, read=(0, 0), write=(0, 1000))
    queue = only(tmp_path)
    assert bodies(queue) == [b"one"]
    (note,) = queue.notes
    assert f"only {len(record(ONE))}" in note


@pytest.mark.parametrize("text", [None, "", "5\n0,0\n", "five\n0,0\n0,0\n", "1\n0,-1\n0,0\n"])
def test_without_usable_metadata_all_files_are_read(tmp_path: Path, text: str | None) -> None:
    write_queue(tmp_path, "q", [ONE], [TWO, THREE], first=3)
    if text is None:
        meta_path(tmp_path, "q").unlink()
    else:
        meta_path(tmp_path, "q").write_text(text)
    queue = only(tmp_path)
    assert bodies(queue) == [b"one", b"two", b"three"]
    assert queue.notes == ["no usable metadata: reading all files, from number 3 on"]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (record(TWO)[:-1], "cut short"),
        (record(TWO)[:3], "cut short"),
        (bytes(4096), "impossible length 0"),
        (GARBAGE, "impossible length -1"),
        (b"\0\0\0\x19" + bytes(26), "impossible length 25"),
        (record(TWO, b"not-a-message-id"), "no message id where one should be"),
        (b"\x7f" + record(TWO)[1:], "impossible length"),
    ],
    ids=["torn body", "torn length", "zeros", "ones", "too short", "no id", "too long"],
)
def test_a_bad_record_ends_its_file_and_no_other(tmp_path: Path, bad: bytes, reason: str) -> None:
    write_queue(tmp_path, "q", [ONE], [THREE, FOUR])
    path = data_path(tmp_path, "q", 0)
    path.write_bytes(record(ONE) + bad)
    queue = only(tmp_path)
    assert bodies(queue) == [b"one", b"three", b"four"]
    (fault,) = queue.faults.values()
    assert (fault.path, fault.position, fault.size_bytes) == (
        str(path),
        len(record(ONE)),
        len(bad),
    )
    assert reason in fault.reason
    assert path.name in str(fault)


def test_a_read_position_beyond_the_file_reads_on_in_the_next(tmp_path: Path) -> None:
    write_queue(tmp_path, "q", [ONE], [TWO])
    write_meta(tmp_path, "q", depth=1, read=(0, 9999), write=(1, len(record(TWO))))
    assert bodies(only(tmp_path)) == [b"two"]


def test_a_disk_error_is_a_fault_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = Stored(bytes(3 << 20))
    write_queue(tmp_path, "q", [ONE, big], [TWO])
    pread = os.pread

    def failing(fd: int, size: int, position: int) -> bytes:
        if position >= 1 << 20:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, min(size, 1 << 20), position)

    monkeypatch.setattr(os, "pread", failing)
    queue = only(tmp_path)
    assert bodies(queue) == [b"one", b"two"]
    (fault,) = queue.faults.values()
    assert (fault.position, fault.reason) == (len(record(ONE)), "the disk cannot read it")


def test_an_error_that_may_pass_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_queue(tmp_path, "q", [ONE])
    queue = only(tmp_path)

    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        bodies(queue)
    assert queue.faults == {}


def test_names_are_what_precedes_the_last_suffix(tmp_path: Path) -> None:
    names = ["a", "a.diskqueue.b", "x.diskqueue.000000.dat", "t:c", "t:c.d", "t;c", "..", "..:."]
    for name in names:
        write_queue(tmp_path, name, [Stored(name.encode())])
    found = {queue.name: bodies(queue) for queue in find_queues(str(tmp_path))}
    assert found == {name: [name.encode()] for name in names}


def test_numbers_beyond_six_digits_are_in_numerical_order(tmp_path: Path) -> None:
    write_queue(tmp_path, "q", [ONE], [TWO], first=999_999)
    assert bodies(only(tmp_path)) == [b"one", b"two"]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    for name in (
        "nsqd.dat",
        "q.diskqueue.000000.dat.bad",
        "q.diskqueue.00000.dat",
        ".diskqueue.000000.dat",
        "q.diskqueue.meta.dat.123.tmp",
    ):
        (tmp_path / name).write_bytes(records([ONE]))
    assert find_queues(str(tmp_path)) == []


def test_metadata_is_the_last_to_be_moved(tmp_path: Path) -> None:
    write_queue(tmp_path, "q", [ONE], [TWO])
    leftover = tmp_path / "q.diskqueue.meta.dat.99.tmp"
    leftover.touch()
    expected = [data_path(tmp_path, "q", 0), data_path(tmp_path, "q", 1), leftover]
    assert only(tmp_path).paths == [str(p) for p in (*expected, meta_path(tmp_path, "q"))]


def test_set_aside_moves_files_as_they_are(tmp_path: Path) -> None:
    write_queue(tmp_path, "q", [ONE])
    aside = tmp_path / "aside"
    aside.mkdir()
    paths = only(tmp_path).paths
    before = fingerprints(paths)
    set_aside(paths, str(aside))
    assert find_queues(str(tmp_path)) == []
    assert fingerprints(paths) == {}
    assert fingerprints(only(aside).paths) == before
    assert bodies(only(aside)) == [b"one"]
