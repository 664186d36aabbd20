"""A channel's cursor file: its delivery state, as a snapshot and the changes since.

The file is a run of records, each complete in itself, big-endian:

| field    | type                  | meaning                                                    |
|----------|-----------------------|------------------------------------------------------------|
| length   | u32                   | bytes after this field                                     |
| crc      | u32                   | crc32 of everything after this field                       |
| low      | u64                   | everything below is finished                               |
| next     | u64                   | nothing from here on was delivered                         |
| finished | u32                   | number of spans                                            |
| pending  | u32                   | number of pending messages                                 |
| written  | i64                   | when, ns since 1970                                        |
| steady   | i64                   | the same moment by the clock that due times are of         |
| spans    | (u64, u64)[finished]  | finished above `low`, in any order                         |
| messages | (i64, u64, u64)[...]  | due (ns; 0: at once), offset, attempts so far              |

The first record is a snapshot and later ones are changes; what a record says replaces what earlier
ones said, and a later message what an earlier one of the same record said. A record cut short by a
crash is ignored with all after it. Writing costs what changed: when the changes outgrow the
snapshot, the file is replaced by a new snapshot.

A delay goes on while nsqd is away: `written` and `steady` make dates of due times. The clock may
have been set back meanwhile: then a message waits for as long as it had to when the record was
written. Lists are arrays in memory as in the file, so that a million messages are encoded in 30 ms.
"""

import sys
from array import array
from itertools import chain, islice
from struct import Struct
from typing import NamedTuple

from pumpline.core.messages.crc import crc32
from pumpline.core.messages.deferred import Pendings
from pumpline.core.messages.delivery import DeliveryDelta
from pumpline.core.messages.leases import NEVER_NS
from pumpline.log.files import append_whole, write_whole

SUFFIX = ".cursor"
_DELTA_BYTES_MIN = 64 * 1024  # changes are cheap to read back up to here
_DELTA_RATIO = 4

_HEAD = Struct(">II")
_FIXED = Struct(">QQIIqq")
_SPAN_BYTES = 16
_SPANS_AT_ONCE = 20_000  # 2 ms, then the event loop may have its turn
_PENDING_BYTES = 24


class Clocks(NamedTuple):
    """Two clocks at one moment."""

    steady_ns: int
    wall_ahead_ns: int  # what to add to a time of the steady clock to get a date

    @property
    def wall_ns(self) -> int:
        """The date, in ns since 1970."""
        return self.steady_ns + self.wall_ahead_ns


class CursorFile:
    """Decides between appending and replacing; the bytes are written by `write`, in any thread."""

    __slots__ = ("_delta_bytes", "_number", "_snapshot_bytes", "path", "written")

    def __init__(self, path: str, *, sound_bytes: int = 0) -> None:
        """`sound_bytes` is the size of a file that can be appended to, as it is."""
        self.path = path
        self.written = 0  # the number of the last write that was done
        self._number = 0
        self._delta_bytes = sound_bytes
        self._snapshot_bytes = min(sound_bytes, 1)

    @property
    def wants_snapshot(self) -> bool:
        limit = max(_DELTA_BYTES_MIN, _DELTA_RATIO * self._snapshot_bytes)
        return not self._snapshot_bytes or self._delta_bytes > limit

    def note_snapshot(self, size_bytes: int) -> int:
        """Returns the number of this write."""
        self._snapshot_bytes = size_bytes
        self._delta_bytes = 0
        self._number += 1
        return self._number

    def note_change(self, size_bytes: int) -> int:
        self._delta_bytes += size_bytes
        self._number += 1
        return self._number

    def note_failure(self) -> None:
        """The file may lack a change: the next write must be a snapshot."""
        self._snapshot_bytes = 0


def write(path: str, data: bytes, *, snapshot: bool) -> None:
    if snapshot:
        write_whole(path, data, sync=False)
    else:
        append_whole(path, data)


def encoded_bytes(delta: DeliveryDelta) -> int:
    """How long its record is."""
    lists_bytes = _SPAN_BYTES * len(delta.finished) + _PENDING_BYTES * len(delta.pending)
    return _HEAD.size + _FIXED.size + lists_bytes


def encode(delta: DeliveryDelta, now: Clocks) -> bytes:
    """One record; for a thread, if it is a snapshot."""
    spans, left = array("Q"), iter(delta.finished)
    while some := list(islice(left, _SPANS_AT_ONCE)):
        spans.extend(chain.from_iterable(some))
    messages = delta.pending.flat()
    written_ns = now.steady_ns + now.wall_ahead_ns
    fixed = _FIXED.pack(
        delta.low,
        delta.next,
        len(delta.finished),
        len(messages) // 3,
        written_ns,
        now.steady_ns,
    )
    payload = b"".join((fixed, _big_endian(spans), _big_endian(messages)))
    return _HEAD.pack(4 + len(payload), crc32(payload)) + payload


def _big_endian(items: "array[int]") -> bytes:
    if sys.byteorder == "little":
        items = items[:]
        items.byteswap()
    return items.tobytes()


def decode(data: bytes, now: Clocks) -> tuple[list[DeliveryDelta], int]:
    """The valid records at the start of `data`, and how many bytes they take."""
    deltas = []
    at = 0
    view = memoryview(data)
    while len(data) - at >= _HEAD.size + _FIXED.size:
        length, crc = _HEAD.unpack_from(data, at)
        payload = view[at + _HEAD.size : at + 4 + length]
        if len(payload) != length - 4 or crc32(payload) != crc or not _is_record(payload):
            break
        deltas.append(_decode_payload(payload, now))
        at += 4 + length
    return deltas, at


def _is_record(payload: memoryview) -> bool:
    """Whether the counts fit; a checksum alone cannot tell (that of nothing is 0)."""
    if len(payload) < _FIXED.size:
        return False
    _, _, span_count, pending_count, _, _ = _FIXED.unpack_from(payload)
    lists_bytes: int = span_count * _SPAN_BYTES + pending_count * _PENDING_BYTES
    return len(payload) - _FIXED.size == lists_bytes


def _decode_payload(payload: memoryview, now: Clocks) -> DeliveryDelta:
    low, following, span_count, _, written_ns, then_ns = _FIXED.unpack_from(payload)
    spans_end = _FIXED.size + _SPAN_BYTES * span_count
    spans = _native("Q", payload[_FIXED.size : spans_end])
    messages = _native("q", payload[spans_end:])
    # No message waits longer from now on than it had to when the record was written.
    later_ns = min(written_ns - now.wall_ahead_ns, now.steady_ns) - then_ns
    latest_ns = NEVER_NS - 1
    messages[0::3] = array(
        "q", (min(max(due + later_ns, 1), latest_ns) if due else 0 for due in messages[0::3])
    )
    messages[2::3] = array("q", (attempts & 0xFFFF for attempts in messages[2::3]))
    pairs = list(zip(spans[0::2], spans[1::2], strict=True))
    return DeliveryDelta(low, following, pairs, Pendings(messages, {}))


def _native(code: str, data: memoryview) -> "array[int]":
    items: array[int] = array(code)
    items.frombytes(data)
    if sys.byteorder == "little":
        items.byteswap()
    return items
