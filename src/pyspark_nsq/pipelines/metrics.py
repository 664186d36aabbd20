"""Rates, sizes and latencies of topics, by windows of time: on the console, in a table, in a topic.

Latency is from publishing to the moment Spark reads the message. Redeliveries (requeues and
timeouts) are not in a log: nodes are asked for them, and the console shows how many there were.
Windows in the table and the topic are final, once the watermark has passed them; those on the
console are as they are now.
"""

import sys
from argparse import ArgumentParser, Namespace

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from pyspark_nsq.connection import NodeConnection
from pyspark_nsq.errors import BadOption, NsqError
from pyspark_nsq.nodes import Nodes
from pyspark_nsq.options import ReadOptions, parse_read
from pyspark_nsq.pipelines import command
from pyspark_nsq.pipelines.watch import Stop, Watch

EXAMPLES = """
  pumpline pipeline metrics --nsqd 127.0.0.1:4151 --topic-pattern '.*'
  pumpline pipeline metrics --lookupd 127.0.0.1:4161 --topic orders --window '1 minute' \\
      --checkpoint state/metrics --table tables/metrics --to orders_metrics
"""

ROWS_SHOWN = 12
PERCENTILES = (0.5, 0.95, 0.99)
_US_PER_MS = 1000.0


def measured(messages: DataFrame, window: str, watermark: str) -> DataFrame:
    """One row for each topic and window."""
    size = F.octet_length("body")
    late_ms = (F.unix_micros(F.current_timestamp()) - F.unix_micros("timestamp")) / _US_PER_MS
    shares = [F.lit(share) for share in PERCENTILES]
    # A column of its own: the clock may not appear inside an aggregate.
    timed = messages.withColumn("_late_ms", late_ms)
    grouped = timed.withWatermark("timestamp", watermark).groupBy(
        F.window("timestamp", window), "topic"
    )
    rows = grouped.agg(
        F.count("*").alias("messages"),
        F.sum(size).alias("bytes"),
        F.percentile_approx(size, F.array(*shares)).alias("_sizes"),
        F.max(size).alias("size_max"),
        F.percentile_approx("_late_ms", F.array(*shares)).alias("_late"),
        F.max("attempts").alias("attempts_max"),
    )
    names = [f"p{share * 100:.0f}" for share in PERCENTILES]
    return rows.select(
        F.col("window.start").alias("start"),
        F.col("window.end").alias("end"),
        "topic",
        "messages",
        (F.col("messages") / F.expr("timestampdiff(SECOND, window.start, window.end)")).alias(
            "messages_per_second"
        ),
        "bytes",
        *(F.col("_sizes")[n].alias(f"size_{name}") for n, name in enumerate(names)),
        "size_max",
        *(F.col("_late")[n].alias(f"latency_ms_{name}") for n, name in enumerate(names)),
    )


class Redeliveries:
    """Requeues and timeouts of all channels of a topic, since this was made."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._first: dict[str, int] | None = None

    def by_topic(self) -> dict[str, int]:
        now = self._count()
        if self._first is None:
            self._first = now
        return {topic: count - self._first.get(topic, 0) for topic, count in now.items()}

    def _count(self) -> dict[str, int]:
        nodes = Nodes(self._options)
        try:
            addresses = list(nodes.survey().names.values())
        finally:
            nodes.close()
        counts: dict[str, int] = {}
        for address in addresses:
            connection = NodeConnection(address, self._options.connecting)
            try:
                answer = connection.ask("/stats", {"format": "json"})
            except NsqError:
                continue  # a node that is away has nothing to say
            finally:
                connection.close()
            topics = answer.get("topics") if isinstance(answer, dict) else None
            for topic in topics or []:
                channels = topic.get("channels") or []
                again = sum(c["requeue_count"] + c["timeout_count"] for c in channels)
                counts[topic["topic_name"]] = counts.get(topic["topic_name"], 0) + again
        return counts


def shown(rows: list[Row], redelivered: dict[str, int]) -> Table:
    columns = ("window", "topic", "messages/s", "bytes", "size p50/max", "latency ms p50/p95/p99")
    table = Table(*columns, "redelivered")
    for row in rows:
        late = "/".join(f"{row[f'latency_ms_p{share * 100:.0f}']:.0f}" for share in PERCENTILES)
        table.add_row(
            f"{row.start:%H:%M:%S}",
            row.topic,
            f"{row.messages_per_second:,.1f}",
            f"{row.bytes:,}",
            f"{row.size_p50:,}/{row.size_max:,}",
            late,
            f"{redelivered.get(row.topic, 0):,}",
        )
    return table


def arguments(parser: ArgumentParser) -> None:
    command.add_source(parser)
    group = parser.add_argument_group("what is measured, and where it goes")
    group.add_argument("--window", default="10 seconds", help="(default: %(default)s)")
    group.add_argument("--watermark", default="10 seconds", help="(default: %(default)s)")
    group.add_argument("--table", metavar="DIR", help="a Parquet table of final windows")
    group.add_argument("--to", metavar="TOPIC", help="a topic for final windows, as JSON")
    group.add_argument("--to-nsqd", metavar="ADDRESSES", help="HTTP addresses (default: --nsqd)")
    group.add_argument("--quiet", action="store_true", help="nothing on the console")
    command.add_streaming(parser, every="5 seconds", start="latest")
    command.add_spark(parser)


def run(arguments: Namespace, console: Console) -> int:
    keeps = bool(arguments.table or arguments.to)
    if keeps and not arguments.checkpoint:
        raise BadOption("name a --checkpoint directory, so that windows are kept once")
    if arguments.quiet and not keeps:
        raise BadOption("--quiet without --table or --to would measure for nobody")
    options = command.streaming(arguments)
    target = command.writing(arguments, options) if arguments.to else {}
    redeliveries = Redeliveries(parse_read(options, streaming=True))
    spark = command.session(arguments, "metrics")

    def rows() -> DataFrame:
        return measured(command.stream(spark, options), arguments.window, arguments.watermark)

    def show(changed: DataFrame, batch: int) -> None:
        newest = changed.sort(F.desc("start"), "topic").limit(ROWS_SHOWN).collect()
        if newest:
            console.print(shown(newest, redeliveries.by_topic()))

    queries = []
    with Stop() as stop:
        if arguments.table:
            writer = rows().writeStream.format("parquet").option("path", arguments.table)
            writer = writer.option("checkpointLocation", f"{arguments.checkpoint}/table")
            queries.append(command.triggered(writer, arguments).start())
        if arguments.to:
            bodies = rows().select(F.to_json(F.struct("*")).alias("body"))
            writer = bodies.writeStream.format("nsq").options(**target, topic=arguments.to)
            writer = writer.option("checkpointLocation", f"{arguments.checkpoint}/topic")
            queries.append(command.triggered(writer, arguments).start())
        if not arguments.quiet:
            redeliveries.by_topic()
            writer = rows().writeStream.foreachBatch(show).outputMode("update")
            queries.append(command.triggered(writer, arguments).start())
        for query in queries[1:]:
            Watch("metrics", console).follow(query, stop)
        Watch("metrics", console).follow(queries[0], stop)
    return command.EXIT_OK


if __name__ == "__main__":
    sys.exit(command.main(sys.modules[__name__]))
