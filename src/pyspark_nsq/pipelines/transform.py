"""Takes a topic through SQL into another topic, as a stream.

The query reads from `input`, which has the columns of a topic, `text` (the body as a string) and
`event` (the body as JSON, by --schema, or by what the topic has when it starts). If its result has
a column `body`, that is published; otherwise the whole row is, as JSON. A column `topic` in the
result says where to, unless --to does. A batch that a kill interrupts is sent again, and nsqd
leaves out what of it had arrived, as long as the query gives the same rows in the same order.
"""

import sys
from argparse import ArgumentParser, Namespace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from rich.console import Console

from pyspark_nsq.errors import BadOption
from pyspark_nsq.pipelines import command, events
from pyspark_nsq.pipelines.watch import Stop, Watch

EXAMPLES = """
  pumpline pipeline transform --nsqd 127.0.0.1:4151 --topic orders --to large_orders \\
      --checkpoint state/large --sql "SELECT body FROM input WHERE event.total > 1000"
  pumpline pipeline transform --nsqd 127.0.0.1:4151 --topic orders --checkpoint state/cities \\
      --sql "SELECT concat('orders_', lower(event.city)) AS topic, event.* FROM input"
"""

SAMPLE_ROWS = 10_000  # looked at for the schema


def with_event(messages: DataFrame, schema: StructType) -> DataFrame:
    """What a query may use: the columns of a topic, `text`, and `event` where there is a schema."""
    rows = messages.withColumn("text", events.text_of())
    if not schema.fields:
        return rows
    return rows.withColumn("event", F.from_json(F.col("text"), schema))


def sampled_schema(spark: SparkSession, options: dict[str, str]) -> StructType:
    """Of what the topics have now."""
    names = {"maxoffsetspertrigger", "startingoffsets", "startingtimestamp", "hold", "holdbytesmax"}
    kept = {name: value for name, value in options.items() if name.lower() not in names}
    rows = spark.read.format("nsq").options(**kept).load().limit(SAMPLE_ROWS)
    return events.merged(StructType(), events.inferred(spark, rows))


def published(result: DataFrame, to: str | None) -> DataFrame:
    """The result as messages: `body`, and `topic` unless all go to one."""
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
    group.add_argument("--watermark", metavar="TIME", help="on timestamp, for windows in the query")
    command.add_streaming(parser, every="0 seconds", start="latest")
    command.add_spark(parser)


def run(arguments: Namespace, console: Console) -> int:
    if not arguments.checkpoint:
        raise BadOption("name a --checkpoint directory, so that it can go on where it was")
    options = command.streaming(arguments)
    target = command.writing(arguments, options)
    if arguments.to:
        target["topic"] = arguments.to
    spark = command.session(arguments, "transform")
    given = arguments.schema
    schema = events.schema_from_ddl(given) if given else sampled_schema(spark, options)
    messages = with_event(command.stream(spark, options), schema)
    if arguments.watermark:
        messages = messages.withWatermark("timestamp", arguments.watermark)
    messages.createOrReplaceTempView("input")
    writer = published(spark.sql(arguments.sql), arguments.to).writeStream.format("nsq")
    writer = writer.options(**target).option("checkpointLocation", arguments.checkpoint)
    writer = command.triggered(writer, arguments)
    with Stop() as stop:
        Watch("transform", console).follow(writer.start(), stop)
    return command.EXIT_OK


if __name__ == "__main__":
    sys.exit(command.main(sys.modules[__name__]))
