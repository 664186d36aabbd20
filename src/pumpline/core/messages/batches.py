"""Batches: what a log is made of, in memory and on disk alike.

A batch is one `header | ends | frames | tokens`, big-endian:

| field      | type       | meaning                                                         |
|------------|------------|-----------------------------------------------------------------|
| length     | u32        | bytes after this field                                          |
| crc        | u32        | crc32 of everything after this field                            |
| first      | u64        | offset of the first message                                     |
| timestamp  | i64        | publish time of the first message, in ns                        |
| due        | i64        | not to be delivered before, ns since 1970; 0: now               |
| count      | u32        | messages, at least 1                                            |
| flags      | u32        | 0, or 1: there are tokens                                       |
| ends       | u32[count] | end of each frame, relative to the first                        |
| frames     | bytes      | message frames exactly as sent on a first delivery              |
| tokens     | bytes[16]… | publish tokens (`publish_tokens`) that came with some of them   |

A batch is valid when its length fits its count, its crc matches and its last end is where the
frames end: at the end of the batch, or with flag 1 at one or more whole tokens before it. Message
id = the log's base id + offset, so neither needs a table.

A batch may hold messages of several ticks. Each frame has the publish time of its message, and
these times never decrease within a batch: `first_at` finds the message of a time by bisection.
"""

from bisect import bisect_left, bisect_right
from struct import Struct
from typing import cast

from pumpline.core.messages.crc import crc32
from pumpline.core.messages.frame import MESSAGE_OVERHEAD_BYTES, frame_in_place
from pumpline.core.messages.publish_tokens import TOKEN_BYTES

HEADER = Struct(">IIQqqII")
HEADER_BYTES = HEADER.size  # 40
CRC_END = 8  # the crc covers what follows this byte
BATCH_BYTES_MAX = 1 << 30
FULL_BYTES = 1 << 20  # of frames: a batch of this size is sealed; its last message may exceed it
SMALL_BYTES = 4096  # of frames: to copy them costs less than to sum and to write three parts
TOKENS = 1  # a flag: publish tokens follow the frames

_LENGTH_CRC = Struct(">II")
_REST = Struct(">QqqII")
_U32 = Struct(">I")
_I64 = Struct(">q")
_TIMESTAMP_AT = 8  # in a frame


class AnyBatch:
    """What a batch that is being filled and a sealed one have in common: reading by offset."""

    __slots__ = ()

    first: int
    count: int
    end: int
    timestamp_ns: int
    due_ns: int
    ends: bytearray | memoryview
    frames: bytearray | memoryview

    @property
    def delay_ns(self) -> int:
        """With which the messages were published."""
        return self.due_ns - self.timestamp_ns if self.due_ns else 0

    @property
    def body_bytes(self) -> int:
        return len(self.frames) - MESSAGE_OVERHEAD_BYTES * self.count

    def position(self, offset: int) -> int:
        """Where the frame of `offset` begins; `end` is allowed."""
        index = offset - self.first
        return int(_U32.unpack_from(self.ends, 4 * index - 4)[0]) if index else 0

    def cut(self, start: int, end: int) -> bytearray | memoryview:
        """The frames of [start, end), ready to send as a first delivery; a copy if more frames may
        still be added to the batch."""
        return self.frames[self.position(start) : self.position(end)]

    def fitting(self, start: int, end: int, limit_bytes: int) -> tuple[int, int]:
        """Where the longest run of [start, end) ends whose frames end at or before byte
        `limit_bytes`, at least one message: its offset and its byte."""
        index = bisect_right(_Ends(self.ends), limit_bytes, start - self.first, end - self.first)
        stop = max(self.first + index, start + 1)
        return stop, self.position(stop)

    def published_ns(self, offset: int) -> int:
        """When the message at `offset` was published."""
        return int(_I64.unpack_from(self.frames, self.position(offset) + _TIMESTAMP_AT)[0])

    def first_at(self, time_ns: int, start: int, end: int) -> int:
        """The first offset of [start, end) that was published at `time_ns` or later, or `end`."""
        return bisect_left(range(end), time_ns, start, end, key=self.published_ns)


class Builder(AnyBatch):
    """A batch being filled: kernels append to `frames` and `ends`."""

    __slots__ = ("due_ns", "ends", "first", "frames", "timestamp_ns", "tokens")

    ends: bytearray
    frames: bytearray

    def __init__(self, *, first: int, timestamp_ns: int, due_ns: int = 0) -> None:
        self.first = first
        self.timestamp_ns = timestamp_ns
        self.due_ns = due_ns
        self.frames = bytearray()
        self.ends = bytearray()
        self.tokens = b""

    @property
    def count(self) -> int:  # type: ignore[override]
        return len(self.ends) >> 2

    @property
    def end(self) -> int:  # type: ignore[override]
        return self.first + (len(self.ends) >> 2)

    def adopt(self, buf: bytearray, pos: int, end: int, message_id: int) -> None:
        """Be the batch of the message buf[pos:end] alone, without a copy (`frame_in_place`)."""
        at = self.timestamp_ns
        frame = frame_in_place(buf, pos, end, timestamp_ns=at, message_id=message_id)
        self.frames = cast(bytearray, frame)  # nothing is added to it: `seal` alone looks at it
        self.ends += _U32.pack(len(frame))

    def add(self, frame: bytes) -> None:
        self.frames += frame
        self.ends += _U32.pack(len(self.frames))

    def extend(self, ends: bytearray | memoryview, frames: bytearray | memoryview) -> None:
        """Add the messages of another batch, whose frames end there."""
        start = len(self.frames)
        self.frames += frames
        self.ends += b"".join(_U32.pack(start + end) for (end,) in _U32.iter_unpack(ends))

    def split(self, offset: int) -> "Builder":
        """Take out the messages from `offset` on, which is above `first`; returns a batch of
        them."""
        count = offset - self.first
        at = self.position(offset)
        rest = Builder(first=offset, timestamp_ns=self.timestamp_ns, due_ns=self.due_ns)
        rest.frames += self.frames[at:]
        ends = _U32.iter_unpack(self.ends[4 * count :])
        rest.ends += b"".join(_U32.pack(end - at) for (end,) in ends)
        if rest.ends:
            rest.timestamp_ns = rest.published_ns(offset)
        self.forget(offset)
        return rest

    def forget(self, offset: int) -> None:
        """Drop the messages from `offset` on."""
        del self.frames[self.position(offset) :]
        del self.ends[4 * (offset - self.first) :]

    def seal(self) -> "LogBatch":
        batch = LogBatch(
            first=self.first,
            count=self.count,
            timestamp_ns=self.timestamp_ns,
            due_ns=self.due_ns,
            ends=memoryview(self.ends),
            frames=memoryview(self.frames),
        )
        return PublishTokenBatch(batch, self.tokens) if self.tokens else batch


class LogBatch(AnyBatch):
    """A sealed batch; `ends` and `frames` are views that pin the memory they came from."""

    __slots__ = ("count", "due_ns", "end", "ends", "first", "frames", "timestamp_ns")

    tokens: bytes | memoryview = b""  # of all but a few
    ends: memoryview
    frames: memoryview

    def __init__(
        self,
        *,
        first: int,
        count: int,
        timestamp_ns: int,
        due_ns: int,
        ends: memoryview,
        frames: memoryview,
    ) -> None:
        self.first = first
        self.count = count
        self.end = first + count
        self.timestamp_ns = timestamp_ns
        self.due_ns = due_ns
        self.ends = ends
        self.frames = frames

    @property
    def size_bytes(self) -> int:
        """What the batch takes in a segment."""
        return HEADER_BYTES + len(self.ends) + len(self.frames)

    def parts(self) -> list[bytes | memoryview]:
        """The batch as written to a segment."""
        if len(self.frames) > SMALL_BYTES:
            return [self.head(), self.ends, self.frames]
        rest = _REST.pack(self.first, self.timestamp_ns, self.due_ns, self.count, 0)
        rest += b"".join((self.ends, self.frames))
        return [_LENGTH_CRC.pack(len(rest) + CRC_END - 4, crc32(rest)) + rest]

    def head(self) -> bytes:
        """The header as written to a segment, with the crc over all parts."""
        rest = _REST.pack(self.first, self.timestamp_ns, self.due_ns, self.count, 0)
        crc = crc32(self.frames, crc32(self.ends, crc32(rest)))
        return _LENGTH_CRC.pack(self.size_bytes - 4, crc) + rest

    def split(self, offset: int) -> "tuple[LogBatch, LogBatch]":
        """The messages before `offset`, and those from there on, as two batches."""
        at = self.position(offset)
        ends = self.ends[4 * (offset - self.first) :]
        rest = Builder(first=offset, timestamp_ns=self.published_ns(offset), due_ns=self.due_ns)
        rest.ends += b"".join(_U32.pack(end - at) for (end,) in _U32.iter_unpack(ends))
        rest.frames += self.frames[at:]
        head = LogBatch(
            first=self.first,
            count=offset - self.first,
            timestamp_ns=self.timestamp_ns,
            due_ns=self.due_ns,
            ends=self.ends[: 4 * (offset - self.first)],
            frames=self.frames[:at],
        )
        return head, rest.seal()


class PublishTokenBatch(LogBatch):
    """A batch with publish tokens. A class of its own: other batches need no slot for them."""

    __slots__ = ("tokens",)

    def __init__(self, batch: LogBatch, tokens: bytes | memoryview) -> None:
        super().__init__(
            first=batch.first,
            count=batch.count,
            timestamp_ns=batch.timestamp_ns,
            due_ns=batch.due_ns,
            ends=batch.ends,
            frames=batch.frames,
        )
        self.tokens = tokens

    @property
    def size_bytes(self) -> int:
        return HEADER_BYTES + len(self.ends) + len(self.frames) + len(self.tokens)

    def parts(self) -> list[bytes | memoryview]:
        return [self.head(), self.ends, self.frames, self.tokens]

    def head(self) -> bytes:
        rest = _REST.pack(self.first, self.timestamp_ns, self.due_ns, self.count, TOKENS)
        crc = crc32(self.tokens, crc32(self.frames, crc32(self.ends, crc32(rest))))
        return _LENGTH_CRC.pack(self.size_bytes - 4, crc) + rest


class BadBatch(ValueError):
    """The bytes at hand are not a valid batch."""


class ShortBatch(BadBatch):
    """The bytes at hand end before the batch does; `need_bytes` would hold it."""

    def __init__(self, need_bytes: int) -> None:
        super().__init__(f"batch ends after the data at hand ({need_bytes} bytes needed)")
        self.need_bytes = need_bytes


def read_batch(data: memoryview, at: int) -> LogBatch:
    """The batch at `at`; ShortBatch when cut off, BadBatch when damaged."""
    available = len(data) - at
    if available < HEADER_BYTES:
        raise ShortBatch(HEADER_BYTES)
    length, crc, first, timestamp_ns, due_ns, count, flags = HEADER.unpack_from(data, at)
    frames_at = at + HEADER_BYTES + 4 * count
    end = at + 4 + length
    if count == 0 or end - frames_at < MESSAGE_OVERHEAD_BYTES * count or length > BATCH_BYTES_MAX:
        raise BadBatch("impossible header")
    if available < 4 + length:
        raise ShortBatch(4 + length)
    if crc32(data[at + CRC_END : end]) != crc:
        raise BadBatch("crc mismatch")
    frames_end = frames_at + _U32.unpack_from(data, frames_at - 4)[0]
    if (flags or frames_end != end) and not frames_fit(frames_end, end, flags):
        raise BadBatch("ends do not fit the frames")
    batch = LogBatch(
        first=first,
        count=count,
        timestamp_ns=timestamp_ns,
        due_ns=due_ns,
        ends=data[at + HEADER_BYTES : frames_at],
        frames=data[frames_at:frames_end],
    )
    return PublishTokenBatch(batch, data[frames_end:end]) if flags else batch


def frames_fit(frames_end: int, end: int, flags: int) -> bool:
    """Whether frames may end there in a batch that ends at `end`."""
    if not flags:
        return frames_end == end
    return flags == TOKENS and frames_end < end and not (end - frames_end) % TOKEN_BYTES


class _Ends:
    """A batch's ends as a sequence, for bisect."""

    __slots__ = ("_view",)

    def __init__(self, view: bytearray | memoryview) -> None:
        self._view = view

    def __len__(self) -> int:
        return len(self._view) >> 2

    def __getitem__(self, index: int) -> int:
        return int(_U32.unpack_from(self._view, 4 * index)[0])
