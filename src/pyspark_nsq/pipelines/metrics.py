"""Rates, sizes and latencies of topics, by windows of time: on the console, in a table, in a topic.

Latency is from publishing to the moment Spark reads the message. Redeliveries (requeues and
timeouts) are not in a log: nodes are asked for them every second (`redeliveries`). Windows in the
table and the topic are final, once the watermark has passed them, and there once each; those on the
console are as they are now.
"""

import copy
import logging
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType
from rich.console import Console
from rich.table import Table

from pyspark_nsq.errors import BadOption, NsqError
from pyspark_nsq.nodes.nodes import Nodes
from pyspark_nsq.options import ReadOptions, parse_read
from pyspark_nsq.pipelines.exactly_once.outbox import Outbox
from pyspark_nsq.pipelines.exactly_once.resume_guard import outbox_cut, require_same
from pyspark_nsq.pipelines.redeliveries import Redeliveries
from pyspark_nsq.pipelines.running import command
from pyspark_nsq.pipelines.running.watch import Stop, Watch
from pyspark_nsq.pipelines.table.storage import Storage, checkpoint_id
from pyspark_nsq.pipelines.table.table import ParquetTable

EXAMPLES = """
  pumpline pipeline metrics --nsqd 127.0.0.1:4151 --topic-pattern '.*'
  pumpline pipeline metrics --lookupd 127.0.0.1:4161 --topic orders --window '1 minute' \\
      --checkpoint state/metrics --table tables/metrics --to orders_metrics
"""

ROWS_SHOWN = 12
PERCENTILES = (0.5, 0.95, 0.99)
SAMPLE_S = 1.0  # between two questions about redeliveries
SAMPLES = "redeliveries"  # in the checkpoint: what was known after a batch
US_PER_S = 1_000_000
_US_PER_MS = 1000.0

_LOG = logging.getLogger(__name__)


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


class Sampler:
    """Asks all nodes for their counters of redeliveries, every second, in a thread of its own."""

    def __init__(self, options: ReadOptions, known: Redeliveries) -> None:
        self._options = options
        self._known = known
        self._sampling = threading.Lock()  # of two at once the older might come in last
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="redeliveries", daemon=True)

    def __enter__(self) -> Self:
        self.sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def sample(self) -> None:
        with self._sampling:
            counts = self._counts()
            with self._lock:
                self._known.add(time.time(), counts)

    def known(self) -> Redeliveries:
        """A copy, which does not change any more."""
        with self._lock:
            return copy.deepcopy(self._known)

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.sample()

    def _counts(self) -> dict[str, dict[str, int]]:
        """Of what answers; a node that is away has nothing to say."""
        nodes = Nodes(self._options)
        counts: dict[str, dict[str, int]] = {}
        try:
            for node, topics in nodes.stats().items():
                for topic in topics:
                    for channel, count in _redelivered(topic).items():
                        by_channel = counts.setdefault(str(topic["topic_name"]), {})
                        by_channel[f"{node}/{channel}"] = count
        except (NsqError, KeyError, TypeError, ValueError) as error:  # or no counters at all
            _LOG.warning("redeliveries: %r", error)
        finally:
            nodes.close()
        return counts


def _redelivered(topic: Mapping[str, Any]) -> dict[str, int]:
    channels = topic.get("channels") or []
    return {
        str(channel["channel_name"]): int(channel["requeue_count"]) + int(channel["timeout_count"])
        for channel in channels
    }


def with_redeliveries(windows: DataFrame, known: Redeliveries) -> DataFrame:
    """The windows with a column `redeliveries`, null where nobody was watching."""

    @F.udf(returnType=LongType())
    def counted(topic, start_us, end_us):  # type: ignore[no-untyped-def]  # see events.others
        return known.between(topic, start_us / US_PER_S, end_us / US_PER_S)

    edges = (F.unix_micros("start"), F.unix_micros("end"))  # a datetime would have a time zone
    return windows.withColumn("redeliveries", counted("topic", *edges))


@dataclass(slots=True)
class Kept:
    """Final windows, into a table and a topic; a batch that is repeated changes nothing."""

    spark: SparkSession
    sampler: Sampler
    checkpoint: str
    table: ParquetTable | None
    target: dict[str, str]  # of the topic; empty for none

    def add(self, windows: DataFrame, batch: int) -> None:
        self.sampler.sample()
        known = self.sampler.known()
        query_id = str(checkpoint_id(self.spark, self.checkpoint))
        outbox = Outbox(self.spark, f"{self.checkpoint}/outbox", query_id, self.target)
        rows = with_redeliveries(windows, known).coalesce(1).sortWithinPartitions("start", "topic")
        rows = outbox.keep(batch, rows)
        is_empty = rows.isEmpty()
        if self.table is not None:
            whence = {"query_id": query_id, "checkpoint": self.checkpoint}
            self.table.append(batch, None if is_empty else rows, **whence)
        if self.target and not is_empty:
            outbox.publish(batch, rows.select(F.to_json(F.struct("*")).alias("body")))
        save(self.spark, self.checkpoint, batch, known)


def save(spark: SparkSession, checkpoint: str, batch: int, known: Redeliveries) -> None:
    """Under a new name each time: what was there before is there until this is."""
    storage = Storage(spark, f"{checkpoint}/{SAMPLES}")
    storage.write_text(f"{batch}.json", known.to_json())
    for name in storage.names():
        if name.removesuffix(".json").isdigit() and name != f"{batch}.json":
            storage.delete(name)


def saved(spark: SparkSession, checkpoint: str) -> Redeliveries:
    _, text = Storage(spark, checkpoint).newest(SAMPLES)
    return Redeliveries.from_json(text) if text else Redeliveries()


def shown(rows: list[Row], known: Redeliveries) -> Table:
    columns = ("window", "topic", "messages/s", "bytes", "size p50/max", "latency ms p50/p95/p99")
    table = Table(*columns, "redelivered")
    for row in rows:
        late = "/".join(f"{row[f'latency_ms_p{share * 100:.0f}']:.0f}" for share in PERCENTILES)
        again = known.so_far(row.topic, row.start.timestamp(), row.end.timestamp())
        table.add_row(
            f"{row.start:%H:%M:%S}",
            row.topic,
            f"{row.messages_per_second:,.1f}",
            f"{row.bytes:,}",
            f"{row.size_p50:,}/{row.size_max:,}",
            late,
            "?" if again is None else f"{again:,}",
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
    spark = command.session(arguments, "metrics")
    state = Storage(spark, arguments.checkpoint).root if keeps else ""
    if target:
        require_same(Storage(spark, state), outbox_cut(spark, target))
    known = saved(spark, state) if keeps else Redeliveries()
    with Stop() as stop, Sampler(parse_read(options, streaming=True), known) as sampler:
        queries = []
        if keeps:
            windows = _windows(spark, options, arguments)
            table = ParquetTable(spark, arguments.table, ()) if arguments.table else None
            if table is not None:
                table.claim(state, checkpoint_id(spark, state))
            kept = Kept(spark, sampler, state, table, target)
            writer = windows.writeStream.foreachBatch(kept.add)
            writer = writer.option("checkpointLocation", state)
            queries.append(command.triggered(writer, arguments).start())
        if not arguments.quiet:
            show = partial(_show, console=console, sampler=sampler)
            # Without the hold: it would follow what is shown, ahead of what is kept.
            holds = ("hold", "holdbytesmax") if keeps else ()
            shown_of = {name: v for name, v in options.items() if name.lower() not in holds}
            windows = _windows(spark, shown_of, arguments)
            writer = windows.writeStream.foreachBatch(show).outputMode("update")
            queries.append(command.triggered(writer, arguments).start())
        Watch("metrics", console).follow(queries[0], stop, beside=queries[1:])
    return command.EXIT_OK


def _windows(spark: SparkSession, options: dict[str, str], arguments: Namespace) -> DataFrame:
    return measured(command.stream(spark, options), arguments.window, arguments.watermark)


def _show(changed: DataFrame, batch: int, *, console: Console, sampler: Sampler) -> None:
    newest = changed.sort(F.desc("start"), "topic").limit(ROWS_SHOWN).collect()
    if newest:
        console.print(shown(newest, sampler.known()))


if __name__ == "__main__":
    sys.exit(command.main(sys.modules[__name__]))
