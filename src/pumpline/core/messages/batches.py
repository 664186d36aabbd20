"""Batches: what a log is made of, in memory and on disk alike.

A batch is one `header | ends | dues | frames | tokens`, big-endian:

| field      | type       | meaning                                                         |
|------------|------------|-----------------------------------------------------------------|
| length     | u32        | bytes after this field                                          |
| crc        | u32        | crc32 of everything after this field                            |
| first      | u64        | offset of the first message                                     |
| timestamp  | i64        | publish time of the first message, in ns                        |
| count      | u32        | messages, at least 1                                            |
| flags      | u32        | a sum: 1 if there are tokens, 2 if there are due times          |
| ends       | u32[count] | end of each frame, relative to the first                        |
| dues       | i64[count] | messages are not delivered before, ns since 1970; 0: at once    |
| frames     | bytes      | message frames exactly as sent on a first delivery              |
| tokens     | bytes[16]… | publish tokens (`publish_tokens`) that came with some of them   |

A batch is valid when its length fits its count, its flags are known, its crc matches and its last
end is where the frames end: at the end of the batch, or with flag 1 at one or more whole tokens
before it. Message id = the log's base id + offset, so neither needs a table.

A batch without deferred messages has no due times. In one that has some, every message has a due
time, and the delay of each is its due time less the timestamp of the batch.

A batch may hold messages of several ticks. Each frame has the publish time of its message, and
these times never decrease within a batch: `first_at` finds the message of a time by bisection.
"""

from bisect import bisect_left, bisect_right
from struct import Struct
from typing import cast

from pumpline.core.messages.crc import crc32
from pumpline.core.messages.frame import MESSAGE_OVERHEAD_BYTES, frame_in_place
from pumpline.core.messages.publish_tokens import TOKEN_BYTES

HEADER = Struct(">IIQqII")
HEADER_BYTES = HEADER.size  # 32
CRC_END = 8  # the crc covers what follows this byte
BATCH_BYTES_MAX = 1 << 30
FULL_BYTES = 1 << 20  # of frames: a batch of this size is sealed; its last message may exceed it
SMALL_BYTES = 4096  # of frames: to copy them costs less than to sum and to write three parts
TOKENS = 1  # a flag: publish tokens end the batch
DUES = 2  # a flag: due times follow the ends
DUE_BYTES = 8

_LENGTH_CRC = Struct(">II")
_REST = Struct(">QqII")
_U32 = Struct(">I")
_I64 = Struct(">q")
_I64_MAX = (1 << 63) - 1
_TIMESTAMP_AT = 8  # in a frame

Dues = bytes | bytearray | memoryview
"""Due times as they are in a batch."""


class AnyBatch:
    """What a batch that is being filled and a sealed one have in common: reading by offset."""

    __slots__ = ()

    first: int
    count: int
    end: int
    timestamp_ns: int
    ends: bytearray | memoryview
    frames: bytearray | memoryview
    dues: Dues

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

    def due_ns(self, offset: int) -> int:
        """Before when the message at `offset` is not to be delivered, ns since 1970; 0: at once."""
        at = DUE_BYTES * (offset - self.first)
        return int(_I64.unpack_from(self.dues, at)[0]) if at < len(self.dues) else 0

    def waiting_since_ns(self, offset: int) -> int:
        """When the message at `offset` came to this nsqd or, if it was delayed, when it was due.
        Imported messages are older than their batch."""
        return max(self.published_ns(offset), self.timestamp_ns, self.due_ns(offset))

    def first_at(self, time_ns: int, start: int, end: int) -> int:
        """The first offset of [start, end) that was published at `time_ns` or later, or `end`."""
        return bisect_left(range(end), time_ns, start, end, key=self.published_ns)


class Builder(AnyBatch):
    """A batch being filled: kernels append to `frames` and `ends`. Due times may be missing at the
    end of `dues` until it is sealed: they are 0."""

    __slots__ = ("dues", "ends", "first", "frames", "timestamp_ns", "tokens")

    ends: bytearray
    frames: bytearray
    dues: bytearray

    def __init__(self, *, first: int, timestamp_ns: int) -> None:
        self.first = first
        self.timestamp_ns = timestamp_ns
        self.frames = bytearray()
        self.ends = bytearray()
        self.dues = bytearray()
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

    def add(self, frame: bytes, due_ns: int = 0) -> None:
        self.frames += frame
        self.ends += _U32.pack(len(self.frames))
        if due_ns:
            self.defer_last(due_ns)

    def defer_last(self, due_ns: int) -> None:
        """The message that was added last is not to be delivered before."""
        self.dues += bytes(DUE_BYTES * (self.count - 1) - len(self.dues))
        self.dues += _I64.pack(min(due_ns, _I64_MAX))

    def fill_dues(self) -> bytearray:
        """The due times, with one for each message so far: that of the next can be added."""
        self.dues += bytes(DUE_BYTES * self.count - len(self.dues))
        return self.dues

    def split(self, offset: int) -> "Builder":
        """Take out the messages from `offset` on, which is above `first`; returns a batch of
        them."""
        count = offset - self.first
        at = self.position(offset)
        rest = Builder(first=offset, timestamp_ns=self.timestamp_ns)
        rest.frames += self.frames[at:]
        rest.dues += self.dues[DUE_BYTES * count :]
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
        del self.dues[DUE_BYTES * (offset - self.first) :]

    def seal(self) -> "LogBatch":
        batch = LogBatch(
            first=self.first,
            count=self.count,
            timestamp_ns=self.timestamp_ns,
            ends=memoryview(self.ends),
            frames=memoryview(self.frames),
        )
        dues = self.fill_dues() if any(self.dues) else b""
        return ExtendedBatch(batch, dues, self.tokens) if dues or self.tokens else batch


class LogBatch(AnyBatch):
    """A sealed batch; `ends` and `frames` are views that pin the memory they came from."""

    __slots__ = ("count", "end", "ends", "first", "frames", "timestamp_ns")

    dues: Dues = b""  # of all but a few, as the tokens are
    tokens: bytes | memoryview = b""
    ends: memoryview
    frames: memoryview

    def __init__(
        self,
        *,
        first: int,
        count: int,
        timestamp_ns: int,
        ends: memoryview,
        frames: memoryview,
    ) -> None:
        self.first = first
        self.count = count
        self.end = first + count
        self.timestamp_ns = timestamp_ns
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
        rest = _REST.pack(self.first, self.timestamp_ns, self.count, 0)
        rest += b"".join((self.ends, self.frames))
        return [_LENGTH_CRC.pack(len(rest) + CRC_END - 4, crc32(rest)) + rest]

    def head(self) -> bytes:
        """The header as written to a segment, with the crc over all parts."""
        rest = _REST.pack(self.first, self.timestamp_ns, self.count, 0)
        crc = crc32(self.frames, crc32(self.ends, crc32(rest)))
        return _LENGTH_CRC.pack(self.size_bytes - 4, crc) + rest

    def split(self, offset: int) -> "tuple[LogBatch, LogBatch]":
        """The messages before `offset`, and those from there on, as two batches."""
        at = self.position(offset)
        count = offset - self.first
        rest = Builder(first=offset, timestamp_ns=self.published_ns(offset))
        ends = _U32.iter_unpack(self.ends[4 * count :])
        rest.ends += b"".join(_U32.pack(end - at) for (end,) in ends)
        rest.frames += self.frames[at:]
        rest.dues += self.dues[DUE_BYTES * count :]
        head = LogBatch(
            first=self.first,
            count=count,
            timestamp_ns=self.timestamp_ns,
            ends=self.ends[: 4 * count],
            frames=self.frames[:at],
        )
        dues = self.dues[: DUE_BYTES * count]
        return ExtendedBatch(head, dues) if any(dues) else head, rest.seal()


class ExtendedBatch(LogBatch):
    """A batch with due times or publish tokens. A class of its own: other batches need no slots for
    them."""

    __slots__ = ("dues", "tokens")

    dues: Dues

    def __init__(
        self,
        batch: LogBatch,
        dues: Dues,
        tokens: bytes | memoryview = b"",
    ) -> None:
        super().__init__(
            first=batch.first,
            count=batch.count,
            timestamp_ns=batch.timestamp_ns,
            ends=batch.ends,
            frames=batch.frames,
        )
        self.dues = dues
        self.tokens = tokens

    @property
    def size_bytes(self) -> int:
        extra_bytes = len(self.dues) + len(self.tokens)
        return HEADER_BYTES + len(self.ends) + len(self.frames) + extra_bytes

    def parts(self) -> list[bytes | memoryview]:
        parts: list[bytes | memoryview] = [self.head(), self.ends, memoryview(self.dues)]
        parts += (self.frames, self.tokens)
        return parts if len(self.frames) > SMALL_BYTES else [b"".join(parts)]

    def head(self) -> bytes:
        flags = (DUES if self.dues else 0) | (TOKENS if self.tokens else 0)
        rest = _REST.pack(self.first, self.timestamp_ns, self.count, flags)
        crc = 0
        for part in (rest, self.ends, self.dues, self.frames, self.tokens):
            crc = crc32(part, crc)
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
    length, crc, first, timestamp_ns, count, flags = HEADER.unpack_from(data, at)
    dues_at = frames_at = at + HEADER_BYTES + 4 * count
    if flags & DUES:
        frames_at += DUE_BYTES * count
    end = at + 4 + length
    if count == 0 or end - frames_at < MESSAGE_OVERHEAD_BYTES * count or length > BATCH_BYTES_MAX:
        raise BadBatch("impossible header")
    if available < 4 + length:
        raise ShortBatch(4 + length)
    if crc32(data[at + CRC_END : end]) != crc:
        raise BadBatch("crc mismatch")
    frames_end = frames_at + _U32.unpack_from(data, dues_at - 4)[0]
    if (flags or frames_end != end) and not frames_fit(frames_end, end, flags):
        raise BadBatch("ends do not fit the frames")
    batch = LogBatch(
        first=first,
        count=count,
        timestamp_ns=timestamp_ns,
        ends=data[at + HEADER_BYTES : dues_at],
        frames=data[frames_at:frames_end],
    )
    return ExtendedBatch(batch, data[dues_at:frames_at], data[frames_end:end]) if flags else batch


def frames_fit(frames_end: int, end: int, flags: int) -> bool:
    """Whether frames may end there in a batch that ends at `end`."""
    if flags & TOKENS:
        is_whole = frames_end < end and not (end - frames_end) % TOKEN_BYTES
        return is_whole and flags <= TOKENS | DUES
    return frames_end == end and flags in (0, DUES)


class _Ends:
    """A batch's ends as a sequence, for bisect."""

    __slots__ = ("_view",)

    def __init__(self, view: bytearray | memoryview) -> None:
        self._view = view

    def __len__(self) -> int:
        return len(self._view) >> 2

    def __getitem__(self, index: int) -> int:
        return int(_U32.unpack_from(self._view, 4 * index)[0])
