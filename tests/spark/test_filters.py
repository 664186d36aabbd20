"""A filter applies to the query that has it, and to no other query of the same DataFrame or table.

All tests run with Spark's setting for filter pushdown off, as in our sessions, and on, as a user's
own session may have it.
"""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_nsq.session import SETTINGS
from tests.kit.daemons import Nsqd
from tests.kit.spark.topics import name_of, numbered, publish
from tests.spark.conftest import QUICK

pytestmark = pytest.mark.slow

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
ROWS = 1_000


def test_our_sessions_push_no_filters(spark: SparkSession) -> None:
    assert SETTINGS[PUSHDOWN] == "false"
    assert spark.conf.get(PUSHDOWN) == "false"


@pytest.fixture(params=["false", "true"], ids=["pushdown-off", "pushdown-on"])
def asked(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    before = spark.conf.get(PUSHDOWN)
    assert before is not None
    spark.conf.set(PUSHDOWN, request.param)
    yield spark
    spark.conf.set(PUSHDOWN, before)


@pytest.fixture(scope="module")
def stored(nsqd: Nsqd) -> str:
    """A topic of 1,000 messages, whose bodies are their offsets."""
    topic = f"stored-{uuid.uuid4().hex[:8]}"
    publish(nsqd, topic, numbered(ROWS), batch=100)
    return topic


@pytest.fixture
def frame(asked: SparkSession, nsqd: Nsqd, stored: str) -> DataFrame:
    reader = asked.read.format("nsq").options(nsqd=nsqd.http_address, subscribe=stored, **QUICK)
    return reader.load()


def one(spark: SparkSession, query: str) -> list[object]:
    """The values of the only row of a query."""
    (row,) = spark.sql(query).collect()
    return [*row]


def test_a_filtered_query_does_not_change_the_next_one(frame: DataFrame) -> None:
    assert frame.where("offset < 5").count() == 5
    assert frame.count() == ROWS
    assert frame.where("offset >= 990").count() == 10
    assert frame.where("offset < 5 OR offset >= 990").count() == 15
    assert frame.where("topic = 'none'").count() == 0
    assert frame.where("timestamp < TIMESTAMP'1960-01-01'").count() == 0
    assert frame.count() == ROWS


def test_frames_made_of_one_frame_have_their_own_filters(frame: DataFrame) -> None:
    few, many = frame.where("offset < 5"), frame.where("offset >= 5")
    assert (few.count(), many.count(), few.count()) == (5, 995, 5)
    assert few.union(many).count() == ROWS
    assert few.union(frame).count() == ROWS + 5
    assert frame.union(few).count() == ROWS + 5
    assert frame.exceptAll(few).count() == 995


def test_both_sides_of_a_self_join_have_their_own_filter(frame: DataFrame) -> None:
    few, others = frame.where("offset < 5").alias("a"), frame.where("offset >= 3").alias("b")
    assert few.join(others, "offset").count() == 2
    assert few.join(frame.alias("b"), "offset", "right").count() == ROWS
    assert frame.alias("b").join(few, "offset", "left_anti").count() == 995
    assert few.crossJoin(frame.where("offset >= 998").alias("b")).count() == 10


def test_parquet_after_a_filtered_count_has_every_row(frame: DataFrame, work: Path) -> None:
    assert frame.where("offset < 5").count() == 5
    frame.write.parquet(str(work / "exported"))
    exported = frame.sparkSession.read.parquet(str(work / "exported"))
    assert sorted(row.offset for row in exported.select("offset").collect()) == [*range(ROWS)]


def test_a_cached_frame_has_every_row(frame: DataFrame) -> None:
    assert frame.where("offset < 5").count() == 5
    kept = frame.persist()
    try:
        assert (kept.where("offset < 5").count(), kept.count()) == (5, ROWS)
    finally:
        kept.unpersist()


@pytest.fixture(params=["view of a frame", "view USING nsq", "table USING nsq"])
def orders(
    asked: SparkSession, frame: DataFrame, nsqd: Nsqd, stored: str, request: pytest.FixtureRequest
) -> Iterator[SparkSession]:
    """A session in which the topic is `orders`."""
    if request.param == "view of a frame":
        frame.createOrReplaceTempView("orders")
    elif request.param == "view USING nsq":
        asked.sql(
            "CREATE OR REPLACE TEMPORARY VIEW orders USING nsq "
            f"OPTIONS (nsqd '{nsqd.http_address}', subscribe '{stored}')"
        )
    else:
        said = f"nsqd = '{nsqd.http_address}', subscribe = '{stored}'"
        asked.sql("CREATE TABLE topics USING nsq")
        asked.sql(f"CREATE VIEW orders AS SELECT * FROM topics WITH ({said})")
    yield asked
    asked.catalog.dropTempView("orders")
    asked.sql("DROP VIEW IF EXISTS orders")
    asked.sql("DROP TABLE IF EXISTS topics")


def test_queries_of_a_table_one_after_the_other(orders: SparkSession) -> None:
    assert one(orders, "SELECT count(*) FROM orders WHERE offset < 5") == [5]
    assert one(orders, "SELECT count(*) FROM orders") == [ROWS]
    assert one(orders, "SELECT min(offset) FROM orders WHERE offset >= 990") == [990]


def test_a_query_that_names_a_table_twice(orders: SparkSession) -> None:
    both = (
        "SELECT (SELECT count(*) FROM orders WHERE offset < 10), "
        "(SELECT count(*) FROM orders WHERE offset >= 990), (SELECT count(*) FROM orders)"
    )
    assert one(orders, both) == [10, 10, ROWS]
    named = (
        "WITH r AS (SELECT * FROM orders WHERE offset < 10) "
        "SELECT (SELECT count(*) FROM r), (SELECT count(*) FROM orders)"
    )
    assert one(orders, named) == [10, ROWS]
    # Without its quotes, Spark takes this `offset` for the clause OFFSET.
    within = (
        "SELECT count(*) FROM orders WHERE `offset` NOT IN "
        "(SELECT offset FROM orders WHERE offset < 10)"
    )
    assert one(orders, within) == [ROWS - 10]
    joined = (
        "SELECT count(*), count(few.offset) FROM orders "
        "LEFT JOIN (SELECT offset FROM orders WHERE offset < 10) few ON orders.offset = few.offset"
    )
    assert one(orders, joined) == [ROWS, 10]
    union = (
        "SELECT count(*) FROM (SELECT offset FROM orders WHERE offset < 10 "
        "UNION ALL SELECT offset FROM orders)"
    )
    assert one(orders, union) == [ROWS + 10]


def test_conditions_of_all_kinds(asked: SparkSession, frame: DataFrame, nsqd: Nsqd) -> None:
    """Each is a query of its own; all are in one job."""
    counts = {
        "timestamp > now() - INTERVAL 1 HOUR AND offset BETWEEN 10 AND 19": 10,
        "timestamp < TIMESTAMP'9999-12-31 00:00:00Z'": ROWS,
        "offset IN (1, 2, NULL)": 2,
        "offset NOT IN (1, 2, NULL)": 0,
        "offset = '7'": 1,
        "offset <=> NULL": 0,
        "body = X'37'": 1,
        "body IS NOT NULL AND attempts = 1": ROWS,
        f"topic LIKE 'stored%' AND node = '{name_of(nsqd)}'": ROWS,
        "topic <> 'none' AND NOT (offset >= 10)": 10,
    }
    parts = [f"SELECT {n} AS n FROM conditions WHERE {text}" for n, text in enumerate(counts)]
    frame.createOrReplaceTempView("conditions")
    try:
        found = asked.sql(" UNION ALL ".join(parts)).groupBy("n").count().collect()
    finally:
        asked.catalog.dropTempView("conditions")
    by_number = {row["n"]: row["count"] for row in found}
    assert {text: by_number.get(n, 0) for n, text in enumerate(counts)} == counts
