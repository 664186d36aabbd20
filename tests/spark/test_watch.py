"""Who watches a pipeline hears of every query in it that fails."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from pyspark_nsq.errors import NsqError
from pyspark_nsq.pipelines.watch import Stop, Watch

pytestmark = pytest.mark.slow


def counting(spark: SparkSession, work: Path, name: str, *, fails: bool) -> StreamingQuery:
    def add(rows: DataFrame, batch: int) -> None:
        rows.count()
        if fails:
            raise NsqError(f"{name} has no room")

    writer = spark.readStream.format("rate").load().writeStream.foreachBatch(add)
    return writer.option("checkpointLocation", str(work / name)).start()


def test_a_query_beside_that_fails_is_told_and_all_are_stopped(
    spark: SparkSession, work: Path
) -> None:
    good = counting(spark, work, "good", fails=False)
    bad = counting(spark, work, "bad", fails=True)
    with Stop() as stop, pytest.raises(NsqError, match=r"^bad has no room$"):
        Watch("test", Console(quiet=True)).follow(good, stop, beside=[bad])
    assert not good.isActive and not bad.isActive


def test_all_are_stopped_when_it_is_asked_to_stop(spark: SparkSession, work: Path) -> None:
    queries = [counting(spark, work, name, fails=False) for name in ("one", "two")]
    with Stop() as stop:
        stop.asked.set()
        Watch("test", Console(quiet=True)).follow(queries[0], stop, beside=queries[1:])
    assert not any(query.isActive for query in queries)
