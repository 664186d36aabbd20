"""The disk queues of Go nsqd, as it left them in its data directory: read only, in order.

| file                                | content                                                   |
|-------------------------------------|-----------------------------------------------------------|
| `<name>.diskqueue.<number>.dat`     | records one after another; number of six digits or more   |
| `<name>.diskqueue.meta.dat`         | depth, then file number and position of the next read,    |
|                                     | then of the next write: `5\\n0,120\\n3,40\\n`             |
| `<name>.diskqueue.meta.dat.<n>.tmp` | metadata that was never put in place                      |
| `<name>.diskqueue.<number>.dat.bad` | set aside by Go nsqd as unreadable: not looked at here    |

A record, big-endian:

| field     | type    | meaning                                        |
|-----------|---------|------------------------------------------------|
| length    | i32     | bytes after this field, at least 26            |
| timestamp | i64     | publish time in ns                             |
| attempts  | u16     | deliveries so far                              |
| id        | 16 byte | lower-case hexadecimal digits                  |
| body      | bytes   | the rest                                       |

The metadata is written every two seconds or so, the data at once: after a crash the metadata is
behind. So a queue is what lies between the read position and the real end of the last file: some of
it may have been delivered, nothing is missing. Without metadata it is all there is. Where a record
makes no sense, the rest of its file is left, reported as a `Fault`, and the next file is read.

What a queue's name means is for others to know.
"""

import errno
import os
import re
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from pumpline.core.messages.batches import BATCH_BYTES_MAX
from pumpline.log.files import open_file, read_whole, sync_file

RECORD_BYTES_MIN = 26  # after the length
RECORD_BYTES_MAX = BATCH_BYTES_MAX - 1024  # must fit a batch of the log, alone

_CHUNK_BYTES = 1 << 20
_HEAD = Struct(">iqH16s")
_LENGTH_BYTES = 4
_HEX_DIGITS = b"0123456789abcdef"
_CUT_SHORT = "cut short"
_FILE = re.compile(r"(?s)(?P<name>.+)\.diskqueue\.(?:(?P<number>\d{6,})|meta)\.dat")
_LEFTOVER = re.compile(r"(?s)(?P<name>.+)\.diskqueue\.meta\.dat\.\d+\.tmp")
_POSITIONS = re.compile(r"(-?\d{1,19})\n(\d{1,19}),(\d{1,19})\n(\d{1,19}),(\d{1,19})\n?")


class Record(NamedTuple):
    timestamp_ns: int
    attempts: int
    body: bytes


class Positions(NamedTuple):
    """What the metadata file says."""

    depth: int
    read_file: int
    read_at: int
    write_file: int
    write_at: int


class FilePart(NamedTuple):
    """A stretch of one data file that belongs to the queue."""

    path: str
    start: int
    end: int


class Fault(NamedTuple):
    """From `position` to the end of the file nothing could be read."""

    path: str
    position: int
    size_bytes: int
    reason: str

    def __str__(self) -> str:
        name = os.path.basename(self.path)
        return f"{self.size_bytes} bytes at {self.position} of {name} not read: {self.reason}"


class DiskQueue:
    def __init__(
        self, name: str, *, meta_path: str | None, data_paths: dict[int, str], leftovers: list[str]
    ) -> None:
        self.name = name
        self.notes: list[str] = []  # what is unusual about the files, in words
        self.faults: dict[str, Fault] = {}  # by path, of what `records` has met so far
        # In this order they may be moved one by one: without its metadata, a queue that has data
        # files left would seem unread.
        last = [meta_path] if meta_path is not None else []
        self.paths = [*data_paths.values(), *leftovers, *last]
        self.positions = _read_positions(meta_path) if meta_path is not None else None
        sizes = {number: os.path.getsize(path) for number, path in sorted(data_paths.items())}
        starts = self._starts(sizes)
        self.parts = [
            FilePart(data_paths[number], start, sizes[number])
            for number, start in starts.items()
            if start < sizes[number]
        ]

    @property
    def size_bytes(self) -> int:
        return sum(part.end - part.start for part in self.parts)

    def records(self) -> Iterator[Record]:
        """All messages, oldest first; may be called again."""
        for part in self.parts:
            yield from self._records_of(part)

    def _records_of(self, part: FilePart) -> Iterator[Record]:
        at = part.start
        data = b""
        used = 0
        fd = open_file(part.path)
        try:
            while at < part.end:
                left_bytes = part.end - at
                if left_bytes < _HEAD.size:
                    self._fault(part, at, _CUT_SHORT)
                    return
                if len(data) - used < _HEAD.size:
                    data, used = _window(fd, at, _HEAD.size), 0
                length, timestamp_ns, attempts, message_id = _HEAD.unpack_from(data, used)
                reason = _why_invalid(length, message_id, left_bytes)
                if reason:
                    self._fault(part, at, reason)
                    return
                size_bytes = _LENGTH_BYTES + length
                if len(data) - used < size_bytes:
                    data, used = _window(fd, at, size_bytes), 0
                body = data[used + _HEAD.size : used + size_bytes]
                yield Record(timestamp_ns, attempts, body)
                used += size_bytes
                at += size_bytes
        except OSError as error:
            if error.errno != errno.EIO:
                raise  # no fault of the file: another try may read it
            self._fault(part, at, "the disk cannot read it")
        finally:
            os.close(fd)

    def _fault(self, part: FilePart, at: int, reason: str) -> None:
        self.faults[part.path] = Fault(part.path, at, part.end - at, reason)

    def _starts(self, sizes: dict[int, int]) -> dict[int, int]:
        """Where to begin in each file that belongs to the queue; notes what is unusual."""
        positions = self.positions
        if positions is None:
            if sizes:
                lowest = min(sizes)
                self.notes.append(f"no usable metadata: reading all files, from number {lowest} on")
            return dict.fromkeys(sizes, 0)
        read_file, write_file = positions.read_file, positions.write_file
        before = [number for number in sizes if number < read_file]
        if before:
            self.notes.append(f"files before the read position left out: {_listed(before)}")
        behind = [number for number in sizes if number > max(read_file, write_file)]
        if behind:
            self.notes.append(f"files behind the write position read as well: {_listed(behind)}")
        between = range(read_file, min(write_file, max(sizes, default=0) + 1))
        missing = [number for number in between if number not in sizes]
        if missing:
            self.notes.append(f"files missing: {_listed(missing)}")
        self._compare_sizes(positions, sizes)
        starts = {number: 0 for number in sizes if number > read_file}
        if read_file in sizes:
            starts = {read_file: positions.read_at, **starts}
        return starts

    def _compare_sizes(self, positions: Positions, sizes: dict[int, int]) -> None:
        write_file, write_at = positions.write_file, positions.write_at
        size_bytes = sizes.get(write_file)
        if size_bytes is None:
            if write_at and positions[1:3] != positions[3:5]:
                self.notes.append(f"files missing: {write_file}")
        elif size_bytes > write_at:
            self.notes.append(
                f"metadata ends at {write_at} of file {write_file}, the file at {size_bytes}: "
                "reading to its end (some messages may come twice)"
            )
        elif size_bytes < write_at:
            self.notes.append(
                f"metadata ends at {write_at} of file {write_file}, which has only {size_bytes}"
            )


def find_queues(directory: str) -> list[DiskQueue]:
    """The disk queues in a data directory, by name."""
    metas: dict[str, str] = {}
    data: dict[str, dict[int, str]] = {}
    leftovers: dict[str, list[str]] = {}
    for file_name in sorted(os.listdir(directory)):
        path = os.path.join(directory, file_name)
        if leftover := _LEFTOVER.fullmatch(file_name):
            leftovers.setdefault(leftover["name"], []).append(path)
        elif match := _FILE.fullmatch(file_name):
            if match["number"]:
                data.setdefault(match["name"], {})[int(match["number"])] = path
            else:
                metas[match["name"]] = path
    return [
        DiskQueue(
            name,
            meta_path=metas.get(name),
            data_paths=data.get(name, {}),
            leftovers=leftovers.get(name, []),
        )
        for name in sorted({*metas, *data})
    ]


def fingerprints(paths: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Size and modification time (ns) of each file that is there, by its name."""
    found = {}
    for path in paths:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        found[os.path.basename(path)] = (status.st_size, status.st_mtime_ns)
    return found


def set_aside(paths: Iterable[str], target: str) -> None:
    """Move files into the directory `target`, durably and in the order given."""
    directories = {target}
    for path in paths:
        os.rename(path, os.path.join(target, os.path.basename(path)))
        directories.add(os.path.dirname(path))
    for directory in sorted(directories):
        sync_file(directory)


def _read_positions(path: str) -> Positions | None:
    match = _POSITIONS.fullmatch(read_whole(path)[:256].decode("latin-1"))
    return Positions(*map(int, match.groups())) if match else None


def _window(fd: int, position: int, need_bytes: int) -> bytes:
    """The bytes from `position` on, `need_bytes` or more of them; OSError if there are fewer."""
    data = os.pread(fd, max(need_bytes, _CHUNK_BYTES), position)
    while len(data) < need_bytes:
        more = os.pread(fd, need_bytes - len(data), position + len(data))
        if not more:
            raise OSError(errno.EIO, "the file shrank while it was read")
        data += more
    return data


def _why_invalid(length: int, message_id: bytes, left_bytes: int) -> str:
    """Why this is not the head of a record within `left_bytes`; empty if it is.

    The id tells a record from garbage whose length happens to be possible.
    """
    if not RECORD_BYTES_MIN <= length <= RECORD_BYTES_MAX:
        return f"impossible length {length}"
    if message_id.strip(_HEX_DIGITS):
        return "no message id where one should be"
    return "" if length <= left_bytes - _LENGTH_BYTES else _CUT_SHORT


def _listed(numbers: list[int]) -> str:
    """`3` or `3-9 (7 of them)`."""
    if len(numbers) == 1:
        return str(numbers[0])
    return f"{min(numbers)}-{max(numbers)} ({len(numbers)} of them)"
