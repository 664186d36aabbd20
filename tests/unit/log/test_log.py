"""A log on disk takes batches whole or not at all, and gives them back after any end."""

import errno
import os
from pathlib import Path

import pytest

from pumpline.log.files import sync_paths
from pumpline.log.log import Log
from tests.kit.logs import Disk, batch_of, bytes_of, failing_writev

FIRST = "00000000000000000000.log"


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def forget_tail(log: Log) -> None:
    log.trim(log.end, messages_max=0, bytes_max=0)


def followed(disk: Disk) -> Log:
    """A log whose owner says how much of its tail may go; that of an idle log goes by itself."""
    log = disk.open()
    log.follow(lambda: None)
    return log


def append(log: Log, *bodies: bytes) -> None:
    log.append([batch_of(log.end, list(bodies))])


# -- appending ------------------------------------------------------------------------------------


def test_a_new_log_is_empty_and_makes_no_file(disk: Disk) -> None:
    log = disk.open()
    assert (log.first, log.end, log.size_bytes, log.mark()) == (0, 0, 0, None)
    assert os.listdir(disk.path) == []


def test_a_segment_is_its_batches_one_after_another(disk: Disk) -> None:
    log = disk.open()
    batches = [batch_of(0, [b"a", b"b"]), batch_of(2, [b"c"], due_ns=5)]
    log.append(batches)
    log.append([batch_of(3, [b"d"])])
    written = b"".join(map(bytes_of, [*batches, batch_of(3, [b"d"])]))
    assert (disk.path / FIRST).read_bytes() == written
    assert (log.end, log.size_bytes, log.unsynced) == (4, len(written), 4)


def test_a_full_segment_is_followed_by_a_new_one_named_by_its_first_offset(disk: Disk) -> None:
    disk.segment_bytes_max = 100
    log = disk.open()
    for _ in range(5):
        append(log, b"one", b"two")
    assert disk.names(".log") == [f"{first:020d}.log" for first in (0, 2, 4, 6, 8)]
    forget_tail(log)
    assert list(disk.read(log)) == list(range(10))


def test_more_batches_than_one_writev_takes_are_written_all_the_same(disk: Disk) -> None:
    """1,200 parts in one tick: delayed messages with different delays have a batch each."""
    log = disk.open()
    batches = [batch_of(i, [b"%d" % i], due_ns=i + 1) for i in range(400)]
    log.append(batches)
    assert log.end == 400
    forget_tail(log)
    assert disk.read(log) == {i: b"%d" % i for i in range(400)}


def test_due_times_and_timestamps_survive(disk: Disk) -> None:
    log = disk.open()
    log.append([batch_of(0, [b"a"], due_ns=123_456_789)])
    log.close()
    batch = disk.find(disk.open().reader(lambda: None), 0)
    assert batch is not None
    assert (batch.due_ns(0), batch.timestamp_ns) == (123_456_789, batch_of(0, [b"a"]).timestamp_ns)


# -- writes that fail -----------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_write_that_fails_anywhere_is_undone(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    log = disk.open()
    append(log, b"before")
    before = (disk.path / FIRST).read_bytes()
    batches = [batch_of(1, [b"x"]), batch_of(2, [b"y", b"z"])]
    for written_bytes in range(sum(batch.size_bytes for batch in batches)):
        with monkeypatch.context() as broken:
            broken.setattr(os, "writev", failing_writev(written_bytes, code))
            broken.setattr(os, "write", failing_writev(0, code))
            with pytest.raises(OSError) as caught:
                log.append(batches)
        assert caught.value.errno == code
        assert (disk.path / FIRST).read_bytes() == before
        assert (log.end, log.size_bytes, log.unsynced) == (1, len(before), 1)
    log.append(batches)
    forget_tail(log)
    assert disk.read(log) == {0: b"before", 1: b"x", 2: b"y", 3: b"z"}


def test_a_short_write_goes_on_where_it_stopped(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = disk.open()
    monkeypatch.setattr(os, "writev", failing_writev(7, 0))
    append(log, b"first", b"second")
    assert (disk.path / FIRST).read_bytes() == bytes_of(batch_of(0, [b"first", b"second"]))


@pytest.mark.parametrize("before", [[], [b"kept", b"too"]], ids=["first write", "later write"])
def test_a_failed_write_that_cannot_be_undone_is_cut_off_before_the_next(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, before: list[bytes]
) -> None:
    """The torn bytes hold a whole batch that was refused: it must not be read instead."""
    log = disk.open()
    if before:
        append(log, *before)
    refused = [batch_of(log.end, [b"refused"]), batch_of(log.end + 1, [b"torn"])]
    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", failing_writev(refused[0].size_bytes + 50, errno.EIO))
        broken.setattr(os, "write", failing_writev(0, errno.EIO))
        broken.setattr(os, "ftruncate", failing_writev(0, errno.EIO))
        with pytest.raises(OSError):
            log.append(refused)
    append(log, b"taken", b"as well")
    append(log, b"more")
    expected = dict(enumerate([*before, b"taken", b"as well", b"more"]))
    assert disk.read(log) == expected
    forget_tail(log)
    for start in range(log.end):
        assert disk.read(log, start) == {o: b for o, b in expected.items() if o >= start}
    assert disk.names(".bad") == []


@pytest.mark.parametrize("rolled", [False, True], ids=["in a segment", "in a new one"])
def test_a_log_keeps_its_place_after_a_failed_write_that_cannot_be_undone(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, rolled: bool
) -> None:
    """Everything is consumed and retired, then a kill comes: no offset may be given out again."""
    log = disk.open()
    append(log, b"a", b"b")
    if rolled:
        log.roll()
        log.retire(1)
    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", failing_writev(20, errno.ENOSPC))
        broken.setattr(os, "write", failing_writev(0, errno.ENOSPC))
        broken.setattr(os, "ftruncate", failing_writev(0, errno.EIO))
        with pytest.raises(OSError):
            append(log, b"refused")
    log.retire(len(log.consumed(log.end)))
    again = disk.open()
    assert (again.first, again.end) == (2 if rolled else 0, 2)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC, errno.EIO])
def test_a_segment_that_cannot_be_created_changes_nothing(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    disk.segment_bytes_max = 1
    log = disk.open()
    append(log, b"a")

    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as broken:
        broken.setattr(os, "open", fail)
        with pytest.raises(OSError):
            append(log, b"b")
    assert (log.end, len(log.segments)) == (1, 1)
    append(log, b"c")
    forget_tail(log)
    assert disk.read(log) == {0: b"a", 1: b"c"}


# -- closing and opening --------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_is_found_as_it_was_left(disk: Disk, clean: bool) -> None:
    disk.segment_bytes_max = 200
    log = disk.open()
    for i in range(7):
        append(log, b"a%d" % i, b"b%d" % i)
    before = disk.read(log)
    mark = log.mark()
    log.close()
    again = disk.open(mark if clean else None)
    assert (again.first, again.end, again.size_bytes) == (0, 14, log.size_bytes)
    assert again.mark() == mark
    assert disk.read(again) == before
    append(again, b"more")
    assert disk.read(again)[14] == b"more"


def test_a_mark_that_does_not_fit_the_files_is_not_believed(disk: Disk) -> None:
    log = disk.open()
    append(log, b"a")
    mark = log.mark()
    append(log, b"b")
    log.close()
    assert disk.open(mark).end == 2


def test_an_empty_newest_segment_keeps_the_end_of_the_log(disk: Disk) -> None:
    log = disk.open()
    append(log, b"a", b"b")
    log.roll()
    log.retire(1)
    log.close()
    again = disk.open()
    assert (again.first, again.end) == (2, 2)
    append(again, b"c")
    assert disk.read(again) == {2: b"c"}


def test_other_files_in_the_directory_are_left_alone(disk: Disk) -> None:
    for name in ("topic.json", "a.cursor", "123.log", f"{FIRST}.7.bad", "²" * 20 + ".log"):
        (disk.path / name).write_bytes(b"x")
    assert disk.open().segments == []


# -- taking back ----------------------------------------------------------------------------------


def test_what_was_written_since_a_mark_can_be_taken_out_of_the_files(disk: Disk) -> None:
    """It stays readable, and the next flush writes it again."""
    disk.segment_bytes_max = 150
    log = followed(disk)
    append(log, b"a", b"b")
    mark = log.mark()
    for _ in range(4):
        append(log, b"x", b"y")
    assert len(log.segments) > 2
    log.cut_back(mark)
    assert (log.written, log.mark(), disk.names(".log")) == (2, mark, [FIRST])
    assert disk.read(disk.open()) == {0: b"a", 1: b"b"}
    everything = dict(enumerate([b"a", b"b", *[b"x", b"y"] * 4]))
    assert (log.end, disk.read(log)) == (10, everything)
    forget_tail(log)
    assert disk.read(log) == everything
    log.flush()
    assert (log.written, log.end) == (10, 10)
    append(log, b"c")
    everything[10] = b"c"
    forget_tail(log)
    assert log.tail == []
    assert disk.read(log) == everything
    log.close()
    assert disk.read(disk.open()) == everything


def test_everything_can_be_taken_out_of_the_files_of_a_new_log(disk: Disk) -> None:
    log = followed(disk)
    append(log, b"x")
    log.cut_back(None)
    assert (log.written, log.segments, os.listdir(disk.path)) == (0, [], [])
    assert disk.read(log) == {0: b"x"}
    append(log, b"a")
    forget_tail(log)
    assert log.tail == []
    assert disk.read(log) == disk.read(disk.open()) == {0: b"x", 1: b"a"}


def test_a_log_that_has_no_message_left_still_knows_where_it_is(disk: Disk) -> None:
    """The marked segment was retired; what came after it was taken out of the files."""
    disk.segment_bytes_max = 1
    log = followed(disk)
    append(log, b"a")
    mark = log.mark()
    append(log, b"x")
    log.retire(1)
    log.cut_back(mark)
    assert (log.written, [(each.first, each.size_bytes) for each in log.segments]) == (1, [(1, 0)])
    forget_tail(log)
    assert disk.find(log.reader(lambda: None), 0) is None
    assert disk.open().end == 1
    append(log, b"b")
    forget_tail(log)
    assert disk.read(log, 1) == disk.read(disk.open(), 1) == {1: b"x", 2: b"b"}


def test_a_segment_that_cannot_be_deleted_stays_known(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.segment_bytes_max = 1
    log = disk.open()
    append(log, b"a")
    mark = log.mark()
    append(log, b"x")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "unlink", fail)
        with pytest.raises(OSError):
            log.cut_back(mark)
        with pytest.raises(OSError):
            log.retire(1)
    assert [segment.first for segment in log.segments] == [0, 1]
    log.cut_back(mark)
    assert disk.names(".log") == [FIRST]


# -- retiring -------------------------------------------------------------------------------------


def test_only_whole_segments_below_the_mark_are_consumed_and_never_the_newest(disk: Disk) -> None:
    disk.segment_bytes_max = 100
    log = disk.open()
    for _ in range(4):
        append(log, b"a", b"b")
    assert [len(log.consumed(low)) for low in range(9)] == [0, 0, 1, 1, 2, 2, 3, 3, 3]


def test_retired_segments_are_gone_from_disk(disk: Disk) -> None:
    disk.segment_bytes_max = 100
    log = disk.open()
    for _ in range(4):
        append(log, b"a", b"b")
    log.retire(2)
    assert log.first == 4
    assert disk.names(".log") == [f"{first:020d}.log" for first in (4, 6)]
    log.close()
    assert list(disk.read(disk.open())) == [4, 5, 6, 7]


def test_a_rolled_log_can_let_go_of_everything_and_goes_on(disk: Disk) -> None:
    log = disk.open()
    log.roll()
    assert log.segments == []
    append(log, b"a", b"b")
    log.roll()
    log.roll()
    assert [segment.first for segment in log.segments] == [0, 2]
    log.retire(len(log.consumed(2)))
    forget_tail(log)
    assert (log.first, log.end, log.size_bytes) == (2, 2, 0)
    append(log, b"c")
    assert disk.read(log) == {2: b"c"}


# -- syncing --------------------------------------------------------------------------------------


def test_a_sync_covers_every_file_written_and_the_directory_of_new_ones(disk: Disk) -> None:
    disk.segment_bytes_max = 1
    log = disk.open()
    append(log, b"a")
    append(log, b"b")
    paths = log.take_dirty()
    assert paths == sorted([str(disk.path), *(segment.path for segment in log.segments)])
    assert (log.unsynced, log.take_dirty()) == (0, [])
    log.sync_failed(paths)
    assert log.take_dirty() == paths


def test_syncing_steps_over_what_is_gone_and_reports_what_fails(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = disk.write(FIRST, batch_of(0, [b"a"]))
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    sync_paths([str(disk.path / "gone.log"), str(path), str(disk.path)])
    assert len(synced) == 2

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError):
        sync_paths([str(path)])


def test_what_a_killed_process_wrote_is_to_be_synced(disk: Disk) -> None:
    disk.segment_bytes_max = 1
    log = disk.open()
    for body in (b"before the clock was set", b"a", b"b"):
        append(log, body)
    paths = [segment.path for segment in log.segments]
    os.utime(paths[0], ns=(0, 0))
    mark = log.mark()
    log = disk.open()
    assert log.unsynced
    assert log.take_dirty() == sorted([str(disk.path), *paths])
    log = disk.open(clean=mark)
    assert (log.unsynced, log.take_dirty()) == (0, [])


def test_a_sync_before_the_first_batch_of_a_file_is_not_one_of_its_name(disk: Disk) -> None:
    """After a gap the file is made with its first batch, which a loss of power took."""
    log = disk.open()
    append(log, b"a")
    log.skip_to(5)
    log.take_dirty()
    append(log, b"b")
    assert log.take_dirty() == sorted([str(disk.path), log.segments[-1].path])
    append(log, b"c")
    assert log.take_dirty() == [log.segments[-1].path]
