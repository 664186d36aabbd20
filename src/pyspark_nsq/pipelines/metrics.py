"""Measures topics by windows of time: rates, sizes and latencies; shown, and kept if wanted.

Latency is the time from publishing to the moment when Spark reads the message. Windows in the table
and in the topic are final: each is written once, when the watermark has passed it. Windows on the
console are shown as they are now. Counts of redeliveries are not in a log; each nsqd has them under
/metrics (requeues and timeouts by channel).
"""

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from pyspark_nsq.errors import BadOption
from pyspark_nsq.pipelines.exactly_once.outbox import BatchOutbox
from pyspark_nsq.pipelines.exactly_once.resume_guard import outbox_cut, require_same
from pyspark_nsq.pipelines.running import command
from pyspark_nsq.pipelines.running.watch import Stop, Watch
from pyspark_nsq.pipelines.table.storage import Storage, checkpoint_id
from pyspark_nsq.pipelines.table.table import ParquetTable

EXAMPLES = """
  pumpline pipeline metrics --nsqd 127.0.0.1:4151 --topic-pattern '.*'
  pumpline pipeline metrics --lookupd 127.0.0.1:4161 --topic orders --window '1 minute' \\
      --checkpoint state/metrics --table tables/metrics --to orders_metrics \\
      --to-nsqd 127.0.0.1:4151
"""

ROWS_SHOWN = 12
PERCENTILES = (0.5, 0.95, 0.99)
_US_PER_MS = 1000.0


def measured(messages: DataFrame, window: str, watermark: str) -> DataFrame:
    """One row for each topic and window."""
    size = F.octet_length("body")
    late_ms = (F.unix_micros(F.current_timestamp()) - F.unix_micros("timestamp")) / _US_PER_MS
    shares = [F.lit(share) for share in PERCENTILES]
    # In a column of its own: current_timestamp() is not allowed inside an aggregate.
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


@dataclass(slots=True)
class FinalWindows:
    """Writes final windows to a table and a topic; a repeated batch changes nothing."""

    spark: SparkSession
    checkpoint: str
    table: ParquetTable | None
    target: dict[str, str]  # options for writing to the topic; empty for no topic

    def add(self, windows: DataFrame, batch: int) -> None:
        query_id = str(checkpoint_id(self.spark, self.checkpoint))
        outbox = BatchOutbox(self.spark, f"{self.checkpoint}/outbox", query_id, self.target)
        rows = windows.coalesce(1).sortWithinPartitions("start", "topic")
        rows = outbox.keep(batch, rows)
        is_empty = rows.isEmpty()
        if self.table is not None:
            whence = {"query_id": query_id, "checkpoint": self.checkpoint}
            self.table.append(batch, None if is_empty else rows, **whence)
        if self.target and not is_empty:
            outbox.publish(batch, rows.select(F.to_json(F.struct("*")).alias("body")))


def shown(rows: list[Row]) -> Table:
    columns = ("window", "topic", "messages/s", "bytes", "size p50/max", "latency ms p50/p95/p99")
    table = Table(*columns)
    for row in rows:
        late = "/".join(f"{row[f'latency_ms_p{share * 100:.0f}']:.0f}" for share in PERCENTILES)
        table.add_row(
            f"{row.start:%H:%M:%S}",
            row.topic,
            f"{row.messages_per_second:,.1f}",
            f"{row.bytes:,}",
            f"{row.size_p50:,}/{row.size_max:,}",
            late,
        )
    return table


def arguments(parser: ArgumentParser) -> None:
    command.add_source(parser)
    group = parser.add_argument_group("what is measured, and where it goes")
    group.add_argument(
        "--window", type=command.duration, default="10 seconds", help="(default: %(default)s)"
    )
    group.add_argument(
        "--watermark", type=command.duration, default="10 seconds", help="(default: %(default)s)"
    )
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
    spark = command.session(arguments, "metrics")
    options = command.with_cores(spark, options)
    state = Storage(spark, arguments.checkpoint).root if keeps else ""
    if target:
        require_same(Storage(spark, state), outbox_cut(spark, target))
    with Stop() as stop:
        queries = []
        if keeps:
            windows = _windows(spark, options, arguments)
            table = ParquetTable(spark, arguments.table, ()) if arguments.table else None
            if table is not None:
                table.claim(state, checkpoint_id(spark, state))
            kept = FinalWindows(spark, state, table, target)
            writer = windows.writeStream.foreachBatch(kept.add)
            writer = writer.option("checkpointLocation", state)
            queries.append(command.triggered(writer, arguments).start())
        if not arguments.quiet:
            show = partial(_show, console=console)
            # Without the hold: it would move with what is shown, ahead of what is kept.
            holds = ("hold", "holdbytesmax", "holddescription") if keeps else ()
            shown_of = {name: v for name, v in options.items() if name.lower() not in holds}
            windows = _windows(spark, shown_of, arguments)
            writer = windows.writeStream.foreachBatch(show).outputMode("update")
            queries.append(command.triggered(writer, arguments).start())
        watch = Watch("metrics", console, without=arguments.without_node)
        watch.follow(queries[0], stop, beside=queries[1:])
    return command.EXIT_OK


def _windows(spark: SparkSession, options: dict[str, str], arguments: Namespace) -> DataFrame:
    return measured(command.stream(spark, options), arguments.window, arguments.watermark)


def _show(changed: DataFrame, batch: int, *, console: Console) -> None:
    newest = changed.sort(F.desc("start"), "topic").limit(ROWS_SHOWN).collect()
    if newest:
        console.print(shown(newest))


if __name__ == "__main__":
    sys.exit(command.main(sys.modules[__name__]))
