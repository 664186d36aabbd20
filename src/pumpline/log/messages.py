"""Messages of a range, decoded one by one and filtered: for looking at a log, not for moving it.

For a thread. What comes back is bounded by the range, which its caller bounds by bytes.
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


class Looked(NamedTuple):
    messages: list[LoggedMessage]  # oldest first
    to: int  # how far the look went
    size_bytes: int


def look(
    selection: SelectedRange, start: int, to: int, *, bytes_max: int, wanted: Filter
) -> Looked:
    """The wanted messages of [start, to), or of as much of it as `bytes_max` allows."""
    found = open_range(selection, start, to, bytes_max=bytes_max)
    try:
        messages: list[LoggedMessage] = []
        for fd, position, length in found.extents:
            data = memoryview(os.pread(fd, length, position))
            batches, _, _ = recovery.parse(data, OFFSET_END)  # it was checked when it was opened
            for batch in batches:
                first, end = max(batch.first, start), min(batch.end, found.to)
                messages += _wanted(batch, first, end, wanted)
        return Looked(messages, found.to, found.size_bytes)
    finally:
        found.close()


def _wanted(batch: LogBatch, start: int, end: int, wanted: Filter) -> Iterator[LoggedMessage]:
    needle = re.compile(re.escape(wanted.contains)) if wanted.contains else None
    if needle is not None and not needle.search(batch.frames):
        return  # most batches, at the speed of a search
    for offset in range(start, end):
        if not wanted.passes(offset):
            continue
        frame = bytes(batch.cut(offset, offset + 1))
        body = frame[MESSAGE_OVERHEAD_BYTES:]
        if wanted.contains in body:
            yield LoggedMessage(
                offset=offset,
                id=frame[_ID_AT:MESSAGE_OVERHEAD_BYTES].decode("ascii", "replace"),
                timestamp_ns=int.from_bytes(frame[_TIME_AT : _TIME_AT + 8], signed=True),
                due_ns=batch.due_ns,
                body=body,
            )
