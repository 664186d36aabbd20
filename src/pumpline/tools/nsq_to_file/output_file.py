"""One file that nsq_to_file writes: opened, synced, marked and closed.

A file is *marked* while it is open: an extended attribute has its size at the last sync. Messages
are finished after the sync that covers them, so what lies beyond the mark after a kill will be
delivered again. `mend` cuts it away at the next start; that also removes a torn record or member.
A file without a mark was closed, or is somebody else's, and is left alone. Where the file system
knows no extended attributes, any file may have been left, and only what is torn is cut away.

| step of a sync          | killed after it, before the next                               |
|-------------------------|----------------------------------------------------------------|
| write                   | cut away, delivered again: once in the files                   |
| mark                    | delivered again: twice                                         |
| fsync, mark included    | the same                                                       |
| FIN                     | once                                                           |

A lock tells files of running processes from files that were left. Several processes may append to
one file, as with NSQ's tool; such a file is only cut where it is torn.

Blocking; knows nothing of messages and of the event loop.
"""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from pumpline.tools.nsq_to_file.encoding import Encoding
from pumpline.tools.nsq_to_file.moving import hidden_name, link, make_directory, sync_directory

MARK = "user.pumpline.synced"
SHARED = "user.pumpline.shared"
FILE_MODE = 0o666


class OutputFile:
    def __init__(self, path: Path, *, is_exclusive: bool) -> None:
        """FileExistsError if it is to be a new file and is not."""
        make_directory(path.parent)
        self.path = path
        self._fd = _new_file(path) if is_exclusive else _appended_file(path)
        is_alone = _lock(self._fd, fcntl.LOCK_EX)
        self.size_bytes = self.synced_bytes = os.fstat(self._fd).st_size
        self._is_marked = False
        if is_alone:
            _remove_attribute(self._fd, SHARED)
            self._is_marked = _set_attribute(self._fd, MARK, str(self.synced_bytes).encode())
        else:
            _set_attribute(self._fd, SHARED, b"1")
        _lock(self._fd, fcntl.LOCK_SH)
        sync_directory(path.parent)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.write(self._fd, view)
            self.size_bytes += written
            view = view[written:]

    def rewind(self) -> bool:
        """Take back what was written since the last sync; False if others write here, too."""
        if self.size_bytes == self.synced_bytes:
            return True
        is_shared = _attribute(self._fd, SHARED) is not None
        if is_shared or os.fstat(self._fd).st_size != self.size_bytes:
            return False
        os.ftruncate(self._fd, self.synced_bytes)
        os.lseek(self._fd, self.synced_bytes, os.SEEK_SET)
        self.size_bytes = self.synced_bytes
        return True

    def sync(self) -> None:
        if self._is_marked:  # an old mark would have synced records cut away: raise if it fails
            os.setxattr(self._fd, MARK, str(self.size_bytes).encode())
        os.fsync(self._fd)
        self.synced_bytes = self.size_bytes

    def close(self) -> None:
        """Of a file that is synced, and moved if it is to be."""
        _remove_attribute(self._fd, MARK)
        os.close(self._fd)

    def abandon(self) -> None:
        """Close it as a kill would leave it, but without what was not synced."""
        with suppress(OSError):
            self.rewind()
        os.close(self._fd)


def _appended_file(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, FILE_MODE)


def _new_file(path: Path) -> int:
    """A new file that has a mark when it gets its name: a kill leaves none without."""
    hidden = hidden_name(path)
    fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        _lock(fd, fcntl.LOCK_EX)
        _set_attribute(fd, MARK, b"0")
        link(hidden, path)
    except BaseException:
        os.close(fd)
        raise
    finally:
        hidden.unlink(missing_ok=True)
    return fd


def mend(
    path: Path, encoding: Encoding, *, force: bool = False, keeps_mark: bool = False
) -> int | None:
    """Cut away what a kill has left in a file; return how many bytes.

    None if the file was not left: it was closed, or a running process writes it. `force`: if the
    file system knows no marks, it was left. A file of which nothing is left is deleted.
    `keeps_mark`: the file is to be moved, and a kill before that leaves it for the next start.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    with open(fd, "r+b") as file:
        marked = _attribute(fd, MARK)
        is_left = marked is not None or (force and not _knows_attributes(fd))
        if not is_left or not _lock(fd, fcntl.LOCK_EX):
            return None
        before = os.fstat(fd).st_size
        size = _good_bytes(file, before, marked, encoding)
        os.ftruncate(fd, size)
        os.fsync(fd)
        if not size:
            path.unlink()
        if keeps_mark:
            _set_attribute(fd, MARK, str(size).encode())
        else:
            _remove_attribute(fd, MARK)
        return before - size


def unmark(path: Path) -> None:
    """A file that was mended is where it belongs."""
    with suppress(OSError):
        os.removexattr(path, MARK)


def _good_bytes(file: BinaryIO, size: int, marked: bytes | None, encoding: Encoding) -> int:
    """How much of a file that was left is to stay."""
    fd = file.fileno()
    if marked is not None and marked.isdigit() and _attribute(fd, SHARED) is None:
        if int(marked) <= size:
            return int(marked)
        return encoding.whole_bytes(file)  # a loss of power took what was not synced
    whole = encoding.whole_bytes(file)
    # Nothing of it is ours to read: another framing or compression wrote it.
    return whole if whole or encoding.begins_as_ours(file) else size


def _lock(fd: int, kind: int) -> bool:
    """Whether we have the lock; False as well where there are none."""
    try:
        fcntl.flock(fd, kind if kind == fcntl.LOCK_SH else kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _attribute(fd: int, name: str) -> bytes | None:
    try:
        return os.getxattr(fd, name)
    except OSError:
        return None


def _knows_attributes(fd: int) -> bool:
    """Whether the file system has extended attributes."""
    try:
        os.getxattr(fd, MARK)
    except OSError as error:
        return error.errno == errno.ENODATA
    return True


def _set_attribute(fd: int, name: str, value: bytes) -> bool:
    try:
        os.setxattr(fd, name, value)
    except OSError:  # a file system without them
        return False
    return True


def _remove_attribute(fd: int, name: str) -> None:
    with suppress(OSError):
        os.removexattr(fd, name)
