"""Today's way from NSQ to a table: Go nsqd, nsq_to_file, and a Spark job over its text files."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from bench.kit.servers import BenchFailure, Command, Server
from bench.spark.load import BODY_BYTES, Documents, TreeClock, publish

MEM_QUEUE = 1_000_000
MAX_IN_FLIGHT = 2500
WAIT_S_MAX = 120.0
POLL_S = 0.02
TOPIC = "bench"


def todays_way(spark: SparkSession, tools: Path, home: Path, rows: int) -> tuple[float, float]:
    """Seconds from a full topic to a Parquet table with all its rows, and the cores that other work
    took meanwhile."""
    command = Command("go", (str(tools / "nsqd"), f"--mem-queue-size={MEM_QUEUE}"))
    with (
        Server(command, data_root=home) as server,
        tempfile.TemporaryDirectory(dir=home) as directory,
    ):
        server.create(TOPIC, "nsq_to_file")
        publish(server.tcp_port, TOPIC, rows, Documents())
        files = Path(directory) / "files"
        clock = TreeClock()
        began_s = time.perf_counter()
        with _nsq_to_file(tools, server.tcp_port, files):
            _wait_for(files, rows * (BODY_BYTES + 1))
        spark.read.text(str(files)).write.parquet(f"{directory}/table")
        seconds = time.perf_counter() - began_s
        other_cores = clock.other_cores(seconds)
        found = spark.read.parquet(f"{directory}/table").count()
        if found != rows:
            raise BenchFailure(f"{found} of {rows} rows came through nsq_to_file")
    return seconds, other_cores


@contextlib.contextmanager
def _nsq_to_file(tools: Path, port: int, files: Path) -> Iterator[None]:
    words = [
        str(tools / "nsq_to_file"),
        f"--topic={TOPIC}",
        f"--nsqd-tcp-address=127.0.0.1:{port}",
        f"--output-dir={files}",
        f"--max-in-flight={MAX_IN_FLIGHT}",
        "--sync-interval=1s",
    ]
    files.mkdir()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
        process.terminate()  # nsq_to_file then closes and moves its file
        process.wait(WAIT_S_MAX)
    finally:
        process.kill()
        process.wait()


def _wait_for(files: Path, size: int) -> None:
    deadline_s = time.monotonic() + WAIT_S_MAX
    while sum(path.stat().st_size for path in files.rglob("*") if path.is_file()) < size:
        if time.monotonic() > deadline_s:
            raise BenchFailure(f"nsq_to_file has not written all rows in {WAIT_S_MAX:.0f} s")
        time.sleep(POLL_S)
