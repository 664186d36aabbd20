"""Keeps a second writer away from a table that is being written.

Two archives of one table would write the same batches at the same time. Spark notices that when
both have written, and ends one of them with an error about its checkpoint. This refuses the second
at once, by a lock on the file `_lock` in its directory. The system drops the lock when its process
ends. Only a table on this machine has one: HDFS and object stores know no such lock. Must not know
what is written.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark_nsq.errors import NsqError
from pyspark_nsq.pipelines.table.storage import Storage

LOCK = "_lock"
PID_BYTES_MAX = 32


@contextmanager
def sole_writer(storage: Storage) -> Iterator[None]:
    """Raise NsqError if another process, or another archive of this one, writes the table."""
    if not storage.root.startswith("file:"):
        yield
        return
    with locked(Path("/" + storage.root.removeprefix("file:").lstrip("/"))):
        yield


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    file = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(file, PID_BYTES_MAX).decode(errors="replace").strip()
            raise NsqError(
                f"{directory} is being written by another archive (process {pid or 'unknown'}): "
                "wait until it has ended, or name another table"
            ) from None
        os.truncate(file, 0)
        os.write(file, str(os.getpid()).encode())
        yield
    finally:
        os.close(file)
