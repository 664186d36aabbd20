"""Reads a log's files directly, in tasks that run on the machine of the log's node.

A node that is shown this machine's boot id answers `/log/files` with the files that hold a range,
and the places in them; the task opens and reads the files itself. Device and inode prove that they
are the node's files. If anything prevents it (another machine, a container with other mounts, no
permission, a file retired meanwhile), that is not an error: reading ends early, and the caller
reads the rest over HTTP.

Measured with `localFiles` on and off by turns, 8 rounds of 3 million rows of 200 bytes on 2 cores,
medians: 31 % more rows a second (0.87 against 0.66 million), and 970 instead of 1,268 ns of CPU a
row (nsqd 7 instead of 148, Spark 963 instead of 1,120).
Knows /log/files; must not know what is in the bytes.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

from pyspark_nsq.errors import NodeRefused, NsqError
from pyspark_nsq.nodes.connection import NodeConnection
from pyspark_nsq.options import ReadOptions
from pyspark_nsq.reading.fetch import ANSWER_BYTES_MAX, Answer
from pyspark_nsq.reading.plan import LogRange

PART_BYTES = 2 << 20  # read at once; so much is still in the processor's cache when it is decoded
BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"

_LOG = logging.getLogger(__name__)

_elsewhere: set[str] = set()  # addresses of nodes whose files this process cannot read


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file named in an answer of /log/files, and the parts of it that hold the range."""

    path: str
    device: int
    inode: int
    parts: list[tuple[int, list[tuple[int, int]]]]  # offset reached; positions and lengths


class LocalReader:
    """Reads one range, up to the first obstacle."""

    def __init__(self, wanted: LogRange, options: ReadOptions) -> None:
        self._range = wanted
        self._part_bytes = min(options.fetch_bytes, PART_BYTES)
        self._connection = NodeConnection(wanted.address, options.connecting)
        self._buffer = bytearray(self._part_bytes + (self._part_bytes >> 3))

    def answers(self) -> Iterator[Answer]:
        """The range in order; only its beginning, or nothing, if the files cannot be read."""
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
        """Yields what one answer of the node names. All files are opened before the first is
        read, so that they stay readable if the log retires them."""
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

    def _ask(self, at: int) -> list[LogFile]:
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
        except NodeRefused as error:
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
    """This process cannot read the node's files, now or later."""


def _files(answer: Any) -> list[LogFile]:
    try:
        return [
            LogFile(
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


def _opened(file: LogFile) -> int:
    try:
        fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if os.path.isdir(os.path.dirname(file.path)):
            raise  # the log has retired it since
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
    """An id that only processes on this machine know; empty where the system has none."""
    try:
        with open(BOOT_ID_PATH, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
