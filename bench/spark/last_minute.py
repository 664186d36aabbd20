"""Measures how many bytes of a topic a query reads whose WHERE wants its last minute.

`python -m bench.spark.last_minute` publishes 99 % of 5 million rows, waits until they are more than
a minute old, and publishes the rest. Spark then counts the last minute of that in SQL, without
options for it, and the bytes that nsqd sends it are counted on the way. The target is 2 % of the
topic's bytes. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import socket
import socketserver
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import urlopen

from pyspark.sql import SparkSession

from bench.kit.report import Record
from bench.kit.servers import Command, Server, git_commit, machine
from bench.spark.load import BATCH_ROWS, Documents, TreeClock, publish
from pyspark_nsq.session import local_session

ROWS = 5_000_000
NEW_SHARE = 0.01
SHARE_MAX = 0.02
OLD_S = 65.0
CHUNK_BYTES = 1 << 18
TOPIC = "minute"
NSQD = Command("pumpline", (sys.executable, "-m", "pumpline.tools.nsqd"))
SQL = f"SELECT count(*) FROM {TOPIC} WHERE timestamp >= TIMESTAMP'%s' - INTERVAL 1 MINUTE"


class Counter(socketserver.ThreadingTCPServer):
    """Passes connections on to a port, and counts the bytes that come back."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Link)
        self.port, self.bytes = port, 0
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Link(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        counter = self.server
        assert isinstance(counter, Counter)
        with socket.create_connection(("127.0.0.1", counter.port)) as node:
            threading.Thread(target=self._ask, args=(node,), daemon=True).start()
            while data := node.recv(CHUNK_BYTES):
                counter.bytes += len(data)
                self.request.sendall(data)

    def _ask(self, node: socket.socket) -> None:
        while data := self.request.recv(CHUNK_BYTES):
            node.sendall(data)
        node.shutdown(socket.SHUT_WR)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark.last_minute", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="in the topic")
    parser.add_argument("--data-root", type=Path, help="where the log is made")
    options = parser.parse_args(argv)
    new_rows = int(options.rows * NEW_SHARE) // BATCH_ROWS * BATCH_ROWS
    with (
        tempfile.TemporaryDirectory(prefix="bench-spark-", dir=options.data_root) as directory,
        Server(NSQD, data_root=Path(directory)) as server,
    ):
        publish(server.tcp_port, TOPIC, options.rows - new_rows, Documents())
        spark = local_session("bench")
        spark.sparkContext.setLogLevel("ERROR")
        time.sleep(OLD_S)
        publish(server.tcp_port, TOPIC, new_rows, Documents())
        # The moment, not now(): on a busy machine Spark may take long until it asks.
        sql = SQL % datetime.now(UTC).isoformat()
        record = _measured(spark, server, sql, new_rows)
        spark.stop()
    print(json.dumps({**record, "commit": git_commit(), "machine": machine()}))
    return 0 if record["share"] <= SHARE_MAX else 1


def _measured(spark: SparkSession, server: Server, sql: str, new_rows: int) -> Record:
    counter = Counter(server.http_port)
    address = f"127.0.0.1:{counter.server_address[1]}"
    # localFiles would go past the counter; the ranges that are read are the same.
    spark.sql(
        f"CREATE TEMPORARY VIEW {TOPIC} USING nsq "
        f"OPTIONS (nsqd '{address}', subscribe '{TOPIC}', localFiles 'false')"
    )
    clock = TreeClock()
    began_s = time.perf_counter()
    found = spark.sql(sql).collect()[0][0]
    seconds = time.perf_counter() - began_s
    assert found == new_rows, f"{found} of {new_rows} rows"
    with urlopen(f"http://127.0.0.1:{server.http_port}/log/offsets?topic={TOPIC}") as answer:
        log = json.load(answer)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": log["end"],
        "rows_found": found,
        "bytes": log["bytes"],
        "bytes_read": counter.bytes,
        "share": round(counter.bytes / log["bytes"], 5),
        "seconds": round(seconds, 2),
        "other_cores": round(clock.other_cores(seconds), 2),
    }


if __name__ == "__main__":
    sys.exit(main())
