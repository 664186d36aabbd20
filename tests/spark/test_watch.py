"""Who watches a pipeline hears of every query in it that fails."""

import os
import signal
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from pyspark_nsq.errors import NsqError
from pyspark_nsq.pipelines.running.watch import Stop, Watch
from tests.kit.daemons import wait_until

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


def test_a_query_that_failed_before_it_was_to_stop_is_told(spark: SparkSession, work: Path) -> None:
    bad = counting(spark, work, "bad", fails=True)
    wait_until(lambda: not bad.isActive, 30)
    with Stop() as stop, pytest.raises(NsqError, match=r"^bad has no room$"):
        stop.asked.set()
        Watch("test", Console(quiet=True)).follow(bad, stop)


def test_the_second_signal_interrupts_who_cannot_look(work: Path) -> None:
    with Stop(interrupts=True) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(stop.asked.is_set)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            stop.at_once.wait(10)
    assert stop.at_once.is_set()


def test_all_are_stopped_when_it_is_asked_to_stop(spark: SparkSession, work: Path) -> None:
    queries = [counting(spark, work, name, fails=False) for name in ("one", "two")]
    with Stop() as stop:
        stop.asked.set()
        Watch("test", Console(quiet=True)).follow(queries[0], stop, beside=queries[1:])
    assert not any(query.isActive for query in queries)
