"""Writes the disk queues of Go nsqd, byte by byte, for tests that read them.

Knows the files' layout only. Must not import the package under test.
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HEAD = struct.Struct(">iqH16s")
HEAD_BYTES = 26  # of a record, after its length


class Stored(NamedTuple):
    body: bytes
    attempts: int = 0
    timestamp_ns: int = 1_600_000_000_000_000_000


def record(message: Stored, message_id: bytes = b"0a1b2c3d4e5f6071") -> bytes:
    length = HEAD_BYTES + len(message.body)
    return HEAD.pack(length, message.timestamp_ns, message.attempts, message_id) + message.body


def records(messages: Sequence[Stored]) -> bytes:
    return b"".join(map(record, messages))


def data_path(directory: Path, name: str, number: int) -> Path:
    return directory / f"{name}.diskqueue.{number:06d}.dat"


def meta_path(directory: Path, name: str) -> Path:
    return directory / f"{name}.diskqueue.meta.dat"


def write_meta(
    directory: Path, name: str, *, depth: int, read: tuple[int, int], write: tuple[int, int]
) -> None:
    text = f"{depth}\n{read[0]},{read[1]}\n{write[0]},{write[1]}\n"
    meta_path(directory, name).write_text(text)


def write_queue(directory: Path, name: str, *files: Sequence[Stored], first: int = 0) -> None:
    """A queue as a clean stop leaves it, nothing read yet: one data file for each of `files`."""
    directory.mkdir(parents=True, exist_ok=True)
    size_bytes = 0
    for number, messages in enumerate(files, first):
        size_bytes = data_path(directory, name, number).write_bytes(records(messages))
    write_meta(
        directory,
        name,
        depth=sum(map(len, files)),
        read=(first, 0),
        write=(first + len(files) - 1, size_bytes),
    )
