"""Finds the messages in damaged bytes: what a `.bad` file holds.

The bytes are one batch or several, of which at least one byte is wrong. Messages are *certain* if a
checksum says so: the batch is whole, or becomes whole by the repair of its length or of the one
byte that the checksum singles out (`core.messages.crc_repair`). The other messages are *doubtful*:
size, kind, attempts and id of the frame fit together, but the body or the publish time of at least
one message of the batch is wrong, and nothing says of which.

Nothing here trusts a length or a count: a batch ends where another one or the data ends, and each
byte is looked at a bounded number of times.
"""

import re
from array import array
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from pumpline.core.messages.batches import (
    CRC_END,
    DUE_BYTES,
    DUES,
    HEADER,
    HEADER_BYTES,
    TOKENS,
    BadBatch,
    LogBatch,
    read_batch,
)
from pumpline.core.messages.crc import crc32
from pumpline.core.messages.crc_repair import IN_THE_CRC, find_flip
from pumpline.core.messages.frame import ID_AT, ID_BYTES, MESSAGE_OVERHEAD_BYTES
from pumpline.core.messages.publish_tokens import TOKEN_BYTES
from pumpline.log.segment import OFFSET_END

_TOKENS_MAX = 8  # of a batch whose length is wrong
_FIRST_MAX = 1 << 48  # a first offset in a header that has a wrong byte elsewhere is below

_FLAGS = TOKENS | DUES  # all there are

_U32 = Struct(">I")
_I64 = Struct(">q")
_LENGTH_CRC = Struct(">II")
_FRAME_HEAD = Struct(">I4xq")  # size, publish time
_FRAME = re.compile(rb"(?s).{4}\0\0\0\x02.{8}\0\x01[0-9a-f]{16}")


class SalvagedMessage(NamedTuple):
    id: int
    timestamp_ns: int
    due_ns: int  # 0: now
    body: bytes
    is_certain: bool


class SalvagedBatch(NamedTuple):
    data: memoryview
    spans: "array[int]"  # start and end of each frame in `data`, in turn
    dues_ns: "array[int]"  # of each message; 0: now
    is_certain: bool
    unread_bytes: int  # that belong to no message

    def messages(self) -> Iterator[SalvagedMessage]:
        data, spans = self.data, self.spans
        for index in range(0, len(spans), 2):
            frame = data[spans[index] : spans[index + 1]]
            yield SalvagedMessage(
                id=int(bytes(frame[ID_AT : ID_AT + ID_BYTES]), 16),
                timestamp_ns=_FRAME_HEAD.unpack_from(frame)[1],
                due_ns=self.dues_ns[index // 2],
                body=bytes(frame[MESSAGE_OVERHEAD_BYTES:]),
                is_certain=self.is_certain,
            )


def salvage(data: memoryview) -> Iterator[SalvagedBatch]:
    """All batches of damaged bytes, in order."""
    at = 0
    while at < len(data):
        end = _end_of_batch(data, at)
        yield _salvage_batch(data[at:end])
        at = end


def _end_of_batch(data: memoryview, at: int) -> int:
    """Where its length or its table says, if another batch or the end of the data is there; else
    the end of the data."""
    if len(data) - at >= HEADER_BYTES:
        for end in (at + 4 + int(_U32.unpack_from(data, at)[0]), *_ends_by_table(data, at)):
            if end >= at + HEADER_BYTES and (end == len(data) or _is_batch(data, end)):
                return end
    return len(data)


def _ends_by_table(data: memoryview, at: int) -> list[int]:
    """Where a batch may end by the end of its last frame: right there, or after some tokens."""
    *_, count, flags = HEADER.unpack_from(data, at)
    frames_at = _frames_at(at, count, flags)
    if not count or flags > _FLAGS or frames_at > len(data):
        return []
    end = frames_at + int(_U32.unpack_from(data, at + HEADER_BYTES + 4 * count - 4)[0])
    if not flags & TOKENS:
        return [end]
    return [end + TOKEN_BYTES * more for more in range(1, _TOKENS_MAX + 1)]


def _frames_at(at: int, count: int, flags: int) -> int:
    """Where the frames of a batch begin that begins at `at`."""
    return at + HEADER_BYTES + (4 + DUE_BYTES if flags & DUES else 4) * count


def _is_batch(data: memoryview, at: int) -> bool:
    """Whether a batch begins there that has at most one wrong byte: what its length, its count, its
    table and its first frame say fits together, but for one of them."""
    if len(data) - at < HEADER_BYTES:
        return False
    length, _, first, _, count, flags = HEADER.unpack_from(data, at)
    end = at + 4 + length
    if count and flags <= _FLAGS:
        is_in_table = end <= len(data) and end in _ends_by_table(data, at)
        return is_in_table or _frame_at(data, _frames_at(at, count, flags))
    is_first = first == OFFSET_END or first < _FIRST_MAX
    return is_first and (end == len(data) or _is_sound_batch(data, end))


def _is_sound_batch(data: memoryview, at: int) -> bool:
    if len(data) - at < HEADER_BYTES:
        return False
    *_, count, flags = HEADER.unpack_from(data, at)
    return count > 0 and flags <= _FLAGS and _frame_at(data, _frames_at(at, count, flags))


def _frame_at(data: memoryview, at: int) -> bool:
    return _FRAME.match(data, at) is not None


def _salvage_batch(data: memoryview) -> SalvagedBatch:
    batch = _repaired(data)
    if batch is not None:
        spans = _spans_by_ends(batch.frames, batch.ends, 0)
        if len(spans) == 2 * batch.count:
            dues_ns = array("q", map(batch.due_ns, range(batch.first, batch.end)))
            return SalvagedBatch(batch.frames, spans, dues_ns, True, 0)
    spans = array("Q")
    dues_by_start: dict[int, int] = {}
    overhead = HEADER_BYTES
    if len(data) >= HEADER_BYTES:
        *_, timestamp_ns, count, flags = HEADER.unpack_from(data)
        dues_at, frames_at = HEADER_BYTES + 4 * count, _frames_at(0, count, flags)
        if frames_at < len(data):
            ends = data[HEADER_BYTES:dues_at]
            spans = _spans_by_ends(data, ends, frames_at)
            overhead += frames_at - dues_at
            dues_by_start = _dues_by_start(ends, data[dues_at:frames_at], frames_at, timestamp_ns)
    spans = _with_spans_between(data, spans)
    read = sum(spans[1::2]) - sum(spans[::2])
    overhead = overhead + 2 * len(spans) if spans else 0
    dues_ns = array("q", (dues_by_start.get(start, 0) for start in spans[::2]))
    return SalvagedBatch(data, spans, dues_ns, False, max(0, len(data) - read - overhead))


def _dues_by_start(
    ends: memoryview, dues: memoryview, frames_at: int, timestamp_ns: int
) -> dict[int, int]:
    """The due times of frames by where they begin, as the tables of a batch say; without those
    that are no later than the batch."""
    if not dues:
        return {}
    starts = [frames_at, *(frames_at + end for (end,) in _U32.iter_unpack(ends))]
    pairs = zip(starts[:-1], _I64.iter_unpack(dues), strict=True)
    return {start: due_ns for start, (due_ns,) in pairs if due_ns > timestamp_ns}


def _repaired(data: memoryview) -> LogBatch | None:
    """The batch, if it is whole but for its length and at most one other byte."""
    if len(data) < HEADER_BYTES:
        return None
    _, crc = _LENGTH_CRC.unpack_from(data)
    length = _U32.pack(len(data) - 4)
    whole = data if data[:4] == length else memoryview(length + data[4:])
    batch = _read(whole)
    if batch is not None:
        return batch
    flip = find_flip(whole[CRC_END:], crc)
    if flip is None:
        return None
    repaired = bytearray(whole)
    if flip.position == IN_THE_CRC:
        repaired[4:CRC_END] = _U32.pack(crc32(whole[CRC_END:]))
    else:
        repaired[CRC_END + flip.position] ^= flip.difference
    return _read(memoryview(repaired))


def _read(data: memoryview) -> LogBatch | None:
    try:
        return read_batch(data, 0)
    except BadBatch:
        return None


def _spans_by_ends(data: memoryview, ends: memoryview, frames_at: int) -> "array[int]":
    """The frames that are where the table of a batch says."""
    spans = array("Q")
    start = frames_at
    for (relative,) in _U32.iter_unpack(ends):
        end = frames_at + relative
        if start < end <= len(data) and _frame_size(data, start) == end - start:
            spans.extend((start, end))
        start = max(start, end) if end <= len(data) else start
    return spans


def _frame_size(data: memoryview, at: int) -> int:
    """Of the frame there, 0 if there is none."""
    return 4 + int(_U32.unpack_from(data, at)[0]) if _frame_at(data, at) else 0


def _with_spans_between(data: memoryview, spans: "array[int]") -> "array[int]":
    """The same spans, and those of frames between them that another frame, another batch, publish
    tokens or the end of the data follows directly."""
    found = array("Q")
    at = 0
    spans.extend((len(data), len(data)))
    for index in range(0, len(spans), 2):
        start, end = spans[index], spans[index + 1]
        while (match := _FRAME.search(data, at, start)) is not None:
            frame_end = match.start() + _frame_size(data, match.start())
            is_whole = match.end() <= frame_end <= start
            if is_whole and (frame_end == start or _is_followed(data, frame_end)):
                found.extend((match.start(), frame_end))
                at = frame_end
            else:
                at = match.start() + 1
        if end > start:
            found.extend((start, end))
        at = end
    return found


def _is_followed(data: memoryview, at: int) -> bool:
    if _frame_at(data, at) or _is_sound_batch(data, at):
        return True
    if len(data) < HEADER_BYTES:
        return False
    rest = len(data) - at
    flags = HEADER.unpack_from(data)[-1]
    has_tokens = flags <= _FLAGS and flags & TOKENS and rest % TOKEN_BYTES == 0
    return bool(has_tokens) and _FRAME.search(data, at) is None
