"""Planning: cuts the ranges of logs that a read needs into partitions.

A partition is a list of ranges, so that a micro-batch over many small logs does not need a task for
each. The cuts are made by bytes (estimated from the log's average row), over all ranges laid end to
end, so partitions have equal sizes however the topics differ. Knows numbers; must not know nodes.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from pyspark_nsq.nodes.positions import Gaps

PARTITION_BYTES = 128 << 20  # as Spark's spark.sql.files.maxPartitionBytes
PARTITION_BYTES_MIN = 1 << 20  # a task costs about 10 ms, as long as decoding this takes
PARTITIONS_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRange:
    """Offsets [start, end) of one log. `row_bytes` is the log's average row."""

    topic: str
    node: str
    address: str
    log: str
    start: int
    end: int
    row_bytes: int = 1

    @property
    def rows(self) -> int:
        return self.end - self.start

    @property
    def weight_bytes(self) -> int:
        return self.rows * self.row_bytes


def without_gaps(whole: LogRange, gaps: Gaps) -> list[LogRange]:
    """The parts of a range that are not left out: partitions of offsets without rows are idle
    tasks."""
    parts: list[LogRange] = []
    start = whole.start
    for before, after in gaps:
        if start < min(before, whole.end):
            parts.append(replace(whole, start=start, end=min(before, whole.end)))
        start = max(start, after)
    if start < whole.end:
        parts.append(replace(whole, start=start))
    return parts


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: tuple[LogRange, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


def split(
    ranges: Sequence[LogRange],
    *,
    partitions_min: int | None,
    rows_max: int | None,
    cores: int | None = None,
) -> list[RangePartition]:
    """Cut the ranges into partitions: as many as there are cores, by default those of this machine,
    or `partitions_min`; more if they would be large, fewer if they would be tiny."""
    todo = sorted((r for r in ranges if r.rows > 0), key=lambda r: (r.topic, r.node, r.start))
    total_bytes = sum(r.weight_bytes for r in todo)
    wanted = partitions_min
    if wanted is None:
        cores = cores or os.cpu_count() or 1
        wanted = max(1, min(cores, int(total_bytes / PARTITION_BYTES_MIN)))
    wanted = max(wanted, -int(-total_bytes // PARTITION_BYTES))
    parts = _by_weight(todo, total_bytes, min(wanted, sum(r.rows for r in todo), PARTITIONS_MAX))
    if rows_max is not None:
        parts = [piece for part in parts for piece in _by_rows(part, rows_max)]
    return [RangePartition(tuple(part)) for part in parts if part]


def _by_weight(ranges: Sequence[LogRange], total_bytes: int, count: int) -> list[list[LogRange]]:
    """`count` lists of about the same number of bytes; offsets stay in order."""
    parts: list[list[LogRange]] = [[] for _ in range(count)]
    done_bytes = 0
    index = 0
    for whole in ranges:
        rest = whole
        while rest.rows:
            # How many rows of this range still fit into the current part.
            free_bytes = total_bytes * (index + 1) / count - done_bytes
            rows = round(free_bytes / rest.row_bytes)
            if rows <= 0 and index < count - 1:
                index += 1
                continue
            piece, rest = _cut(rest, rest.rows if index == count - 1 else min(rows, rest.rows))
            parts[index].append(piece)
            done_bytes += piece.weight_bytes
    return parts


def _by_rows(ranges: Sequence[LogRange], rows_max: int) -> list[list[LogRange]]:
    parts: list[list[LogRange]] = [[]]
    free = rows_max
    for whole in ranges:
        rest = whole
        while rest.rows:
            if not free:
                parts.append([])
                free = rows_max
            piece, rest = _cut(rest, min(free, rest.rows))
            parts[-1].append(piece)
            free -= piece.rows
    return parts


def _cut(whole: LogRange, rows: int) -> tuple[LogRange, LogRange]:
    middle = whole.start + rows
    return replace(whole, end=middle), replace(whole, start=middle)
