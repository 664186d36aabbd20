"""Asks a stream's reader as Spark does, with no Spark."""

import json
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from pyspark_nsq.reading.plan import LogRange, RangePartition
from pyspark_nsq.reading.stream import StreamReader

Offsets = dict[str, Any]
NewReader = Callable[..., StreamReader]


def kept(offsets: Offsets) -> Offsets:
    """As it comes back from the checkpoint."""
    return dict(json.loads(json.dumps(offsets)))


def latest(reader: StreamReader, start: Offsets, limit: ReadLimit | None = None) -> Offsets:
    return kept(reader.latestOffset(start, limit or ReadAllAvailable()))


def rows(reader: StreamReader, start: Offsets, end: Offsets) -> list[bytes]:
    """The bodies of the batch between two places."""
    found: list[bytes] = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            found += batch.column("body").to_pylist()
    return found


def ranges(reader: StreamReader, start: Offsets, end: Offsets) -> list[tuple[LogRange, ...]]:
    planned = reader.partitions(start, end)
    return [part.ranges for part in planned if isinstance(part, RangePartition)]
