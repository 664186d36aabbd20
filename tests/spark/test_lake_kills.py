"""Archives in Delta and Iceberg tables whose driver is killed with SIGKILL, again and again: each
message is in the table once. Kills come when the files of a batch appear, and when its commit does.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from pyspark_nsq.pipelines import archive
from pyspark_nsq.pipelines.lake import files
from pyspark_nsq.pipelines.table.storage import Storage
from tests.kit.daemons import Nsqd
from tests.kit.spark.drivers import Driver
from tests.kit.spark.pipelines import orders, run
from tests.kit.spark.streams import addresses
from tests.kit.spark.topics import publish

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(3600)]

LOGS = {"delta": "_delta_log/*.json", "iceberg": "metadata/*.metadata.json"}
FILES = "data/*/*"
BATCHES_MORE = 5  # than kills, so that each kill finds one


def offsets(path: Path, kind: str) -> list[int]:
    if kind == "delta":
        found = DeltaTable(str(path)).to_pyarrow_table(columns=["offset"])
    else:
        catalog = SqlCatalog("archive", uri=f"sqlite:///{path}/_catalog.db")
        table = catalog.load_table(("archive", path.name))
        found = table.scan(selected_fields=("offset",)).to_arrow()
    return sorted(found["offset"].to_pylist())


def changed(path: Path, pattern: str) -> Callable[[], bool]:
    """Whether there is a file of this kind that was not there before."""
    before = set(path.glob(pattern))
    return lambda: bool(set(path.glob(pattern)) - before)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize(
    ("kills", "messages"),
    [
        pytest.param(2, 7_000, marks=pytest.mark.e2e),
        pytest.param(10, 200_000, marks=pytest.mark.soak),
    ],
)
def test_each_message_is_there_once_however_often_the_driver_is_killed(
    spark: SparkSession,
    nsqd: Nsqd,
    topic: str,
    work: Path,
    kind: str,
    kills: int,
    messages: int,
) -> None:
    path = work / "t"
    publish(nsqd, topic, orders(range(messages)))
    rows = str(-(-messages // (kills + BATCHES_MORE)))
    asked = ("--nsqd", addresses(nsqd), "--topic", topic, "--format", kind, "--table", str(path))
    asked += ("--max-rows", rows, "--once")
    for number in range(kills):
        with Driver(work, "archive", *asked) as driver:
            driver.wait_for(changed(path, FILES if number % 2 else LOGS[kind]))
            driver.kill()
    run(archive, *asked)
    assert offsets(path, kind) == list(range(messages))


def test_only_what_a_killed_writer_left_of_the_batch_is_deleted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Others may keep directories below `data/`, whatever their names."""
    left = ["1010-1f0a9c3e", "1010-1f0a9c3e-all"]
    others = ["1010", "1010-", "1010-mine", "11010-1f0a9c3e", "101-1f0a9c3e"]
    storage = Storage(spark, str(tmp_path))
    for name in (*left, *others):
        storage.write_text(f"{files.DATA}/{name}/part-0.parquet", "x")
    files.forget(storage, 1010)
    assert sorted(storage.names(files.DATA)) == sorted(others)
