"""Batch reads of real nodes: what was published is in the table, and what cannot be is told."""

import json
from collections.abc import Callable

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.kit.daemons import Nsqd, Nsqlookupd, wait_until
from tests.kit.spark.topics import name_of, numbered, producers, publish
from tests.spark.conftest import QUICK, Retiring

pytestmark = pytest.mark.slow


def read(spark: SparkSession, *nodes: Nsqd, **options: str) -> DataFrame:
    addresses = ",".join(node.http_address for node in nodes)
    reader = spark.read.format("nsq").options(**{"nsqd": addresses, **QUICK, **options})
    return reader.load()


def bodies(frame: DataFrame) -> list[bytes]:
    return [bytes(row.body) for row in frame.select("body").collect()]


def test_a_topic_is_a_table_with_nothing_registered(
    spark: SparkSession, nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, [b"one", b"two", b"three"])
    rows = read(spark, nsqd, subscribe=topic).orderBy("offset").collect()
    assert [bytes(row.body) for row in rows] == [b"one", b"two", b"three"]
    assert [row.offset for row in rows] == [0, 1, 2]
    assert {(row.topic, row.node, row.attempts) for row in rows} == {(topic, name_of(nsqd), 1)}
    first_id = int(rows[0].id, 16)
    assert [int(row.id, 16) - first_id for row in rows] == [0, 1, 2]


def test_ids_and_times_are_those_a_consumer_gets(
    spark: SparkSession, nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, [b"one"])
    with nsqd.connect() as client:
        client.sub(topic, "c")
        client.rdy(1)
        message = client.read_message()
        client.fin(message.id)
    (row,) = (
        read(spark, nsqd, subscribe=topic)
        .selectExpr("id", "unix_micros(timestamp) AS us")
        .collect()
    )
    assert (row.id, row.us) == (message.id, message.timestamp_ns // 1000)


def test_sql_reads_a_topic_by_using(spark: SparkSession, nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, [b'{"total": 5}', b'{"total": 7}'])
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING nsq "
        f"OPTIONS (nsqd '{nsqd.http_address}', subscribe '{topic}')"
    )
    (row,) = spark.sql(
        "SELECT sum(get_json_object(CAST(body AS STRING), '$.total')) AS total FROM orders"
    ).collect()
    assert row.total == 12


def test_tables_of_spark_s_catalog_work_with_options_in_the_query(
    spark: SparkSession, nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, numbered(10))
    options = f"nsqd '{nsqd.http_address}', subscribe '{topic}'"
    said = f"nsqd = '{nsqd.http_address}', subscribe = '{topic}'"
    try:
        spark.sql(f"CREATE TABLE catalogued USING nsq OPTIONS ({options})")
        with pytest.raises(PySparkException, match="Spark drops the options of CREATE TABLE"):
            spark.sql("SELECT * FROM catalogued").collect()
        assert spark.sql(f"SELECT count(*) FROM catalogued WITH ({said})").collect() == [(10,)]
        spark.sql(f"CREATE VIEW seen AS SELECT offset FROM catalogued WITH ({said})")
        assert spark.sql("SELECT max(offset) FROM seen").collect() == [(9,)]
    finally:
        spark.sql("DROP VIEW IF EXISTS seen")
        spark.sql("DROP TABLE IF EXISTS catalogued")


def test_a_schema_chooses_columns(spark: SparkSession, nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, [b"one"])
    reader = spark.read.format("nsq").schema("body BINARY, offset BIGINT")
    frame = reader.options(nsqd=nsqd.http_address, subscribe=topic).load()
    assert frame.columns == ["body", "offset"]
    assert [(bytes(row.body), row.offset) for row in frame.collect()] == [(b"one", 0)]


def test_several_topics_by_list_and_by_pattern(spark: SparkSession, nsqd: Nsqd, topic: str) -> None:
    names = [f"{topic}-eu", f"{topic}-us", f"{topic}x"]
    for name in names:
        publish(nsqd, name, [name.encode()])
    listed = read(spark, nsqd, subscribe=f"{names[0]},{names[2]}")
    assert sorted(bodies(listed)) == [names[0].encode(), names[2].encode()]
    matched = read(spark, nsqd, subscribePattern=f"{topic}-.*")
    assert sorted(bodies(matched)) == [names[0].encode(), names[1].encode()]


def test_several_nodes_are_one_table(
    spark: SparkSession, start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    one, two = start_nsqd(), start_nsqd()
    publish(one, topic, numbered(3000))
    publish(two, topic, numbered(2000, start=3000))
    frame = read(spark, one, two, subscribe=topic, minPartitions="7")
    assert frame.rdd.getNumPartitions() == 7
    rows = frame.select("node", "offset", "body").collect()
    assert sorted(int(bytes(row.body)) for row in rows) == list(range(5000))
    assert {(row.node, row.offset) for row in rows} == {
        *((name_of(one), offset) for offset in range(3000)),
        *((name_of(two), offset) for offset in range(2000)),
    }


def test_offsets_bound_a_read(spark: SparkSession, nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, numbered(1000), batch=10)
    node = name_of(nsqd)
    frame = read(
        spark,
        nsqd,
        subscribe=topic,
        startingOffsets=json.dumps({topic: {node: 95}}),
        endingOffsets=json.dumps({topic: {node: 105}}),
    )
    assert sorted(map(int, bodies(frame))) == list(range(95, 105))
    from_the_end = read(spark, nsqd, subscribe=topic, startingOffsets="latest")
    assert from_the_end.count() == 0


def test_times_bound_a_read(spark: SparkSession, nsqd: Nsqd, topic: str) -> None:
    for number in range(3):
        publish(nsqd, topic, [b"%d" % number])
    rows = read(spark, nsqd, subscribe=topic).selectExpr("unix_micros(timestamp) us").collect()
    second_us = sorted(row.us for row in rows)[1]
    when = f"{second_us // 1_000_000}.{second_us % 1_000_000:06d}"
    second = spark.sql(f"SELECT CAST({when} AS TIMESTAMP) AS at").first()
    assert second is not None
    moment = second["at"].isoformat()
    later = read(spark, nsqd, subscribe=topic, startingTimestamp=moment)
    assert sorted(bodies(later)) == [b"1", b"2"]
    earlier = read(spark, nsqd, subscribe=topic, endingTimestamp=moment)
    assert bodies(earlier) == [b"0"]


def test_a_frame_ends_where_its_first_query_found_the_end(
    spark: SparkSession, nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, numbered(10))
    frame = read(spark, nsqd, subscribe=topic)
    assert frame.count() == 10
    said = f"nsqd = '{nsqd.http_address}', subscribe = '{topic}'"
    try:
        spark.sql("CREATE TABLE current USING nsq")
        spark.sql(f"CREATE VIEW newest AS SELECT offset FROM current WITH ({said})")
        assert spark.table("newest").count() == 10
        publish(nsqd, topic, numbered(10, start=10))
        assert (frame.count(), frame.where("offset >= 5").count()) == (10, 5)
        assert read(spark, nsqd, subscribe=topic).count() == 20
        assert spark.table("newest").count() == 20
    finally:
        spark.sql("DROP VIEW IF EXISTS newest")
        spark.sql("DROP TABLE IF EXISTS current")


def test_a_topic_without_messages_is_an_empty_table(
    spark: SparkSession, nsqd: Nsqd, topic: str
) -> None:
    nsqd.http("POST", f"/topic/create?topic={topic}")
    assert read(spark, nsqd, subscribe=topic).count() == 0


def test_large_and_small_messages_of_many_answers(
    spark: SparkSession, nsqd: Nsqd, topic: str
) -> None:
    messages = [b"%d:" % n + b"x" * (n * 7919 % 30_000) for n in range(300)]
    publish(nsqd, topic, messages, batch=7)
    frame = read(spark, nsqd, subscribe=topic, fetchBytes="65536", minPartitions="3")
    assert sorted(bodies(frame)) == sorted(messages)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "ordrs"}, "topic 'ordrs' is not on .*; did you mean 'orders'"),
        ({"subscribePattern": "nothing-.*"}, "no topic matches 'nothing-"),
        ({"subscribe": "orders", "startingOffset": "latest"}, "did you mean 'startingOffsets'"),
        ({"subscribe": "orders", "nsqd": "127.0.0.1:1"}, "http://127.0.0.1:1 does not answer"),
        ({"subscribe": "orders", "lookupd": "127.0.0.1:1", "nsqd": ""}, "'nsqd' is empty"),
        (
            {"subscribe": "orders", "startingOffsets": '{"orders": {"NODE": 99}}'},
            "offset 99 is beyond the end, which is 1",
        ),
        (
            {"subscribe": "orders", "startingOffsets": '{"orders": {"elsewhere:1": 0}}'},
            "offsets name 'elsewhere:1' for topic 'orders', which is on",
        ),
    ],
)
def test_bad_input_is_told_when_the_query_is_planned(
    spark: SparkSession, nsqd: Nsqd, options: dict[str, str], text: str
) -> None:
    if not nsqd.stats("orders")["topics"]:
        publish(nsqd, "orders", [b"x"])
    said = {name: value.replace("NODE", name_of(nsqd)) for name, value in options.items()}
    with pytest.raises(PySparkException, match=text):
        read(spark, nsqd, **said).collect()


def test_options_are_checked_when_the_frame_is_made(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="'failOnDataLoss' must be true or false"):
        spark.read.format("nsq").options(nsqd="a:1", subscribe="t", failOnDataLoss="si").load()
    with pytest.raises(PySparkException, match="say where to read"):
        spark.read.format("nsq").option("subscribe", "t").load()


def test_columns_that_a_topic_does_not_have_are_told(spark: SparkSession, nsqd: Nsqd) -> None:
    reader = spark.read.format("nsq").options(nsqd=nsqd.http_address, subscribe="orders")
    with pytest.raises(PySparkException, match="no column 'key'; it has topic, node, offset"):
        reader.schema("key BINARY").load().collect()
    with pytest.raises(PySparkException, match="column 'body' is binary, not string"):
        reader.schema("body STRING").load().collect()


def test_offsets_that_are_retired_are_told_or_left_out(
    spark: SparkSession, retiring: Retiring
) -> None:
    first = retiring.first()
    bound = json.dumps({retiring.topic: {name_of(retiring.nsqd): 0}})
    said = {"subscribe": retiring.topic, "startingOffsets": bound}
    with pytest.raises(PySparkException, match=f"offset 0 is retired, the oldest is {first}"):
        read(spark, retiring.nsqd, **said).collect()
    frame = read(spark, retiring.nsqd, **said, failOnDataLoss="false")
    assert frame.count() == retiring.count - first


def test_nodes_are_found_through_nsqlookupd(
    spark: SparkSession, start_nsqd: Callable[..., Nsqd], nsqlookupd: Nsqlookupd, topic: str
) -> None:
    flag = f"--lookupd-tcp-address={nsqlookupd.tcp_address}"
    nodes = [start_nsqd(flag, "--broadcast-address=127.0.0.1") for _ in range(2)]
    for number, node in enumerate(nodes):
        publish(node, topic, [b"%d" % number])
    wait_until(lambda: len(producers(nsqlookupd, topic)) == 2)
    said = {"lookupd": nsqlookupd.http_address, **QUICK}
    by_name = spark.read.format("nsq").options(**said, subscribe=topic).load()
    assert sorted(bodies(by_name)) == [b"0", b"1"]
    by_pattern = spark.read.format("nsq").options(**said, subscribePattern=f"{topic}.*").load()
    assert sorted(bodies(by_pattern)) == [b"0", b"1"]
