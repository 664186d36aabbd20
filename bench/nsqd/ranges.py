"""Measures raw range reads (`GET /log/raw`) from the page cache: bytes a second and server CPU.

A fresh server gets a topic of 200-byte messages. Then readers, each in its own process, fetch it
again and again, in ranges of messages, and throw the bytes away. Counted are the bytes that arrived
and the server's CPU time from /proc. The target is 500 MB/s at under 20 % of a core. A faster
reader makes the server busier, so the share of a core is also given for 500 MB/s.

    python -m bench.nsqd.ranges              3 rounds, medians; JSON lines to results/ranges.jsonl
    python -m bench.nsqd.ranges --quick      a smoke run, its results kept apart
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.kit import wire
from bench.kit.servers import (
    BenchFailure,
    Command,
    Server,
    cpu_s,
    git_commit,
    machine,
    machine_busy_s,
)

TOPIC = "ranges"
MESSAGES_PER_MPUB = 1000
TARGET_MB_PER_S = 500
TARGET_CORES = 0.2
RESULTS = Path(__file__).parents[1] / "results"
_RECEIVE_BYTES = 1 << 20
_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True)
class Size:
    messages: int = 1_500_000  # 366 MB of log
    messages_per_range: int = 500_000
    seconds: float = 4.0
    rounds: int = 3


QUICK = Size(messages=100_000, messages_per_range=50_000, seconds=0.5, rounds=1)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.nsqd.ranges", description="Measure raw range reads."
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    parser.add_argument("--readers", type=int, default=1, help="connections at once")
    options = parser.parse_args(argv)
    size = QUICK if options.quick else Size()
    path = RESULTS / ("quick.jsonl" if options.quick else "ranges.jsonl")
    records = []
    for number in range(1, size.rounds + 1):
        record = measure(size, readers=options.readers, number=number)
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        records.append(record)
        print(_line(f"round {number}", record))
    middle = {
        key: statistics.median(record[key] for record in records)
        for key in ("mb_per_s", "server_cores", "server_cores_at_500")
    }
    print(_line("median", middle))
    reached = middle["mb_per_s"] >= TARGET_MB_PER_S and middle["server_cores_at_500"] < TARGET_CORES
    print("target reached" if reached else "target missed")
    return 0 if reached or options.quick else 1


def measure(size: Size, *, readers: int, number: int) -> dict[str, Any]:
    command = Command("pumpline", (sys.executable, "-m", "pumpline.tools.nsqd"))
    with Server(command) as server:
        fill(server, size.messages)
        read_bytes = multiprocessing.Array("Q", readers, lock=False)
        loads = [
            multiprocessing.Process(
                target=read, args=(server.http_port, size, read_bytes, index), daemon=True
            )
            for index in range(readers)
        ]
        for load in loads:
            load.start()
        try:
            _until_flowing(read_bytes, loads)
            start = _figures(server, read_bytes, loads)
            time.sleep(size.seconds)
            end = _figures(server, read_bytes, loads)
        finally:
            for load in loads:
                load.kill()
                load.join()
        server.check_alive()
    elapsed_s, moved, server_s, client_s, busy_s = (b - a for a, b in zip(start, end, strict=True))
    mb_per_s = moved / 1e6 / elapsed_s
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git_commit(),
        "workload": "ranges",
        "round": number,
        "readers": readers,
        "mb_per_s": round(mb_per_s, 1),
        "server_cores": round(server_s / elapsed_s, 4),
        "server_cores_at_500": round(server_s / elapsed_s * TARGET_MB_PER_S / mb_per_s, 4),
        "server_s_per_gb": round(server_s / (moved / 1e9), 4),
        "client_cores": round(client_s / elapsed_s, 4),
        "other_cores": round((busy_s - server_s - client_s) / elapsed_s, 4),
        "seconds": size.seconds,
        "machine": machine(),
    }


def fill(server: Server, messages: int) -> None:
    sock = wire.connect(server.tcp_port)
    command = wire.mpub(TOPIC, [bytes(wire.BODY_BYTES)] * MESSAGES_PER_MPUB)
    for _ in range(messages // MESSAGES_PER_MPUB):
        sock.sendall(command)
        if wire.read_response(sock) != b"OK":
            raise BenchFailure("MPUB was refused")
    sock.close()


def read(port: int, size: Size, read_bytes: Any, index: int) -> None:
    """Runs in a process: fetches ranges until it is killed."""
    sock = socket.create_connection(("127.0.0.1", port))
    buffer = memoryview(bytearray(_RECEIVE_BYTES))
    at = (index * size.messages_per_range) % size.messages
    while True:
        to = min(at + size.messages_per_range, size.messages)
        request = f"GET /log/raw?topic={TOPIC}&from={at}&to={to} HTTP/1.1\r\nHost: bench\r\n\r\n"
        sock.sendall(request.encode())
        head = b""
        while _HEAD_END not in head:
            head += sock.recv(1)
        if not head.startswith(b"HTTP/1.1 200"):
            raise BenchFailure(repr(head))
        fields = dict(line.split(b": ", 1) for line in head.strip().split(b"\r\n")[1:])
        left = int(fields[b"Content-Length"])
        while left:
            got = sock.recv_into(buffer, min(left, _RECEIVE_BYTES))
            if not got:
                raise BenchFailure("the server hung up")
            left -= got
            read_bytes[index] += got
        at = int(fields[b"X-Pumpline-To"]) % size.messages


def _until_flowing(read_bytes: Any, loads: list[multiprocessing.Process]) -> None:
    deadline_s = time.monotonic() + 10
    while not all(read_bytes):
        if time.monotonic() > deadline_s or not all(load.is_alive() for load in loads):
            raise BenchFailure("no bytes came")
        time.sleep(0.01)
    time.sleep(0.3)  # the first ranges fill TCP windows and caches


def _figures(
    server: Server, read_bytes: Any, loads: list[multiprocessing.Process]
) -> tuple[float, float, float, float, float]:
    """Time, bytes, and CPU time of the server, of the readers and of the machine."""
    clients_s = sum(cpu_s(load.pid or 0) for load in loads)
    return time.monotonic(), sum(read_bytes), server.cpu_s(), clients_s, machine_busy_s()


def _line(name: str, figures: dict[str, Any]) -> str:
    return (
        f"{name:8} {figures['mb_per_s']:8.0f} MB/s, server {100 * figures['server_cores']:.1f} % "
        f"of a core, {100 * figures['server_cores_at_500']:.1f} % at {TARGET_MB_PER_S} MB/s"
    )


if __name__ == "__main__":
    sys.exit(main())
