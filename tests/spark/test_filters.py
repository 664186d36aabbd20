"""The WHERE of a query bounds what is read, and the answer is the same without it."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In, LessThan
from pyspark.sql.types import LongType, StructField, StructType

from pyspark_nsq.columns import arrow_schema
from pyspark_nsq.options import parse_read
from pyspark_nsq.reading.batch import BatchReader
from pyspark_nsq.reading.plan import RangePartition
from tests.kit.daemons import Nsqd
from tests.kit.spark.topics import end_of, name_of, numbered, publish
from tests.spark.conftest import QUICK

pytestmark = pytest.mark.slow

SETTING = "spark.sql.python.filterPushdown.enabled"


def planned(nsqd: Nsqd, pushed: list[Filter], **options: str) -> set[tuple[str, int]]:
    """The topics and offsets that a read with these filters would read."""
    given = parse_read({"nsqd": nsqd.http_address, **QUICK, **options}, streaming=False)
    reader = BatchReader(given, arrow_schema(StructType([StructField("offset", LongType())])))
    assert reader.pushFilters(pushed) == pushed
    found = [part for part in reader.partitions() if isinstance(part, RangePartition)]
    ranges = [each for part in found for each in part.ranges]
    return {(r.topic, offset) for r in ranges for offset in range(r.start, r.end)}


def middle(nsqd: Nsqd, topic: str) -> datetime:
    """Publishes, and says when half of it was published."""
    publish(nsqd, topic, numbered(50), batch=10)
    time.sleep(0.002)  # the column has microseconds: the clock has to go on, before and after
    now = datetime.now(UTC)
    time.sleep(0.002)
    publish(nsqd, topic, numbered(50, 50), batch=10)
    return now


def test_only_what_can_match_is_read(nsqd: Nsqd, topic: str) -> None:
    at = middle(nsqd, topic)
    others = f"{topic}-other"
    publish(nsqd, others, numbered(10))
    both = f"{topic},{others}"

    def read(*pushed: Filter) -> set[tuple[str, int]]:
        return planned(nsqd, list(pushed), subscribe=both)

    everything = {(topic, n) for n in range(100)} | {(others, n) for n in range(10)}
    mine = EqualTo(("topic",), topic)
    assert read() == everything
    assert read(mine) == {(topic, n) for n in range(100)}
    assert read(mine, GreaterThanOrEqual(("timestamp",), at)) == {
        (topic, n) for n in range(50, 100)
    }
    assert read(mine, LessThan(("timestamp",), at)) == {(topic, n) for n in range(50)}
    assert read(mine, In(("offset",), (7, 9, None))) == {(topic, n) for n in (7, 8, 9)}
    assert read(EqualTo(("node",), "nobody:4150")) == set()
    assert read(EqualTo(("offset",), None)) == set()
    assert read(EqualTo(("offset",), 1 << 62)) == set()
    assert read(EqualTo(("node",), name_of(nsqd))) == everything


def test_the_answer_is_the_same_with_and_without(
    spark: SparkSession, nsqd: Nsqd, topic: str
) -> None:
    at = middle(nsqd, topic)
    node = name_of(nsqd)
    frame = spark.read.format("nsq").options(nsqd=nsqd.http_address, subscribe=topic, **QUICK)
    frame.load().createOrReplaceTempView("filtered")
    moment = f"TIMESTAMP'{at.isoformat()}'"
    counts = {
        f"timestamp >= {moment}": 50,
        f"timestamp >= {moment} OR offset < 10": 60,
        f"NOT (timestamp >= {moment})": 50,
        f"timestamp BETWEEN {moment} AND now() + INTERVAL 1 HOUR": 50,
        "timestamp > now() - INTERVAL 1 HOUR AND offset BETWEEN 10 AND 19": 10,
        "timestamp < TIMESTAMP'1960-01-01'": 0,
        "timestamp < TIMESTAMP'9999-12-31 00:00:00Z'": 100,
        "offset IN (1, 2, NULL)": 2,
        "offset NOT IN (1, 2, NULL)": 0,
        "offset = '7'": 1,
        f"topic = '{topic}' AND node = '{node}'": 100,
        f"topic LIKE '{topic}%' AND topic <> 'none'": 100,
    }
    assert spark.conf.get(SETTING) == "true"
    conditions = [F.count_if(F.expr(text)) for text in counts]
    assert [*spark.table("filtered").select(*conditions).collect()[0]] == [*counts.values()]
    assert together(spark, [*counts]) == counts
    spark.conf.set(SETTING, "false")
    try:
        assert together(spark, [*counts][:2]) == dict([*counts.items()][:2])
    finally:
        spark.conf.set(SETTING, "true")


def together(spark: SparkSession, conditions: list[str]) -> dict[str, int]:
    """The count of each condition, as a query of its own, all in one job."""

    def count(number: int) -> DataFrame:
        rows = spark.table("filtered").where(conditions[number])
        return rows.select(F.lit(number).alias("number"))

    found = count(0)
    for number in range(1, len(conditions)):
        found = found.union(count(number))
    rows = found.groupBy("number").count().collect()
    by_number = {row["number"]: row["count"] for row in rows}
    return {text: by_number.get(number, 0) for number, text in enumerate(conditions)}


def test_a_clock_that_was_set_back_hides_no_row(
    start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    """What is before `ordered_from` is read whatever its time."""
    nsqd = start_nsqd()
    at = middle(nsqd, topic)
    assert end_of(nsqd, topic) == 100
    nsqd.kill()
    (nsqd.data_path / "topics" / topic / f"{30:020d}.unordered").touch()
    nsqd.start()
    read = planned(nsqd, [GreaterThanOrEqual(("timestamp",), at)], subscribe=topic)
    assert read == {(topic, n) for n in (*range(30), *range(50, 100))}
