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
| spans    | (u64, u64)[finished]  | finished above `low`                                       |
| messages | (u64, u16, i64)[...]  | offset, attempts so far, due (ns since 1970; 0: at once)   |
| written  | i64                   | when, ns since 1970; only if a message has a due time      |

The first record is a snapshot and later ones are changes; what a record says replaces what earlier
ones said. A record cut short by a crash is ignored with all after it. Writing costs what changed:
when the changes outgrow the snapshot, the file is replaced by a new snapshot.

Due times are dates, so that a delay goes on while nsqd is away. The clock may have been set back
meanwhile: then a message waits for as long as it had to when the record was written. Older records
do not say when that was: their messages wait for the longest delay there may be, at most.
"""

from struct import Struct
from typing import NamedTuple

from pumpline.core.messages.crc import crc32
from pumpline.core.messages.delivery import DeliveryDelta, Pending
from pumpline.core.messages.spans import Span
from pumpline.log.files import append_whole, write_whole

SUFFIX = ".cursor"
_DELTA_BYTES_MIN = 64 * 1024  # changes are cheap to read back up to here
_DELTA_RATIO = 4

_HEAD = Struct(">II")
_FIXED = Struct(">QQII")
_SPAN = Struct(">QQ")
_PENDING = Struct(">QHq")
_DATE = Struct(">q")


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

    def note_snapshot(self, data: bytes) -> int:
        """Returns the number of this write."""
        self._snapshot_bytes = len(data)
        self._delta_bytes = 0
        self._number += 1
        return self._number

    def note_change(self, data: bytes) -> int:
        self._delta_bytes += len(data)
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


def encode(delta: DeliveryDelta, now: Clocks) -> bytes:
    """One record; due times of the steady clock become dates."""
    steady_ns, wall_ahead_ns = now
    parts = [
        _FIXED.pack(delta.low, delta.next, len(delta.finished), len(delta.pending)),
        *[_SPAN.pack(start, end) for start, end in delta.finished],
        *[
            _PENDING.pack(offset, attempts & 0xFFFF, due_ns + wall_ahead_ns if due_ns else 0)
            for offset, attempts, due_ns in delta.pending
        ],
    ]
    if any(due_ns for _, _, due_ns in delta.pending):
        parts.append(_DATE.pack(steady_ns + wall_ahead_ns))
    payload = b"".join(parts)
    return _HEAD.pack(4 + len(payload), crc32(payload)) + payload


def decode(data: bytes, now: Clocks, *, delay_max_ns: int) -> tuple[list[DeliveryDelta], int]:
    """The valid records at the start of `data`, and how many bytes they take. `delay_max_ns` is the
    longest delay there may be."""
    deltas = []
    at = 0
    while len(data) - at >= _HEAD.size + _FIXED.size:
        length, crc = _HEAD.unpack_from(data, at)
        payload = data[at + _HEAD.size : at + 4 + length]
        if len(payload) != length - 4 or crc32(payload) != crc or not _is_record(payload):
            break
        deltas.append(_decode_payload(payload, now, delay_max_ns))
        at += 4 + length
    return deltas, at


def _is_record(payload: bytes) -> bool:
    """Whether the counts fit; a checksum alone cannot tell (that of nothing is 0)."""
    if len(payload) < _FIXED.size:
        return False
    _, _, span_count, pending_count = _FIXED.unpack_from(payload)
    lists_bytes: int = span_count * _SPAN.size + pending_count * _PENDING.size
    return len(payload) - _FIXED.size - lists_bytes in (0, _DATE.size)


def _decode_payload(payload: bytes, now: Clocks, delay_max_ns: int) -> DeliveryDelta:
    low, following, span_count, pending_count = _FIXED.unpack_from(payload)
    spans_end = _FIXED.size + _SPAN.size * span_count
    spans: list[Span] = list(_SPAN.iter_unpack(payload[_FIXED.size : spans_end]))
    pending_end = spans_end + _PENDING.size * pending_count
    steady_ns, wall_ahead_ns = now
    written_ns = None
    if pending_end < len(payload):
        (written_ns,) = _DATE.unpack_from(payload, pending_end)

    def due(date_ns: int) -> int:
        longest_ns = delay_max_ns if written_ns is None else date_ns - written_ns
        return max(min(date_ns - wall_ahead_ns, steady_ns + longest_ns), 1)

    pending = [
        Pending(offset, attempts, due(date_ns) if date_ns else 0)
        for offset, attempts, date_ns in _PENDING.iter_unpack(payload[spans_end:pending_end])
    ]
    return DeliveryDelta(low, following, spans, pending)
