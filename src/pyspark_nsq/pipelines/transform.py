"""Runs a SQL query over a topic as a stream, and publishes the result to another topic.

The query reads from `input`, which has the columns of a topic, `text` (the body as a string) and
`event` (the body as JSON, with the fields of --schema, or of a schema inferred at the first start).
A query that uses `event` gets only the messages that fit the schema; the others are set aside in
--quarantine, with the reason. If the result has a column `body`, that is published, otherwise the
whole row as JSON. A column `topic` in the result names the target, unless --to does. Each row is
published once: nodes recognise a batch that is repeated after a crash by its publish tokens
(`outbox`).
"""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from rich.console import Console

from pyspark_nsq.errors import BadOption
from pyspark_nsq.nodes.nodes import Nodes
from pyspark_nsq.options import parse_read, parse_write
from pyspark_nsq.pipelines.exactly_once.outbox import BatchOutbox, is_repeatable
from pyspark_nsq.pipelines.exactly_once.resume_guard import outbox_cut, require_same, straight_cut
from pyspark_nsq.pipelines.json_events import events
from pyspark_nsq.pipelines.json_events.fitting import LEAVE_OUT
from pyspark_nsq.pipelines.running import command
from pyspark_nsq.pipelines.running.batch_range import (
    BOUNDS,
    OF_STREAMS,
    fixed_start,
    messages_of,
)
from pyspark_nsq.pipelines.running.last_hold import commit_last_batch
from pyspark_nsq.pipelines.running.watch import Stop, Watch, first_sentence
from pyspark_nsq.pipelines.table.storage import Storage, checkpoint_id

EXAMPLES = """
  pumpline pipeline transform --nsqd 127.0.0.1:4151 --topic orders --to large_orders \\
      --checkpoint state/large --sql "SELECT body FROM input WHERE event.total > 1000"
  pumpline pipeline transform --nsqd 127.0.0.1:4151 --topic orders --checkpoint state/cities \\
      --sql "SELECT concat('orders_', lower(event.city)) AS topic, event.* FROM input"
"""

SCHEMA = "event_schema.json"  # in the checkpoint
OUTBOX = "outbox"
QUARANTINE = "quarantine"
ANSI = "spark.sql.ansi.enabled"


def published(result: DataFrame, to: str | None) -> DataFrame:
    """The result as messages: `body`, and `topic` unless all go to the same."""
    if to is None and "topic" not in result.columns:
        raise BadOption("say where to publish: --to TOPIC, or a column topic in the query")
    wanted = [] if to else [F.col("topic").cast("string").alias("topic")]
    if "body" in result.columns:
        return result.select(*wanted, "body")
    fields = [name for name in result.columns if to or name != "topic"]
    return result.select(*wanted, F.to_json(F.struct(*fields)).alias("body"))


def arguments(parser: ArgumentParser) -> None:
    command.add_source(parser)
    group = parser.add_argument_group("what is published")
    group.add_argument("--sql", required=True, help="SELECT ... FROM input")
    group.add_argument("--to", metavar="TOPIC")
    group.add_argument("--to-nsqd", metavar="ADDRESSES", help="HTTP addresses (default: --nsqd)")
    group.add_argument("--schema", metavar="DDL", help="of `event`: 'id BIGINT, city STRING'")
    group.add_argument(
        "--quarantine", metavar="DIR", help="of what does not fit (default: CHECKPOINT/quarantine)"
    )
    group.add_argument(
        "--watermark",
        metavar="TIME",
        type=command.duration,
        help="on timestamp, for windows in the query",
    )
    command.add_streaming(parser, every="0 seconds", start="latest")
    command.add_spark(parser)


def run(arguments: Namespace, console: Console) -> int:
    if not arguments.checkpoint:
        raise BadOption("name a --checkpoint directory, so that it can go on where it was")
    options = command.streaming(arguments)
    target = command.writing(arguments, options)
    if loop := _loop(options, target):
        raise BadOption(f"topic {loop} is read and written: it would read its own results for ever")
    spark = command.session(arguments, "transform")
    options = command.with_cores(spark, options)
    state = Storage(spark, arguments.checkpoint)
    begin = fixed_start(options, state)
    options = begin.options
    stream = Input(spark, options, arguments.sql, arguments.watermark)
    with lenient_sql(spark, arguments):
        result, aside, schema = stream.without_event(), None, StructType()
        if result is None:
            given = arguments.schema
            schema = events.schema_from_ddl(given) if given else kept_schema(spark, options, state)
            result = stream.with_event(schema)
            path = arguments.quarantine or state.path(QUARANTINE)
            aside = SetAside(spark, options, state, schema, path)
        messages = published(result, arguments.to)
        straight = is_repeatable(messages)
        cut = straight_cut(spark, options, target) if straight else outbox_cut(spark, target)
        require_same(state, cut)
        begin.keep(state)
        if schema.fields and not arguments.schema and not state.exists(SCHEMA):
            state.write_text(SCHEMA, schema.json())
        publish = Publish(state, target, aside, straight=straight)
        writer = messages.writeStream.foreachBatch(publish)
        writer = writer.option("checkpointLocation", state.root)
        query = command.triggered(writer, arguments).start()
    with Stop() as stop:
        note = aside.note if aside is not None else lambda: ""
        Watch("transform", console, note=note, without=arguments.without_node).follow(query, stop)
    commit_last_batch(options, state)
    return command.EXIT_OK


@dataclass(frozen=True, slots=True)
class Input:
    """What the query reads from."""

    spark: SparkSession
    options: dict[str, str]
    sql: str
    watermark: str | None

    def without_event(self) -> DataFrame | None:
        """The result of a query that uses no `event`, which has all messages; None if it does."""
        self._view(command.stream(self.spark, self.options))
        try:
            return self.spark.sql(self.sql)
        except ParseException:
            raise
        except AnalysisException:
            return None

    def with_event(self, schema: StructType) -> DataFrame:
        rows = command.stream(self.spark, self.options)
        if schema.fields:
            both = events.parsed(events.checked(rows, schema, unknown=LEAVE_OUT), schema)
            rows = events.events(both).drop(events.KEY)
        self._view(rows)
        try:
            return self.spark.sql(self.sql)
        except AnalysisException as error:
            if schema.fields or "event" not in self.sql:
                raise
            said = first_sentence(str(error))
            text = f"no message so far is a JSON object: give a --schema ({said})"
            raise BadOption(text) from None

    def _view(self, rows: DataFrame) -> None:
        rows = rows.withColumn("text", events.text_of())
        if self.watermark:
            rows = rows.withWatermark("timestamp", self.watermark)
        rows.createOrReplaceTempView("input")


@dataclass(slots=True)
class SetAside:
    """The messages of each batch that do not fit the schema, in a directory of their own."""

    spark: SparkSession
    options: dict[str, str]
    checkpoint: Storage
    schema: StructType
    path: str
    count: int = 0

    def keep(self, batch: int) -> None:
        """Write them; a repeated batch is written again in its place."""
        messages = messages_of(self.spark, self.options, self.checkpoint, batch)
        if messages is None:
            return
        checked = events.checked(messages, self.schema, unknown=LEAVE_OUT)
        bad = events.others(events.parsed(checked, self.schema)).persist()
        try:
            if count := bad.count():
                bad.write.mode("overwrite").parquet(f"{self.path.rstrip('/')}/batch={batch}")
                self.count += count
        finally:
            bad.unpersist()

    def note(self) -> str:
        return f"{self.count:,} set aside in {self.path}" if self.count else "0 set aside"


class Publish:
    """Publishes the rows of each batch, once however often it is repeated."""

    def __init__(
        self, state: Storage, target: dict[str, str], aside: SetAside | None, *, straight: bool
    ) -> None:
        self._state = state
        self._target = target
        self._aside = aside
        self._straight = straight

    def __call__(self, rows: DataFrame, batch: int) -> None:
        spark = rows.sparkSession
        query_id = checkpoint_id(spark, self._state.root)
        if self._aside is not None:
            self._aside.keep(batch)
        outbox = BatchOutbox(spark, self._state.path(OUTBOX), str(query_id), self._target)
        # Computed again, a batch that is not straight might have other rows: they are kept first.
        outbox.publish(batch, rows if self._straight else outbox.keep(batch, rows))


@contextmanager
def lenient_sql(spark: SparkSession, arguments: Namespace) -> Iterator[None]:
    """A cast that fails is NULL, unless --conf says otherwise: one message must not stop all."""
    before = spark.conf.get(ANSI)
    if not any(given.startswith(f"{ANSI}=") for given in arguments.conf):
        spark.conf.set(ANSI, "false")
    try:
        yield  # a query that is started keeps the settings of that moment
    finally:
        spark.conf.set(ANSI, str(before))


def _loop(options: dict[str, str], target: dict[str, str]) -> str | None:
    """The topic that is read from and published to at the same node; None if there is none."""
    read, write = parse_read(options, streaming=True), parse_write(target)
    topic = write.topic
    if topic is None or not read.wants(topic):
        return None
    addresses = {*read.nsqd}
    if read.lookupd:
        nodes = Nodes(read)
        try:
            addresses |= {*nodes.survey().names.values()}
        finally:
            nodes.close()
    return topic if addresses & {*write.nsqd} else None


def kept_schema(spark: SparkSession, options: dict[str, str], state: Storage) -> StructType:
    """The schema that was inferred at the first start. With another schema, a batch that is
    repeated after a crash would have other rows."""
    text = state.read_text(SCHEMA)
    if text is not None:
        return StructType.fromJson(json.loads(text))
    names = (*BOUNDS, *OF_STREAMS)
    return events.sampled_schema(
        spark, {name: text for name, text in options.items() if name.lower() not in names}
    )


if __name__ == "__main__":
    sys.exit(command.main(sys.modules[__name__]))
