"""A file that is open has a mark; what lies beyond it after a kill is cut away."""

import os
from pathlib import Path

import pytest

from pumpline.tools.nsq_to_file.encoding import Encoding
from pumpline.tools.nsq_to_file.output_file import MARK, OutputFile, mend, move

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


def test_a_move_takes_the_first_name_that_is_free(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"body")
    names = [tmp_path / "out" / name for name in ("a", "b", "c")]
    names[0].parent.mkdir()
    names[0].write_bytes(b"taken")
    assert move(source, iter(names)) == names[1]
    assert not source.exists()
    assert [path.name for path in sorted(names[0].parent.iterdir())] == ["a", "b"]
    assert names[1].read_bytes() == b"body"
