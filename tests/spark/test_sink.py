"""Writes to real nodes: every row is published, and what cannot be is told."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.kit.daemons import Nsqd
from tests.kit.spark.streams import addresses
from tests.kit.spark.topics import end_of, numbered, publish, repeats
from tests.spark.conftest import QUICK

pytestmark = pytest.mark.slow


def rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS body")


def write(frame: DataFrame, *nodes: Nsqd, **options: str) -> None:
    said = {"nsqd": addresses(*nodes), **QUICK, **options}
    frame.write.format("nsq").mode("append").options(**said).save()


def published(spark: SparkSession, topic: str, *nodes: Nsqd) -> Counter[bytes]:
    said = {"nsqd": addresses(*nodes), "subscribe": topic, **QUICK}
    frame = spark.read.format("nsq").options(**said).load()
    return Counter(bytes(row.body) for row in frame.select("body").collect())


def test_a_frame_is_published_to_a_topic(spark: SparkSession, nsqd: Nsqd, topic: str) -> None:
    write(rows(spark, 25_000), nsqd, topic=topic, chunkBytes="16384")
    assert published(spark, topic, nsqd) == Counter(numbered(25_000))


def test_a_consumer_gets_what_spark_wrote(spark: SparkSession, nsqd: Nsqd, topic: str) -> None:
    write(spark.createDataFrame([("grün",)], "body STRING"), nsqd, topic=topic)
    with nsqd.connect() as client:
        client.sub(topic, "c")
        client.rdy(1)
        assert client.read_message().body == "grün".encode()


def test_a_column_names_the_topic_of_each_row(spark: SparkSession, nsqd: Nsqd, topic: str) -> None:
    frame = spark.createDataFrame(
        [(f"{topic}-a", "1"), (f"{topic}-b", "2"), (f"{topic}-a", "3")], "topic STRING, body STRING"
    )
    write(frame, nsqd)
    assert published(spark, f"{topic}-a", nsqd) == Counter([b"1", b"3"])
    assert published(spark, f"{topic}-b", nsqd) == Counter([b"2"])


def test_rows_are_spread_over_the_nodes(
    spark: SparkSession, start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    one, two = start_nsqd(), start_nsqd()
    write(rows(spark, 10_000).coalesce(1), one, two, topic=topic, chunkRows="500")
    assert published(spark, topic, one, two) == Counter(numbered(10_000))
    assert end_of(one, topic) == end_of(two, topic) == 5000


def test_a_stream_goes_from_topic_to_topic(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, numbered(3000))
    said = {"nsqd": addresses(nsqd), **QUICK}
    source = spark.readStream.format("nsq").options(
        **said, subscribe=topic, startingOffsets="earliest"
    )
    query = (
        source.load()
        .selectExpr("concat('got ', CAST(body AS STRING)) AS body")
        .writeStream.format("nsq")
        .options(**said, topic=f"{topic}-out", checkpointLocation=str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    expected = Counter(b"got " + body for body in numbered(3000))
    assert published(spark, f"{topic}-out", nsqd) == expected


def test_a_task_that_fails_halfway_and_is_repeated_publishes_every_row_once(
    spark: SparkSession, nsqd: Nsqd, topic: str
) -> None:
    count, port = 50_000, nsqd.http_port

    def is_there() -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{port}/log/offsets?topic={topic}", timeout=5) as answer:
                return bool(json.load(answer)["end"])
        except OSError:  # no such topic yet
            return False

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        for number, batch in enumerate(batches):
            if number == 2 and context is not None and context.attemptNumber() == 0:
                deadline_s = time.monotonic() + 30
                while not is_there() and time.monotonic() < deadline_s:
                    time.sleep(0.02)
                raise RuntimeError("the first attempt fails when some of it is published")
            yield batch

    padded = rows(spark, count).selectExpr("CAST(lpad(CAST(body AS STRING), 99, '0') AS BINARY) b")
    frame = padded.withColumnRenamed("b", "body").mapInArrow(fail_once, "body BINARY")
    write(frame, nsqd, topic=topic, chunkRows="100")
    expected = Counter(body.rjust(99, b"0") for body in numbered(count))
    assert published(spark, topic, nsqd) == expected
    assert repeats(nsqd, topic) > 0


def test_a_write_that_is_repeated_under_its_name_publishes_nothing_more(
    spark: SparkSession, start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    one, two = start_nsqd(), start_nsqd()
    frame = rows(spark, 5000)
    write(frame, one, two, topic=topic, writeId="daily-2026-11-16", chunkRows="100")
    one.kill()
    one.start(tcp_port=one.tcp_port, http_port=one.http_port)
    write(frame, two, one, topic=topic, writeId="daily-2026-11-16", chunkRows="100")
    assert published(spark, topic, one, two) == Counter(numbered(5000))
    write(frame, one, two, topic=topic, chunkRows="100")
    assert published(spark, topic, one, two) == Counter(numbered(5000) * 2)


@pytest.mark.parametrize(
    ("sql", "options", "text"),
    [
        ("SELECT 'x' AS value", {"topic": "t"}, "no column 'body' to publish; .*: value"),
        ("SELECT 5 AS body", {"topic": "t"}, "'body' must be binary or string, not int"),
        ("SELECT 'x' AS body", {}, "option 'topic', or a column 'topic'"),
        ("SELECT 'x' AS body, 5 AS topic", {}, "'topic' must be string, not int"),
        ("SELECT CAST(NULL AS STRING) AS body", {"topic": "t"}, "body is null in 1 rows"),
        (
            "SELECT 'x' AS body",
            {"topic": "t", "nsqd": "127.0.0.1:1"},
            "127.0.0.1:1 does not answer",
        ),
        ("SELECT 'x' AS body", {"topic": "t", "chunkByte": "5"}, "did you mean 'chunkBytes'"),
    ],
)
def test_what_cannot_be_written_is_told(
    spark: SparkSession, nsqd: Nsqd, sql: str, options: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException, match=text):
        write(spark.sql(sql), nsqd, **options)


def test_a_topic_cannot_be_overwritten(spark: SparkSession, nsqd: Nsqd) -> None:
    with pytest.raises(PySparkException, match="use mode"):
        rows(spark, 1).write.format("nsq").mode("overwrite").options(
            nsqd=addresses(nsqd), topic="t"
        ).save()
