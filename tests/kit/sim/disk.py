"""A disk in memory, with the functions of `os` that nsqd uses, that can fail, tear and forget.

It is one machine's: processes come and go on it. What a process wrote is there at once, for itself
and for the next one. What survives a *loss of power* is what was synced, and by chance some of the
rest:

- a file has its content of the last fsync, and perhaps a part of what was appended since, or zeros;
- names of files are those at the last fsync of any file or directory, and the first few changes
  since, in their order: file systems keep a journal. With `is_strict` there is no journal, and each
  directory keeps the names of its own last fsync, which is all that POSIX says;
- a file renamed over another has its whole content or is the other still, as ext4 has it;
  with `is_strict` it may be cut short as well.

A call can fail (`Faults`), and the process can die in it (`kill_after`): a write then may have
written a part. A dead process can do nothing any more: every call raises Killed.
"""

import errno
import os
import posixpath
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.kit.sim.loop import Killed, VirtualClock

BLOCK_BYTES = 4096
DISK_BYTES = 1 << 30

CHANGES = frozenset(
    "create write fsync rename ftruncate unlink mkdir rmdir".split()
)  # the kinds of calls that can fail, and in which a process can die


class File:
    is_dir = False

    def __init__(self, number: int) -> None:
        self.number = number
        self.data = bytearray()
        self.synced = b""
        self.mtime_ns = 0


class Folder:
    is_dir = True

    def __init__(self, number: int) -> None:
        self.number = number
        self.names: dict[str, File | Folder] = {}
        self.synced: dict[str, File | Folder] = {}
        # Of names, since the last sync: number, name, what it is now.
        self.changes: list[tuple[int, str, File | Folder | None]] = []
        self.mtime_ns = 0


class OpenFile(NamedTuple):
    node: File | Folder
    appends: bool


class Faults(NamedTuple):
    """Calls of these kinds fail, each with a probability."""

    kinds: frozenset[str]
    rate: float
    error: int


class Status(NamedTuple):
    st_size: int
    st_mtime_ns: int
    st_ino: int
    st_dev: int = 1
    st_mode: int = 0o100600


class Usage(NamedTuple):
    f_frsize: int
    f_blocks: int
    f_bavail: int
    f_bfree: int


class Entry(NamedTuple):
    name: str
    node: File | Folder

    def is_dir(self) -> bool:
        return self.node.is_dir


class Entries(list[Entry]):
    def __enter__(self) -> "Entries":
        return self

    def __exit__(self, *_: object) -> None: ...


class SimDisk:
    """The disk; `calls` has the functions."""

    def __init__(self, clock: VirtualClock, chance: random.Random) -> None:
        self.chance = chance
        self.faults: Faults | None = None
        self.room_bytes = DISK_BYTES
        self.kill_after = -1  # changes; below 0: not by this disk
        self.is_dead = False  # the process that uses it
        self.is_strict = False
        self.failed = 0  # calls
        self.changes = 0  # calls that change something, of all processes
        self._clock = clock
        self._numbers = iter(range(1, 1 << 62))
        self.root = Folder(0)
        self._open: dict[int, OpenFile] = {}
        self._next_fd = 1000
        self._named = 0  # changes of names so far
        self._journaled = 0  # that survive a loss of power

    # -- what happens to it -------------------------------------------------------------------

    def new_process(self) -> None:
        self.is_dead = False
        self._open.clear()

    def lose_power(self) -> None:
        """What was not synced is gone, but for what chance has written."""
        self._settle(self.root, self.chance.randint(self._journaled, self._named))
        self._journaled = self._named

    def _settle(self, folder: Folder, kept: int) -> None:
        names = dict(folder.synced)
        if self.is_strict:
            kept = self.chance.choice([0, *(number for number, _, _ in folder.changes)])
        for number, name, node in folder.changes:
            if number > kept:
                break
            if node is None:
                names.pop(name, None)
            else:
                names[name] = node
        folder.names = names
        folder.synced = dict(names)
        folder.changes = []
        for node in names.values():
            if isinstance(node, Folder):
                self._settle(node, kept)
            else:
                self._settle_file(node)

    def _settle_file(self, file: File) -> None:
        data, synced = bytes(file.data), file.synced
        if not data.startswith(synced):
            data = self.chance.choice((data, synced))
        else:
            between = self.chance.randint(len(synced), len(data))
            cut = self.chance.choice((len(synced), len(data), between))
            zeros = self.chance.random() < 0.2
            data = data[:cut] + bytes(len(data) - cut) if zeros else data[:cut]
        file.data = bytearray(data)
        file.synced = data

    def used_bytes(self) -> int:
        return sum(len(file.data) for _, file in self.files())

    def files(self) -> Iterator[tuple[str, File]]:
        """All files and their paths."""

        def walk(path: str, folder: Folder) -> Iterator[tuple[str, File]]:
            for name, node in sorted(folder.names.items()):
                if isinstance(node, Folder):
                    yield from walk(f"{path}/{name}", node)
                else:
                    yield f"{path}/{name}", node

        return walk("", self.root)

    @property
    def descriptors(self) -> dict[int, File | Folder]:
        """What the process has open."""
        return {fd: each.node for fd, each in self._open.items()}

    # -- what may go wrong --------------------------------------------------------------------

    def _enter(self, kind: str, path: str = "") -> None:
        """Before a call that changes something."""
        self._alive()
        self.changes += 1
        if self.kill_after == 0:
            self._die()
        self.kill_after -= 1
        faults = self.faults
        if faults and kind in faults.kinds and self.chance.random() < faults.rate:
            self._fail(faults.error, path)

    def _alive(self) -> None:
        if self.is_dead:
            raise Killed

    def _die(self) -> None:
        self.is_dead = True
        raise Killed

    def _fail(self, number: int, path: str = "") -> None:
        self.failed += 1
        raise OSError(number, os.strerror(number), path)

    # -- finding ------------------------------------------------------------------------------

    def _node(self, path: str) -> File | Folder:
        node: File | Folder = self.root
        for name in path.strip("/").split("/"):
            if not isinstance(node, Folder) or name not in node.names:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = node.names[name]
        return node

    def _find(self, path: str) -> File | Folder | None:
        try:
            return self._node(path)
        except FileNotFoundError:
            return None

    def _put(self, folder: Folder, name: str, node: File | Folder | None) -> None:
        self._named += 1
        folder.changes.append((self._named, name, node))
        if node is None:
            del folder.names[name]
        else:
            folder.names[name] = node

    def _place(self, path: str) -> tuple[Folder, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        folder = self._node(parent) if parent.strip("/") else self.root
        assert isinstance(folder, Folder)
        return folder, name

    # -- os -----------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        self._alive()
        node = self._find(path)
        if node is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._enter("create", path)
            folder, name = self._place(path)
            node = File(next(self._numbers))
            node.mtime_ns = self._clock.wall_ns()
            self._put(folder, name, node)
        elif flags & os.O_TRUNC:
            self._enter("ftruncate", path)
            assert isinstance(node, File)
            del node.data[:]
        self._next_fd += 1
        self._open[self._next_fd] = OpenFile(node, bool(flags & os.O_APPEND))
        return self._next_fd

    def close(self, fd: int) -> None:
        self._alive()
        del self._open[fd]

    def writev(self, fd: int, parts: list[bytes | memoryview]) -> int:
        return self.write(fd, b"".join(parts))

    def write(self, fd: int, data: bytes | memoryview) -> int:
        node = self._open[fd].node
        assert isinstance(node, File)
        whole = len(data)
        if not whole:
            return 0
        room = (
            max(self.room_bytes - self.used_bytes(), 0) if self.room_bytes < DISK_BYTES else whole
        )
        dies = self.kill_after == 0
        try:
            self._enter("write")
        except Killed:
            if dies:  # in the middle of it
                self._append(node, bytes(data[: self.chance.randint(0, whole)]))
            raise
        except OSError:
            part = self.chance.randint(0, whole)
            if part and self.chance.random() < 0.5:
                return self._append(node, bytes(data[:part]))  # the next write tells the error
            raise
        if room < whole:
            if not room:
                self._fail(errno.ENOSPC)
            return self._append(node, bytes(data[:room]))
        return self._append(node, bytes(data))

    def _append(self, node: File, data: bytes) -> int:
        """All files that nsqd writes to grow at their ends only."""
        node.data += data
        node.mtime_ns = self._clock.wall_ns()
        return len(data)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._alive()
        node = self._open[fd].node
        assert isinstance(node, File)
        return bytes(node.data[position : position + size])

    def preadv(self, fd: int, buffers: list[bytearray], position: int, flags: int) -> int:
        if self.chance.random() < 0.1:
            raise BlockingIOError(errno.EAGAIN, "not in the page cache")
        data = self.pread(fd, len(buffers[0]), position)
        buffers[0][: len(data)] = data
        return len(data)

    def fsync(self, fd: int) -> None:
        self._enter("fsync")
        self._journaled = self._named
        node = self._open[fd].node
        if isinstance(node, File):
            node.synced = bytes(node.data)
        else:
            node.synced = dict(node.names)
            node.changes = []

    def ftruncate(self, fd: int, size: int) -> None:
        self._enter("ftruncate")
        node = self._open[fd].node
        assert isinstance(node, File)
        del node.data[size:]
        node.data += bytes(size - len(node.data))

    def truncate(self, path: str, size: int) -> None:
        self._enter("ftruncate", path)
        node = self._node(path)
        assert isinstance(node, File)
        del node.data[size:]

    def fstat(self, fd: int) -> Status:
        self._alive()
        return _status(self._open[fd].node)

    def stat(self, path: str) -> Status:
        self._alive()
        return _status(self._node(path))

    def utime(self, path: str, *, ns: tuple[int, int]) -> None:
        self._alive()
        self._node(path).mtime_ns = ns[1]

    def rename(self, source: str, target: str) -> None:
        self._enter("rename", source)
        node = self._node(source)
        from_folder, from_name = self._place(source)
        to_folder, to_name = self._place(target)
        replaced = to_folder.names.get(to_name)
        if isinstance(node, File) and replaced is not None and not self.is_strict:
            node.synced = bytes(node.data)
        self._put(to_folder, to_name, node)
        self._named -= 1  # both are one change
        self._put(from_folder, from_name, None)

    replace = rename

    def unlink(self, path: str) -> None:
        self._alive()
        if self._node(path).is_dir:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._enter("unlink", path)
        folder, name = self._place(path)
        self._put(folder, name, None)

    def rmdir(self, path: str) -> None:
        self._enter("rmdir", path)
        node = self._node(path)
        assert isinstance(node, Folder)
        if node.names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        folder, name = self._place(path)
        self._put(folder, name, None)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        self._enter("mkdir", path)
        folder, name = self._place(path)
        if name in folder.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._put(folder, name, Folder(next(self._numbers)))

    def makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        self._alive()
        at = ""
        parts = path.strip("/").split("/")
        for index, part in enumerate(parts):
            at += "/" + part
            if self._find(at) is None:
                self.mkdir(at)
            elif index == len(parts) - 1 and not exist_ok:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def listdir(self, path: str) -> list[str]:
        self._alive()
        node = self._node(path)
        assert isinstance(node, Folder)
        return list(node.names)

    def scandir(self, path: str) -> Entries:
        names = self.listdir(path)
        return Entries(Entry(name, self._node(f"{path}/{name}")) for name in names)

    def statvfs(self, path: str) -> Usage:
        self._alive()
        free = max(self.room_bytes - self.used_bytes(), 0) // BLOCK_BYTES
        return Usage(BLOCK_BYTES, DISK_BYTES // BLOCK_BYTES, free, free)

    # -- shutil, and open -----------------------------------------------------------------------

    def rmtree(self, path: str, ignore_errors: bool = False) -> None:
        self._alive()
        try:
            node = self._node(path)
            assert isinstance(node, Folder)
            for name, each in list(node.names.items()):
                if each.is_dir:
                    self.rmtree(f"{path}/{name}", ignore_errors)
                else:
                    self.unlink(f"{path}/{name}")
            self.rmdir(path)
        except OSError:
            if not ignore_errors:
                raise

    def read(self, path: str) -> bytes:
        self._alive()
        node = self._node(path)
        assert isinstance(node, File)
        return bytes(node.data)


def _status(node: File | Folder) -> Status:
    if isinstance(node, File):
        return Status(len(node.data), node.mtime_ns, node.number)
    return Status(0, node.mtime_ns, node.number, st_mode=0o040700)


class _Paths:
    """In place of `os.path`."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in ("join", "dirname", "basename", "splitext"):
            raise AttributeError(f"os.path.{name} is not simulated")
        found: Callable[..., Any] = getattr(posixpath, name)
        return found

    def exists(self, path: str) -> bool:
        self._disk._alive()
        return self._disk._find(path) is not None

    def isdir(self, path: str) -> bool:
        self._disk._alive()
        return isinstance(self._disk._find(path), Folder)

    def islink(self, path: str) -> bool:
        self._disk._alive()
        return False

    def getsize(self, path: str) -> int:
        return self._disk.stat(path).st_size


class SimOs:
    """In place of the module `os`."""

    _OF_DISK = frozenset(
        "open close write writev pread preadv fsync ftruncate truncate fstat stat rename replace "
        "unlink rmdir mkdir makedirs listdir scandir statvfs utime".split()
    )
    _OF_SYSTEM = frozenset("strerror sysconf geteuid getcwd".split())

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self.path = _Paths(disk)

    def __getattr__(self, name: str) -> Any:
        if name in self._OF_DISK:
            return getattr(self._disk, name)
        if name in self._OF_SYSTEM or name.isupper() or name.startswith("RWF_"):
            return getattr(os, name)
        raise AttributeError(f"os.{name} is not simulated")

    def urandom(self, count: int) -> bytes:
        return self._disk.chance.randbytes(count)

    def posix_fadvise(self, *_: int) -> None: ...


class SimShutil:
    """In place of the module `shutil`."""

    def __init__(self, disk: SimDisk) -> None:
        self.rmtree = disk.rmtree
