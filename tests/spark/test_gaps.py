"""Offsets that nsqd left out after a loss of power: to a stream they are no rows, and no loss."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows

from pyspark_nsq.pipelines import archive
from tests.kit.daemons import Nsqd
from tests.kit.spark.pipelines import order_ids, orders, run
from tests.kit.spark.stream_reader import NewReader, kept, latest, ranges, rows
from tests.kit.spark.streams import addresses
from tests.kit.spark.topics import numbered, publish


@pytest.fixture
def own_nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    with Nsqd(tmp_path / "own") as node:
        yield node


def test_offsets_that_were_left_out_are_no_rows(
    own_nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    """A gap of 4 million offsets, and batches of 5 rows: four of them, and not a million."""
    publish(own_nsqd, topic, numbered(10))
    own_nsqd.restart_after_power_loss()
    publish(own_nsqd, topic, numbered(20)[10:])
    reader = new_reader(own_nsqd, subscribe=topic)
    place = kept(reader.initialOffset())
    found = []
    while (end := latest(reader, place, ReadMaxRows(5))) != place:
        found.append(rows(reader, place, end))
        place = end
    assert [len(batch) for batch in found] == [5] * 4
    assert [body for batch in found for body in batch] == numbered(20)
    (state,) = json.loads(own_nsqd.http("GET", "/log/offsets")[1])["topics"]
    ((start, after),) = state["gaps"]
    assert (start, after - start >= 1 << 22, state["end"]) == (10, True, after + 10)


def test_a_stream_that_stands_before_the_gap_loses_nothing(
    own_nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    publish(own_nsqd, topic, numbered(10))
    reader = new_reader(own_nsqd, subscribe=topic)
    place = kept(reader.initialOffset())
    end = latest(reader, place)
    assert rows(reader, place, end) == numbered(10)
    own_nsqd.restart_after_power_loss()
    publish(own_nsqd, topic, numbered(20)[10:])
    reader = new_reader(own_nsqd, subscribe=topic)  # failOnDataLoss is the default
    reader.prepareForTriggerAvailableNow()
    later = latest(reader, end)
    assert rows(reader, end, later) == numbered(20)[10:]
    planned = ranges(reader, end, later)
    assert sum(each.rows for part in planned for each in part) == 10
    assert latest(reader, later) == later


@pytest.mark.e2e
@pytest.mark.slow
def test_an_archive_goes_on_over_a_gap(
    spark: SparkSession, own_nsqd: Nsqd, topic: str, work: Path
) -> None:
    source = ("--nsqd", addresses(own_nsqd), "--topic", topic)
    for count in (10, 20):
        publish(own_nsqd, topic, orders(range(count - 10, count)))
        said = run(archive, *source, "--table", str(work / "t"), "--once")
        assert "10 rows in 1 batches, 0 quarantined; done" in said
        own_nsqd.restart_after_power_loss()
    assert order_ids(spark, work / "t") == list(range(20))
    assert "0 rows in 0 batches" in run(archive, *source, "--table", str(work / "t"), "--once")
