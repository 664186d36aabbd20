"""A topic's holds on disk: `holds.json` in its directory, replaced as a whole, durably.

The first line is the crc32 of the rest, as 8 hex digits; the rest is JSON. The file names its log,
so that one left over from a deleted topic is ignored.
"""

import os

import msgspec

from pumpline.core.messages.crc import crc32
from pumpline.log.files import read_or_set_aside, sync_file, write_whole

FILE = "holds.json"


class StoredHold(msgspec.Struct):
    name: str
    offset: int
    bytes_max: int  # 0: no limit
    committed_at_ns: int
    dropped: bool = False
    description: str = ""  # of the reader, for people


class _StoredHolds(msgspec.Struct):
    base_id: int
    holds: list[StoredHold]


class HoldsDamaged(Exception):
    """The file cannot be read; the text says why."""


def read_holds(directory: str, base_id: int) -> list[StoredHold]:
    """The holds of the log with that base; HoldsDamaged if the file cannot be decoded."""
    stored = _read(directory)
    return stored.holds if stored is not None and stored.base_id == base_id else []


def base_of_holds(directory: str) -> int | None:
    """The base of the ids of the file's log, if that can be read."""
    try:
        stored = _read(directory)
    except HoldsDamaged:
        return None
    return None if stored is None else stored.base_id


def _read(directory: str) -> _StoredHolds | None:
    try:
        data = read_or_set_aside(os.path.join(directory, FILE))
    except FileNotFoundError:
        return None
    crc, _, text = data.partition(b"\n")
    if crc != b"%08x" % crc32(text):
        raise HoldsDamaged("crc mismatch")
    try:
        return msgspec.json.decode(text, type=_StoredHolds)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HoldsDamaged(str(error)) from None


def write_holds(directory: str, base_id: int, holds: list[StoredHold]) -> None:
    """For a thread: on disk when it returns."""
    text = msgspec.json.encode(_StoredHolds(base_id, holds))
    write_whole(os.path.join(directory, FILE), b"%08x\n%b" % (crc32(text), text), sync=True)
    sync_file(directory)
