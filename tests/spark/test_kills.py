"""Pipelines whose driver is killed with SIGKILL at the worst moment, and given again: each message
is published once, each row is in the table once, and a reader never sees anything else."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_nsq.pipelines import archive, metrics, replay, transform
from pyspark_nsq.pipelines.table.storage import Storage
from pyspark_nsq.pipelines.table.table import ParquetTable
from tests.kit.daemons import Nsqd
from tests.kit.spark.drivers import Driver
from tests.kit.spark.gate import MPUB, Gate
from tests.kit.spark.pipelines import order_ids, orders, run, table
from tests.kit.spark.streams import addresses
from tests.kit.spark.topics import end_of, publish, repeats

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(1200)]

CHUNK_ROWS = 10_000  # as Spark hands them to the sink


def bodies(spark: SparkSession, node: Nsqd, topic: str) -> list[bytes]:
    rows = spark.read.format("nsq").option("nsqd", addresses(node)).option("subscribe", topic)
    return [bytes(row.body) for row in rows.load().select("body").collect()]


@pytest.mark.e2e
def test_a_transform_killed_between_two_chunks_publishes_each_row_once(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    out = f"{topic}-out"
    publish(nsqd, topic, orders(range(3 * CHUNK_ROWS)))
    asked = ("--nsqd", addresses(nsqd), "--topic", topic, "--to", out, "--start", "earliest")
    asked += ("--sql", "SELECT event.order_id FROM input", "--checkpoint", str(work / "c"))
    with Gate(nsqd.http_port, to=MPUB, answered=1) as gate:
        asked += ("--to-nsqd", gate.address, "--once")
        with Driver(work, "transform", *asked) as driver:
            driver.wait_for(gate.withheld.is_set)
            driver.kill()
        assert 0 < end_of(nsqd, out) < 3 * CHUNK_ROWS  # some of it without an answer
        # Rows of another size and shape: what was planned before stays as it was planned.
        publish(nsqd, topic, [b'{"order_id": -1, "new": "%s"}' % (b"x" * 500)] * CHUNK_ROWS)
        gate.open()
        run(transform, *asked)
    counted = Counter(json.loads(body)["order_id"] for body in bodies(spark, nsqd, out))
    assert counted == Counter([*range(3 * CHUNK_ROWS), *[-1] * CHUNK_ROWS])
    assert repeats(nsqd, out)


@pytest.mark.e2e
@pytest.mark.parametrize("where", ["", "rand() < 0.5"], ids=["all", "chosen at random"])
def test_a_replay_killed_within_a_step_publishes_each_message_once(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path, where: str
) -> None:
    """What is chosen at random is what was chosen when it began."""
    again, state = f"{topic}-again", work / "state.json"
    publish(nsqd, topic, orders(range(3000)))
    with Gate(nsqd.http_port, to=MPUB, answered=2) as gate:  # both partitions of the first step
        asked = ("--nsqd", addresses(nsqd), "--topic", topic, "--to", again)
        asked += ("--to-nsqd", gate.address, "--state", str(state), "--where", where or "true")
        with Driver(work, "replay", *asked, "--rate", "1000") as driver:
            driver.wait_for(gate.withheld.is_set)
            driver.kill()
        assert json.loads(state.read_text())["done"] == 1
        fixed = Counter(orders(range(3000)))
        if where:
            rows = spark.read.parquet(str(work / "state.json.rows")).collect()
            fixed = Counter(bytes(row.body) for row in rows)
            assert 1300 < fixed.total() < 1700
        assert 0 < end_of(nsqd, again) < fixed.total()
        gate.open()
        said = run(replay, *asked, "--rate", "100000")
    assert f"{fixed.total():,} messages published" in said
    assert Counter(bodies(spark, nsqd, again)) == fixed
    assert repeats(nsqd, again)


@pytest.mark.e2e
def test_windows_of_a_killed_metrics_are_in_the_table_and_in_the_topic_once(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    out = f"{topic}-metrics"
    publish(nsqd, topic, [b"x" * 10] * 30)
    asked = ("--nsqd", addresses(nsqd), "--topic", topic, "--start", "earliest", "--quiet")
    asked += ("--window", "1 second", "--watermark", "0 seconds", "--every", "0 seconds")
    asked += ("--checkpoint", str(work / "c"), "--table", str(work / "t"), "--to", out)
    with Gate(nsqd.http_port, to=MPUB, answered=0) as gate:
        asked += ("--to-nsqd", gate.address)
        with Driver(work, "metrics", *asked) as driver:
            driver.wait_for((work / "c" / "commits" / "0").exists)
            publish(nsqd, topic, [b"y"])  # a later window: the first is final now
            driver.wait_for(gate.withheld.is_set)
            driver.kill()
        assert end_of(nsqd, out) > 0  # published, unknown to who did it
        gate.open()
        publish(nsqd, topic, [b"z"])
        run(metrics, *asked, "--once")
    kept = Counter((row.start, row.topic) for row in table(spark, work / "t").collect())
    sent = [json.loads(body) for body in bodies(spark, nsqd, out)]
    assert set(kept.values()) == {1}
    assert len(sent) == len({window["start"] for window in sent}) == len(kept)
    assert sum(window["messages"] for window in sent if window["size_max"] == 10) == 30
    assert repeats(nsqd, out)


@pytest.mark.e2e
def test_an_archive_killed_while_it_puts_files_together_goes_on_with_every_row_once(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, orders(range(1200)))
    asked = ("--nsqd", addresses(nsqd), "--topic", topic, "--table", str(work / "t"))
    asked += ("--schema", "order_id BIGINT", "--max-rows", "100", "--hold", "")
    staged = work / "t" / "_staging" / "9.0.together"
    with Driver(work, "archive", *asked, "--every", "0 seconds") as driver:
        driver.wait_for(staged.exists)
        driver.kill()
    found = order_ids(spark, work / "t")
    assert found in (list(range(900)), list(range(1000)))  # before, or just after it
    run(archive, *asked, "--once")
    assert order_ids(spark, work / "t") == list(range(1200))
    assert not (work / "t" / "_staging").exists()
    in_table = {Path(name).name for name in table(spark, work / "t").inputFiles()}
    on_disk = {path.name for path in (work / "t").glob("topic=*/*/*/*.parquet")}
    retired = {Path(path).name for path in retired_files(work / "t")}
    assert on_disk == in_table | retired
    assert "9-0-0-all.parquet" in in_table


def retired_files(path: Path) -> Iterator[str]:
    for entry in (path / "_retired").glob("[0-9]*.json"):
        yield from json.loads(entry.read_text())["paths"]


class Death(BaseException):
    """As good as a kill: nothing in a table's way catches it."""


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, before: int) -> Iterator[list[str]]:
    """Storage that dies before it changes something for the nth time; what it has changed."""
    done: list[str] = []
    with monkeypatch.context() as patch:
        for name in ("write_text", "move", "delete"):
            real = getattr(Storage, name)

            def change(self: Storage, *given: str, real=real, name=name) -> None:  # type: ignore[no-untyped-def]
                if len(done) == before:
                    raise Death
                done.append(f"{name} {given[0]}")
                real(self, *given)

            patch.setattr(Storage, name, change)
        yield done


@pytest.mark.e2e
def test_a_table_is_right_whatever_step_of_a_compaction_was_the_last(
    spark: SparkSession, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step in turn; a kill of the process for each would take ten seconds apiece."""

    def append(path: Path, batch: int) -> None:
        rows = spark.createDataFrame([("a", batch)], "topic STRING, n INT")
        ParquetTable(spark, str(path), ("topic",)).append(batch, rows, query_id="q", checkpoint="c")

    def numbers(path: Path) -> list[int]:
        return sorted(row.n for row in table(spark, path).collect())

    for batch in range(9):
        append(work / "nine", batch)
    steps = 0
    while True:
        path = work / f"after-{steps}"
        shutil.copytree(work / "nine", path)
        renamed(path, work / "nine")
        with dying(monkeypatch, steps) as done, suppress(Death):
            append(path, 9)
        is_in = any("_spark_metadata" in step for step in done)
        assert numbers(path) == list(range(10 if is_in else 9)), done
        append(path, 9)
        assert numbers(path) == list(range(10)), done
        in_table = {Path(name).name for name in table(spark, path).inputFiles()}
        assert len(in_table) == 2 and "9-0-0-all.parquet" in in_table
        files = {file.name for file in (path / "topic=a").glob("9-*.parquet")}
        assert files == in_table and not (path / "_staging").exists()
        if len(done) < steps:
            break
        steps += 1
    assert steps > 6


def renamed(path: Path, before: Path) -> None:
    """A copy of a table knows its files by where they are now."""
    for record in (path / "_spark_metadata").iterdir():
        if record.suffix == ".crc":
            record.unlink()
        else:
            record.write_text(record.read_text().replace(str(before), str(path)))
