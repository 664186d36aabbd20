"""The lock on the data directory."""

from pathlib import Path

import pytest

from pumpline.log.data_path_lock import DataPathError, DataPathLock


def test_a_directory_has_one_owner_at_a_time(tmp_path: Path) -> None:
    one = DataPathLock(str(tmp_path))
    with pytest.raises(DataPathError) as caught:
        DataPathLock(str(tmp_path))
    assert str(caught.value) == (
        f"failed to lock data-path: cannot flock directory {tmp_path} - resource temporarily "
        "unavailable (possibly in use by another instance of nsqd)"
    )
    one.release()
    other = DataPathLock(str(tmp_path))
    other.release()
    other.release()


def test_a_directory_that_is_not_there_cannot_be_locked(tmp_path: Path) -> None:
    path = tmp_path / "none"
    with pytest.raises(DataPathError) as caught:
        DataPathLock(str(path))
    expected = f"failed to lock data-path: open {path}: no such file or directory"
    assert str(caught.value) == expected
