"""Offsets that a log leaves out are left out after every end, and count as no messages."""

import errno
import os
from pathlib import Path

import pytest

from pumpline.core.messages.spans import back_from, left_out
from pumpline.log.log import Log, State
from tests.kit.logs import Disk, batch_of


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def append(log: Log, *bodies: bytes) -> None:
    log.append([batch_of(log.end, list(bodies))])


def test_a_gap_is_kept_over_a_restart_once_something_follows_it(disk: Disk) -> None:
    log = disk.open()
    append(log, b"a")
    log.skip_to(10)
    assert log.end == 10
    append(log, b"b")
    log.close()
    again = disk.open()
    assert again.end == 11
    assert disk.read(again) == {0: b"a", 10: b"b"}


def test_a_gap_that_could_not_be_noted_is_noted_before_anything_follows_it(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that does not know of it takes the offsets for messages that are not finished."""
    log = disk.open()
    append(log, b"a")

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "open", fail)
        log.skip_to(10)
        with pytest.raises(OSError, match="space"):
            append(log, b"refused")
    append(log, b"b")
    assert log.gaps == disk.open().gaps == [(1, 10)]


def test_a_log_with_a_gap_that_cannot_be_noted_is_stuck_until_it_can_be(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write-ahead log must not get messages that a start would not find after the gap."""
    log = disk.open()
    append(log, b"a")

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "open", fail)
        log.skip_to(10)
        assert log.state is State.STUCK
        with pytest.raises(OSError, match="Input/output"):
            log.flush()
    log.flush()
    assert log.state is State.OPEN
    again = disk.open()
    assert (again.end, again.gaps) == (10, [(1, 10)])


def test_a_gap_that_could_not_be_noted_is_noted_before_history_goes(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment after the gap gets its file then: it alone says where the log is."""
    disk.segment_bytes_max = 1
    log = disk.open()
    append(log, b"a")
    append(log, b"b")

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "open", fail)
        log.skip_to(10)
    log.retire(1)
    again = disk.open()
    assert (again.first, again.end, again.gaps) == (1, 10, [(2, 10)])


def test_a_gap_never_goes_backwards(disk: Disk) -> None:
    log = disk.open()
    append(log, b"a", b"b")
    log.skip_to(1)
    log.skip_to(2)
    assert (log.end, len(log.segments)) == (2, 1)


def test_the_directory_is_synced_after_a_gap_has_made_a_new_file(disk: Disk) -> None:
    log = disk.open()
    append(log, b"a")
    log.take_dirty()
    log.skip_to(10)
    append(log, b"b")
    assert log.take_dirty() == sorted([str(disk.path), str(disk.path / f"{10:020d}.log")])


@pytest.mark.parametrize("gaps", [[], [(3, 5)], [(0, 2), (4, 9)], [(1, 3), (3, 4), (8, 10)]])
def test_messages_are_counted_without_what_was_left_out(gaps: list[tuple[int, int]]) -> None:
    there = [at for at in range(12) if not any(start <= at < end for start, end in gaps)]
    for end in range(13):
        below = [at for at in there if at < end]
        for start in range(end + 1):
            count = len([at for at in below if at >= start])
            assert end - start - left_out(gaps, start, end) == count
        for count in range(1, len(below) + 1):
            assert back_from(gaps, end, count) == below[-count]
