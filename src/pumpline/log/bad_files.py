"""The `.bad` files of a data directory: damaged bytes of its logs, kept by a start.

| file                                            | holds damaged bytes of                        |
|-------------------------------------------------|-----------------------------------------------|
| `topics/<topic>/<offset>.log.<position>.bad`    | a segment                                     |
| `wal-<number>.<position>.bad`                   | the write-ahead log: messages of any topic    |

Another number before `.bad` tells files of one position apart. `log.salvage` finds the messages in
them, and `log.missing` says which of these the logs lack. Nothing here changes a file.
"""

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from pumpline.log.directory import Directory
from pumpline.log.files import BAD, open_file
from pumpline.log.salvage import SalvagedBatch, salvage

BYTES_MAX = 1 << 30  # of one file

_SEGMENT = re.compile(r"\d{20}\.log\.\d+(\.\d+)?\.bad", re.ASCII)
_WAL = re.compile(r"wal-\d{20}\.\d+(\.\d+)?\.bad", re.ASCII)


class BadFile(NamedTuple):
    path: str
    topic: str  # "": of the write-ahead log

    def batches(self) -> Iterator[SalvagedBatch]:
        """OSError if it cannot be read."""
        fd = open_file(self.path, os.O_NOFOLLOW)
        try:
            size_bytes = os.fstat(fd).st_size
            if size_bytes > BYTES_MAX:
                raise OSError(f"{self.path} has {size_bytes} bytes, and {BYTES_MAX} can be read")
            data = os.pread(fd, size_bytes, 0)
        finally:
            os.close(fd)
        yield from salvage(memoryview(data))


class BadFiles(NamedTuple):
    files: list[BadFile]
    others: list[str]  # why a name with .bad is not among them, in a sentence each


def find_bad_files(directory: Directory) -> BadFiles:
    """OSError if the data directory cannot be read."""
    found = BadFiles([], [])
    _look_into(directory.path, "", _WAL, found)
    for topic in directory.topic_names():
        try:
            _look_into(directory.topic_path(topic), topic, _SEGMENT, found)
        except FileNotFoundError:
            continue  # deleted meanwhile
    return found


def _look_into(path: str, topic: str, pattern: re.Pattern[str], found: BadFiles) -> None:
    with os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if not entry.name.endswith(BAD):
                continue
            if entry.is_symlink():
                found.others.append(f"{entry.path} is a symbolic link: it is not read")
            elif not entry.is_file():
                kind = "directory" if entry.is_dir() else "named pipe, socket or device"
                found.others.append(f"{entry.path} is a {kind}: it is not read")
            elif pattern.fullmatch(entry.name) is None:
                found.others.append(f"{entry.path} is not of a log: it holds no messages")
            else:
                found.files.append(BadFile(entry.path, topic))
