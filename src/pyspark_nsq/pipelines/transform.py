"""Runs a SQL query over a topic as a stream, and publishes the result to another topic.

The query reads from `input`, which has the columns of a topic, `text` (the body as a string) and
`event` (the body as JSON, with the fields of --schema, or of a schema inferred at the first start).
If the result has a column `body`, that is published, otherwise the whole row as JSON. A column
`topic` in the result names the target, unless --to does. Each row is published once: nodes
recognise a batch that is repeated after a crash by its publish tokens (`outbox`).
"""

import json
import re
import sys
from argparse import ArgumentParser, Namespace

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType
from rich.console import Console

from pyspark_nsq.errors import BadOption
from pyspark_nsq.options import ReadOptions, parse_read, parse_write
from pyspark_nsq.pipelines.exactly_once.outbox import BatchOutbox, is_repeatable
from pyspark_nsq.pipelines.exactly_once.resume_guard import outbox_cut, require_same, straight_cut
from pyspark_nsq.pipelines.json_events import events
from pyspark_nsq.pipelines.running import command
from pyspark_nsq.pipelines.running.unread import require_all_read, survey_of
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
    survey = survey_of(options) if arguments.once else None
    spark = command.session(arguments, "transform")
    state = Storage(spark, arguments.checkpoint)
    given = arguments.schema
    schema = events.schema_from_ddl(given) if given else kept_schema(spark, options, state)
    messages = events.with_event(command.stream(spark, options), schema)
    if arguments.watermark:
        messages = messages.withWatermark("timestamp", arguments.watermark)
    messages.createOrReplaceTempView("input")
    result = published(_asked(spark, arguments.sql, schema), arguments.to)
    if not given and schema.fields and not state.exists(SCHEMA):
        state.write_text(SCHEMA, schema.json())
    straight = is_repeatable(result)
    cut = straight_cut(spark, options, target) if straight else outbox_cut(spark, target)
    require_same(state, cut)
    writer = _straight(result, state, target) if straight else _by_outbox(result, state, target)
    writer = command.triggered(writer, arguments)
    with Stop() as stop:
        Watch("transform", console).follow(writer.start(), stop)
    if survey is not None and not stop.asked.is_set():
        require_all_read(survey, state)
    return command.EXIT_OK


def _loop(options: dict[str, str], target: dict[str, str]) -> str | None:
    """The topic that is read from and published to at the same node; None if there is none."""
    read, write = parse_read(options, streaming=True), parse_write(target)
    topic = write.topic
    if topic is None or not _is_read(read, topic):
        return None
    addresses = {*read.nsqd}
    if read.lookupd:
        addresses |= {*survey_of(options).names.values()}
    return topic if addresses & {*write.nsqd} else None


def _is_read(options: ReadOptions, topic: str) -> bool:
    if options.pattern is not None:
        return re.fullmatch(options.pattern, topic) is not None
    return topic in options.topics


def kept_schema(spark: SparkSession, options: dict[str, str], state: Storage) -> StructType:
    """The schema that was inferred at the first start. With another schema, a batch that is
    repeated after a crash would have other rows."""
    text = state.read_text(SCHEMA)
    if text is not None:
        return StructType.fromJson(json.loads(text))
    return events.sampled_schema(spark, options)


def _asked(spark: SparkSession, sql: str, schema: StructType) -> DataFrame:
    try:
        return spark.sql(sql)
    except AnalysisException as error:
        if schema.fields or "event" not in sql:
            raise
        said = first_sentence(str(error))
        raise BadOption(f"no message so far is a JSON object: give a --schema ({said})") from None


def _straight(result: DataFrame, state: Storage, target: dict[str, str]) -> DataStreamWriter:
    """Publish directly to the nodes: a repeated batch has the same rows."""
    writer = result.writeStream.format("nsq").options(**target)
    return writer.option("checkpointLocation", state.root)


def _by_outbox(result: DataFrame, state: Storage, target: dict[str, str]) -> DataStreamWriter:
    """Write each batch to files first: computed again, it might have other rows."""

    def publish(rows: DataFrame, batch: int) -> None:
        spark = rows.sparkSession
        query_id = checkpoint_id(spark, state.root)
        outbox = BatchOutbox(spark, state.path(OUTBOX), str(query_id), target)
        outbox.publish(batch, outbox.keep(batch, rows))

    return result.writeStream.foreachBatch(publish).option("checkpointLocation", state.root)


if __name__ == "__main__":
    sys.exit(command.main(sys.modules[__name__]))
