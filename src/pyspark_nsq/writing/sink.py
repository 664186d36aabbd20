"""The sink: publishes the rows of a DataFrame, from a batch or a stream, to topics.

Every task publishes by itself: there is nothing to commit, and an abort cannot take anything back.
The publish token of each chunk (`publish`) makes a repeated task or micro-batch harmless. In a
stream it is made of query and batch, which are in Spark's checkpoint; in a batch write of its
`writeId`, or of a random id. This works if a repeated chunk is identical and goes to the same node:
the task must get the same rows in the same order, and the nodes must be the same. Otherwise its
rows are published again; none is lost.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from pyspark_nsq.errors import BadColumns, BadOption
from pyspark_nsq.nodes.connection import NodeConnection
from pyspark_nsq.options import WriteOptions
from pyspark_nsq.worker_gc import freeze_gc
from pyspark_nsq.writing.chunks import chunks
from pyspark_nsq.writing.publish import NodePublisher, token_of

QUERY_ID = "sql.streaming.queryId"  # local properties that Spark gives to every task of a stream
BATCH_ID = "streaming.sql.batchId"

_LOG = logging.getLogger(__name__)


@dataclass
class PublishedRows(WriterCommitMessage):
    """What one task has published."""

    rows: int
    bytes: int


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._write_id = options.write_id or uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishedRows:
        context = TaskContext.get()
        return publish_rows(iterator, self._options, self._write_id, _partition(context))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _say_what_stays(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._write_id = uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishedRows:
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context else None
        batch = context.getLocalProperty(BATCH_ID) if context else None
        # Without them nodes cannot recognise a repeat: rows are then published at least once.
        writer = f"{query}/{batch}" if query and batch else self._write_id
        return publish_rows(iterator, self._options, writer, _partition(context))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass  # the nodes have confirmed every chunk already

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _say_what_stays(messages)


def check_nodes(options: WriteOptions) -> None:
    """Raise Unreachable unless all nodes answer. A stream does not check: it waits for nodes."""
    for address in options.nsqd:
        connection = NodeConnection(address, options.connecting)
        try:
            connection.ask("/info", {})
        finally:
            connection.close()


def check_columns(schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
    """Raise an error for columns or a mode that cannot be written."""
    if overwrite:
        raise BadOption("a topic cannot be overwritten: use mode('append')")
    kinds = {field.name: field.dataType for field in schema.fields}
    if "body" not in kinds:
        there = ", ".join(kinds) or "none"
        raise BadColumns(f"there is no column 'body' to publish; the columns are: {there}")
    if not isinstance(kinds["body"], BinaryType | StringType):
        raise BadColumns(f"column 'body' must be binary or string, not {_name(kinds['body'])}")
    if options.topic is None:
        if "topic" not in kinds:
            raise BadOption("say where to publish: option 'topic', or a column 'topic'")
        if not isinstance(kinds["topic"], StringType):
            raise BadColumns(f"column 'topic' must be string, not {_name(kinds['topic'])}")


def publish_rows(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, writer: str, partition: int
) -> PublishedRows:
    """Publish all rows. Chunks go to the nodes in turn. A repeated chunk goes to the same node,
    in whatever order the nodes are named, as only that node knows its token."""
    freeze_gc()
    nodes = [NodePublisher(address, options.connecting) for address in sorted(options.nsqd)]
    done = PublishedRows(0, 0)
    number = 0
    try:
        for batch in batches:
            for chunk in chunks(
                batch,
                topic=options.topic,
                bytes_max=options.chunk_bytes,
                rows_max=options.chunk_rows,
            ):
                node = nodes[(partition + number) % len(nodes)]
                node.publish(chunk, token_of(writer, partition, number, chunk))
                number += 1
                done.rows += chunk.rows
                done.bytes += len(chunk.body)
        for node in nodes:
            node.flush()
    finally:
        for node in nodes:
            node.close()
    return done


def _partition(context: TaskContext | None) -> int:
    return context.partitionId() if context else 0


def _name(kind: object) -> str:
    return str(getattr(kind, "simpleString", lambda: kind)())


def _say_what_stays(messages: list[WriterCommitMessage | None]) -> None:
    rows = sum(message.rows for message in messages if isinstance(message, PublishedRows))
    if rows:
        _LOG.warning("the write failed; %d rows or more of it are published and stay so", rows)
