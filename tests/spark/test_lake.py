"""Archives in Delta and Iceberg tables: each message once, whoever reads them back."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections import Counter
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from pyspark_nsq.errors import BadOption, NsqError
from pyspark_nsq.pipelines import archive, maintain, replay, sql
from pyspark_nsq.pipelines.lake import formats
from pyspark_nsq.pipelines.lake.iceberg import BATCH
from pyspark_nsq.pipelines.lake.tables import delta_table, iceberg_table
from pyspark_nsq.pipelines.table.layout import placed
from pyspark_nsq.pipelines.table.sole_writer import locked
from tests.kit.daemons import Nsqd
from tests.kit.spark.pipelines import orders, run
from tests.kit.spark.streams import addresses
from tests.kit.spark.topics import end_of, publish

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

FORMATS = pytest.mark.parametrize("kind", ["delta", "iceberg"])


def archived(nsqd: Nsqd, topic: str, path: Path, kind: str, *more: str) -> str:
    source = ("--nsqd", addresses(nsqd), "--topic", topic, "--format", kind)
    return run(archive, *source, "--table", str(path), "--once", *more)


def content(path: Path, kind: str) -> pa.Table:
    """The rows, by a reader that is not ours: PyArrow, with the format's own library."""
    if kind == "delta":
        return DeltaTable(str(path)).to_pyarrow_table()
    return iceberg(path).scan().to_arrow()


def iceberg(path: Path) -> Table:
    catalog = SqlCatalog("archive", uri=f"sqlite:///{path}/_catalog.db", warehouse=f"file://{path}")
    return catalog.load_table(("archive", path.name))


def ids(path: Path, kind: str) -> list[int]:
    return sorted(int(row["order_id"]) for row in content(path, kind)["event"].to_pylist())


def asked(query: str, path: Path, *more: str) -> list[dict[str, object]]:
    """What `pipeline sql` prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        run(sql, query, "--table", str(path), "--output", "json", *more)
    return [json.loads(line) for line in out.getvalue().splitlines()]


@FORMATS
def test_a_topic_becomes_a_table_that_others_read(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path, kind: str
) -> None:
    path = work / "t"
    publish(nsqd, topic, [*orders(range(200)), b"not JSON"])
    said = archived(nsqd, topic, path, kind, "--max-rows", "80")
    assert "201 rows in 3 batches, 1 quarantined; done" in said
    assert ids(path, kind) == list(range(200))
    rows = content(path, kind)
    assert set(rows["topic"].to_pylist()) == {topic}
    assert {bytes(body) for body in rows["body"].to_pylist()} == set(orders(range(200)))
    bad = content(work / "t-quarantine", kind)
    assert bad["reason"].to_pylist()[0].startswith("not JSON")
    publish(nsqd, topic, orders(range(200, 210)))
    # The table, and live what is not in it yet.
    name = sql.view_name(topic)
    both = ("--nsqd", addresses(nsqd))
    count = f"SELECT count(*) AS n, count(DISTINCT event.order_id) AS d FROM {name}"
    assert asked(count, path, *both) == [{"n": 210, "d": 210}]
    assert asked(count, path) == [{"n": 200, "d": 200}]
    assert asked(f"SELECT count(*) AS n FROM {name}_quarantine", path, *both) == [{"n": 1}]
    archived(nsqd, topic, path, kind)
    assert ids(path, kind) == list(range(210))
    by_hour = "SELECT topic, count(*) AS n FROM {} WHERE date = date(timestamp) GROUP BY 1"
    assert asked(by_hour.format(name), path) == [{"topic": topic, "n": 210}]
    with pytest.raises(NsqError, match="every row would be there twice"):
        archived(nsqd, topic, path, kind, "--checkpoint", str(work / "other"))
    with locked(path), pytest.raises(NsqError, match="is being written by another archive"):
        archived(nsqd, topic, path, kind)


@FORMATS
def test_a_schema_grows_and_widens(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path, kind: str
) -> None:
    path = work / "t"
    publish(nsqd, topic, [b'{"a": 1, "in": {"x": 1.5}}'])
    archived(nsqd, topic, path, kind, "--schema", "a INT, in STRUCT<x: FLOAT>")
    publish(nsqd, topic, [b'{"a": 5000000000, "in": {"x": 1e300, "y": "new"}, "b": [1]}'])
    wider = "a BIGINT, in STRUCT<x: DOUBLE, y: STRING>, b ARRAY<INT>"
    archived(nsqd, topic, path, kind, "--schema", wider)
    rows = sorted(content(path, kind)["event"].to_pylist(), key=lambda event: event["a"])
    assert rows[0] == {"a": 1, "in": {"x": 1.5, "y": None}, "b": None}
    assert rows[1] == {"a": 5_000_000_000, "in": {"x": 1e300, "y": "new"}, "b": [1]}
    found = asked(f"SELECT event.a, event.in.x FROM {sql.view_name(topic)} ORDER BY 1", path)
    assert found == [{"a": 1, "x": 1.5}, {"a": 5_000_000_000, "x": 1e300}]
    with pytest.raises(BadOption, match="a is bigint in the table, not string"):
        archived(nsqd, topic, path, kind, "--schema", "a STRING")


@FORMATS
def test_a_batch_that_comes_again_changes_nothing(
    spark: SparkSession, work: Path, kind: str
) -> None:
    path = str(work / "t")

    def opened() -> archive.Table:
        return delta_table(spark, path) if kind == "delta" else iceberg_table(spark, path, None)

    def rows(start: int) -> DataFrame:
        made = spark.range(start, start + 10).selectExpr(
            "'t' AS topic",
            "'n' AS node",
            "id AS offset",
            "timestamp_seconds(id * 1800) AS timestamp",
            "'x' AS id",
            "1 AS attempts",
            "CAST('{}' AS BINARY) AS body",
        )
        # Spark knows that this column has no NULL; rows of earlier batches have.
        rows = placed(made)
        return rows.selectExpr("*", "named_struct('n', offset) AS event") if start >= 20 else rows

    whence = {"query_id": "q", "checkpoint": "file:/c"}
    opened().append(0, rows(0), **whence)
    opened().append(0, rows(0), **whence)
    opened().append(1, None, **whence)
    # What a kill left of the next batch goes when the batch is written.
    left = work / "t" / "data" / "2-1f0a9c3e" / "part-0.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"torn")
    for batch in range(2, 10):  # the tenth batch merges small files
        opened().append(batch, rows(10 * batch), **whence)
    assert not left.parent.exists()
    found = content(work / "t", kind)
    assert sorted(found["offset"].to_pylist()) == [n for n in range(100) if n // 10 != 1]
    with pytest.raises(NsqError, match="deleted or replaced"):
        opened().append(12, rows(0), **whence)


@FORMATS
def test_small_files_are_merged_and_old_ones_deleted(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path, kind: str
) -> None:
    path = work / "t"
    publish(nsqd, topic, orders(range(60)))
    said = archived(nsqd, topic, path, kind, "--max-rows", "6")
    assert "10 small files put together" in said
    data = [file for file in path.rglob("*.parquet") if "_checkpoint" not in file.parts]
    assert len(data) == 11
    said = run_maintain(path)
    assert "0 small files put together, 10 files deleted" in said
    assert ids(path, kind) == list(range(60))
    assert asked(f"SELECT count(*) AS n FROM {sql.view_name(topic)}", path) == [{"n": 60}]


def run_maintain(path: Path) -> str:
    parser = ArgumentParser()
    maintain.arguments(parser)
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    assert (
        maintain.run(parser.parse_args(["--table", str(path), "--keep-hours", "0"]), console) == 0
    )
    return console.export_text()


def test_a_delta_table_can_be_moved_and_duckdb_reads_the_files(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, orders(range(20)))
    archived(nsqd, topic, work / "t", "delta")
    shutil.move(work / "t", work / "moved")
    shutil.move(work / "t-quarantine", work / "moved-quarantine")
    publish(nsqd, topic, orders(range(20, 30)))
    archived(nsqd, topic, work / "moved", "delta")
    assert ids(work / "moved", "delta") == list(range(30))
    dataset = DeltaTable(str(work / "moved")).to_pyarrow_dataset()
    assert dataset is not None
    found = duckdb.sql("SELECT count(*), sum(event.order_id) FROM dataset").fetchall()
    assert found == [(30, 435)]


def test_an_iceberg_table_that_was_moved_or_copied_is_refused_and_stays_whole(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    """Its catalog names the files of the first place: writes would go there."""
    made, copy, renamed = work / "a" / "t", work / "b" / "t", work / "a" / "other"
    publish(nsqd, topic, [*orders(range(5)), b"broken"])
    archived(nsqd, topic, made, "iceberg")
    state = work / "replay.json"
    again = ("--nsqd", addresses(nsqd), "--to", f"{topic}-again")

    def refused(path: Path) -> None:
        for tried in (
            lambda: archived(nsqd, topic, path, "iceberg"),
            lambda: asked("SELECT 1", path),
            lambda: run(replay, *again, "--table", str(path), "--state", str(state)),
            lambda: run_maintain(path),
        ):
            with pytest.raises(NsqError, match=f"{path.name} was moved or copied: its catalog"):
                tried()

    shutil.copytree(made.parent, copy.parent)
    refused(copy)
    made.rename(renamed)
    refused(copy)  # what its catalog names is not there now
    refused(renamed)
    assert not state.exists()
    assert nsqd.http("GET", f"/log/offsets?topic={topic}-again")[0] == 404
    renamed.rename(made)
    run(replay, *again, "--table", str(made), "--state", str(state))
    assert end_of(nsqd, f"{topic}-again") == 5
    publish(nsqd, topic, orders(range(5, 7)))
    archived(nsqd, topic, made, "iceberg")
    assert ids(made, "iceberg") == list(range(7))


@FORMATS
def test_of_messages_with_one_key_the_first_is_kept_and_the_hold_is_let_go_to_the_end(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path, kind: str
) -> None:
    path, more = work / "t", ("--dedupe", "order_id", "--drop-body", "--hints", "n BIGINT")
    wrong, right = b'{"order_id": 5, "n": "wrong"}', b'{"order_id": 5, "n": 7}'
    publish(nsqd, topic, [*orders([1, 2, 2, 1, 3]), b"{", wrong, b'{"order_id": 1.0}'])
    said = archived(nsqd, topic, path, kind, *more)
    assert "2 quarantined, 3 repeats left out" in said
    (hold,) = holds(nsqd, topic)
    assert hold.startswith("archive-t-") and f"archive: hold {hold}\n" in said
    publish(nsqd, topic, [*orders([3, 4]), right, right, b'{"order_id": 2.0}', b"{}", b"{}"])
    expected = Counter([1.0, 2.0, 3.0, 4.0, 5.0, None, None])
    live = asked(
        f"SELECT event.order_id AS n FROM {sql.view_name(topic)}", path, "--nsqd", addresses(nsqd)
    )
    assert Counter(row.get("n") for row in live) == expected
    for commit in (path / "_checkpoint" / "commits").iterdir():
        commit.unlink()  # as if the driver had died before Spark noted the batch
    archived(nsqd, topic, path, kind, *more)
    found = content(path, kind)
    assert "body" not in found.column_names
    assert Counter(event["order_id"] for event in found["event"].to_pylist()) == expected
    assert [event["n"] for event in found["event"].to_pylist() if event["order_id"] == 5] == [7]
    assert content(work / "t-quarantine", kind).num_rows == 2
    assert holds(nsqd, topic) == {hold: 15}  # to the end


def holds(nsqd: Nsqd, topic: str) -> dict[str, int]:
    """The names of the holds, and the offsets from which on they keep messages."""
    _, body = nsqd.http("GET", f"/hold/list?topic={topic}")
    return {hold["hold"]: hold["offset"] for hold in json.loads(body)["holds"]}


def test_an_iceberg_table_in_a_catalog_of_the_user_s(nsqd: Nsqd, topic: str, work: Path) -> None:
    """In processes of their own: pyiceberg reads its configuration when it is imported."""
    environment = {
        **os.environ,
        "PYICEBERG_CATALOG__SHOP__URI": f"sqlite:///{work}/shop.db",
        "PYICEBERG_CATALOG__SHOP__WAREHOUSE": f"file://{work}/warehouse",
    }

    def pipeline(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pumpline.tools.pumpline", "pipeline", *arguments]
        command += ["--catalog", "shop", "--table", "sales.orders", "--master", "local[2]"]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    publish(nsqd, topic, orders(range(20)))
    source = ("--nsqd", addresses(nsqd), "--topic", topic, "--format", "iceberg", "--once")
    assert "name a --checkpoint" in pipeline("archive", *source).stderr
    made = pipeline("archive", *source, "--checkpoint", str(work / "checkpoint"))
    assert made.returncode == 0, made.stderr
    catalog = SqlCatalog("shop", uri=f"sqlite:///{work}/shop.db", warehouse=f"file://{work}")
    table = catalog.load_table("sales.orders")
    snapshot = table.current_snapshot()
    assert snapshot and snapshot.summary
    assert snapshot.summary.additional_properties[BATCH] == "0"
    assert table.scan().to_arrow().num_rows == 20
    fields = [(field.name, str(field.transform)) for field in table.spec().fields]
    assert fields == [("topic", "identity"), ("timestamp_hour", "hour")]
    count = f"SELECT count(*) AS n FROM {sql.view_name(topic)}"
    assert pipeline("sql", count, "--output", "json").stdout == '{"n":20}\n'


def test_a_format_without_its_library_is_told(
    monkeypatch: pytest.MonkeyPatch, work: Path, nsqd: Nsqd
) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    with pytest.raises(NsqError, match=r"needs deltalake: pip install 'pumpline\[delta\]'"):
        archived(nsqd, "any", work / "t", "delta")
    with pytest.raises(NsqError, match=r"pip install 'pumpline\[iceberg\]'"):
        archived(nsqd, "any", work / "t", "iceberg")
