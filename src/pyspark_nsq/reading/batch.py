"""Batch reads: all rows between two bounds, which are fixed when Spark plans the query.

The bounds are those of the options, and within them what the filters of the query leave.
"""

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_nsq.nodes.bounds import complete_survey, offsets_at
from pyspark_nsq.nodes.nodes import LogState, Nodes
from pyspark_nsq.options import ReadOptions
from pyspark_nsq.reading.filters import Limits, PushFilters
from pyspark_nsq.reading.plan import LogRange, RangePartition, split
from pyspark_nsq.reading.task import read_ranges


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        # No method, which Spark would refuse while its setting is off: see PushFilters.
        self.pushFilters: PushFilters = PushFilters()

    def partitions(self) -> list[InputPartition]:
        options, limits = self._options, self.pushFilters.limits
        nodes = Nodes(options)
        try:
            survey = complete_survey(nodes, options)
            starts = offsets_at(options.starting, survey, nodes, options)
            ends = offsets_at(options.ending, survey, nodes, options)
            ranges = [
                part
                for key, state in survey.logs.items()
                if limits.wants(*key)
                for part in _limited(_range(state, starts[key], ends[key]), state, limits, nodes)
            ]
        finally:
            nodes.close()
        rows_max = options.partition_rows_max
        return [*split(ranges, partitions_min=options.partitions_min, rows_max=rows_max)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark passes a partition of its own if there is none to read.
        ranges = partition.ranges if isinstance(partition, RangePartition) else ()
        return read_ranges(ranges, self._options, self._schema)


def _range(state: LogState, start: int, end: int) -> LogRange:
    return LogRange(
        topic=state.topic,
        node=state.node,
        address=state.address,
        log=state.log,
        start=start,
        end=max(end, start),
        row_bytes=state.row_bytes,
    )


def _limited(whole: LogRange, state: LogState, limits: Limits, nodes: Nodes) -> Iterator[LogRange]:
    """The parts of a range in which rows can match."""
    start = max(whole.start, limits.offsets.low or 0)
    end = whole.end if limits.offsets.high is None else min(whole.end, limits.offsets.high + 1)
    ordered = min(max(start, state.ordered_from), max(start, end))
    yield replace(whole, start=start, end=ordered)  # to be read, whatever the times
    start = ordered
    if start < end and limits.time_begin_ns is not None:
        start = max(start, nodes.offset_at(state, limits.time_begin_ns))
    if start < end and limits.time_end_ns is not None:
        end = min(end, nodes.offset_at(state, limits.time_end_ns))
    yield replace(whole, start=start, end=max(start, end))
