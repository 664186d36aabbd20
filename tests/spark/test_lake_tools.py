"""Tables of archives under the formats' own tools: rows deleted, files rewritten and old ones
deleted by hand. The archive goes on, and every reader has each row once."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pyspark_nsq.errors import NsqError
from pyspark_nsq.pipelines import replay, sql
from pyspark_nsq.pipelines.lake.delta import DeltaLakeTable
from pyspark_nsq.pipelines.lake.iceberg import IcebergLakeTable
from tests.kit.daemons import Nsqd
from tests.kit.spark.pipelines import orders, run
from tests.kit.spark.streams import addresses
from tests.kit.spark.topics import end_of, publish
from tests.spark.test_lake import FORMATS, archived, asked, iceberg, ids, run_maintain

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


def delete(path: Path, kind: str, condition: str) -> None:
    """Delete rows. The condition has to be true for whole files: to rewrite one, pyiceberg needs
    more than it comes with."""
    if kind == "delta":
        DeltaTable(str(path)).delete(condition)
    else:
        iceberg(path).delete(condition)


def tidy(path: Path, kind: str) -> None:
    """All that the library has to make a table small, at its most severe."""
    if kind == "iceberg":
        later = datetime.now(UTC) + timedelta(days=1)
        iceberg(path).maintenance.expire_snapshots().older_than(later).commit()
        return
    table = DeltaTable(str(path))
    table.optimize.compact()
    table.optimize.z_order(["offset"])
    table.create_checkpoint()
    table.cleanup_metadata()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


@FORMATS
def test_an_archive_goes_on_after_rows_were_deleted_and_files_rewritten(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path, kind: str
) -> None:
    path, name = work / "t", sql.view_name(topic)
    publish(nsqd, topic, [*orders(range(20)), b"broken"])
    archived(nsqd, topic, path, kind, "--max-rows", "3")
    left = list(range(6, 20))
    for step in (lambda: delete(path, kind, "offset < 6"), lambda: tidy(path, kind)):
        step()
        tidy(work / "t-quarantine", kind)
        assert ids(path, kind) == left
        more = len(left)
        publish(nsqd, topic, orders(range(left[-1] + 1, left[-1] + 4)))
        left += range(left[-1] + 1, left[-1] + 4)
        count = f"SELECT count(*) AS n, count(DISTINCT event.order_id) AS d FROM {name}"
        assert asked(count, path) == [{"n": more, "d": more}]
        both = ("--nsqd", addresses(nsqd))
        assert asked(count, path, *both) == [{"n": len(left), "d": len(left)}]
        assert asked(f"SELECT count(*) AS n FROM {name}_quarantine", path, *both) == [{"n": 1}]
        archived(nsqd, topic, path, kind, "--max-rows", "1")
        assert ids(path, kind) == left
    run_maintain(path)
    assert ids(path, kind) == left
    run(replay, *both, "--table", str(path), "--to", f"{topic}-again", "--state", f"{work}/state")
    assert end_of(nsqd, f"{topic}-again") == len(left)


@FORMATS
def test_a_quarantine_that_is_ahead_of_its_table_has_each_row_once_whoever_changed_it(
    spark: SparkSession,
    nsqd: Nsqd,
    topic: str,
    work: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, aside = work / "t", work / "t-quarantine"
    publish(nsqd, topic, [*orders(range(3)), b"first", b"second"])
    archived(nsqd, topic, path, kind, "--max-rows", "4")
    publish(nsqd, topic, [b"third"])
    lake = DeltaLakeTable if kind == "delta" else IcebergLakeTable
    real = lake.append

    def append(table: DeltaLakeTable | IcebergLakeTable, *arguments: object, **more: str) -> None:
        if table.path == str(path):
            raise RuntimeError("killed here")
        real(table, *arguments, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(lake, "append", append)
        with pytest.raises(NsqError, match=r"^RuntimeError: killed here$"):
            archived(nsqd, topic, path, kind)
    delete(aside, kind, "offset = 3")
    view = (
        f"SELECT count(*) AS n, count(DISTINCT offset) AS d FROM {sql.view_name(topic)}_quarantine"
    )
    live = asked(view, path, "--nsqd", addresses(nsqd))
    assert live[0]["n"] == live[0]["d"], live
    archived(nsqd, topic, path, kind)
    assert asked(view, path) == [{"n": 2, "d": 2}]


def test_a_branch_of_an_iceberg_table_and_the_table_keep_their_files(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    """What the one has replaced, the other may have."""
    path = work / "t"
    publish(nsqd, topic, orders(range(9)))
    archived(nsqd, topic, path, "iceberg", "--max-rows", "1")

    def branch(name: str, condition: str) -> None:
        snapshot = iceberg(path).current_snapshot()
        assert snapshot is not None
        with iceberg(path).manage_snapshots() as made:
            made.create_branch(snapshot.snapshot_id, name)
        iceberg(path).delete(condition, branch=name)

    def forget(name: str) -> None:
        with iceberg(path).manage_snapshots() as made:
            made.remove_branch(name)
        run_maintain(path)

    branch("mine", "offset < 2")
    publish(nsqd, topic, orders(range(9, 12)))
    archived(nsqd, topic, path, "iceberg", "--max-rows", "1")  # the tenth batch merges files
    run_maintain(path)
    assert iceberg(path).scan().use_ref("mine").to_arrow().num_rows == 7
    branch("other", "offset > 10")
    forget("mine")
    forget("other")
    assert ids(path, "iceberg") == list(range(12))
    table = iceberg(path)
    (only,) = table.metadata.snapshots
    named = {only.manifest_list, *(each.manifest_path for each in only.manifests(table.io))}
    there = {f"file://{file}" for file in (path / "metadata").glob("*.avro")}
    assert named <= there and len(there - named) <= 6, there - named  # of the branches alone


def test_rows_that_were_deleted_and_brought_back_by_a_rollback_stay(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    path = work / "t"
    publish(nsqd, topic, orders(range(6)))
    archived(nsqd, topic, path, "iceberg", "--max-rows", "3")
    before = iceberg(path).current_snapshot()
    assert before is not None
    iceberg(path).delete("offset < 3")
    with iceberg(path).manage_snapshots() as made:
        made.rollback_to_snapshot(before.snapshot_id)
    publish(nsqd, topic, orders(range(6, 9)))
    archived(nsqd, topic, path, "iceberg")
    run_maintain(path)
    assert ids(path, "iceberg") == list(range(9))
