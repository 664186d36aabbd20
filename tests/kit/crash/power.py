"""A loss of power, played on the files of a killed daemon: what was not synced is gone.

The daemon must have run through recording_nsqd.py. After `Power.cut`:
- a segment, a file of the write-ahead log or another file has the size of its last fsync, or is
  gone if there was none;
- a file or directory whose name its parent directory was not synced with is gone;
- channels' cursors, which are never synced, are as `cursors` says: all there ("kept"), as at an
  earlier moment ("earlier"), or there and empty ("empty"), which file systems that delay writes
  make of them.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from tests.kit.crash.killable_nsqd import KillableNsqd
from tests.kit.daemons import RUN_MARK, wait_until

CURSOR_GLOB = "topics/*/*.cursor"
RENAMED_GLOBS = ("topics/*/tokens*", "topics/*/holds.json")
_SMALL = ("topic.json", "nsqd.dat")  # replaced by renaming: there as they were, old or new


class Power:
    def __init__(self, nsqd: KillableNsqd, record_path: Path) -> None:
        self._nsqd = nsqd
        self._record_path = record_path
        self._earlier: dict[Path, bytes] = {}
        self.bytes_lost = 0  # in segments and the write-ahead log, by all cuts so far

    def remember_cursors(self) -> None:
        """Takes the copy that `cursors="earlier"` goes back to."""
        found = self._nsqd.data_path.glob(CURSOR_GLOB)
        self._earlier = {path: path.read_bytes() for path in found}

    def cut(self, *, cursors: str) -> None:
        """Kills the daemon and throws away what was not synced."""
        if self._nsqd.is_running:
            self._nsqd.kill()
        sizes_bytes, names = self._read_record()
        self._drop_unlisted(self._nsqd.data_path, names)
        for path in _message_files(self._nsqd.data_path):
            self._truncate(path, sizes_bytes.get(path.stat().st_ino, {}).get(str(path), 0))
        for pattern in RENAMED_GLOBS:
            for path in self._nsqd.data_path.glob(pattern):
                synced = sizes_bytes.get(path.stat().st_ino, {})  # perhaps under its former name
                os.truncate(path, min(max(synced.values(), default=0), path.stat().st_size))
        mark = self._nsqd.data_path / RUN_MARK
        mark.write_text(json.dumps({**json.loads(mark.read_text()), "boot_id": "another"}))
        for path in self._nsqd.data_path.glob(CURSOR_GLOB):
            if cursors == "empty":
                path.write_bytes(b"")
            elif cursors == "earlier" and path in self._earlier:
                path.write_bytes(self._earlier[path])

    def await_synced(self, path: Path) -> None:
        """Waits until an fsync has covered all that is in a file."""
        status = path.stat()

        def synced() -> bool:
            sizes_bytes, _ = self._read_record()
            return sizes_bytes.get(status.st_ino, {}).get(str(path), -1) >= status.st_size

        wait_until(synced)

    def await_unsynced(self) -> None:
        """Waits for a moment at which a cut would cost something."""

        def unsynced() -> bool:
            sizes_bytes, _ = self._read_record()
            return any(
                path.stat().st_size > sizes_bytes.get(path.stat().st_ino, {}).get(str(path), 0)
                for path in _message_files(self._nsqd.data_path)
            )

        wait_until(unsynced)

    def _read_record(self) -> tuple[dict[int, dict[str, int]], dict[str, set[str]]]:
        """Sizes by inode and path, and names by directory, as last synced."""
        sizes_bytes: dict[int, dict[str, int]] = {}
        names: dict[str, set[str]] = {}
        for line in self._record_path.read_text().splitlines():
            entry: dict[str, Any] = json.loads(line)
            if "names" in entry:
                names[entry["path"]] = set(entry["names"])
            else:
                sizes_bytes.setdefault(entry["inode"], {})[entry["path"]] = entry["size_bytes"]
        return sizes_bytes, names

    def _drop_unlisted(self, directory: Path, names: dict[str, set[str]]) -> None:
        for path in list(directory.iterdir()):
            listed = path.name in names.get(str(directory), ())
            spared = path.suffix == ".cursor" or path.name in _SMALL
            if path.is_dir():
                if listed:
                    self._drop_unlisted(path, names)
                else:
                    self.bytes_lost += sum(p.stat().st_size for p in path.rglob("*.log"))
                    shutil.rmtree(path)
            elif not listed and not spared:
                is_counted = path.suffix == ".log" or path.name.startswith("wal-")
                self.bytes_lost += path.stat().st_size if is_counted else 0
                path.unlink()

    def _truncate(self, path: Path, size_bytes: int) -> None:
        lost = path.stat().st_size - size_bytes
        assert lost >= 0, f"{path} shrank after it was synced"
        self.bytes_lost += lost
        with path.open("r+b") as file:
            file.truncate(size_bytes)


def _message_files(data_path: Path) -> list[Path]:
    return [*data_path.glob("topics/*/*.log"), *data_path.glob("wal-*")]
