"""Open batches that a kernel adds small messages to, and the record of what it has added.

The kernel (`publishes_by_line`) finds the batch of a log by the command line of a PUB or MPUB. It
adds each message there, and to one record for the write-ahead log. So a publish costs nothing in
Python for each topic; who wants to know how far a log goes counts what is not committed
(`pending`).
"""

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a tail registers itself here
    from pumpline.log.tail import Tail

OpenBatch = tuple[bytearray, bytearray, int]
"""Frames, ends and the id of the first message, as `core.messages.kernels` takes them."""


class SharedBatches:
    def __init__(self, *, is_immediate: bool) -> None:
        """`is_immediate`: what is committed is acknowledged, without waiting for an fsync."""
        self.is_immediate = is_immediate
        self.by_line: dict[bytes, OpenBatch] = {}
        self.logs: dict[bytes, Tail] = {}  # of all lines that were ever there
        self.followed: dict[bytes, Tail] = {}  # those that somebody follows
        # The record.
        self.frames = bytearray()
        self.ends = bytearray()
        self.lines: list[bytes] = []  # of each message
        self._counted = 0  # lines
        self._counts: Counter[bytes] = Counter()

    def pending(self, lines: tuple[bytes, ...]) -> int:
        """How many messages with these lines are in the record."""
        if self._counted != len(self.lines):
            self._counts.update(self.lines[self._counted :])
            self._counted = len(self.lines)
        return sum(self._counts[line] for line in lines)

    def take(self) -> tuple[list[bytes], bytearray, bytearray]:
        """Take out the record: lines, ends and frames."""
        taken = self.lines, self.ends, self.frames
        self.lines, self.ends, self.frames = [], bytearray(), bytearray()
        self._counted = 0
        self._counts.clear()
        return taken
