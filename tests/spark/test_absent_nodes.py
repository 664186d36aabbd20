"""A stream reader and nodes that are away or late, asked as Spark asks, with no Spark."""

import json
import socket
import time
from collections.abc import Callable

import pytest

from pyspark_nsq.nodes.bounds import others_at
from pyspark_nsq.nodes.nodes import LogState, Survey
from pyspark_nsq.options import parse_read, time_text
from pyspark_nsq.progress import away, lag, least_lag
from pyspark_nsq.reading import stream
from tests.kit.daemons import Nsqd
from tests.kit.spark.stream_reader import NewReader, kept, latest, rows
from tests.kit.spark.topics import name_of, numbered, publish


def test_a_node_that_was_never_read_makes_the_lag_unknown(
    start_nsqd: Callable[..., Nsqd], nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    other = start_nsqd()
    for node in (nsqd, other):
        publish(node, topic, numbered(5))
    other.kill()
    address = other.http_address
    reader = new_reader(nsqd, other, subscribe=topic, withoutNode=address)
    end = latest(reader, kept(reader.initialOffset()))
    progress = {"sources": [{"endOffset": end, "latestOffset": reader.reportLatestOffset()}]}
    assert (lag(progress), least_lag(progress), away(progress)) == (None, 0, [address])


def test_the_lag_of_a_batch_that_is_repeated_after_a_restart_is_known(
    nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    publish(nsqd, topic, numbered(5))
    reader = new_reader(nsqd, subscribe=topic)
    at = latest(reader, kept(reader.initialOffset()))
    publish(nsqd, topic, numbered(3))
    again = new_reader(nsqd, subscribe=topic)
    again.partitions(at, at)  # a batch without rows asks no node
    progress = {"sources": [{"endOffset": at, "latestOffset": again.reportLatestOffset()}]}
    assert lag(progress) == 3


def test_without_newest_offsets_the_lag_is_not_known() -> None:
    place = {"t": {"n": {"log": "l", "offset": 5}}}
    assert lag({"sources": [{"endOffset": place, "latestOffset": None}]}) is None
    assert lag({"sources": [{"endOffset": None, "latestOffset": None}]}) is None


# -- nodes that are away when a stream begins -----------------------------------------------------


@pytest.mark.parametrize("starts", ["latest", "later", "earliest"])
def test_a_node_that_was_away_at_the_beginning_is_read_from_that_time(
    start_nsqd: Callable[..., Nsqd], nsqd: Nsqd, topic: str, new_reader: NewReader, starts: str
) -> None:
    other = start_nsqd()
    for node in (nsqd, other):
        publish(node, topic, numbered(5))
    address, name = other.http_address, name_of(other)
    other.kill()
    own = {topic: {name_of(nsqd): 5}}
    said = {
        # As the pipelines say `latest`, without the second for clocks that are late.
        "latest": json.dumps({**own, "*": {"*": time_text(time.time_ns())}}),
        "later": json.dumps({**own, "*": {"*": "2126-01-01T00:00:00Z"}}),
        "earliest": "earliest",
    }[starts]
    reader = new_reader(nsqd, other, subscribe=topic, withoutNode=address, startingOffsets=said)
    start = kept(reader.initialOffset())
    at = latest(reader, start)
    other.restart()
    found = latest(reader, at)
    assert found[topic][name]["offset"] == (0 if starts == "earliest" else 5)
    publish(other, topic, numbered(3, start=5))
    end = latest(reader, found)
    read = rows(reader, found, end)
    assert read == (numbered(8) if starts == "earliest" else numbered(3, start=5))


def test_latest_is_the_time_at_which_the_stream_begins() -> None:
    options = parse_read({"nsqd": "a:1", "subscribe": "t"}, streaming=True)
    assert others_at(options.starting, Survey(), 10**18) == 10**18 - 10**9
    state = LogState(
        topic="t", node="n", address="", log="", first=0, end=1, bytes=1, now_ns=10**18 - 5
    )
    survey = Survey(logs={state.key: state})
    assert others_at(options.starting, survey, 10**18) == 10**18 - 5 - 10**9


# -- nodes that are late --------------------------------------------------------------------------


def test_a_node_that_does_not_answer_delays_no_batch_again(
    nsqd: Nsqd, topic: str, new_reader: NewReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the connection, and says nothing until the request times out."""
    publish(nsqd, topic, numbered(1))
    reader = new_reader(nsqd, subscribe=topic)
    start = latest(reader, kept(reader.initialOffset()))
    monkeypatch.setattr(stream, "PATIENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as late:
        port = late.getsockname()[1]
        both = f"{nsqd.http_address},127.0.0.1:{port}"
        reader = new_reader(nsqd, subscribe=topic, nsqd=both, requestTimeoutMs="3600000")
        for number in range(1, 6):
            publish(nsqd, topic, numbered(1, start=number))
            end = latest(reader, start)
            assert rows(reader, start, end) == numbered(1, start=number)
            start = end
        late.setblocking(False)
        late.accept()[0].close()
        with pytest.raises(BlockingIOError):  # it was asked once
            late.accept()
