"""Opening files of the data directory, and a bounded pool of descriptors for segments.

All files are opened by `open_file`, which takes regular files only: to open a named pipe would wait
for its other end.

Only the event loop's thread uses the pool, so a descriptor handed out stays open until the caller
returns to the loop. Work in other threads (fsync, cold reads) opens the file anew.
"""

import errno
import logging
import os
import resource
import stat
from collections import OrderedDict
from contextlib import suppress

OPEN_FILES_MIN = 16
_OPEN_FILES_MAX = 4096
TEMPORARY = ".tmp"  # ends the name of a file that is being written

BAD = ".bad"  # ends the name of what is damaged, and kept

_FILE_MODE = 0o600
_MAY_BE_NO_FILE = frozenset({errno.ENOENT, errno.EISDIR, errno.ENXIO})
_READ_BYTES = 1 << 20
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_LOG = logging.getLogger(__name__)
_PARTS_MAX = os.sysconf("SC_IOV_MAX")  # that one writev takes


def pool_size() -> int:
    """A quarter of what the process may open: the rest is for sockets and threads."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(OPEN_FILES_MIN, min(_OPEN_FILES_MAX, soft // 4))


def lacks_room(error: OSError) -> bool:
    """Whether the write would have succeeded with more room on the disk."""
    return error.errno in _NO_ROOM


class NotAFile(OSError):
    """In the place of a file is something else."""

    def __init__(self, path: str, found: str) -> None:
        super().__init__(errno.EINVAL, f"{found} in the place of a file", path)

    def __str__(self) -> str:
        return (
            f"{self.filename} is {self.strerror}: put the file back, or move this away to go on "
            "without what the file held"
        )


_FOUND = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_file(path: str, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file, or of a symbolic link to one. NotAFile if it is anything
    else; FileNotFoundError if there is nothing of that name."""
    try:
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, _FILE_MODE)
    except OSError as error:
        if error.errno in _MAY_BE_NO_FILE:
            stat_file(path)
        raise
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise NotAFile(path, _FOUND[stat.S_IFMT(mode)])
    return fd


def stat_file(path: str) -> os.stat_result:
    """As `open_file`, without opening it."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise NotAFile(path, "a symbolic link to nothing") from None
        raise
    if not stat.S_ISREG(status.st_mode):
        raise NotAFile(path, _FOUND[stat.S_IFMT(status.st_mode)])
    return status


def read_whole(path: str) -> bytes:
    """The content of a file; the errors of `open_file`."""
    fd = open_file(path)
    try:
        parts = []
        position = 0
        while data := os.pread(fd, _READ_BYTES, position):
            parts.append(data)
            position += len(data)
        return b"".join(parts)
    finally:
        os.close(fd)


def read_or_set_aside(path: str) -> bytes:
    """The content of a file that nsqd can do without. Something else in its place is renamed to
    `<name>.bad`, so that the file can be written anew, and counts as an empty file."""
    try:
        return read_whole(path)
    except NotAFile as error:
        os.replace(path, path + BAD)
        _LOG.error("FILES: %s is %s: renamed to %s", path, error.strerror, path + BAD)
        return b""


def remove_leftover(path: str) -> None:
    """Unlink a file that nobody needs, if it is there. A directory in its place would be in the way
    of the next one: it is renamed to `<name>.bad`."""
    try:
        os.unlink(path)
    except IsADirectoryError:
        with suppress(OSError):
            os.replace(path, path + BAD)
            _LOG.error("FILES: %s is a directory: renamed to %s", path, path + BAD)
    except OSError:
        pass  # such as of a disk that fails: the next start tries again


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
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        while True:
            try:
                return open_file(path, flags)
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
    fd = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
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
    fd = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        write_all(fd, [data])
    finally:
        os.close(fd)


def write_all(fd: int, parts: list[bytes | memoryview]) -> int:
    """writev until everything is written; returns how many bytes that were. An OSError leaves an
    unknown part of it written."""
    if len(parts) > _PARTS_MAX:
        begun = range(0, len(parts), _PARTS_MAX)
        return sum(write_all(fd, parts[start : start + _PARTS_MAX]) for start in begun)
    total = sum(map(len, parts))
    written = os.writev(fd, parts)
    while written < total:
        rest = memoryview(b"".join(parts))[written:]
        written += os.write(fd, rest)
    return total


def sync_file(path: str) -> None:
    """Of a file or a directory."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
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
