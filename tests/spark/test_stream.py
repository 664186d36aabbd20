"""Streams of real nodes into a table: every row once, whatever comes and goes."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_nsq import lag
from pyspark_nsq.progress import lag_by_log
from tests.kit.daemons import Nsqd, Nsqlookupd, wait_until
from tests.kit.spark.streams import Stream, addresses, wait_for_rows
from tests.kit.spark.topics import name_of, numbered, producers, publish

pytestmark = pytest.mark.slow


def test_available_now_reads_what_is_there_and_then_only_what_is_new(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    stream = Stream(spark, work, nsqd=addresses(nsqd), subscribe=topic)
    publish(nsqd, topic, numbered(2500))
    stream.run()
    assert stream.bodies() == Counter(numbered(2500))
    publish(nsqd, topic, numbered(10, start=2500))
    stream.run()
    assert stream.bodies() == Counter(numbered(2510))
    assert [progress["numInputRows"] for progress in stream.run()] in ([], [0])


def test_a_limit_makes_many_batches_of_that_size(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    stream = Stream(spark, work, nsqd=addresses(nsqd), subscribe=topic, maxOffsetsPerTrigger="1000")
    publish(nsqd, topic, numbered(2500))
    progress = stream.run()
    assert [batch["numInputRows"] for batch in progress] == [1000, 1000, 500]
    assert [lag(json.dumps(batch, default=str)) for batch in progress] == [1500, 500, 0]
    assert lag_by_log(progress[0]) == {(topic, name_of(nsqd)): 1500}
    assert stream.bodies() == Counter(numbered(2500))


def test_a_running_stream_picks_up_new_topics_and_its_lag_can_be_read(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, f"{topic}-a", numbered(10))
    stream = Stream(spark, work, nsqd=addresses(nsqd), subscribePattern=f"{topic}-.*")
    query = stream.start()
    try:
        wait_for_rows(query, 10)
        publish(nsqd, f"{topic}-b", numbered(10, start=10))
        wait_for_rows(query, 20)
        assert query.lastProgress is not None
        assert lag(query.lastProgress) == 0
    finally:
        query.stop()
    assert stream.bodies() == Counter(numbered(20))


def test_a_node_that_is_lost_holds_up_nobody_and_is_read_on_when_it_is_back(
    spark: SparkSession, start_nsqd: Callable[..., Nsqd], topic: str, work: Path
) -> None:
    one, two = start_nsqd(), start_nsqd()
    publish(one, topic, numbered(10))
    publish(two, topic, numbered(10, start=100))
    stream = Stream(spark, work, nsqd=addresses(one, two), subscribe=topic)
    query = stream.start()
    try:
        wait_for_rows(query, 20)
        publish(two, topic, numbered(10, start=110))
        wait_for_rows(query, 30)
        two.kill()
        publish(one, topic, numbered(10, start=10))
        wait_for_rows(query, 40)
        two.restart()
        publish(two, topic, numbered(10, start=120))
        wait_for_rows(query, 50)
    finally:
        query.stop()
    assert stream.bodies() == Counter(numbered(20) + numbered(30, start=100))


def test_a_running_stream_picks_up_a_node_that_nsqlookupd_learns_of(
    spark: SparkSession,
    start_nsqd: Callable[..., Nsqd],
    nsqlookupd: Nsqlookupd,
    topic: str,
    work: Path,
) -> None:
    flags = (
        f"--lookupd-tcp-address={nsqlookupd.tcp_address}",
        "--broadcast-address=127.0.0.1",
    )
    publish(start_nsqd(*flags), topic, numbered(10))
    wait_until(lambda: producers(nsqlookupd, topic))
    stream = Stream(spark, work, lookupd=nsqlookupd.http_address, subscribe=topic)
    query = stream.start()
    try:
        wait_for_rows(query, 10)
        publish(start_nsqd(*flags), topic, numbered(10, start=10))
        wait_for_rows(query, 20)
    finally:
        query.stop()
    assert stream.bodies() == Counter(numbered(20))


def test_a_topic_deleted_and_created_again_stops_the_stream_unless_loss_is_allowed(
    spark: SparkSession, start_nsqd: Callable[..., Nsqd], topic: str, work: Path
) -> None:
    node = start_nsqd()
    publish(node, topic, numbered(10))
    stream = Stream(spark, work, nsqd=addresses(node), subscribe=topic)
    stream.run()
    node.http("POST", f"/topic/delete?topic={topic}")
    with pytest.raises(PySparkException, match=f"topic {topic} on .* was deleted;"):
        stream.run()
    publish(node, topic, numbered(20, start=100))
    with pytest.raises(PySparkException, match="was deleted and created again"):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert stream.bodies() == Counter(numbered(10) + numbered(20, start=100))


def test_an_unknown_topic_is_told_when_a_stream_starts(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, f"{topic}-orders", numbered(1))
    stream = Stream(spark, work, nsqd=addresses(nsqd), subscribe=f"{topic}-order")
    with pytest.raises(PySparkException, match=f"did you mean '{topic}-orders'"):
        stream.run()


def test_another_source_s_checkpoint_is_not_taken(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, numbered(1))
    stream = Stream(spark, work, nsqd=addresses(nsqd), subscribe=topic)
    stream.run()
    offsets = Path(stream.checkpoint) / "offsets" / "0"
    offsets.write_text(offsets.read_text().replace('"log"', '"partition"'))
    (offsets.parent / ".0.crc").unlink(missing_ok=True)
    publish(nsqd, topic, numbered(1, start=1))
    with pytest.raises(PySparkException, match="did not write"):
        stream.run()
