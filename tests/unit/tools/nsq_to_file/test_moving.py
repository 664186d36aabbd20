"""A complete file is moved once, at whatever step the move before was killed."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pumpline.tools.nsq_to_file import moving
from pumpline.tools.nsq_to_file.moving import copied_name, delete_copy, move


class Killed(BaseException):
    """In place of a SIGKILL."""


@pytest.fixture(params=["one file system", "two file systems"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    memory = Path("/dev/shm")
    if request.param == "one file system":
        memory = tmp_path
    elif not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        source = Path(directory) / "a"
        source.write_bytes(b"body")
        try:
            os.setxattr(source, moving.IDENTITY, b"probe")
            os.removexattr(source, moving.IDENTITY)
        except OSError:
            pytest.skip("this file system has no extended attributes")
        yield source


def names_in(tmp_path: Path) -> list[Path]:
    return [tmp_path / "out" / name for name in ("a", "b", "c")]


def test_a_move_takes_the_first_name_that_is_free(source: Path, tmp_path: Path) -> None:
    names = names_in(tmp_path)
    names[0].parent.mkdir()
    names[0].write_bytes(b"body")  # another one, though it looks the same
    assert move(source, iter(names)) == names[1]
    assert not source.exists()
    assert [path.name for path in sorted(names[0].parent.iterdir())] == ["a", "b"]
    assert names[1].read_bytes() == b"body"
    assert os.listxattr(names[1]) == []


def test_a_move_that_was_killed_before_its_end_is_not_repeated(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_: Path) -> None:
        raise Killed

    names = names_in(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(moving, "sync_directory", killed)
        move(source, iter(names))
    assert source.exists()
    assert move(source, iter(names)) == names[0]
    assert not source.exists()
    assert sorted(names[0].parent.iterdir()) == [names[0]]


def test_a_copy_that_was_left_is_deleted_unless_somebody_makes_it(tmp_path: Path) -> None:
    path = tmp_path / ".orders.log.17.copy"
    path.touch()
    assert copied_name(path.name) == "orders.log"
    assert copied_name("orders.log") == copied_name(".orders.copy") == ""
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not delete_copy(path)
    assert delete_copy(path)
    assert not path.exists()
    assert not delete_copy(path)
