"""Chunks reach a node once it can take them, and one that never can is told."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from pyspark_nsq.errors import NsqError, Unreachable
from pyspark_nsq.options import Connecting, parse_write
from pyspark_nsq.writing.chunks import Chunk
from pyspark_nsq.writing.publish import NodePublisher
from pyspark_nsq.writing.sink import (
    BATCH_ID,
    QUERY_ID,
    BatchWriter,
    StreamWriter,
    check_columns,
    publish_rows,
)
from tests.kit.daemons import Nsqd, wait_until
from tests.kit.spark.streams import addresses
from tests.kit.spark.topics import end_of, repeats

QUICK = Connecting(request_timeout_s=5, retry_s=0.3)
PATIENT = Connecting(request_timeout_s=5, retry_s=120)


def chunk_of(topic: str, *bodies: bytes) -> Chunk:
    sized = b"".join(len(body).to_bytes(4) + body for body in bodies)
    return Chunk(topic, len(bodies), len(bodies).to_bytes(4) + sized)


def test_chunks_are_there_after_a_flush(nsqd: Nsqd, topic: str) -> None:
    publisher = NodePublisher(f"http://{nsqd.http_address}", QUICK)
    for number in range(5):
        publisher.publish(chunk_of(topic, b"a", b"b"), f"token-{topic}-{number}")
    publisher.flush()
    publisher.close()
    assert end_of(nsqd, topic) == 10


def test_a_chunk_waits_for_a_node_that_comes_back(
    start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    node = start_nsqd()
    publisher = NodePublisher(f"http://{node.http_address}", PATIENT)
    publisher.publish(chunk_of(topic, b"before"), "1")
    publisher.flush()
    node.kill()
    restart = threading.Timer(0.2, node.restart)
    restart.start()
    publisher.publish(chunk_of(topic, b"after"), "2")
    publisher.flush()
    restart.join()
    publisher.close()
    wait_until(lambda: end_of(node, topic) == 2)


def test_a_chunk_waits_for_a_node_that_cannot_take_it_now(nsqd: Nsqd, topic: str) -> None:
    with nsqd.connect() as client:
        client.sub(topic, "c")
        assert nsqd.http("POST", f"/topic/settings?topic={topic}", b'{"max_depth":1}')[0] == 200
        client.publish(topic, b"before")
        publisher = NodePublisher(f"http://{nsqd.http_address}", PATIENT)
        publisher.publish(chunk_of(topic, b"after"), "1")
        with ThreadPoolExecutor() as threads:
            flushing = threads.submit(publisher.flush)
            wait_until(lambda: refused(nsqd, topic) > 1)
            client.rdy(1)
            client.fin(client.read_message().id)
            flushing.result()
        assert client.read_message().body == b"after"
    publisher.close()


def refused(nsqd: Nsqd, topic: str) -> int:
    return int(json.loads(nsqd.http("GET", f"/topic/settings?topic={topic}")[1])["refused"])


@pytest.mark.parametrize(
    ("columns", "said", "overwrite", "text"),
    [
        ("body BINARY", {"topic": "t"}, True, "a topic cannot be overwritten: use mode"),
        ("value STRING, n INT", {"topic": "t"}, False, "no column 'body' .* are: value, n"),
        ("body INT", {"topic": "t"}, False, "'body' must be binary or string, not int"),
        ("body STRING", {}, False, "say where to publish: option 'topic', or a column"),
        ("body STRING, topic INT", {}, False, "column 'topic' must be string, not int"),
    ],
)
def test_what_cannot_be_written_is_known_before_it_begins(
    columns: str, said: dict[str, str], overwrite: bool, text: str
) -> None:
    kinds = {"BINARY": BinaryType(), "STRING": StringType(), "INT": IntegerType()}
    pairs = [column.split() for column in columns.split(", ")]
    schema = StructType([StructField(name, kinds[kind]) for name, kind in pairs])
    with pytest.raises(NsqError, match=text):
        check_columns(schema, parse_write({"nsqd": "a:1", **said}), overwrite=overwrite)


@pytest.mark.slow
def test_a_node_killed_again_and_again_has_every_chunk_once(
    start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    """Whether the answer to the chunk on its way was lost, or the chunk itself."""
    node = start_nsqd("--max-bytes-per-file=5000")
    publisher = NodePublisher(f"http://{node.http_address}", PATIENT)
    over = threading.Event()

    def torment() -> None:
        for _ in range(4):
            count = sent
            wait_until(lambda: sent > count + 20)  # noqa: B023
            node.kill()
            node.start(tcp_port=node.tcp_port, http_port=node.http_port)
        over.set()

    sent = 0
    thread = threading.Thread(target=torment)
    thread.start()
    while not over.is_set():
        publisher.publish(chunk_of(topic, b"%d" % sent, b"x" * 100), f"{topic}:{sent}")
        sent += 1
    publisher.flush()
    publisher.close()
    thread.join()
    assert end_of(node, topic) == 2 * sent


def test_rows_are_known_at_their_node_in_whatever_order_nodes_are_named(
    start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    one, two = start_nsqd(), start_nsqd()
    rows = [pa.record_batch({"body": [b"%d" % n for n in range(100)]})]
    for nodes in ((one, two), (two, one), (one, two, one)):
        said = {"nsqd": addresses(*nodes), "topic": topic, "chunkRows": "3"}
        publish_rows(iter(rows), parse_write(said), "write", 0)
    assert sorted((end_of(one, topic), end_of(two, topic))) == [49, 51]
    publish_rows(iter(rows), parse_write(said), "another write", 0)
    assert end_of(one, topic) + end_of(two, topic) == 200


@contextmanager
def task(query: str, batch: int, partition: int) -> Iterator[None]:
    """As if this were a task of a stream."""
    properties = {QUERY_ID: query, BATCH_ID: str(batch)}
    before = TaskContext.get()
    TaskContext._setTaskContext(None)
    TaskContext(partitionId=partition, localProperties=properties)
    try:
        yield
    finally:
        TaskContext._setTaskContext(before)


def test_a_batch_of_a_stream_is_published_once_and_the_same_rows_in_another_again(
    nsqd: Nsqd, topic: str
) -> None:
    options = parse_write({"nsqd": addresses(nsqd), "topic": topic})
    rows = [pa.record_batch({"body": [b"a", b"b"]})]
    tasks = [("q", 0, 0), ("q", 0, 1), ("q", 1, 0), ("other", 0, 0)]
    for known in (0, len(tasks)):  # the second time as after a crash, by a writer made anew
        for number, (query, batch, partition) in enumerate(tasks):
            with task(query, batch, partition):
                done = StreamWriter(options).write(iter(rows))
            assert (done.rows, end_of(nsqd, topic)) == (2, 2 * max(number + 1, known))
    assert repeats(nsqd, topic) == len(tasks)


def test_a_write_without_a_name_is_another_each_time(nsqd: Nsqd, topic: str) -> None:
    options = parse_write({"nsqd": addresses(nsqd), "topic": topic})
    named = parse_write({"nsqd": addresses(nsqd), "topic": topic, "writeId": topic})
    rows = [pa.record_batch({"body": [b"a"]})]
    for made, end in ((options, 1), (options, 2), (named, 3), (named, 3)):
        BatchWriter(made).write(iter(rows))
        assert end_of(nsqd, topic) == end
    again = BatchWriter(options)
    for _ in range(2):  # a task that is tried again
        again.write(iter(rows))
    assert end_of(nsqd, topic) == 4


def test_a_node_that_stays_away_is_told_with_what_was_not_published(topic: str) -> None:
    publisher = NodePublisher("http://127.0.0.1:1", QUICK)
    with pytest.raises(Unreachable, match=f"2 rows could not be published to topic {topic} for"):
        publisher.publish(chunk_of(topic, b"a", b"b"), "1")


def test_a_message_that_is_too_large_is_told(start_nsqd: Callable[..., Nsqd], topic: str) -> None:
    node = start_nsqd("--max-msg-size=100")
    publisher = NodePublisher(f"http://{node.http_address}", QUICK)
    publisher.publish(chunk_of(topic, b"x" * 101), "1")
    with pytest.raises(NsqError, match=r"413 BAD_MESSAGE: a message is larger than its --max-msg"):
        publisher.flush()
    publisher.close()


def test_a_chunk_that_is_too_large_is_told_and_not_tried_for_ever(
    start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    node = start_nsqd("--max-body-size=100000")
    publisher = NodePublisher(f"http://{node.http_address}", PATIENT)
    with pytest.raises(NsqError, match=r"413 BODY_TOO_BIG: .* make chunkBytes smaller"):
        publisher.publish(chunk_of(topic, b"x" * 4_000_000), "1")
        publisher.flush()
    publisher.close()
