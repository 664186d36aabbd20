"""Batch reads: all rows between two bounds, which are fixed when Spark plans the query.

The options set the bounds; the filters of a query do not. Spark plans a reader once and reuses it
for every query of the same DataFrame or table (Spark 4.3), so a reader that takes the filters of
one query (`pushFilters`) returns too few rows to the next.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_nsq.nodes.bounds import complete_survey, offsets_at
from pyspark_nsq.nodes.nodes import LogState, Nodes
from pyspark_nsq.options import ReadOptions
from pyspark_nsq.reading.plan import LogRange, RangePartition, split, without_gaps
from pyspark_nsq.reading.task import read_ranges


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        options = self._options
        nodes = Nodes(options)
        try:
            survey = complete_survey(nodes, options)
            starts = offsets_at(options.starting, survey, nodes, options)
            ends = offsets_at(options.ending, survey, nodes, options)
        finally:
            nodes.close()
        ranges = [
            part
            for key, state in survey.logs.items()
            for part in without_gaps(_range(state, starts[key], ends[key]), state.gaps)
        ]
        rows_max = options.partition_rows_max
        parts = split(
            ranges,
            partitions_min=options.partitions_min,
            rows_max=rows_max,
            cores=options.cores,
        )
        return [*parts]

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
