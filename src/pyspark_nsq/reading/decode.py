"""Decodes raw batches into Arrow columns, without Python code for each row.

A node sends whole batches (format: `pumpline.core.messages.batches`). One pass over the batch
headers checks lengths and checksums. Everything about single messages is array arithmetic over
`starts` and `stops`, the places of the message frames in the buffer:

| column    | from                                                                        |
|-----------|-----------------------------------------------------------------------------|
| topic, node | the same for all rows                                                     |
| offset    | the batch's first offset, counted up                                        |
| timestamp | i64 at 8 of each frame, ns, cut to µs (all that Spark has)                  |
| attempts  | u16 at 16 of each frame                                                     |
| id        | 16 bytes at 18 of each frame                                                |
| body      | from 34 to the end of each frame                                            |

Unaligned fields are read through array views with a stride of one byte. The fields of a frame's
head are read together, as each access to a row costs a cache miss. Bodies are copied by `take` on a
binary array whose even elements are the bodies and whose odd ones are the bytes between them. Knows
the format and Arrow; must not know HTTP, options or Spark.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pumpline.core.messages.batches import (
    BATCH_BYTES_MAX,
    CRC_END,
    DUE_BYTES,
    DUES,
    HEADER,
    HEADER_BYTES,
    frames_fit,
)
from pumpline.core.messages.crc import crc32
from pumpline.core.messages.frame import ID_BYTES, MESSAGE_OVERHEAD_BYTES
from pyspark_nsq.errors import Damaged

ROWS_MAX = 8192  # in a record batch
BODY_BYTES_MAX = 32 << 20  # in a record batch of more than one row
COLUMN_TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "node": pa.string(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "id": pa.string(),
    "attempts": pa.int32(),
    "body": pa.binary(),
}

_HEAD = np.dtype(
    {
        "names": ["timestamp", "attempts", "id"],
        "formats": [">i8", ">u2", f"V{ID_BYTES}"],
        "offsets": [8, 16, 18],
        "itemsize": MESSAGE_OVERHEAD_BYTES,
    }
)
_NS_PER_US = 1000
_OFFSETS_END = 1 << 31  # places in the buffer are 32-bit offsets of a binary array

Places = NDArray[np.int64]
Heads = NDArray[np.void]


@dataclass(slots=True)
class Rows:
    """The messages of one answer: their offsets, and their frames from `starts` to `stops`."""

    offsets: Places
    starts: Places
    stops: Places

    def __len__(self) -> int:
        return len(self.offsets)

    def cut(self, first: int, last: int) -> "Rows":
        return Rows(self.offsets[first:last], self.starts[first:last], self.stops[first:last])

    def within(self, start: int, end: int) -> "Rows":
        """Those with offsets in [start, end); offsets go up."""
        first, last = np.searchsorted(self.offsets, (start, end))
        return self.cut(int(first), int(last))


class Decoder:
    """Turns answers about one log into record batches with the columns of `schema`."""

    def __init__(self, schema: pa.Schema, *, topic: str, node: str) -> None:
        self._schema = schema
        self._same = {
            "topic": _repeated(topic) if "topic" in schema.names else None,
            "node": _repeated(node) if "node" in schema.names else None,
        }
        self._has_heads = not {"timestamp", "attempts", "id"}.isdisjoint(schema.names)
        self._where = f"topic {topic} on {node}"

    def record_batches(self, data: memoryview, rows: Rows) -> Iterator[pa.RecordBatch]:
        """The rows in order, in record batches of bounded size that do not refer to `data`."""
        first = 0
        while first < len(rows):
            last = min(first + ROWS_MAX, len(rows))
            limit = rows.starts[first] + BODY_BYTES_MAX
            if rows.stops[last - 1] > limit:
                within = int(np.searchsorted(rows.stops[first:last], limit, side="right"))
                last = first + max(within, 1)
            yield self._record_batch(data, rows.cut(first, last))
            first = last

    def rows(self, data: memoryview) -> Rows:
        """Find all messages in whole batches; raise Damaged if a batch is not valid."""
        try:
            return locate(data)
        except Damaged as error:
            raise Damaged(f"{self._where}: {error}") from None

    def _record_batch(self, data: memoryview, rows: Rows) -> pa.RecordBatch:
        heads = _heads(data, rows.starts) if self._has_heads else None
        columns = [self._column(name, data, rows, heads) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, name: str, data: memoryview, rows: Rows, heads: Heads | None) -> pa.Array:
        same = self._same.get(name)
        if same is not None:
            return same.slice(0, len(rows))
        if name == "offset":
            return _numbers(COLUMN_TYPES[name], rows.offsets)
        if name == "body":
            return _bodies(data, rows)
        assert heads is not None
        if name == "timestamp":
            stamps_us = heads["timestamp"].astype(np.int64) // _NS_PER_US
            return _numbers(COLUMN_TYPES[name], stamps_us)
        if name == "attempts":
            return _numbers(COLUMN_TYPES[name], heads["attempts"].astype(np.int32))
        return _texts(heads["id"].tobytes(), size=ID_BYTES)


def locate(data: memoryview) -> Rows:
    """Check every batch in `data`, and find every message."""
    if len(data) >= _OFFSETS_END:
        raise Damaged(f"{len(data):,} bytes at once are more than can be decoded")
    ends_ats, frames_ats, firsts, counts = _walk(data)
    if not firsts:
        nothing = np.empty(0, np.int64)
        return Rows(nothing, nothing, nothing)
    count = np.array(counts, np.int64)
    before = np.cumsum(count) - count  # messages in earlier batches
    numbers = np.arange(int(count.sum()), dtype=np.int64)
    ends_at = np.repeat(np.array(ends_ats, np.int64) - 4 * before, count) + 4 * numbers
    frames_at = np.array(frames_ats, np.int64)
    stops = _fields(data, ">u4", ends_at).astype(np.int64) + np.repeat(frames_at, count)
    starts = np.empty_like(stops)
    starts[1:] = stops[:-1]
    starts[before] = frames_at
    if int((stops - starts).min()) < MESSAGE_OVERHEAD_BYTES:
        raise Damaged("a message is shorter than its header")
    offsets = np.repeat(np.array(firsts, np.int64) - before, count) + numbers
    return Rows(offsets, starts, stops)


def _walk(data: memoryview) -> tuple[list[int], list[int], list[int], list[int]]:
    """The places of ends and frames, first offset and count of each batch, after checking lengths
    and checksum."""
    ends_ats: list[int] = []
    frames_ats: list[int] = []
    firsts: list[int] = []
    counts: list[int] = []
    at = 0
    size = len(data)
    expected = 0
    unpack = HEADER.unpack_from
    while at < size:
        if size - at < HEADER_BYTES:
            raise Damaged(f"{size - at} bytes after the last batch")
        length, crc, first, _, count, flags = unpack(data, at)
        end = at + 4 + length
        ends_at = at + HEADER_BYTES
        dues_at = frames_at = ends_at + 4 * count
        if flags & DUES:
            frames_at += DUE_BYTES * count
        if (
            not count
            or end - frames_at < MESSAGE_OVERHEAD_BYTES * count
            or length > BATCH_BYTES_MAX
        ):
            raise Damaged(f"impossible batch header near offset {expected}")
        if end > size:
            raise Damaged(f"the batch at offset {first} is cut off")
        if crc32(data[at + CRC_END : end]) != crc:
            raise Damaged(f"checksum mismatch in the batch at offset {first}")
        frames_end = frames_at + int.from_bytes(data[dues_at - 4 : dues_at])
        if not frames_fit(frames_end, end, flags):
            raise Damaged(f"lengths do not fit in the batch at offset {first}")
        if first < expected:
            raise Damaged(f"offset {first} comes after {expected - 1}")
        ends_ats.append(ends_at)
        frames_ats.append(frames_at)
        firsts.append(first)
        counts.append(count)
        expected = first + count
        at = end
    return ends_ats, frames_ats, firsts, counts


def _fields(data: memoryview, kind: str, places: Places) -> NDArray[np.generic]:
    """A copy of the values at these places, which need not be aligned."""
    dtype = np.dtype(kind)
    count = len(data) - dtype.itemsize + 1
    view: NDArray[np.generic] = np.ndarray((count,), dtype, data, 0, (1,))
    return view[places]


def _heads(data: memoryview, starts: Places) -> Heads:
    return _fields(data, f"V{_HEAD.itemsize}", starts).view(_HEAD)


def _numbers(kind: pa.DataType, numbers: NDArray[np.generic]) -> pa.Array:
    """Like `pa.array`, which would import pandas: 0.4 s in a new worker."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _texts(joined: bytes, *, size: int) -> pa.Array:
    """An array of texts that all have the same size."""
    count = len(joined) // size
    ends = np.arange(0, size * (count + 1), size, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(joined))


def _repeated(text: str) -> pa.Array:
    return _texts(text.encode() * ROWS_MAX, size=len(text.encode()))


def _bodies(data: memoryview, rows: Rows) -> pa.Array:
    count = len(rows)
    edges = np.empty(2 * count, np.int32)
    edges[0::2] = rows.starts + MESSAGE_OVERHEAD_BYTES
    edges[1::2] = rows.stops
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(data)]
    alternating = pa.BinaryArray.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return alternating.take(_numbers(pa.int32(), np.arange(0, 2 * count, 2, dtype=np.int32)))
