"""Damage to a segment costs what is damaged, and no more; it is reported, and a copy is kept."""

import errno
import os
from pathlib import Path

import pytest

from pumpline.core.messages.batches import LogBatch
from pumpline.log import recovery
from pumpline.log.log import Log
from tests.kit.logs import BASE_ID, Disk, batch_of, body_at, bytes_of

FIRST = "00000000000000000000.log"
BATCHES = [
    batch_of(0, [b"zero", b"one"]),
    batch_of(2, [b"two"], tokens=[b"1" * 16]),
    batch_of(3, [b"three", b"four", b"", b"six"], due_ns=77),
    batch_of(7, [b"seven", b"eight"], tokens=[b"2" * 16, bytes(16)]),
    batch_of(9, [b"nine"]),
]
STARTS = [sum(batch.size_bytes for batch in BATCHES[:i]) for i in range(len(BATCHES) + 1)]
BODIES = {o: body_at(batch, o) for batch in BATCHES for o in range(batch.first, batch.end)}


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def without(batch: LogBatch) -> dict[int, bytes]:
    return {o: body for o, body in BODIES.items() if not batch.first <= o < batch.end}


def flip(path: Path, at: int) -> None:
    """Flip one bit; which one depends on the place."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << (at % 8)
    path.write_bytes(data)


def tidy(disk: Disk) -> None:
    disk.files.close()
    for name in os.listdir(disk.path):
        (disk.path / name).unlink()


# -- torn tails -----------------------------------------------------------------------------------


def test_a_sound_segment_is_left_as_it_is(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    path = disk.write(FIRST, *BATCHES)
    before = path.read_bytes()
    log = disk.open()
    assert log.end == 10
    assert disk.read(log) == BODIES
    assert path.read_bytes() == before
    assert caplog.text == ""


def test_a_tail_torn_at_any_byte_is_cut_off_and_reported(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    last = BATCHES[-1]
    for kept_bytes in range(1, last.size_bytes):
        caplog.clear()
        path = disk.write(FIRST, *BATCHES)
        os.truncate(path, STARTS[-2] + kept_bytes)
        log = disk.open()
        assert log.end == last.first
        assert path.stat().st_size == STARTS[-2]
        assert disk.read(log) == without(last)
        assert f"torn tail of {kept_bytes} bytes at {STARTS[-2]} cut off" in caplog.text
        log.append([batch_of(9, [b"again"])])
        log.trim(log.end, messages_max=0, bytes_max=0)
        assert disk.read(log) == {**without(last), 9: b"again"}
        assert disk.names(".bad") == []
        log.close()


def test_a_segment_that_is_all_torn_is_empty_afterwards(disk: Disk) -> None:
    path = disk.write(FIRST, BATCHES[0])
    os.truncate(path, 50)
    log = disk.open()
    assert (log.end, path.stat().st_size, disk.read(log)) == (0, 0, {})


def test_a_tail_of_zeros_is_cut_off_without_a_look_at_every_byte(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a file system may leave after a power failure: the size was written, the data not."""
    path = disk.write(FIRST, *BATCHES)
    with path.open("ab") as file:
        file.write(bytes(1 << 20))
    reads = []
    pread = os.pread

    def counted(fd: int, size: int, at: int) -> bytes:
        reads.append(at)
        return pread(fd, size, at)

    monkeypatch.setattr(os, "pread", counted)
    log = disk.open()
    assert len(reads) < 10
    assert log.end == 10
    assert path.stat().st_size == STARTS[-1]


# -- damage in the middle -------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 2, 3])
def test_a_bit_flipped_in_the_newest_segment_sets_that_batch_aside_and_no_other(
    disk: Disk, caplog: pytest.LogCaptureFixture, index: int
) -> None:
    for at in range(STARTS[index], STARTS[index + 1]):
        caplog.clear()
        path = disk.write(FIRST, *BATCHES)
        flip(path, at)
        damaged = path.read_bytes()
        log = disk.open()
        assert log.end == 10
        assert path.read_bytes() == damaged
        assert disk.read(log) == without(BATCHES[index])
        bad = f"{FIRST}.{STARTS[index]}.bad"
        assert disk.names(".bad") == [bad]
        assert (disk.path / bad).read_bytes() == damaged[STARTS[index] : STARTS[index + 1]]
        assert f"kept in {bad}" in caplog.text
        log.close()
        tidy(disk)


@pytest.mark.parametrize("index", range(5))
def test_a_bit_flipped_in_an_older_segment_is_met_by_whoever_reads_it(
    disk: Disk, caplog: pytest.LogCaptureFixture, index: int
) -> None:
    """Wherever a reader begins, it gets all that is sound, and the damage is kept as it was."""
    expected = without(BATCHES[index]) | {10: b"ten"}
    for at in range(STARTS[index], STARTS[index + 1]):
        path = disk.write(FIRST, *BATCHES)
        disk.write("00000000000000000010.log", batch_of(10, [b"ten"]))
        flip(path, at)
        damaged = path.read_bytes()
        log = disk.open()
        for start in (at % 10, 0, (at + 5) % 10):
            assert disk.read(log, start) == {o: b for o, b in expected.items() if o >= start}
        bad = f"{FIRST}.{STARTS[index]}.bad"
        assert disk.names(".bad") == [bad]
        assert (disk.path / bad).read_bytes() == damaged[STARTS[index] : STARTS[index + 1]]
        assert f"kept in {bad}" in caplog.text
        assert path.read_bytes() == damaged
        log.close()
        tidy(disk)


def test_a_reader_that_begins_behind_the_damage_still_finds_its_batch(disk: Disk) -> None:
    """A damaged count made the search for 9 end early, and resume behind 9."""
    path = disk.write(FIRST, *BATCHES)
    disk.write("00000000000000000010.log", batch_of(10, [b"ten"]))
    flip(path, STARTS[1] + 35)  # the lowest byte of a count
    log = disk.open()
    batch = disk.find(log.reader(lambda: None), 8)
    assert batch is not None
    assert batch.first == 7


def test_a_damaged_length_does_not_lead_the_search_out_of_the_file(disk: Disk) -> None:
    path = disk.write(FIRST, *BATCHES)
    disk.write("00000000000000000010.log", batch_of(10, [b"ten"]))
    data = bytearray(path.read_bytes())
    data[STARTS[1] : STARTS[1] + 4] = b"\0\1\0\0"
    path.write_bytes(data)
    log = disk.open()
    assert list(disk.read(log, 8)) == [8, 9, 10]
    assert list(disk.read(log)) == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10]


def test_damage_is_survived_where_offsets_pass_a_multiple_of_two_to_the_32(disk: Disk) -> None:
    at = (1 << 32) - 2
    batches = [batch_of(at + i, [b"%d" % i]) for i in range(4)]
    name = f"{at:020d}.log"
    for index in (0, 1, 2):
        path = disk.write(name, *batches)
        flip(path, index * batches[0].size_bytes + 4)
        log = disk.open()
        assert log.end == at + 4
        kept = [i for i in range(4) if i != index]
        assert disk.read(log, at) == {at + i: b"%d" % i for i in kept}
        log.close()
        tidy(disk)


def test_tokens_are_found_but_for_those_in_damage(disk: Disk) -> None:
    disk.write(FIRST, *BATCHES)
    log = disk.open()
    expected = [(3, b"1" * 16), (9, b"2" * 16), (9, bytes(16))]
    assert (log.recovered.take_tokens(None), log.recovered.take_tokens(None)) == (expected, [])
    log.close()
    flip(disk.path / FIRST, STARTS[1] + 50)
    assert disk.open().recovered.take_tokens(None) == expected[1:]


def test_tokens_of_older_segments_are_read_when_asked_for(disk: Disk) -> None:
    disk.write(FIRST, *BATCHES)
    disk.write("00000000000000000010.log", batch_of(10, [b"ten"], tokens=[b"3" * 16]))
    for since, expected in ((0, 4), (2, 4), (3, 3), (9, 1), (10, 1), (11, 0)):
        log = disk.open()
        assert len(log.recovered.take_tokens(since)) == expected
        assert disk.read(log) == BODIES | {10: b"ten"}
        log.close()
    log = disk.open()
    assert log.recovered.take_tokens(None) == [(11, b"3" * 16)]
    clean = log.mark()
    log.close()
    log = disk.open(clean)
    assert log.recovered.take_tokens(None) == []
    log.close()
    assert disk.open(clean).recovered.take_tokens(10) == [(11, b"3" * 16)]


def test_several_damaged_batches_are_each_kept(disk: Disk) -> None:
    path = disk.write(FIRST, *BATCHES)
    flip(path, STARTS[0] + 50)
    flip(path, STARTS[2] + 9)
    log = disk.open()
    assert list(disk.read(log)) == [2, 7, 8, 9]
    assert disk.names(".bad") == sorted(f"{FIRST}.{at}.bad" for at in (STARTS[0], STARTS[2]))


def test_bodies_that_are_batches_themselves_do_not_confuse(disk: Disk) -> None:
    """A batch of an older part of some log, published as a message, is never taken for ours."""
    inner = bytes_of(batch_of(3, [b"inner"]))
    batches = [batch_of(5, [inner, inner]), batch_of(7, [inner]), batch_of(8, [b"last"])]
    path = disk.write("00000000000000000005.log", *batches)
    flip(path, 6)
    log = disk.open()
    assert disk.read(log) == {7: inner, 8: b"last"}


# -- damage at the very end -----------------------------------------------------------------------


def test_a_bit_flipped_in_the_last_batch_is_cut_off_with_a_copy_kept(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    """It may have been acknowledged, so the bytes are not thrown away."""
    last = BATCHES[-1]
    for at in range(STARTS[-2] + 4, STARTS[-1]):
        caplog.clear()
        path = disk.write(FIRST, *BATCHES)
        flip(path, at)
        damaged = path.read_bytes()[STARTS[-2] :]
        log = disk.open()
        assert log.end == 9
        assert disk.read(log) == without(last)
        assert path.stat().st_size == STARTS[-2]
        bad = f"{FIRST}.{STARTS[-2]}.bad"
        assert disk.names(".bad") == [bad]
        assert (disk.path / bad).read_bytes() == damaged
        assert bad in caplog.text
        log.append([batch_of(9, [b"again"])])
        log.trim(log.end, messages_max=0, bytes_max=0)
        assert disk.read(log) == {**without(last), 9: b"again"}
        log.close()
        tidy(disk)


def test_a_damaged_length_of_the_last_batch_is_a_tail_like_any_other(disk: Disk) -> None:
    for at in range(STARTS[-2], STARTS[-2] + 4):
        path = disk.write(FIRST, *BATCHES)
        flip(path, at)
        log = disk.open()
        assert log.end == 9
        assert disk.read(log) == without(BATCHES[-1])
        log.close()
        tidy(disk)


# -- errors of the system -------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["open", "pread"])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO])
def test_an_error_of_the_system_is_raised_and_changes_nothing(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    path = disk.write(FIRST, *BATCHES)
    os.truncate(path, STARTS[-1] - 1)
    before = path.read_bytes()

    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fail)
        with pytest.raises(OSError) as caught:
            disk.open()
    assert caught.value.errno == code
    assert path.read_bytes() == before
    assert os.listdir(disk.path) == [FIRST]
    assert disk.read(disk.open()) == without(BATCHES[-1])


def test_an_error_in_the_middle_of_a_long_segment_changes_nothing(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_CHUNK_BYTES", 100)
    path = disk.write(FIRST, *BATCHES)
    before = path.read_bytes()
    pread = os.pread

    def fail_later(fd: int, size: int, at: int) -> bytes:
        if at >= STARTS[2]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, size, at)

    with monkeypatch.context() as broken:
        broken.setattr(os, "pread", fail_later)
        with pytest.raises(OSError):
            disk.open()
    assert path.read_bytes() == before
    assert disk.read(disk.open()) == BODIES


@pytest.mark.parametrize("chunk_bytes", [64, 100, 1000])
def test_recovery_does_not_depend_on_where_its_chunks_end(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(recovery, "_CHUNK_BYTES", chunk_bytes)
    for index in range(4):
        path = disk.write(FIRST, *BATCHES)
        flip(path, STARTS[index] + 20)
        log = disk.open()
        assert log.end == 10
        assert disk.read(log) == without(BATCHES[index])
        log.close()
        tidy(disk)


def test_a_copy_that_cannot_be_kept_stops_the_reader_but_loses_nothing(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = disk.write(FIRST, *BATCHES)
    disk.write("00000000000000000010.log", batch_of(10, [b"ten"]))
    flip(path, STARTS[2] + 20)
    log: Log = disk.open()
    reader = log.reader(lambda: None)
    assert disk.find(reader, 0) is not None

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", full)
        assert disk.find(reader, 3) is None
    assert "No space left" in caplog.text
    disk.timers.fire()
    batch = disk.find(reader, 3)
    assert batch is not None
    assert batch.first == 7
    assert disk.names(".bad") == [f"{FIRST}.{STARTS[2]}.bad"]


@pytest.mark.parametrize("index", range(len(BATCHES)))
def test_a_start_without_room_for_a_copy_goes_on_and_the_next_one_keeps_it(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, index: int
) -> None:
    path = disk.write(FIRST, *BATCHES)
    flip(path, STARTS[index] + 20)
    before = path.read_bytes()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", full)
        log = disk.open()
    assert f"at {STARTS[index]} damaged, kept in {FIRST}" in caplog.text
    assert disk.read(log) == without(BATCHES[index])
    assert (path.read_bytes(), disk.names(".bad")) == (before, [])
    log.append([batch_of(log.end, [b"new"])])
    assert disk.read(log) == {**without(BATCHES[index]), log.end - 1: b"new"}
    assert path.read_bytes().startswith(before)
    expected = disk.read(log)
    log.close()
    again = disk.open()
    assert disk.read(again) == expected
    assert disk.names(".bad") == [f"{FIRST}.{STARTS[index]}.bad"]


def test_ids_are_the_base_and_the_offset(disk: Disk) -> None:
    disk.write(FIRST, *BATCHES)
    log = disk.open()
    batch = disk.find(log.reader(lambda: None), 4)
    assert batch is not None
    assert bytes(batch.cut(4, 5))[18:34] == b"%016x" % (BASE_ID + 4)
