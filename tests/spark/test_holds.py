"""A stream's hold shows as a channel on its nodes, follows the stream, and outlives its end."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.spark.streams import Stream, addresses, wait_for_rows
from tests.kit.spark.topics import first_of, numbered, publish
from tests.spark.conftest import Retiring

pytestmark = pytest.mark.slow


def hold_of(node: Nsqd, topic: str, name: str) -> dict[str, Any]:
    status, body = node.http("GET", f"/hold/list?topic={topic}")
    assert status == 200, body
    return {hold["hold"]: hold for hold in json.loads(body)["holds"]}.get(name, {})


def test_a_hold_follows_the_stream_and_shows_its_depth(
    spark: SparkSession, start_nsqd: Callable[..., Nsqd], topic: str, work: Path
) -> None:
    nodes = [start_nsqd(), start_nsqd()]
    for node in nodes:
        publish(node, topic, numbered(10))
    stream = Stream(
        spark, work, nsqd=addresses(*nodes), subscribe=topic, hold="archive", holdBytesMax="1000000"
    )
    query = stream.start()
    try:
        wait_for_rows(query, 20)
        assert hold_of(nodes[0], topic, "archive")["bytes_max"] == 1_000_000
        assert hold_of(nodes[1], topic, "archive")["description"] == f"Spark on {gethostname()}"
        for node in nodes:
            publish(node, topic, numbered(5))
        wait_for_rows(query, 30)
        # Spark commits a batch when it plans the next, so the newest may still be held.
        for node in nodes:
            wait_until(lambda node=node: hold_of(node, topic, "archive")["offset"] >= 10)
    finally:
        query.stop()
    nodes[0].kill()
    nodes[0].restart()
    publish(nodes[0], topic, numbered(100))
    assert nodes[0].channel_stats(topic, "archive")["depth"] >= 100
    stream.run()
    assert sum(stream.bodies().values()) == 130


@pytest.mark.e2e
def test_a_hold_keeps_for_a_stopped_stream_what_retention_would_have_taken(
    spark: SparkSession, retiring: Retiring, work: Path
) -> None:
    node = retiring.nsqd
    streams = {}
    for topic, hold in (("held", {"hold": "archive"}), ("not-held", {})):
        publish(node, topic, numbered(10))
        streams[topic] = Stream(
            spark, work / topic, nsqd=addresses(node), subscribe=topic, maxOffsetsPerTrigger="5"
        )
        streams[topic].options |= hold
        streams[topic].run()
        retiring.pass_by(topic, 400)
    retiring.nsqd.drop_history("not-held", 11)
    assert first_of(node, "held") == 0
    streams["held"].run(maxOffsetsPerTrigger="1000")
    assert streams["held"].bodies() == Counter([*numbered(10), *[b"x" * 1000] * 400])
    with pytest.raises(PySparkException, match=r"not-held on .*: offset 10 is retired, the oldest"):
        streams["not-held"].run()
    streams["not-held"].run(maxOffsetsPerTrigger="1000", failOnDataLoss="false")
    there = 410 - first_of(node, "not-held")
    assert streams["not-held"].bodies() == Counter([*numbered(10), *[b"x" * 1000] * there])


def test_a_hold_cannot_have_the_name_of_a_channel(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, numbered(1))
    nsqd.http("POST", f"/channel/create?topic={topic}&channel=archive")
    stream = Stream(spark, work, nsqd=addresses(nsqd), subscribe=topic, hold="archive")
    with pytest.raises(PySparkException, match=f"hold 'archive' on topic {topic} on .* channel of"):
        stream.run()
