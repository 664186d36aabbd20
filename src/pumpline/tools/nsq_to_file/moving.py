"""A complete file goes from --work-dir to --output-dir, also to another file system.

It appears there at once and whole, under a name that was free, and a kill at any step neither loses
it nor has it there twice:

| step                                  | killed after it: at the next start                      |
|---------------------------------------|---------------------------------------------------------|
| copy to a hidden name, fsync          | the copy is deleted, and the file is moved              |
| link the file or its copy to its name | it is recognized: the same inode, or the copy's identity |
| delete the copy, delete the file      |                                                         |

A copy has the identity of its file, a random word, in an extended attribute. Where the file system
has none, a kill between the last steps leaves the file there twice. Blocking.
"""

import errno
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FILE_MODE = 0o666
DIRECTORY_MODE = 0o770
IDENTITY = "user.pumpline.identity"

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}
_COPY = re.compile(r"\.(.+)\.[0-9]+\.copy", re.DOTALL)


def move(source: Path, destinations: Iterator[Path]) -> Path:
    """Move a complete file to the first destination whose name is free; return which."""
    copy: Path | None = None
    lock = -1
    try:
        for destination in destinations:
            make_directory(destination.parent)
            if not _is_there(source, destination):
                try:
                    link(copy or source, destination)
                except FileExistsError:
                    continue
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                    copy, lock = _copied(source, destination)
                    try:
                        link(copy, destination)
                    except FileExistsError:
                        continue
            sync_directory(destination.parent)
            source.unlink()
            with suppress(OSError):
                os.removexattr(destination, IDENTITY)
            return destination
    finally:
        if copy is not None:
            copy.unlink(missing_ok=True)
            os.close(lock)
    raise FileExistsError(errno.EEXIST, "no name is free", str(source))


def hidden_name(path: Path) -> Path:
    """Of a file that is not to be seen yet."""
    return path.with_name(f".{path.name}.{os.getpid()}.copy")


def copied_name(name: str) -> str:
    """Which name a hidden file was to get; empty if it is none of ours."""
    match = _COPY.fullmatch(name)
    return match[1] if match else ""


def delete_copy(path: Path) -> bool:
    """Delete a hidden file that a kill has left; False if a running process makes it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def make_directory(path: Path) -> None:
    try:
        path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(path)) from None


def _is_there(source: Path, destination: Path) -> bool:
    """Whether a move was killed after the file had got its name."""
    try:
        if os.path.samefile(source, destination):
            return True
        return os.getxattr(source, IDENTITY) == os.getxattr(destination, IDENTITY)
    except OSError:
        return False


def link(source: Path, destination: Path) -> None:
    """Give a file a second name, which must be free."""
    try:
        os.link(source, destination)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # A file system without hard links: take the name first, then replace what has it.
        os.close(os.open(destination, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
        shutil.copyfile(source, destination)


def _copied(source: Path, destination: Path) -> tuple[Path, int]:
    """A whole copy beside the destination, under a hidden name, and a lock on it."""
    with suppress(OSError):
        os.setxattr(source, IDENTITY, uuid.uuid4().hex.encode(), os.XATTR_CREATE)
    copy = hidden_name(destination)
    fd = os.open(copy, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX)
    shutil.copyfile(source, copy)
    shutil.copymode(source, copy)
    with suppress(OSError):
        os.setxattr(fd, IDENTITY, os.getxattr(source, IDENTITY))
    os.fsync(fd)
    return copy, fd


def sync_directory(path: Path) -> None:
    """So that a file's name survives a loss of power, as its contents do."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # some file systems cannot
            os.fsync(fd)
    finally:
        os.close(fd)
