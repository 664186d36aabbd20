"""What /ping says after a failed write, and when it says yes again."""

import errno
import os
from pathlib import Path

import pytest

from pumpline.nsqd.storage.disk_health import DiskHealth
from tests.kit.logs import Threads, Timers

MORE_THAN_THERE_IS = 1 << 60


class Tried:
    """The health of a directory, whose tries are made by hand."""

    def __init__(self, path: Path) -> None:
        self.threads = Threads()
        self.timers = Timers()
        self.health = DiskHealth(str(path), offload=self.threads, later=self.timers)

    def fail(self, code: int, size_bytes: int = 0) -> str:
        error = OSError(code, os.strerror(code))
        return self.health.failed(error, "topic t", size_bytes=size_bytes)

    def pass_a_second(self) -> str:
        self.timers.fire()
        self.threads.run()
        return str(self.health)


@pytest.fixture
def tried(tmp_path: Path) -> Tried:
    return Tried(tmp_path)


def test_a_failed_write_is_forgotten_after_a_second_in_which_all_is_well(tried: Tried) -> None:
    assert str(tried.health) == "OK"
    assert tried.fail(errno.EIO) == "input/output error"
    assert str(tried.health) == "NOK - failed to write topic t: input/output error"
    assert tried.pass_a_second() == "OK"
    assert tried.timers.waiting == []
    assert tried.fail(errno.EIO) == "input/output error"
    assert tried.pass_a_second() == "OK"


def test_a_broker_whose_writes_go_on_failing_stays_unhealthy(tried: Tried) -> None:
    """The small file of the try itself can be written all the time."""
    tried.fail(errno.EIO)
    for _ in range(5):
        tried.fail(errno.EIO)
        assert tried.pass_a_second().startswith("NOK")
    assert tried.pass_a_second() == "OK"


def test_a_disk_without_room_for_what_failed_is_not_healthy(tried: Tried) -> None:
    tried.fail(errno.ENOSPC, MORE_THAN_THERE_IS)
    for _ in range(5):
        assert tried.pass_a_second().startswith("NOK")


def test_a_disk_with_room_for_what_failed_is_healthy_again(tried: Tried) -> None:
    tried.fail(errno.ENOSPC, 1000)
    tried.fail(errno.ENOSPC, 10)
    tried.pass_a_second()
    assert tried.pass_a_second() == "OK"


def test_the_try_leaves_nothing_behind(tried: Tried, tmp_path: Path) -> None:
    tried.fail(errno.EIO)
    tried.pass_a_second()
    assert list(tmp_path.iterdir()) == []
