"""A directory of backups, each complete in itself; segments that have not changed are hard links.

```
<store>/.lock                       one backup at a time
<store>/.partial                    a backup that is being made, or was killed
<store>/<date>/backup.json          what it has (`copying.Copied`)
<store>/<date>/data/                the copy of the data directory
```
A backup appears under its date when it is complete and on the disk. nsqd must not be started in a
backup: it would write to files that other backups share. `restore` copies one.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from pumpline.tools.backup.copying import Copied, Copy, CopyError

INDEX = "backup.json"
DATA = "data"
_PARTIAL = ".partial"
_LOCK = ".lock"
_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(\.\d{6})?Z")


class Store:
    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> list[str]:
        """Of the complete backups, the oldest first."""
        try:
            return sorted(name for name in os.listdir(self._path) if _NAME.fullmatch(name))
        except FileNotFoundError:
            return []

    def read(self, name: str) -> Copied:
        """CopyError if it is no backup."""
        return read_index(self._path / name)

    def add(self, source: Path) -> tuple[Path, Copied]:
        """Make a backup of a data directory; OSError, CopyError."""
        if self._path.resolve().is_relative_to(source.resolve()):
            raise CopyError(f"{self._path} is in the data directory: backups belong elsewhere")
        self._path.mkdir(parents=True, exist_ok=True)
        with self._locked():
            partial = self._path / _PARTIAL
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            try:
                copied = Copy(source, partial / DATA, self._previous()).run()
                _write_synced(partial / INDEX, msgspec.json.encode(copied))
                _sync(partial)
                target = self._path / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S.%fZ")
                os.rename(partial, target)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
            _sync(self._path)
            return target, copied

    def keep(self, count: int) -> list[str]:
        """Delete all but the newest `count` backups; returns which."""
        with self._locked():
            old = self.names()[:-count]
            for name in old:
                # Out of sight first: half of a backup must not look like one.
                partial = self._path / _PARTIAL
                shutil.rmtree(partial, ignore_errors=True)
                os.rename(self._path / name, partial)
                shutil.rmtree(partial)
            return old

    def _previous(self) -> tuple[Path, Copied] | None:
        for name in reversed(self.names()):
            try:
                return self._path / name / DATA, self.read(name)
            except CopyError:  # damaged: the one before may do
                continue
        return None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self._path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CopyError(f"another backup to {self._path} is being made") from None
            yield
        finally:
            os.close(fd)


def read_index(backup: Path) -> Copied:
    try:
        return msgspec.json.decode((backup / INDEX).read_bytes(), type=Copied)
    except (FileNotFoundError, NotADirectoryError):
        raise CopyError(f"{backup} is no backup: there is no {INDEX}") from None
    except msgspec.MsgspecError as error:
        raise CopyError(f"{backup / INDEX}: {error}") from None


def restore(backup: Path, data_path: Path) -> Copied:
    """Make a data directory of a backup, where there is none; OSError, CopyError."""
    copied = read_index(backup)
    if data_path.exists() and (not data_path.is_dir() or any(data_path.iterdir())):
        raise CopyError(f"{data_path} is not empty: restore to a new directory")
    for name, source in copied.segments.items():
        path = backup / DATA / name
        size_bytes = path.stat().st_size if path.exists() else -1
        if size_bytes != source.size_bytes:
            raise CopyError(f"{path} should have {source.size_bytes} bytes, and has {size_bytes}")
    partial = data_path.with_name(f"{data_path.name}{_PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    data_path.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copytree(backup / DATA, partial)
        for directory, _, names in os.walk(partial):
            for name in names:
                _sync(Path(directory) / name)
            _sync(Path(directory))
        if data_path.exists():
            data_path.rmdir()
        os.rename(partial, data_path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _sync(data_path.parent)
    return copied


def _write_synced(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    _sync(path)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
