"""The pool of open files stays within its bounds, and gives way when descriptors run out."""

import errno
import os
from pathlib import Path

import pytest

from pumpline.log import files
from pumpline.log.files import FilePool, append_whole, pool_size, write_all, write_whole


@pytest.fixture
def pool() -> FilePool:
    return FilePool(3)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_file_is_opened_once_and_created_if_missing(tmp_path: Path, pool: FilePool) -> None:
    path = str(tmp_path / "a")
    fd = pool.get(path)
    assert pool.get(path) == fd
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert not os.get_inheritable(fd)


def test_what_is_written_is_appended(tmp_path: Path, pool: FilePool) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    os.write(pool.get(str(path)), b"new")
    assert path.read_bytes() == b"oldnew"


def test_the_least_recently_used_file_is_closed_first(tmp_path: Path, pool: FilePool) -> None:
    names = [str(tmp_path / name) for name in "abcd"]
    a, b, c = (pool.get(name) for name in names[:3])
    pool.get(names[0])
    pool.get(names[3])
    assert len(pool) == 3
    assert pool.get(names[0]) == a
    assert pool.get(names[2]) == c
    assert len(pool) == 3
    os.fstat(b)  # its number went to the file opened last
    assert os.readlink(f"/proc/self/fd/{b}") == names[3]


def test_the_pool_never_exceeds_its_size(tmp_path: Path, pool: FilePool) -> None:
    for number in range(20):
        pool.get(str(tmp_path / str(number % 7)))
        assert len(pool) <= 3


def test_forgotten_and_closed_files_are_closed(tmp_path: Path, pool: FilePool) -> None:
    a, b = pool.get(str(tmp_path / "a")), pool.get(str(tmp_path / "b"))
    pool.forget(str(tmp_path / "a"))
    pool.forget(str(tmp_path / "never opened"))
    assert (is_open(a), is_open(b), len(pool)) == (False, True, 1)
    pool.close()
    assert (is_open(b), len(pool)) == (False, 0)


def failing_open(monkeypatch: pytest.MonkeyPatch, code: int, times: int) -> None:
    real = os.open
    left = [times]

    def fail(path: str, flags: int, mode: int = 0o777) -> int:
        if left[0]:
            left[0] -= 1
            raise OSError(code, os.strerror(code))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", fail)


def test_out_of_descriptors_the_pool_gives_back_its_own_until_it_works(
    tmp_path: Path, pool: FilePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pool.get(str(tmp_path / "a")), pool.get(str(tmp_path / "b"))
    failing_open(monkeypatch, errno.EMFILE, 1)
    pool.get(str(tmp_path / "c"))
    assert len(pool) == 2
    assert pool.get(str(tmp_path / "b")) == b
    assert os.readlink(f"/proc/self/fd/{a}") == str(tmp_path / "c")


def test_out_of_descriptors_and_with_none_to_give_back_the_error_is_raised(
    tmp_path: Path, pool: FilePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.get(str(tmp_path / "a"))
    failing_open(monkeypatch, errno.EMFILE, 2)
    with pytest.raises(OSError) as caught:
        pool.get(str(tmp_path / "b"))
    assert caught.value.errno == errno.EMFILE
    assert len(pool) == 0
    assert is_open(pool.get(str(tmp_path / "b")))


def test_another_error_closes_nothing(
    tmp_path: Path, pool: FilePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = pool.get(str(tmp_path / "a"))
    failing_open(monkeypatch, errno.EACCES, 1)
    with pytest.raises(OSError):
        pool.get(str(tmp_path / "b"))
    assert (is_open(a), len(pool)) == (True, 1)


@pytest.mark.parametrize(
    ("limit", "size"), [(20, 16), (1024, 256), (100_000, 4096), (1 << 40, 4096)]
)
def test_the_pool_takes_a_part_of_what_may_be_open(
    monkeypatch: pytest.MonkeyPatch, limit: int, size: int
) -> None:
    monkeypatch.setattr(files.resource, "getrlimit", lambda _: (limit, limit))
    assert pool_size() == size


def test_many_parts_are_written_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a"
    parts: list[bytes | memoryview] = [b"%d," % i for i in range(5000)]
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    write_all(fd, parts)
    write_all(fd, [])
    os.close(fd)
    assert path.read_bytes() == b"".join(parts)


def test_a_replaced_file_is_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    write_whole(str(path), b"old", sync=True)
    seen: list[bytes] = []
    replace = os.replace

    def look_first(source: str, target: str) -> None:
        seen.append(path.read_bytes())
        replace(source, target)

    monkeypatch.setattr(os, "replace", look_first)
    write_whole(str(path), b"new", sync=False)
    assert (seen, path.read_bytes()) == ([b"old"], b"new")
    assert os.listdir(tmp_path) == ["a"]


def test_appending_creates_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    append_whole(str(path), b"one")
    append_whole(str(path), b"two")
    assert path.read_bytes() == b"onetwo"
