"""Drivers, Python workers and nodes are killed with SIGKILL: the table has every row once.

The seed of a run is in its output; CRASH_SEED repeats it.
"""

import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from pyspark.sql import SparkSession

from tests.kit.daemons import Nsqd, RawClient, wait_until
from tests.kit.spark.gate import MPUB, RAW, Gate
from tests.kit.spark.streams import Stream, addresses, wait_for_rows
from tests.kit.spark.topics import end_of, numbered, publish, repeats

pytestmark = [
    pytest.mark.slow,
    pytest.mark.crash,
    pytest.mark.e2e,
    pytest.mark.timeout(1200),
]

DRIVER = Path(__file__).parents[1] / "kit" / "spark" / "archive_driver.py"
START_S_MAX = 240.0
END_S_MAX = 400.0
KILL_DELAY_S_MAX = 1.5  # after the first batch: some two micro-batches
PUBLISH_BATCH = 100
REQUEUED_SHARE = 0.1


class Driver:
    """One life of a driver."""

    def __init__(self, *arguments: str, log: IO[bytes]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(DRIVER), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,  # or a line that came with another would be out of select's sight
            start_new_session=True,  # a group of its own: Java is killed with it
        )
        self._output = self.process.stdout
        self._lines: list[str] = []

    def wait_for(self, word: str, timeout_s: float) -> None:
        assert self._output is not None
        deadline_s = time.monotonic() + timeout_s
        while not any(line.startswith(word) for line in self._lines):
            left_s = max(deadline_s - time.monotonic(), 0)
            ready, _, _ = select.select([self._output], [], [], left_s)
            line = self._output.readline() if ready else b""
            assert line, f"no '{word}' from the driver, only {self._lines[-3:]}"
            self._lines.append(line.decode())

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finish(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.wait_for("done", END_S_MAX)
        self.process.wait(END_S_MAX)


class Traffic:
    """Publishes numbered messages to two nodes, with consumers that requeue some of them."""

    def __init__(self, nodes: list[Nsqd], topic: str, count: int) -> None:
        self._nodes, self._topic, self._count = nodes, topic, count
        self._over = threading.Event()
        self.published = 0
        self.redelivered = 0
        self._threads = [
            threading.Thread(target=self._consume, args=(node,), daemon=True) for node in nodes
        ]
        self._publisher = threading.Thread(target=self._publish, daemon=True)

    def start(self) -> None:
        for node in self._nodes:
            with node.connect() as client:  # the channel is there before the first message
                client.sub(self._topic, "c")
        for thread in (*self._threads, self._publisher):
            thread.start()

    def publish_faster(self) -> None:
        self._over.set()

    def join(self) -> None:
        self._publisher.join(END_S_MAX)
        assert self.published == self._count

    def _publish(self) -> None:
        """At a pace that lasts for all the kills; without one once they are over."""
        clients = [node.connect() for node in self._nodes]
        for at in range(0, self._count, PUBLISH_BATCH):
            bodies = numbered(min(PUBLISH_BATCH, self._count - at), start=at)
            clients[at // PUBLISH_BATCH % 2].mpub(self._topic, bodies)
            self.published = at + len(bodies)
            self._over.wait(0.08)
        for client in clients:
            client.close()

    def _consume(self, node: Nsqd) -> None:
        with node.connect() as client:
            client.sub(self._topic, "c")
            client.rdy(50)
            chance = random.Random(node.tcp_port)
            while True:
                try:
                    self._handle(client, chance)
                except (OSError, EOFError):
                    return

    def _handle(self, client: RawClient, chance: random.Random) -> None:
        message = client.read_message(timeout_s=END_S_MAX)
        if message.attempts > 1:
            self.redelivered += 1
        if message.attempts == 1 and chance.random() < REQUEUED_SHARE:
            client.req(message.id)
        else:
            client.fin(message.id)


def kill_drivers(
    spark: SparkSession, nodes: list[Nsqd], topic: str, work: Path, *, kills: int, count: int
) -> None:
    seed = int(os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"CRASH_SEED={seed}")
    chance = random.Random(seed)
    traffic = Traffic(nodes, topic, count)
    traffic.start()
    arguments = (addresses(*nodes), topic, str(work), "5000")
    with (work / "driver.log").open("wb") as log:
        for _ in range(kills):
            driver = Driver(*arguments, log=log)
            driver.wait_for("batch", START_S_MAX)
            time.sleep(chance.uniform(0, KILL_DELAY_S_MAX))
            driver.kill()
        traffic.publish_faster()
        driver = Driver(*arguments, log=log)
        driver.wait_for("up", START_S_MAX)
        traffic.join()
        driver.finish()
    rows = spark.read.parquet(str(work / "table")).select("node", "offset", "body").collect()
    assert Counter(bytes(row.body) for row in rows) == Counter(numbered(count))
    assert len({(row.node, row.offset) for row in rows}) == count
    assert traffic.redelivered > 0


def test_a_driver_killed_three_times_leaves_every_row_once(
    spark: SparkSession, start_nsqd: Callable[..., Nsqd], topic: str, work: Path
) -> None:
    kill_drivers(spark, [start_nsqd(), start_nsqd()], topic, work, kills=3, count=50_000)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_driver_killed_ten_times_leaves_every_row_once(
    spark: SparkSession, start_nsqd: Callable[..., Nsqd], topic: str, work: Path
) -> None:
    kill_drivers(spark, [start_nsqd(), start_nsqd()], topic, work, kills=10, count=400_000)


def test_a_driver_killed_while_it_publishes_leaves_every_message_once(
    spark: SparkSession, start_nsqd: Callable[..., Nsqd], topic: str, work: Path
) -> None:
    """From topic to topic; a batch that is cut short is sent again, and the nodes know it."""
    nodes = [start_nsqd("--max-bytes-per-file=100000"), start_nsqd()]
    count, batch = 24_000, 6000
    to = f"to-{topic}"
    for number, node in enumerate(nodes):
        publish(node, topic, numbered(count // 2, start=number * count // 2))
    arguments = (addresses(*nodes), topic, str(work), str(batch), to)

    def is_between(low: int, high: int) -> bool:
        """In the middle of a batch; one that was missed is not waited for."""
        try:
            done = sum(end_of(node, to) for node in nodes)
        except AssertionError:  # no topic yet
            return False
        return done > low and 0 < done % batch < batch - high

    with (work / "driver.log").open("wb") as log:
        for kill in range(2):
            driver = Driver(*arguments, log=log)
            wait_until(lambda: is_between(kill * batch, 500), START_S_MAX)  # noqa: B023
            driver.kill()
        driver = Driver(*arguments, log=log)
        driver.wait_for("up", START_S_MAX)
        driver.finish()
    options = {"nsqd": addresses(*nodes), "subscribe": to}
    rows = spark.read.format("nsq").options(**options).load().select("body").collect()
    assert Counter(bytes(row.body) for row in rows) == Counter(numbered(count))
    assert sum(repeats(node, to) for node in nodes) > 0, "no kill came in the middle of a batch"


def test_a_node_killed_in_the_middle_of_a_stream_leaves_every_row_once(
    spark: SparkSession, start_nsqd: Callable[..., Nsqd], topic: str, work: Path
) -> None:
    node = start_nsqd()
    messages = [b"%d:" % number + b"x" * 2000 for number in range(20_000)]
    publish(node, topic, messages)
    stream = Stream(
        spark,
        work,
        nsqd=addresses(node),
        subscribe=topic,
        maxOffsetsPerTrigger="4000",
        fetchBytes="65536",
        retryForMs="30000",
    )
    query = stream.start()
    try:
        wait_for_rows(query, 1)
        node.kill()
        restart = threading.Timer(0.5, node.restart)
        restart.start()
        wait_for_rows(query, 20_000)
        restart.join()
    finally:
        query.stop()
    assert stream.bodies() == Counter(messages)


def test_python_workers_killed_in_the_middle_of_a_stream_leave_every_row_once(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    messages = [b"%d:" % number + b"x" * 2000 for number in range(20_000)]
    publish(nsqd, topic, messages)
    stream = Stream(
        spark,
        work,
        nsqd=addresses(nsqd),
        subscribe=topic,
        maxOffsetsPerTrigger="2000",
        fetchBytes="65536",
    )
    query = stream.start()
    try:
        wait_for_rows(query, 1)
        kill_workers(spark)
        wait_until(lambda: not query.isActive or stream_is_over(query), 60)
    finally:
        query.stop()
    stream.run()
    assert stream.bodies() == Counter(messages)


def test_workers_killed_while_a_topic_is_read_leave_every_row_once(
    spark: SparkSession, nsqd: Nsqd, topic: str
) -> None:
    messages = [b"%d:" % number + b"x" * 200 for number in range(20_000)]
    publish(nsqd, topic, messages)
    with Gate(nsqd.http_port, to=RAW, answered=3) as gate:
        options = {"nsqd": gate.address, "subscribe": topic, "fetchBytes": "65536"}
        options["localFiles"] = "false"
        rows = spark.read.format("nsq").options(**options).load().select("body")
        with meanwhile(gate, lambda: kill_workers(spark)):
            found = rows.collect()
    assert Counter(bytes(row.body) for row in found) == Counter(messages)


def test_workers_killed_while_rows_are_published_leave_every_row_once(
    spark: SparkSession, nsqd: Nsqd, topic: str
) -> None:
    rows = spark.range(30_000).selectExpr("CAST(id AS STRING) AS body")
    with Gate(nsqd.http_port, to=MPUB, answered=1) as gate:
        writer = rows.write.format("nsq").mode("append").options(nsqd=gate.address, topic=topic)
        with meanwhile(gate, lambda: kill_workers(spark)):
            writer.save()
    found = spark.read.format("nsq").options(nsqd=addresses(nsqd), subscribe=topic).load()
    assert Counter(bytes(row.body) for row in found.collect()) == Counter(numbered(30_000))
    assert repeats(nsqd, topic)


def test_a_node_killed_while_it_is_read_leaves_every_row_once(
    spark: SparkSession, start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    node = start_nsqd()
    messages = [b"%d:" % number + b"x" * 200 for number in range(20_000)]
    publish(node, topic, messages)

    def restart() -> None:
        node.kill()
        node.restart()

    with Gate(node.http_port, to=RAW, answered=3) as gate:
        options = {"nsqd": gate.address, "subscribe": topic, "fetchBytes": "65536"}
        options["localFiles"] = "false"
        rows = spark.read.format("nsq").options(**options).load().select("body")
        with meanwhile(gate, restart):
            found = rows.collect()
    assert Counter(bytes(row.body) for row in found) == Counter(messages)


@contextmanager
def meanwhile(gate: Gate, happens: Callable[[], None]) -> Iterator[None]:
    """Lets something happen when the gate keeps an answer back, and opens it then."""

    def wait() -> None:
        wait_until(gate.withheld.is_set, START_S_MAX)
        happens()
        gate.open()

    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(wait)
        yield
        waiting.result()


def kill_workers(spark: SparkSession) -> None:
    workers = python_workers(spark)
    assert workers
    for worker in workers:
        os.kill(worker, signal.SIGKILL)


def stream_is_over(query: object) -> bool:
    progress = getattr(query, "recentProgress", [])
    return sum(batch["numInputRows"] for batch in progress) >= 20_000


def python_workers(spark: SparkSession) -> list[int]:
    """What runs tasks and planning for the session: the children of the daemons that its Java has
    started. A daemon itself has no rows."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    java = gateway.proc.pid
    children: dict[int, list[int]] = {}
    for pid, parent in processes():
        children.setdefault(parent, []).append(pid)
    return [worker for daemon in children.get(java, []) for worker in children.get(daemon, [])]


def processes() -> Iterator[tuple[int, int]]:
    """Every process, with its parent."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        yield int(path.parent.name), int(fields[1])
