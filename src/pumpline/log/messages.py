"""Messages of a range, decoded one by one and filtered: for looking at a log, not for moving it.

For a thread. The result is bounded by `LookLimits`, the bytes that are read by the caller.
"""

import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pumpline.core.messages.batches import LogBatch
from pumpline.core.messages.frame import MESSAGE_OVERHEAD_BYTES
from pumpline.log import recovery
from pumpline.log.ranges import SelectedRange, open_range
from pumpline.log.segment import OFFSET_END

_TIME_AT = 8
_ID_AT = MESSAGE_OVERHEAD_BYTES - 16


class LoggedMessage(NamedTuple):
    offset: int
    id: str
    timestamp_ns: int
    due_ns: int  # 0: was not published with a delay
    body: bytes


class Filter(NamedTuple):
    """Which messages are wanted."""

    contains: bytes = b""
    without: Sequence[tuple[int, int]] = ()  # spans of offsets, in order, apart

    def passes(self, offset: int) -> bool:
        index = bisect_right(self.without, (offset, 1 << 63)) - 1
        return index < 0 or offset >= self.without[index][1]


class LookLimits(NamedTuple):
    """How many messages a look returns, and how many bytes of their bodies; one message at least
    if there is one."""

    messages_max: int
    body_bytes_max: int


class Looked(NamedTuple):
    messages: list[LoggedMessage]
    start: int  # all of [start, to) was looked at
    to: int
    size_bytes: int  # of the log, that were read


def look(
    selection: SelectedRange,
    start: int,
    to: int,
    *,
    bytes_max: int,
    wanted: Filter,
    limits: LookLimits,
    newest: bool = False,
) -> Looked:
    """The wanted messages of [start, to), oldest first, or of as much of it as `bytes_max` and
    `limits` allow.

    With `newest`, the newest come first, and a range that exceeds `bytes_max` gives none: `to` is
    then lower than asked for.
    """
    found = open_range(selection, start, to, bytes_max=bytes_max)
    try:
        if newest and found.to < to:
            return Looked([], start, found.to, found.size_bytes)
        batches: list[LogBatch] = []
        for fd, position, length, _ in found.extents:
            data = memoryview(os.pread(fd, length, position))
            # The crcs were checked when the segment was opened.
            batches += recovery.parse(data, OFFSET_END)[0]
        spans = [(batch, max(batch.first, start), min(batch.end, found.to)) for batch in batches]
        messages, stopped_at = _limited(spans, wanted, limits, newest=newest)
    finally:
        found.close()
    if stopped_at is None:
        return Looked(messages, start, found.to, found.size_bytes)
    if newest:
        return Looked(messages, stopped_at + 1, found.to, found.size_bytes)
    return Looked(messages, start, stopped_at, found.size_bytes)


def _limited(
    spans: list[tuple[LogBatch, int, int]], wanted: Filter, limits: LookLimits, *, newest: bool
) -> tuple[list[LoggedMessage], int | None]:
    """Messages up to the limits, and the offset of the first that exceeds them."""
    messages: list[LoggedMessage] = []
    body_bytes = 0
    for batch, start, end in reversed(spans) if newest else spans:
        for message in _wanted(batch, start, end, wanted, newest=newest):
            body_bytes += len(message.body)
            is_full = len(messages) >= limits.messages_max or body_bytes > limits.body_bytes_max
            if messages and is_full:
                return messages, message.offset
            messages.append(message)
    return messages, None


def _wanted(
    batch: LogBatch, start: int, end: int, wanted: Filter, *, newest: bool
) -> Iterator[LoggedMessage]:
    needle = re.compile(re.escape(wanted.contains)) if wanted.contains else None
    if needle is not None and not needle.search(batch.frames):
        return  # most batches, at the speed of a search
    for offset in range(end - 1, start - 1, -1) if newest else range(start, end):
        if not wanted.passes(offset):
            continue
        frame = batch.cut(offset, offset + 1)
        body = bytes(frame[MESSAGE_OVERHEAD_BYTES:])
        if wanted.contains in body:
            head = bytes(frame[:MESSAGE_OVERHEAD_BYTES])
            yield LoggedMessage(
                offset=offset,
                id=head[_ID_AT:].decode("ascii", "replace"),
                timestamp_ns=int.from_bytes(head[_TIME_AT : _TIME_AT + 8], signed=True),
                due_ns=batch.due_ns(offset),
                body=body,
            )
