"""What a task reads of a real node over HTTP, without Spark: ranges, lost connections and data."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_nsq.errors import DataLoss, NsqError, Unreachable
from pyspark_nsq.options import ReadOptions, parse_read
from pyspark_nsq.reading.plan import LogRange
from pyspark_nsq.reading.task import read_ranges
from tests.kit.daemons import Nsqd, wait_until
from tests.kit.spark.topics import name_of, numbered, publish
from tests.kit.wire.stalled import StalledClient
from tests.spark.conftest import Retiring

SCHEMA = pa.schema([("offset", pa.int64()), ("body", pa.binary())])


def options(node: Nsqd, **changes: str) -> ReadOptions:
    said = {"nsqd": node.http_address, "subscribe": "t", "retryForMs": "400", "fetchBytes": "65536"}
    return parse_read({**said, "localFiles": "false", **changes}, streaming=False)


def whole(node: Nsqd, topic: str) -> LogRange:
    state = json.loads(node.http("GET", f"/log/offsets?topic={topic}")[1])
    return LogRange(
        topic=topic,
        node=name_of(node),
        address=f"http://{node.http_address}",
        log=state["log"],
        start=0,
        end=state["end"],
    )


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_many_answers_make_one_range(nsqd: Nsqd, topic: str) -> None:
    messages = [b"%d" % n + b"x" * 500 for n in range(2000)]
    publish(nsqd, topic, messages, batch=100)
    wanted = whole(nsqd, topic)
    batches = list(read_ranges((wanted,), options(nsqd), SCHEMA))
    assert len(batches) > 10
    table = pa.Table.from_batches(batches)
    assert table["offset"].to_pylist() == list(range(2000))
    assert table["body"].to_pylist() == messages


def test_ranges_are_read_one_after_another_and_trimmed(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, numbered(300), batch=100)
    wanted = whole(nsqd, topic)
    parts = (replace(wanted, start=95, end=105), replace(wanted, start=250, end=251))
    assert offsets(read_ranges(parts, options(nsqd), SCHEMA)) == [*range(95, 105), 250]


def test_a_node_killed_while_it_is_read_is_waited_for(
    start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    node = start_nsqd()
    publish(node, topic, [b"x" * 500] * 4000, batch=100)
    batches = read_ranges((whole(node, topic),), options(node, retryForMs="20000"), SCHEMA)
    seen = offsets(iter([next(batches)]))
    node.kill()
    restart = threading.Timer(0.2, node.restart)
    restart.start()
    seen += offsets(batches)
    restart.join()
    assert seen == list(range(4000))


def test_a_node_that_stays_away_is_told_with_the_offset(
    start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    node = start_nsqd()
    publish(node, topic, [b"x" * 500] * 4000, batch=100)
    batches = read_ranges((whole(node, topic),), options(node), SCHEMA)
    next(batches)
    node.kill()
    with pytest.raises(Unreachable, match=rf"topic {topic} on .*: offset \d+ could not be read"):
        list(batches)


class CutOnce:
    """A way to a node that is cut after so many bytes of the first answer, and works from then
    on."""

    def __init__(self, port: int, after_bytes: int) -> None:
        self._target = "127.0.0.1", port
        self._left_bytes = after_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            self.connections += 1
            node = socket.create_connection(self._target)
            for source, sink in ((client, node), (node, client)):
                threading.Thread(target=self._relay, args=(source, sink), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with source, sink, suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
                if source.getpeername() == self._target and self.connections == 1:
                    self._left_bytes -= len(data)
                    if self._left_bytes < 0:
                        sink.shutdown(socket.SHUT_RDWR)
                        source.shutdown(socket.SHUT_RDWR)


def test_a_reader_that_is_cut_off_in_an_answer_resumes_by_offset(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, [b"x" * 500] * 4000, batch=100)
    way = CutOnce(nsqd.http_port, after_bytes=500_000)
    wanted = replace(whole(nsqd, topic), address=f"http://127.0.0.1:{way.port}")
    allowed = options(nsqd, retryForMs="20000", fetchBytes="400000")
    assert offsets(read_ranges((wanted,), allowed, SCHEMA)) == list(range(4000))
    assert way.connections == 2


def test_readers_that_do_not_read_keep_no_task_from_reading(nsqd: Nsqd, topic: str) -> None:
    """A task that computes does not read, either."""
    publish(nsqd, topic, [b"x" * 5000] * 2000, batch=100)
    wanted = whole(nsqd, topic)
    paused = read_ranges((wanted,), options(nsqd, fetchBytes="8000000"), SCHEMA)
    seen = offsets(iter([next(paused)]))
    with ExitStack() as stack:
        target = f"/log/raw?topic={topic}&from=0&to=2000"
        for _ in range(70):
            client = stack.enter_context(StalledClient(nsqd.http_port, target))
            client.has_answer()
        assert offsets(read_ranges((wanted,), options(nsqd), SCHEMA)) == list(range(2000))
        assert seen + offsets(paused) == list(range(2000))


@pytest.mark.slow
def test_retired_rows_are_loss_or_left_out(retiring: Retiring) -> None:
    node, first = retiring.nsqd, retiring.first()
    wanted = whole(node, retiring.topic)
    with pytest.raises(DataLoss, match=f"offset 0 is retired, the oldest is {first};"):
        list(read_ranges((wanted,), options(node), SCHEMA))
    allowed = options(node, failOnDataLoss="false")
    assert offsets(read_ranges((wanted,), allowed, SCHEMA)) == list(range(first, retiring.count))


def test_rows_that_are_damaged_on_the_node_s_disk_are_loss_or_left_out(
    start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    node = start_nsqd()
    for first in (0, 10, 20):
        publish(node, topic, [b"row %d" % number for number in range(first, first + 10)])
        node.http("GET", f"/log/peek?topic={topic}")  # flushes: each is a batch of the segment
    wanted = whole(node, topic)
    wait_until(lambda: not any(path.stat().st_size for path in node.data_path.glob("wal-*")))
    node.kill()
    (segment,) = (node.data_path / "topics" / topic).glob("*.log")
    segment.write_bytes(segment.read_bytes().replace(b"row 15", b"row XV"))
    node.restart()
    with pytest.raises(DataLoss, match=f"topic {topic} on .*: 10 of the offsets 0 to 29 are gone;"):
        list(read_ranges((wanted,), options(node), SCHEMA))
    allowed = options(node, failOnDataLoss="false")
    assert offsets(read_ranges((wanted,), allowed, SCHEMA)) == [*range(10), *range(20, 30)]


def test_a_log_that_was_replaced_is_loss_or_left_out(
    start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    node = start_nsqd()
    publish(node, topic, numbered(10))
    wanted = whole(node, topic)
    node.http("POST", f"/topic/delete?topic={topic}")
    with pytest.raises(DataLoss, match="was deleted while it was being read"):
        list(read_ranges((wanted,), options(node), SCHEMA))
    publish(node, topic, numbered(10))
    with pytest.raises(DataLoss, match="was deleted and created again"):
        list(read_ranges((wanted,), options(node), SCHEMA))
    allowed = options(node, failOnDataLoss="false")
    assert list(read_ranges((wanted,), allowed, SCHEMA)) == []


def test_an_end_that_is_not_there_is_loss(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, numbered(10))
    wanted = replace(whole(nsqd, topic), end=15)
    with pytest.raises(DataLoss, match="nothing is there from offset 10 on"):
        list(read_ranges((wanted,), options(nsqd), SCHEMA))


def test_a_refusal_is_told_with_the_node_s_own_word(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, numbered(1))
    wanted = replace(whole(nsqd, topic), topic="no good")
    with pytest.raises(NsqError, match="answers 400 INVALID_TOPIC"):
        list(read_ranges((wanted,), options(nsqd), SCHEMA))
