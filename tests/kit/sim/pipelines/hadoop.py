"""Hadoop's file system in memory, as `Storage` calls it, which is killed at a chosen step.

A step is one change of the disk. A rename is atomic; a recursive delete takes a step for each file,
and a file that is being written is there, empty, before it has its content. After the kill every
call fails, as the process is no more; `revive` lets the next process find what is left.
"""

from collections.abc import Callable
from typing import Any


class Killed(BaseException):
    """The process has ended. No `except Exception` sees it."""


class SimFiles:
    """The disk, and the process that uses it. `content` of a file is a text, or rows of a table."""

    def __init__(self) -> None:
        self.content: dict[str, Any] = {}  # by path, without the scheme
        self.directories: set[str] = {"/"}
        self.steps = 0
        self.kill_at = -1  # the number of the step that is not taken; -1: none
        self.is_dead = False
        self.on_kill: Callable[[], None] = lambda: None

    def step(self) -> None:
        """To be called before each change that a kill may prevent, also by the network."""
        self.alive()
        self.steps += 1
        if self.steps - 1 == self.kill_at:
            self.is_dead = True
            self.on_kill()
            raise Killed

    def alive(self) -> None:
        if self.is_dead:
            raise Killed

    def copy(self) -> "SimFiles":
        """The same disk, for another history."""
        other = SimFiles()
        other.content, other.directories = dict(self.content), set(self.directories)
        return other

    def revive(self, kill_at: int = -1) -> None:
        """The next process, which is killed at a step if `kill_at` is not -1."""
        self.is_dead = False
        self.steps = 0
        self.kill_at = kill_at

    # -- Hadoop's FileSystem --------------------------------------------------------------------

    def getUri(self) -> "SimFiles":
        return self

    def getScheme(self) -> str:
        return "file"

    def makeQualified(self, path: "SimPath") -> "SimPath":
        return path

    def exists(self, path: "SimPath") -> bool:
        self.alive()
        return path.plain in self.content or path.plain in self.directories

    def mkdirs(self, path: "SimPath") -> bool:
        if path.plain not in self.directories:
            self.step()
            self._make_parents(f"{path.plain}/x")
        return True

    def listStatus(self, path: "SimPath") -> list["SimStatus"]:
        self.alive()
        return [SimStatus(self, each) for each in self._in(path.plain)]

    def listFiles(self, path: "SimPath", recursive: bool) -> "SimIterator":
        self.alive()
        return SimIterator([SimStatus(self, each) for each in self._below(path.plain)])

    def getFileStatus(self, path: "SimPath") -> "SimStatus":
        self.alive()
        if path.plain not in self.content:
            raise FileNotFoundError(path.plain)
        return SimStatus(self, path.plain)

    def open(self, path: "SimPath") -> "SimStream":
        self.alive()
        return SimStream(self, path.plain)

    def create(self, path: "SimPath", overwrite: bool) -> "SimStream":
        self.step()
        self._make_parents(path.plain)
        self.content[path.plain] = ""
        return SimStream(self, path.plain)

    def delete(self, path: "SimPath", recursive: bool) -> bool:
        self.alive()
        if path.plain in self.content:
            self.step()
            del self.content[path.plain]
            return True
        if path.plain not in self.directories:
            return False
        for each in self._below(path.plain):
            self.step()
            del self.content[each]
        self.step()
        inside = f"{path.plain}/"
        self.directories -= {d for d in self.directories if f"{d}/".startswith(inside)}
        return True

    def rename(self, source: "SimPath", target: "SimPath") -> bool:
        """False, as Hadoop says it, if the target is there or has no directory."""
        self.step()
        parent = target.plain.rpartition("/")[0] or "/"
        if self.exists(target) or not self.exists(source) or parent not in self.directories:
            return False
        if source.plain in self.content:
            self.content[target.plain] = self.content.pop(source.plain)
            return True
        inside = f"{source.plain}/"
        for each in self._below(source.plain):
            self.content[f"{target.plain}/{each[len(inside) :]}"] = self.content.pop(each)
        moved = {d for d in self.directories if f"{d}/".startswith(inside)}
        self.directories -= moved
        self.directories |= {target.plain + d[len(source.plain) :] for d in moved}
        return True

    # -- for the stand-ins of Spark's own writers ----------------------------------------------

    def put(self, path: str, content: Any) -> None:
        """A whole file in one step, as by a rename."""
        self.step()
        self._make_parents(path)
        self.content[path] = content

    def _make_parents(self, path: str) -> None:
        while (path := path.rpartition("/")[0]) and path not in self.directories:
            self.directories.add(path)

    def _below(self, directory: str) -> list[str]:
        inside = f"{directory.rstrip('/')}/"
        return sorted(each for each in self.content if each.startswith(inside))

    def _in(self, directory: str) -> list[str]:
        inside = f"{directory.rstrip('/')}/"
        everything = {*self.content, *self.directories} - {directory, "/"}
        names = {
            each[len(inside) :].partition("/")[0] for each in everything if each.startswith(inside)
        }
        return [inside + name for name in sorted(names)]


class SimPath:
    def __init__(self, files: SimFiles, text: str) -> None:
        self._files = files
        self.plain = plain(text)

    def getFileSystem(self, configuration: object) -> SimFiles:
        return self._files

    def isAbsolute(self) -> bool:
        return True

    def getName(self) -> str:
        return self.plain.rpartition("/")[2]

    def toString(self) -> str:
        return f"file:{self.plain}"


def plain(path: str) -> str:
    """A path without its scheme."""
    return "/" + path.removeprefix("file:").strip("/")


class SimStatus:
    def __init__(self, files: SimFiles, path: str) -> None:
        self._files = files
        self._path = path

    def getPath(self) -> SimPath:
        return SimPath(self._files, self._path)

    def getLen(self) -> int:
        content = self._files.content[self._path]
        return len(content) if isinstance(content, str) else 100 + 20 * len(content)

    def getModificationTime(self) -> int:
        return 0

    def getBlockSize(self) -> int:
        return 1 << 25

    def getReplication(self) -> int:
        return 1


class SimIterator:
    def __init__(self, found: list[SimStatus]) -> None:
        self._found = found

    def hasNext(self) -> bool:
        return bool(self._found)

    def next(self) -> SimStatus:
        return self._found.pop(0)


class SimStream:
    def __init__(self, files: SimFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._written: str | None = None

    def write(self, data: bytearray) -> None:
        self._written = (self._written or "") + data.decode()

    def close(self) -> None:
        if self._written is not None and not self._files.is_dead:
            self._files.step()
            self._files.content[self._path] = self._written

    def text(self) -> str:
        return str(self._files.content[self._path])


class SimJvm:
    """The names of Java that `Storage` uses: `jvm.org.apache.hadoop.fs.Path` and the like."""

    def __init__(self, files: SimFiles) -> None:
        self._files = files

    def __getattr__(self, package: str) -> "SimJvm":
        return self

    def Path(self, text: str) -> SimPath:
        return SimPath(self._files, text)

    def toString(self, stream: SimStream, encoding: str) -> str:
        return stream.text()
