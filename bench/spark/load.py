"""Load for bench.spark: rows to publish, publish-to-table times, and CPU of other processes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
from pyspark.sql import SparkSession

from bench.kit.servers import TICKS_PER_S, Server, machine_busy_s
from bench.kit.wire import connect, read_response

BODY_BYTES = 200
BATCH_ROWS = 1000
IN_FLIGHT = 4
REPLY_S_MAX = 30.0
LATENCY_MESSAGES = 40
LATENCY_WARM_UP = 5
LATENCY_S_MAX = 30.0
POLL_S = 0.002

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


class Documents:
    """JSON of 200 bytes, no two alike, so that Parquet gains nothing from repeats."""

    def __init__(self) -> None:
        fields = (
            '{"order":"%s","customer":"%s","session":"%s","total":1234,"currency":"EUR","note":"'
        )
        head = (fields % ("#" * 32, "#" * 32, "#" * 32)).encode()
        body = head + b"#" * (BODY_BYTES - len(head) - 2) + b'"}'
        sized = np.frombuffer(BODY_BYTES.to_bytes(4) + body, np.uint8)
        self._rows = np.tile(sized, (BATCH_ROWS, 1))
        self._random = np.flatnonzero(sized == ord("#"))
        self._generator = np.random.default_rng(7)

    def mpub_body(self) -> bytes:
        """The body of an MPUB with a batch of new documents."""
        shape = (BATCH_ROWS, len(self._random))
        self._rows[:, self._random] = _HEX[self._generator.integers(0, 16, shape, np.uint8)]
        return BATCH_ROWS.to_bytes(4) + self._rows.tobytes()


def publish(port: int, topic: str, rows: int, documents: Documents) -> None:
    """Publishes by MPUB, a few in flight; a measured topic gets bodies that were made before."""
    command = f"MPUB {topic}\n".encode()
    bodies = [documents.mpub_body() for _ in range(16)] if rows > BATCH_ROWS else []
    waiting = 0
    with connect(port) as sock:
        sock.settimeout(REPLY_S_MAX)  # connect() wakes a read after 0.2 s, a busy disk takes longer
        for number in range(rows // BATCH_ROWS):
            body = bodies[number % 16] if topic != "bench" else documents.mpub_body()
            sock.sendall(command + len(body).to_bytes(4) + body)
            waiting += 1
            if waiting == IN_FLIGHT:
                read_response(sock)
                waiting -= 1
        while waiting:
            read_response(sock)
            waiting -= 1


def latencies_s(spark: SparkSession, server: Server, home: Path) -> list[float]:
    """Seconds from just before a publish to the commit that makes its row part of a Parquet table.
    Publishes come at random moments, and nothing else is running."""
    url = f"http://127.0.0.1:{server.http_port}/topic/create?topic=latency"
    with urlopen(Request(url, method="POST")) as answer:
        answer.read()
    reader = spark.readStream.format("nsq").options(
        nsqd=f"127.0.0.1:{server.http_port}", subscribe="latency", startingOffsets="earliest"
    )
    writer = reader.load().writeStream.format("parquet")
    query = writer.option("checkpointLocation", str(home / "latency-checkpoint")).start(
        str(home / "latency")
    )
    found = []
    chance = random.Random(7)
    try:
        with connect(server.tcp_port) as sock:
            for _ in range(LATENCY_WARM_UP + LATENCY_MESSAGES):
                time.sleep(chance.uniform(0.1, 0.6))
                before = _commits(home / "latency")
                began_s = time.perf_counter()
                sock.sendall(b"PUB latency\n" + (3).to_bytes(4) + b"row")
                read_response(sock)
                while _commits(home / "latency") == before:
                    if time.perf_counter() - began_s > LATENCY_S_MAX:
                        raise TimeoutError(f"no row after {LATENCY_S_MAX} s")
                    time.sleep(POLL_S)
                found.append(time.perf_counter() - began_s)
    finally:
        query.stop()
    return found[LATENCY_WARM_UP:]


def _commits(table: Path) -> int:
    """How many batches Spark's file sink has committed. Each is a file `<batch>` or, every tenth,
    `<batch>.compact`, which appears whole."""
    metadata = table / "_spark_metadata"
    if not metadata.exists():
        return 0
    numbers = (path.name.removesuffix(".compact") for path in metadata.iterdir())
    return max((int(number) + 1 for number in numbers if number.isdigit()), default=0)


class TreeClock:
    """Measures the CPU time of all processes but this one and its descendants."""

    def __init__(self) -> None:
        self._busy_s = machine_busy_s()
        self._ours_s = _tree_cpu_s()

    def other_cores(self, seconds: float) -> float:
        ours_s = _tree_cpu_s() - self._ours_s
        return max(machine_busy_s() - self._busy_s - ours_s, 0.0) / seconds


def _tree_cpu_s() -> float:
    """CPU time of this process, its descendants, and their children that have ended."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for pid, parent, used in _processes():
        parents[pid] = parent
        ticks[pid] = used
    me = threading.main_thread().native_id
    assert me is not None
    total = 0
    for pid, used in ticks.items():
        at = pid
        while at not in (me, 0) and at in parents:
            at = parents[at]
        if at == me:
            total += used
    return total / TICKS_PER_S


def _processes() -> Iterator[tuple[int, int, int]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        yield int(path.parent.name), int(fields[1]), sum(map(int, fields[11:15]))
