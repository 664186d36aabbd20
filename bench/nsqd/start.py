"""Measures how long nsqd and nsqlookupd take from their start until they accept connections, and
until the first request is answered.

    python -m bench.nsqd.start                            20 starts of each, by turns; medians
    python -m bench.nsqd.start --peer-tools path/to/bin   also Go's nsqd and nsqlookupd
    python -m bench.nsqd.start --server 'old=old/.venv/bin/nsqd'

Both ports, TCP and HTTP, must accept a connection; the request is GET /ping. Each start has a new
data path. CPU is the user and system time of the process until the answer. JSON lines go to
results/start.jsonl.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.kit.servers import TICKS_PER_S, BenchFailure, Command, git_commit, machine

RESULTS = Path(__file__).parents[1] / "results" / "start.jsonl"
GIVE_UP_S = 20.0
POLL_S = 0.001


def start_once(command: Command) -> tuple[float, float, float]:
    """Seconds until both ports accept, until the answer, and of CPU used by then."""
    with tempfile.TemporaryDirectory() as directory:
        ports = [_free_port(), _free_port()]
        words = [
            *command.words,
            f"--tcp-address=127.0.0.1:{ports[0]}",
            f"--http-address=127.0.0.1:{ports[1]}",
        ]
        if "nsqlookupd" not in " ".join(command.words):
            words.append(f"--data-path={directory}")
        began_s = time.perf_counter()
        process = subprocess.Popen(
            words,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **command.env},
        )
        try:
            for port in ports:
                _await_port(port, process)
            accepts_s = time.perf_counter() - began_s
            _ping(ports[1])
            return accepts_s, time.perf_counter() - began_s, _cpu_s(process.pid)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + GIVE_UP_S
    while time.monotonic() < until_s:
        if process.poll() is not None:
            raise BenchFailure(f"the server ended with status {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except ConnectionRefusedError:
            time.sleep(POLL_S)
    raise BenchFailure(f"no connection within {GIVE_UP_S:.0f} s")


def _ping(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=GIVE_UP_S) as client:
        client.sendall(b"GET /ping HTTP/1.1\r\nHost: bench\r\n\r\n")
        if not client.recv(4096).startswith(b"HTTP/1.1 200"):
            raise BenchFailure("GET /ping was not answered with 200")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _commands(options: argparse.Namespace) -> list[Command]:
    ours = [
        Command("nsqd", (sys.executable, "-m", "pumpline.tools.nsqd")),
        Command("nsqlookupd", (sys.executable, "-m", "pumpline.tools.nsqlookupd")),
    ]
    named = [Command.parse(text) for text in options.server]
    if options.peer_tools is not None:
        for program in ("nsqd", "nsqlookupd"):
            named.append(Command(f"go {program}", (str(options.peer_tools / program),)))
    return ours + named


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.nsqd.start",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--server", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--peer-tools", type=Path, metavar="DIR")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    commands = _commands(options)
    runs: dict[str, list[tuple[float, float, float]]] = {command.name: [] for command in commands}
    for command in commands:
        start_once(command)  # fills the page cache and writes the .pyc files
    for _ in range(options.starts):
        for command in commands:
            runs[command.name].append(start_once(command))
    table = Table("command", "until it accepts", "until it answers", "CPU")
    with options.results.open("ab") as results:
        for name, taken in runs.items():
            medians = [statistics.median(column) for column in zip(*taken, strict=True)]
            table.add_row(name, *(f"{median * 1e3:.0f} ms" for median in medians))
            accepts_s, answers_s, cpu_s = medians
            record = {
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "commit": git_commit(),
                "machine": machine(),
                "server": name,
                "starts": options.starts,
                "accepts_s": accepts_s,
                "answers_s": answers_s,
                "cpu_s": cpu_s,
            }
            results.write(msgspec.json.encode(record) + b"\n")
    Console().print(table)


if __name__ == "__main__":
    main()
