"""Measures Spark over topics against Spark over Parquet, and against the way it is done today.

`python -m bench.spark --peer-tools DIR` measures everything; `--help` lists the options. A run uses
one Spark session on this machine. The sides of a comparison take turns within a round, after
warm-up rounds that do not count, because rates rise until the JIT compiler has settled. Records go
to bench/results/spark.jsonl, one JSON object a line with the keys of `bench.kit.report`, with
pictures beside it.

| workload | ours | compared with | target |
|---|---|---|---|
| batch_read | a topic to a noop sink | the same rows in Parquet to a noop sink | >= 0.9x |
| stream_parquet | a topic to Parquet, as a stream | Parquet to Parquet, as a stream | >= 0.8x |
| todays_way | a topic to Parquet, as a stream | Go nsqd, nsq_to_file, text to Parquet | >= 15x |
| latency | from a publish to the row being in the table, p50 | | <= 0.6 s |
| write | Parquet to a topic | MPUB from a client in Python | >= 1 M rows/s or >= 1x |
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import Request, urlopen

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from bench.kit.report import OTHER_CORES_MAX, Record, append, last_run
from bench.kit.servers import Command, Server, git_commit, machine
from bench.spark import plot
from bench.spark.load import Documents, TreeClock, latencies_s, publish
from bench.spark.peer import todays_way
from pyspark_nsq.session import local_session

ROWS = 5_000_000
PEER_ROWS = 300_000  # of today's way, which takes ten seconds for them
QUICK_SHARE = 0.02
ROUNDS = 3
WARM_UP_ROUNDS = 2
RESULTS = Path(__file__).parents[1] / "results" / "spark.jsonl"
TOPIC = "bench"
NSQD = Command("pumpline", (sys.executable, "-m", "pumpline.tools.nsqd"))


@dataclass(frozen=True)
class Target:
    """The target of a workload: a ratio to its basis, or a value."""

    ratio_min: float | None = None
    value_min: float | None = None
    value_max: float | None = None

    def met(self, value: float, ratio: float | None) -> bool:
        if self.value_max is not None:
            return value <= self.value_max
        by_value = self.value_min is not None and value >= self.value_min
        by_ratio = self.ratio_min is not None and ratio is not None and ratio >= self.ratio_min
        return by_value or by_ratio

    def __str__(self) -> str:
        if self.value_max is not None:
            return f"<= {self.value_max:g} s"
        by_value = f">= {self.value_min:,.0f} rows/s or " if self.value_min else ""
        return f"{by_value}>= {self.ratio_min:g}x"


TARGETS = {
    "batch_read": Target(ratio_min=0.9),
    "stream_parquet": Target(ratio_min=0.8),
    "todays_way": Target(ratio_min=15),
    "latency": Target(value_max=0.6),
    "write": Target(ratio_min=1.0, value_min=1_000_000),
}


class Bench:
    """The session, the server and the tables of one run."""

    def __init__(self, spark: SparkSession, server: Server, home: Path, rows: int) -> None:
        self.spark, self.server, self.home, self.rows = spark, server, home, rows
        self.address = f"127.0.0.1:{server.http_port}"
        self.parquet = str(home / "parquet")
        self._written = 0

    def prepare(self) -> None:
        """Writes the same rows to a topic and to a Parquet table."""
        publish(self.server.tcp_port, TOPIC, self.rows, Documents())
        self.topic().write.parquet(self.parquet)
        assert self.spark.read.parquet(self.parquet).count() == self.rows

    def topic(self) -> DataFrame:
        reader = self.spark.read.format("nsq")
        return reader.options(nsqd=self.address, subscribe=TOPIC).load()

    def read_topic(self) -> None:
        self.topic().write.format("noop").mode("overwrite").save()

    def read_parquet(self) -> None:
        self.spark.read.parquet(self.parquet).write.format("noop").mode("overwrite").save()

    def stream_topic(self) -> None:
        reader = self.spark.readStream.format("nsq")
        options = {"nsqd": self.address, "subscribe": TOPIC, "startingOffsets": "earliest"}
        self._stream(reader.options(**options).load())

    def stream_parquet(self) -> None:
        schema = self.spark.read.parquet(self.parquet).schema
        self._stream(self.spark.readStream.schema(schema).parquet(self.parquet))

    def write_topic(self) -> None:
        """Writes to a new topic each time."""
        self._written += 1
        frame = self.spark.read.parquet(self.parquet).select("body")
        writer = frame.write.format("nsq").mode("append")
        writer.options(nsqd=self.address, topic=f"written-{self._written}").save()

    def write_by_client(self) -> None:
        self._written += 1
        publish(self.server.tcp_port, f"written-{self._written}", self.rows, Documents())

    def drop_written(self) -> None:
        # A new connection, because the server's own may have been idle for minutes.
        url = f"http://{self.address}/topic/delete?topic=written-{self._written}"
        with urlopen(Request(url, method="POST")) as answer:
            answer.read()

    def _stream(self, frame: DataFrame) -> None:
        with tempfile.TemporaryDirectory(dir=self.home) as directory:
            writer = frame.writeStream.format("parquet").trigger(availableNow=True)
            checkpoint = f"{directory}/checkpoint"
            query = writer.option("checkpointLocation", checkpoint).start(f"{directory}/table")
            query.awaitTermination()
            read = sum(progress["numInputRows"] for progress in query.recentProgress)
            assert read == self.rows, f"{read} of {self.rows} rows"


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    console = Console()
    run = {"run": datetime.now(UTC).isoformat(timespec="seconds")}
    facts = {**run, "commit": git_commit(), "machine": machine()}
    rows = int(options.rows * QUICK_SHARE) if options.quick else options.rows
    with tempfile.TemporaryDirectory(prefix="bench-spark-", dir=options.data_root) as directory:
        home = Path(directory)
        settings = {"spark.driver.memory": "3g", "spark.local.dir": f"{home}/local"}
        spark = local_session("bench", settings=settings)
        spark.sparkContext.setLogLevel("ERROR")
        with Server(NSQD, data_root=home) as server:
            bench = Bench(spark, server, home, rows)
            for record in carry_out(bench, options, console):
                append(options.results, {**facts, **record})
        spark.stop()
    records = last_run(options.results)
    console.print(table(records))
    for picture in plot.draw(records, options.results):
        console.print(str(picture), soft_wrap=True)
    return 0


def carry_out(bench: Bench, options: argparse.Namespace, console: Console) -> Iterator[Record]:
    """Runs the workloads; yields a record for each measurement."""
    console.print(f"{bench.rows:,} rows of 200 bytes")
    bench.prepare()
    pairs: dict[str, list[tuple[str, Callable[[], None]]]] = {
        "batch_read": [("nsq", bench.read_topic), ("parquet", bench.read_parquet)],
        "stream_parquet": [("nsq", bench.stream_topic), ("parquet", bench.stream_parquet)],
        "write": [("nsq", bench.write_topic), ("client", bench.write_by_client)],
    }
    for workload, sides in pairs.items():
        if options.workload and workload not in options.workload:
            continue
        for number in range(1 - WARM_UP_ROUNDS, options.rounds + 1):
            for place, (name, work) in enumerate(sides):
                record = measured(work, bench.rows)
                if workload == "write":
                    bench.drop_written()
                console.print(f"{workload} {name} {number}: {record['value']:,.0f} rows/s")
                if number > 0:
                    basis = place == 1
                    yield {**record, **_which(workload, name, number, basis=basis)}
    if not options.workload or "latency" in options.workload:
        yield _latency(bench, console)
    if options.peer_tools and (not options.workload or "todays_way" in options.workload):
        yield from _todays_way(bench, options, console)


def measured(work: Callable[[], None], rows: int) -> Record:
    """Rows a second, and the CPU that other work took meanwhile."""
    clock = TreeClock()
    began_s = time.perf_counter()
    work()
    seconds = time.perf_counter() - began_s
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "value": rows / seconds,
        "unit": "rows/s",
        "rows": rows,
        "seconds": seconds,
        "other_cores": clock.other_cores(seconds),
    }


def _latency(bench: Bench, console: Console) -> Record:
    clock = TreeClock()
    began_s = time.perf_counter()
    found = sorted(latencies_s(bench.spark, bench.server, bench.home))
    seconds = time.perf_counter() - began_s
    p50_s, p90_s = found[len(found) // 2], found[len(found) * 9 // 10]
    console.print(f"latency: p50 {p50_s:.3f} s, p90 {p90_s:.3f} s")
    return {
        **_which("latency", "nsq", 1, basis=False),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "value": p50_s,
        "p90_s": p90_s,
        "unit": "s",
        "seconds": seconds,
        "other_cores": clock.other_cores(seconds),
    }


def _todays_way(bench: Bench, options: argparse.Namespace, console: Console) -> Iterator[Record]:
    rows = min(PEER_ROWS, bench.rows)
    for number in range(1, options.rounds + 1):
        seconds, other_cores = todays_way(bench.spark, options.peer_tools, bench.home, rows)
        console.print(f"todays_way {number}: {rows / seconds:,.0f} rows/s")
        yield {
            **_which("todays_way", "nsq_to_file", number, basis=True),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "value": rows / seconds,
            "unit": "rows/s",
            "rows": rows,
            "seconds": seconds,
            "other_cores": other_cores,
        }
        record = measured(bench.stream_topic, bench.rows)
        console.print(f"todays_way nsq {number}: {record['value']:,.0f} rows/s")
        yield {**record, **_which("todays_way", "nsq", number, basis=False)}


def _which(workload: str, server: str, number: int, *, basis: bool) -> Record:
    return {"workload": workload, "server": server, "round": number, "basis": basis}


def table(records: Sequence[Record]) -> Table:
    shown = Table(title="Spark over topics, medians over rounds", title_justify="left")
    for heading in ("workload", "ours", "compared with", "ratio", "target", "met", "disturbed by"):
        shown.add_column(heading)
    for row in plot.summarise(records):
        target = TARGETS[row.workload]
        unit = "s" if row.unit == "s" else "rows/s"
        figure = f"{row.value:.3f} {unit}" if unit == "s" else f"{row.value:,.0f} {unit}"
        other = row.other_cores
        shown.add_row(
            row.workload,
            figure,
            f"{row.basis_value:,.0f} rows/s ({row.basis})" if row.basis_value else "",
            f"{row.ratio:.2f}x" if row.ratio else "",
            str(target),
            "[green]yes" if target.met(row.value, row.ratio) else "[red]no",
            f"{other:.1f} cores" if other > OTHER_CORES_MAX else "",
        )
    return shown


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--peer-tools", type=Path, help="where Go's nsqd and nsq_to_file are: adds todays_way")
    add("--workload", action="append", choices=tuple(TARGETS), help="only this; repeatable")
    add("--rows", type=int, default=ROWS, help="in the topic (default: %(default)s)")
    add("--rounds", type=int, default=ROUNDS, help="that count (default: %(default)s)")
    add(
        "--quick",
        action="store_true",
        help="a smoke run, results in quick.spark.jsonl",
    )
    add("--results", type=Path, help="JSON lines to append to (bench/results/spark.jsonl)")
    add("--data-root", type=Path, help="where tables and logs are made")
    options = parser.parse_args(argv)
    if options.results is None:
        options.results = RESULTS.with_name("quick.spark.jsonl") if options.quick else RESULTS
    return options


if __name__ == "__main__":
    sys.exit(main())
