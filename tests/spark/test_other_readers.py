"""What other tools, and `replay`, find in the directories of an archive."""

from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from pyspark_nsq.pipelines import archive, replay
from tests.kit.daemons import Nsqd
from tests.kit.spark.pipelines import orders, run
from tests.kit.spark.streams import addresses
from tests.kit.spark.topics import publish

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_a_part_of_the_quarantine_is_replayed_by_its_reason(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path, kind: str
) -> None:
    publish(nsqd, topic, [*orders([1, 2]), b"{", b'{"order_id": "three"}', b"[1]"])
    source = ("--nsqd", addresses(nsqd), "--topic", topic, "--once", "--format", kind)
    run(archive, *source, "--table", str(work / "t"), "--schema", "order_id BIGINT")
    target = ("--to-nsqd", addresses(nsqd), "--to", f"{topic}-again")
    where = ("--where", "reason LIKE 'not JSON%' OR text LIKE '%three%'")
    state = ("--state", str(work / "state.json"))
    run(replay, "--table", str(work / "t-quarantine"), *target, *where, *state)
    read = spark.read.format("nsq").options(nsqd=addresses(nsqd), subscribe=f"{topic}-again")
    assert sorted(bytes(row.body) for row in read.load().collect()) == [
        b"{",
        b'{"order_id": "three"}',
    ]


def test_duckdb_reads_a_table_without_repeats_and_a_second_run_knows_the_first(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    """As two runs of a night: what was published within the watermark is there once."""
    source = ("--nsqd", addresses(nsqd), "--topic", topic, "--once", "--dedupe", "order_id")
    for numbers in ([1, 2, 2], [2, 3, 1]):
        publish(nsqd, topic, orders(numbers))
        run(archive, *source, "--table", str(work / "t"))
    files = f"{work}/t/**/*.parquet"
    found = duckdb.sql(f"SELECT event.order_id FROM read_parquet('{files}') ORDER BY 1").fetchall()
    assert [int(row[0]) for row in found] == [1, 2, 3]
