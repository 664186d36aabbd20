"""Open files, bounded: a least-recently-used pool of descriptors for segments.

Only the event loop's thread uses the pool, so a descriptor handed out stays open until the caller
returns to the loop. Work in other threads (fsync, cold reads) opens the file anew.
"""

import errno
import os
import resource
from collections import OrderedDict
from contextlib import suppress

OPEN_FILES_MIN = 16
_OPEN_FILES_MAX = 4096
TEMPORARY = ".tmp"  # ends the name of a file that is being written

_FILE_MODE = 0o600
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PARTS_MAX = os.sysconf("SC_IOV_MAX")  # that one writev takes


def pool_size() -> int:
    """A quarter of what the process may open: the rest is for sockets and threads."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(OPEN_FILES_MIN, min(_OPEN_FILES_MAX, soft // 4))


def lacks_room(error: OSError) -> bool:
    """Whether the write would have succeeded with more room on the disk."""
    return error.errno in _NO_ROOM


class FilePool:
    def __init__(self, size: int | None = None) -> None:
        self._size = size or pool_size()
        self._open: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str) -> int:
        """A descriptor open for reading and appending; the file is created if missing."""
        fd = self._open.get(path)
        if fd is not None:
            self._open.move_to_end(path)
            return fd
        while len(self._open) >= self._size:
            self._close_oldest()
        fd = self._open_file(path)
        self._open[path] = fd
        return fd

    def forget(self, path: str) -> None:
        fd = self._open.pop(path, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        while self._open:
            self._close_oldest()

    def _open_file(self, path: str) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        while True:
            try:
                return os.open(path, flags, _FILE_MODE)
            except OSError as error:
                # Sockets may have taken the descriptors: give back ours before giving up.
                if error.errno != errno.EMFILE or not self._open:
                    raise
                self._close_oldest()

    def _close_oldest(self) -> None:
        _, fd = self._open.popitem(last=False)
        os.close(fd)


def write_whole(path: str, data: bytes, *, sync: bool) -> None:
    """Replace a file so that a reader, or a crash, sees the old content or the new."""
    temporary = path + TEMPORARY
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
    try:
        try:
            write_all(fd, [data])
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):  # what is left of it takes room on a full disk
            os.unlink(temporary)
        raise


def append_whole(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _FILE_MODE)
    try:
        write_all(fd, [data])
    finally:
        os.close(fd)


def write_all(fd: int, parts: list[bytes | memoryview]) -> None:
    """writev until everything is written; an OSError leaves an unknown part of it written."""
    while len(parts) > _PARTS_MAX:
        write_all(fd, parts[:_PARTS_MAX])
        parts = parts[_PARTS_MAX:]
    total = sum(map(len, parts))
    written = os.writev(fd, parts)
    while written < total:
        rest = memoryview(b"".join(parts))[written:]
        written += os.write(fd, rest)


def sync_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_paths(paths: list[str]) -> None:
    """fsync files and directories; for a thread."""
    for path in paths:
        try:
            sync_file(path)
        except FileNotFoundError:
            continue  # retired or deleted meanwhile
