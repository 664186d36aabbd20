"""At a stop all logs are synced, in groups that threads share. One that cannot be synced does not
keep the others from it."""

import errno
import os
from pathlib import Path

import pytest

from pumpline.nsqd import broker as broker_module
from pumpline.nsqd.broker import _sync_all


@pytest.mark.parametrize("together", [1, 2, 100])
async def test_every_file_is_synced_and_those_that_fail_are_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(broker_module, "SYNCED_TOGETHER", together)
    paths = [tmp_path / str(number) for number in range(7)]
    for path in paths:
        path.write_bytes(b"")
    broken = {paths[2].stat().st_ino, paths[5].stat().st_ino}
    synced: list[int] = []

    def fsync(fd: int) -> None:
        inode = os.fstat(fd).st_ino
        synced.append(inode)
        if inode in broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    failed = await _sync_all([str(path) for path in paths])
    assert failed == {str(paths[2]), str(paths[5])}
    assert sorted(synced) == sorted(path.stat().st_ino for path in paths)


async def test_a_stop_without_topics_syncs_nothing() -> None:
    assert await _sync_all([]) == set()
