"""The format number of a data directory."""

from pathlib import Path

import pytest

from pumpline.log.directory import FORMAT, Directory, DirectoryError


def test_a_new_directory_gets_the_number(tmp_path: Path) -> None:
    Directory(str(tmp_path)).prepare()
    assert (tmp_path / "format").read_bytes() == b"%d\n" % FORMAT
    Directory(str(tmp_path)).prepare()  # and is read the next time


@pytest.mark.parametrize("number", [FORMAT - 1, FORMAT + 1])
def test_another_format_is_refused_before_anything_is_touched(tmp_path: Path, number: int) -> None:
    (tmp_path / "format").write_text(f"{number}\n")
    (tmp_path / ".probe").write_text("left by a kill")
    with pytest.raises(DirectoryError, match=f"format {number}, .* {FORMAT} alone"):
        Directory(str(tmp_path)).prepare()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".probe", "format"]


@pytest.mark.parametrize("text", ["", "one", "1.5", "-1"])
def test_a_format_that_is_no_number_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "format").write_text(text)
    with pytest.raises(DirectoryError, match="does not hold the number of a format"):
        Directory(str(tmp_path)).prepare()
