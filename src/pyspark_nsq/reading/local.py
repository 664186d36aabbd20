"""Reading a log's files where they are, for tasks on the machine of its node.

A node that is shown this machine's boot id says in which files a range is, and where
(`/log/files`); the task opens and reads them itself. Nothing goes through a socket, and the node
has no work with it. That the files are the node's is known by device and inode. Whatever stands in
the way (another machine, a container with other mounts, no right to read, a file that was retired
meanwhile) is no error: reading ends early, and the caller goes on over HTTP.
Knows /log/files; must not know what is in the bytes.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

from pyspark_nsq.errors import NsqError, Refused
from pyspark_nsq.nodes.connection import NodeConnection
from pyspark_nsq.options import ReadOptions
from pyspark_nsq.reading.fetch import ANSWER_BYTES_MAX, Answer
from pyspark_nsq.reading.plan import Range

PART_BYTES = 2 << 20  # read at once: it is decoded while it is in the processor's cache
BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"

_LOG = logging.getLogger(__name__)

_elsewhere: set[str] = set()  # nodes that this process has found that it cannot read so


@dataclass(frozen=True, slots=True)
class File:
    """Of an answer of /log/files."""

    path: str
    device: int
    inode: int
    parts: list[tuple[int, list[tuple[int, int]]]]  # offset reached; positions and lengths


class LocalReader:
    """Reads one range, as far as it can."""

    def __init__(self, wanted: Range, options: ReadOptions) -> None:
        self._range = wanted
        self._part_bytes = min(options.fetch_bytes, PART_BYTES)
        self._connection = NodeConnection(wanted.address, options.connecting)
        self._buffer = bytearray(self._part_bytes + (self._part_bytes >> 3))

    def answers(self) -> Iterator[Answer]:
        """The range in order, or its beginning, or nothing."""
        address, at = self._range.address, self._range.start
        if address in _elsewhere or not boot_id():
            return
        try:
            while at < self._range.end:
                for answer in self._parts(at):
                    at = answer.stop
                    yield answer
        except _Elsewhere as error:
            _elsewhere.add(address)
            _LOG.info("%s is read over HTTP: %s", address, error)
        except (NsqError, OSError) as error:
            _LOG.info("%s is read over HTTP from offset %d on: %s", address, at, error)
        finally:
            self._connection.close()

    def _parts(self, at: int) -> Iterator[Answer]:
        """One answer of the node. All files are opened before any is read: so they stay, should
        the log retire them."""
        files = self._ask(at)
        with ExitStack() as closing:
            opened = []
            for file in files:
                fd = _opened(file)
                closing.callback(os.close, fd)
                opened.append((fd, file.parts))
            for fd, parts in opened:
                for to, extents in parts:
                    if to <= at:
                        raise NsqError(f"offset {to} comes after {at}")
                    yield Answer(self._read(fd, extents), at, to)
                    at = to

    def _ask(self, at: int) -> list[File]:
        query = {
            "topic": self._range.topic,
            "from": at,
            "to": self._range.end,
            "log": self._range.log,
            "bytes_max": self._part_bytes,
            "machine": boot_id(),
        }
        try:
            files = _files(self._connection.ask("/log/files", query))
        except Refused as error:
            if error.code in ("OTHER_MACHINE", "NOT_FOUND"):
                raise _Elsewhere(error.code) from None
            raise
        if not any(file.parts for file in files):
            raise NsqError(f"nothing is there from offset {at} on")
        return files

    def _read(self, fd: int, extents: list[tuple[int, int]]) -> memoryview:
        size = sum(length for _, length in extents)
        if size > ANSWER_BYTES_MAX or min((min(extent) for extent in extents), default=0) < 0:
            raise NsqError(f"/log/files names impossible places: {extents[:8]}")
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        view = memoryview(self._buffer)[:size]
        end = 0
        for position, length in extents:
            begin, end = end, end + length
            _fill(view[begin:end], fd, position)
        return view


class _Elsewhere(NsqError):
    """The node's files are not within reach, and will not be."""


def _files(answer: Any) -> list[File]:
    try:
        return [
            File(
                str(file["path"]),
                int(file["device"]),
                int(file["inode"]),
                [
                    (int(part["to"]), [(int(at), int(size)) for at, size in part["extents"]])
                    for part in file["parts"]
                ],
            )
            for file in answer["files"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise _Elsewhere(f"/log/files is not understood: {error!r}") from None


def _fill(view: memoryview, fd: int, position: int) -> None:
    filled = 0
    while filled < len(view):
        count = os.preadv(fd, [view[filled:]], position + filled)
        if not count:
            raise NsqError(f"the file ends at {position + filled}")
        filled += count


def _opened(file: File) -> int:
    try:
        fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if os.path.isdir(os.path.dirname(file.path)):
            raise  # retired since
        raise _Elsewhere(f"{file.path} is not on this side") from None
    except PermissionError as error:
        raise _Elsewhere(str(error)) from None
    status = os.fstat(fd)
    if (status.st_dev, status.st_ino) != (file.device, file.inode):
        os.close(fd)
        raise _Elsewhere(f"{file.path} is another file on this side")
    return fd


@cache
def boot_id() -> str:
    """What only processes on this machine know; empty where there is no such thing."""
    try:
        with open(BOOT_ID_PATH, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
