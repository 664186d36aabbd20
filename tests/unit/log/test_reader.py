"""Readers find every message of a log, wherever it is, and survive what goes wrong meanwhile."""

import errno
import itertools
import os
from pathlib import Path

import pytest

from pumpline.log import reader as reader_module
from pumpline.log.log import Log
from tests.kit.logs import Disk, batch_of, bodies_of, body_at

FIRST = "00000000000000000000.log"


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


@pytest.fixture(params=["page cache", "threads only"])
def any_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to read: from the page cache without waiting, and in a thread."""
    if request.param == "threads only":
        monkeypatch.setattr(reader_module, "_NOWAIT", 0)
    return str(request.param)


def filled(disk: Disk, batches: int) -> Log:
    """A log of `batches` batches of two messages, with nothing of it in memory."""
    log = disk.open()
    for index in range(batches):
        log.append([batch_of(2 * index, [b"%05d" % (2 * index), b"%05d" % (2 * index + 1)])])
    log.trim(log.end, messages_max=0, bytes_max=0)
    assert log.tail == []
    return log


@pytest.mark.usefixtures("any_path")
def test_every_message_is_read_back_from_the_file(disk: Disk) -> None:
    log = filled(disk, 50)
    assert disk.read(log) == {offset: b"%05d" % offset for offset in range(100)}


@pytest.mark.usefixtures("any_path")
def test_a_reader_may_start_anywhere(disk: Disk) -> None:
    disk.segment_bytes_max = 400
    log = filled(disk, 20)
    for start in range(40):
        assert list(disk.read(log, start)) == list(range(start, 40))


@pytest.mark.usefixtures("any_path")
def test_a_reader_may_jump_back_and_forth(disk: Disk) -> None:
    disk.segment_bytes_max = 400
    log = filled(disk, 20)
    reader = log.reader(lambda: None)
    for offset in (39, 0, 20, 21, 5, 39, 38, 1):
        batch = disk.find(reader, offset)
        assert batch is not None
        assert body_at(batch, offset) == b"%05d" % offset


def test_nothing_is_beyond_the_end(disk: Disk) -> None:
    log = filled(disk, 3)
    reader = log.reader(lambda: None)
    assert disk.find(reader, 6) is None
    assert disk.threads.run() == 0


@pytest.mark.usefixtures("any_path")
def test_a_batch_larger_than_a_block_is_read_whole(disk: Disk) -> None:
    log = disk.open()
    body = os.urandom(reader_module.BLOCK_BYTES + 1000)
    log.append([batch_of(0, [b"a"]), batch_of(1, [body]), batch_of(2, [b"c"])])
    log.trim(3, messages_max=0, bytes_max=0)
    assert disk.read(log) == {0: b"a", 1: body, 2: b"c"}


def test_large_batches_are_read_from_the_page_cache_each_byte_once(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [500_000, 300_000, 300_000, 700_000, 10, 10, 1_500_000, 200_000]
    sent = dict(enumerate(os.urandom(size) for size in sizes))
    log = disk.open()
    log.append([batch_of(offset, [body]) for offset, body in sent.items()])
    log.trim(len(sizes), messages_max=0, bytes_max=0)
    read: list[tuple[int, int]] = []

    def preadv(fd: int, buffers: list[bytearray], position: int, flags: int) -> int:
        read.append((position, position + len(buffers[0])))
        return os_preadv(fd, buffers, position, flags)

    os_preadv = os.preadv
    monkeypatch.setattr(os, "preadv", preadv)
    assert disk.read(log) == sent
    assert disk.threads.run() == 0
    assert read[0][0] == 0
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(read))
    assert read[-1][1] == log.size_bytes


def test_a_batch_that_would_hold_up_the_loop_is_read_in_a_thread(disk: Disk) -> None:
    log = disk.open()
    log.append([batch_of(0, [bytes(reader_module.BLOCK_BYTES_MAX)]), batch_of(1, [b"b"])])
    log.trim(2, messages_max=0, bytes_max=0)
    reader = log.reader(lambda: None)
    assert reader.batch(0) is None
    assert disk.threads.run() == 1
    assert reader.batch(0) is not None


def test_a_cold_read_calls_back_when_it_came(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "_NOWAIT", 0)
    log = filled(disk, 3)
    calls: list[str] = []
    reader = log.reader(lambda: calls.append("ready"))
    assert reader.batch(0) is None
    assert reader.batch(0) is None
    assert len(disk.threads.waiting) == 1
    disk.threads.run()
    assert calls == ["ready"]
    batch = reader.batch(0)
    assert batch is not None
    assert bodies_of(batch) == [b"00000", b"00001"]


def test_readers_near_each_other_share_a_block(disk: Disk) -> None:
    log = filled(disk, 3)
    one, other = log.reader(lambda: None), log.reader(lambda: None)
    assert disk.find(one, 0) is disk.find(other, 0)


@pytest.mark.usefixtures("any_path")
def test_a_retired_offset_gives_the_next_batch_there_is(disk: Disk) -> None:
    disk.segment_bytes_max = 100
    log = filled(disk, 5)
    assert [segment.first for segment in log.segments] == [0, 2, 4, 6, 8]
    log.retire(2)
    reader = log.reader(lambda: None)
    for offset in (0, 3):
        batch = disk.find(reader, offset)
        assert batch is not None
        assert batch.first == 4


def test_a_segment_retired_while_it_is_loaded_is_stepped_over(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "_NOWAIT", 0)
    disk.segment_bytes_max = 100
    log = filled(disk, 5)
    reader = log.reader(lambda: None)
    assert reader.batch(0) is None
    log.retire(2)
    batch = disk.find(reader, 0)
    assert batch is not None
    assert batch.first == 4


# -- errors of the system -------------------------------------------------------------------------


@pytest.mark.usefixtures("any_path")
@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO])
def test_a_failed_read_is_reported_and_tried_again(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    log = filled(disk, 5)
    disk.files.close()
    calls: list[str] = []
    reader = log.reader(lambda: calls.append("ready"))
    with monkeypatch.context() as broken:
        broken.setattr(os, "open", _failing(code))
        assert reader.batch(4) is None
        disk.threads.run()
    assert "cannot read" in caplog.text
    assert calls == []
    disk.timers.fire()
    assert calls == ["ready"]
    batch = disk.find(reader, 4)
    assert batch is not None
    assert body_at(batch, 4) == b"00004"
    assert disk.names(".bad") == []


def test_a_failed_read_further_back_does_not_hide_messages(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block in memory has 20..39; a read of 10 fails; 10 is still there afterwards."""
    disk.segment_bytes_max = 1000
    log = filled(disk, 20)
    assert len(log.segments) > 1
    newest = log.segments[-1].first
    reader = log.reader(lambda: None)
    assert disk.find(reader, newest) is not None
    disk.files.close()
    with monkeypatch.context() as broken:
        broken.setattr(os, "open", _failing(errno.EIO))
        assert disk.find(reader, 1) is None
    disk.timers.fire()
    batch = disk.find(reader, 1)
    assert batch is not None
    assert batch.first == 0


def test_after_a_failed_read_there_is_a_pause(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reader_module, "_NOWAIT", 0)
    log = filled(disk, 5)
    reader = log.reader(lambda: None)
    with monkeypatch.context() as broken:
        broken.setattr(os, "open", _failing(errno.EIO))
        for _ in range(10):
            assert reader.batch(4) is None
            disk.threads.run()
    assert len(caplog.records) == 1
    assert [delay_s for delay_s, _ in disk.timers.waiting] == [1.0]


def _failing(code: int) -> object:
    def fail(*_: object, **__: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail


# -- gaps -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("any_path")
def test_a_reader_in_a_gap_gets_what_is_appended_after_it(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    log = filled(disk, 5)
    log.skip_to(100)
    reader = log.reader(lambda: None)
    assert disk.find(reader, 10) is None
    log.append([batch_of(100, [b"after"])])
    for _ in range(2):
        batch = disk.find(reader, 10)
        assert batch is not None
        assert batch.first == 100
        log.trim(101, messages_max=0, bytes_max=0)
    assert caplog.text == ""


@pytest.mark.usefixtures("any_path")
def test_a_reader_that_looked_into_a_gap_still_finds_what_is_before_it(disk: Disk) -> None:
    log = filled(disk, 5)
    log.skip_to(100)
    log.append([batch_of(100, [b"after"])])
    log.trim(101, messages_max=0, bytes_max=0)
    reader = log.reader(lambda: None)
    for offset, first in ((3, 2), (0, 0), (99, 100)):
        reader.batch(50)
        disk.threads.run()  # now it knows that nothing follows in the first segment
        batch = disk.find(reader, offset)
        assert batch is not None
        assert batch.first == first


def test_a_reader_that_saw_an_empty_rest_does_not_hide_it_from_others(disk: Disk) -> None:
    """One reader found nothing from position P on; the file grew; another reads on from P."""
    log = filled(disk, 5)
    log.skip_to(100)
    log.append([batch_of(100, [b"a"])])
    keeps_up = log.reader(lambda: None)
    log.trim(101, messages_max=0, bytes_max=0)
    assert disk.find(keeps_up, 100) is not None
    log.skip_to(200)
    in_gap = log.reader(lambda: None)
    assert disk.find(in_gap, 150) is None
    log.append([batch_of(200, [b"b"]), batch_of(201, [b"c"])])
    log.trim(202, messages_max=0, bytes_max=0)
    for reader in (keeps_up, in_gap):
        for offset in (150, 200, 201):
            batch = disk.find(reader, offset)
            assert batch is not None
            assert batch.first == max(offset, 200)


# -- what was taken back --------------------------------------------------------------------------


@pytest.mark.usefixtures("any_path")
def test_what_was_refused_is_not_read(disk: Disk) -> None:
    log = filled(disk, 3)
    log.follow(lambda: None)
    reader, other = log.reader(lambda: None), log.reader(lambda: None)
    log.accept([batch_of(6, [b"refused"])])
    assert disk.find(reader, 0) is not None
    assert disk.find(other, 6) is not None
    log.refuse(6)
    assert disk.find(reader, 6) is None
    assert disk.find(other, 6) is None
    log.append([batch_of(6, [b"taken"])])
    for _ in ("in memory", "on disk"):
        for each in (reader, other):
            batch = disk.find(each, 6)
            assert batch is not None
            assert bodies_of(batch) == [b"taken"]
        log.trim(7, messages_max=0, bytes_max=0)
        assert log.tail == []


@pytest.mark.parametrize("worked", [False, True], ids=["before the job", "after the job"])
def test_what_is_taken_out_of_the_files_during_a_load_is_read_from_memory(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, worked: bool
) -> None:
    """An fsync has failed: it will be written again."""
    monkeypatch.setattr(reader_module, "_NOWAIT", 0)
    log = filled(disk, 3)
    log.follow(lambda: None)
    log.keeps_unsynced = True
    log.note_synced(6)
    mark = log.mark()
    log.append([batch_of(6, [b"again"])])
    log.trim(7, messages_max=0, bytes_max=0)
    reader = log.reader(lambda: None)
    assert reader.batch(4) is None  # what is loaded has the new message, too
    if worked:
        disk.threads.work()
    log.cut_back(mark)
    disk.threads.run()
    for _ in ("in memory", "written again", "on disk alone"):
        for offset, body in ((4, b"00004"), (6, b"again")):
            batch = disk.find(reader, offset)
            assert batch is not None
            assert body_at(batch, offset) == body
        if log.written == log.end:
            log.note_synced(7)
            log.trim(7, messages_max=0, bytes_max=0)
            assert log.tail == []
        log.flush()
    assert disk.names(".bad") == []
    assert log.segments[0].holes == {}


def test_another_log_of_the_same_name_is_not_taken_for_damage(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic is deleted and made again while a load waits for a thread."""
    monkeypatch.setattr(reader_module, "_NOWAIT", 0)
    log = filled(disk, 3)
    log.reader(lambda: None).batch(4)
    log.close()
    os.unlink(log.segments[0].path)
    disk.open().append([batch_of(0, [b"one that is longer"]), batch_of(1, [b"x"] * 9)])
    disk.threads.run()
    assert disk.names(".bad") == []
