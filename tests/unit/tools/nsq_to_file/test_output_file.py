"""A file that is open has a mark; what lies beyond it after a kill is cut away."""

import errno
import os
from pathlib import Path

import pytest

from pumpline.tools.nsq_to_file.encoding import Encoding, GzipEncoding, ZstdEncoding
from pumpline.tools.nsq_to_file.output_file import MARK, OutputFile, mend, unmark

LINES = Encoding(framing="line")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "directory" / "file.log"
    file = OutputFile(path, is_exclusive=True)
    try:
        os.getxattr(path, MARK)
    except OSError:
        pytest.skip("this file system has no extended attributes")
    file.close()
    path.unlink()
    return path


def killed(file: OutputFile) -> None:
    """Closed by the kernel, without a word of ours."""
    os.close(file._fd)


def test_what_was_not_synced_is_cut_away(path: Path) -> None:
    file = OutputFile(path, is_exclusive=True)
    file.write(b"one\n")
    file.sync()
    file.write(b"two\nthr")
    killed(file)
    assert mend(path, LINES) == 7
    assert path.read_bytes() == b"one\n"
    assert mend(path, LINES) is None  # it is in order now


def test_what_was_synced_stays_though_nothing_closed_the_file(path: Path) -> None:
    file = OutputFile(path, is_exclusive=False)
    file.write(b"one\ntwo\n")
    file.sync()
    killed(file)
    assert mend(path, LINES) == 0
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_file_of_which_nothing_is_left_goes(path: Path) -> None:
    file = OutputFile(path, is_exclusive=True)
    file.write(b"one\n")
    killed(file)
    assert mend(path, LINES) == 4
    assert not path.exists()


def test_a_file_of_a_running_process_is_left_alone(path: Path) -> None:
    file = OutputFile(path, is_exclusive=True)
    file.write(b"not sync")
    assert mend(path, LINES, force=True) is None
    assert path.read_bytes() == b"not sync"
    file.close()


def test_a_file_that_two_have_written_is_cut_only_where_it_is_torn(path: Path) -> None:
    first = OutputFile(path, is_exclusive=False)
    second = OutputFile(path, is_exclusive=False)
    second.write(b"of the second\n")
    second.sync()
    first.write(b"of the first\nto")
    assert not first.rewind()
    killed(first)
    killed(second)
    assert mend(path, LINES) == 2
    assert path.read_bytes() == b"of the second\nof the first\n"


def test_what_was_not_synced_can_be_taken_back(path: Path) -> None:
    file = OutputFile(path, is_exclusive=False)
    file.write(b"one\n")
    file.sync()
    file.write(b"two\n")
    assert file.rewind()
    file.write(b"three\n")
    file.sync()
    file.close()
    assert path.read_bytes() == b"one\nthree\n"


GZIP = GzipEncoding(framing="line", level=6)
LENGTHS = Encoding(framing="length")


@pytest.mark.parametrize("encoding", [LENGTHS, GZIP, ZstdEncoding(framing="line", level=3)])
@pytest.mark.parametrize("force", [False, True])
def test_a_file_that_was_closed_is_never_cut(path: Path, encoding: Encoding, force: bool) -> None:
    """The flags may have been others then: it was deleted when --framing changed."""
    file = OutputFile(path, is_exclusive=True)
    file.write(b"one\ntwo\n")
    file.sync()
    file.close()
    assert mend(path, encoding, force=force) is None
    assert path.read_bytes() == b"one\ntwo\n"


def test_what_was_synced_stays_whatever_the_flags_are_now(path: Path) -> None:
    file = OutputFile(path, is_exclusive=True)
    file.write(b"one\ntwo\n")
    file.sync()
    file.write(b"three\n")
    killed(file)
    assert mend(path, LENGTHS) == 6
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_loss_of_power_may_leave_less_than_the_mark(path: Path) -> None:
    file = OutputFile(path, is_exclusive=True)
    file.write(b"one\ntwo\n")
    file.sync()
    killed(file)
    os.truncate(path, 6)
    assert mend(path, LINES) == 2
    assert path.read_bytes() == b"one\n"


def test_a_file_to_be_moved_keeps_its_mark_until_then(path: Path) -> None:
    file = OutputFile(path, is_exclusive=True)
    file.write(b"one\ntwo\n")
    file.sync()
    killed(file)
    assert [mend(path, LINES, keeps_mark=True) for _ in range(2)] == [0, 0]
    unmark(path)
    assert mend(path, LINES, keeps_mark=True) is None


@pytest.mark.parametrize(
    ("encoding", "written", "left"),
    [
        (LINES, b"one\ntw", b"one\n"),
        (LINES, b"tw", None),
        (LENGTHS, b"one\ntwo\n", b"one\ntwo\n"),  # lines: of another framing
        (LENGTHS, b"\0\0\0\1a\0\0\0\3b", b"\0\0\0\1a"),
        (GZIP, b"one\ntwo\n", b"one\ntwo\n"),
        (GZIP, GZIP.encode([b"one"])[:9], None),
        (GZIP, GZIP.encode([b"one"]) + b"\x1f", GZIP.encode([b"one"])),
    ],
)
def test_without_marks_only_what_is_torn_is_cut_away(
    path: Path, monkeypatch: pytest.MonkeyPatch, encoding: Encoding, written: bytes, left: bytes
) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(written)

    def unsupported(*_: object) -> bytes:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(os, "getxattr", unsupported)
    mend(path, encoding, force=True)
    assert (path.read_bytes() if path.exists() else None) == left


def test_a_new_file_has_a_mark_before_it_has_a_name(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a kill in between leaves an empty file, which is no gzip file."""

    class Killed(BaseException):
        pass

    def killed(source: Path, _: Path) -> None:
        assert os.getxattr(source, MARK) == b"0"
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "link", killed)
        OutputFile(path, is_exclusive=True)
    assert not path.exists()
    OutputFile(path, is_exclusive=True).close()
    with pytest.raises(FileExistsError):
        OutputFile(path, is_exclusive=True)
    assert list(path.parent.iterdir()) == [path]
