"""Who waits for an fsync of a log is told of the one that covers what was written by then."""

import errno
import os
from pathlib import Path

import pytest

from pumpline.log.files import sync_paths
from pumpline.log.log import Log, State
from pumpline.log.syncing import LogSync
from pumpline.nsqd.options import Options
from tests.kit.fake_broker import FakeBroker, log_of
from tests.kit.logs import Disk, batch_of

ERROR = OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


@pytest.fixture
def log(disk: Disk) -> Log:
    log = disk.open()
    log.follow(lambda: None)
    return log


def append(log: Log, body: bytes = b"x") -> None:
    log.append([batch_of(log.end, [body])])


def test_nobody_waits_for_what_is_synced(log: Log) -> None:
    assert log.syncing.completion().succeeded
    append(log)
    assert not log.syncing.completion().done
    log.syncing.sync_done(log.syncing.take_dirty(), None)
    assert log.syncing.completion().succeeded
    assert (log.synced, log.unsynced) == (1, 0)


def test_what_is_written_during_an_fsync_waits_for_the_next(log: Log) -> None:
    synced: list[int] = []
    log.syncing.on_synced = synced.append
    append(log)
    first = log.syncing.completion()
    paths = log.syncing.take_dirty()
    during = log.syncing.completion()  # nothing was written since
    append(log)
    later = log.syncing.completion()
    log.syncing.sync_done(paths, None)
    assert (first.succeeded, during.succeeded, later.done) == (True, True, False)
    assert (synced, log.synced, log.syncing.unsynced) == ([1], 1, 1)
    log.syncing.sync_done(log.syncing.take_dirty(), None)
    assert later.succeeded
    assert synced == [1, 2]


def test_a_failed_fsync_is_told_and_its_files_are_synced_again(log: Log) -> None:
    reasons: list[str] = []
    log.syncing.on_failed = reasons.append
    log.syncing.failed = lambda error: "the disk is broken"
    append(log)
    waiting = log.syncing.completion()
    paths = log.syncing.take_dirty()
    log.syncing.sync_done(paths, ERROR)
    assert (waiting.error, reasons) == ("the disk is broken", ["the disk is broken"])
    assert (log.synced, log.state) == (0, State.OPEN)  # nothing was promised: it stays as it is
    assert log.syncing.unsynced
    again = log.syncing.completion()
    assert log.syncing.take_dirty() == paths
    log.syncing.sync_done(paths, None)
    assert (again.succeeded, log.synced) == (True, 1)


def test_what_a_failed_fsync_may_have_lost_is_written_again_where_that_was_promised(
    disk: Disk, log: Log
) -> None:
    log.keeps_unsynced = True
    append(log, b"synced")
    log.syncing.sync_done(log.syncing.take_dirty(), None)
    path = Path(log.segments[-1].path)
    size_bytes = path.stat().st_size
    for body in (b"second", b"third"):
        append(log, body)
    log.trim(log.end, messages_max=0, bytes_max=0)
    paths = log.syncing.take_dirty()
    append(log, b"during")
    written = path.read_bytes()
    log.syncing.sync_done(paths, ERROR)
    assert (log.state, log.synced, log.end) == (State.STUCK, 1, 4)
    path.write_bytes(written[:size_bytes] + bytes(len(written) - size_bytes))  # it is lost
    log.flush()
    assert path.read_bytes() == written
    assert log.syncing.unsynced >= 3
    sync_paths(paths := log.syncing.take_dirty())
    assert str(path) in paths
    log.syncing.sync_done(paths, None)
    assert (log.state, log.synced) == (State.OPEN, 4)
    log.trim(log.end, messages_max=0, bytes_max=0)
    assert log.tail == []
    assert disk.read(log) == {0: b"synced", 1: b"second", 2: b"third", 3: b"during"}


def test_two_fsyncs_that_fail_lose_nothing_either(disk: Disk, log: Log) -> None:
    log.keeps_unsynced = True
    append(log, b"first")
    for body in (b"second", b"third"):
        log.syncing.sync_done(log.syncing.take_dirty(), ERROR)
        log.flush()
        append(log, body)
    log.syncing.sync_done(log.syncing.take_dirty(), None)
    log.trim(log.end, messages_max=0, bytes_max=0)
    assert (log.tail, log.synced) == ([], 3)
    everything = {0: b"first", 1: b"second", 2: b"third"}
    assert disk.read(log) == disk.read(disk.open()) == everything


def test_who_waits_for_a_log_that_is_closed_is_told(log: Log) -> None:
    append(log)
    covered = log.syncing.completion()
    paths = log.syncing.take_dirty()
    append(log)
    waiting = log.syncing.completion()
    log.close()
    assert waiting.error == "exiting"
    log.syncing.sync_done(paths, None)
    assert covered.error == "exiting"
    assert log.syncing.take_dirty() == []


def test_a_stop_syncs_what_an_fsync_under_way_may_fail_to_sync(log: Log) -> None:
    append(log)
    paths = log.syncing.take_dirty()  # it has begun
    assert set(paths) <= set(log.syncing.take_all_dirty())


def test_a_new_log_has_nothing_to_sync_and_a_killed_one_has(disk: Disk, log: Log) -> None:
    assert LogSync(log).unsynced == 0
    append(log)
    assert disk.open().syncing.unsynced
    assert log.segments[-1].path in disk.open().syncing.take_dirty()


@pytest.mark.parametrize("sync_every", [2500, 1])
def test_a_log_that_a_stop_could_not_sync_is_synced_on_the_next_start(
    tmp_path: Path, sync_every: int
) -> None:
    broker = FakeBroker(tmp_path, Options(sync_every=sync_every))
    topic = broker.topic()
    completion = broker.publish(topic, b"x")
    broker.settle()
    assert completion.succeeded
    log = log_of(topic)
    log.flush()
    log.sync_failed(log.syncing.take_all_dirty())
    topic.close()
    again = log_of(FakeBroker(tmp_path).load()["t"])
    assert (again.end, again.syncing.unsynced > 0) == (1, True)
