"""Compares client libraries on the same broker: ours, pynsq, ansq, gnsq, and NSQ's own in Go.

Every run gets a fresh nsqd of the same kind. Clients take turns within a workload and a round;
figures are medians over rounds. Knows the order of runs and the table; drivers know clients.

| workload    | what is counted                                                               |
|-------------|-------------------------------------------------------------------------------|
| pub         | single messages, 100 in flight, each confirmed                                |
| pub_topics  | the same, each to the next of 100 topics                                      |
| pub_one     | single messages, one in flight: the round trip (no target)                    |
| mpub        | messages in MPUBs of 200, 4 in flight (no target)                             |
| sub         | messages consumed and finished from a backlog, 2500 in flight                 |
| sub_iterate | the same by `async for` (ours, and ansq, which has nothing else)              |
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.clients.drivers.task import CHANNEL, topics_of
from bench.clients.goclients import GoClients
from bench.kit.servers import BenchFailure, Command, Server, git_commit, machine, machine_busy_s
from bench.nsqd.measuring import Size
from bench.nsqd.workloads import preload

RESULTS = Path(__file__).parents[1] / "results" / "client.jsonl"
WORKLOADS = ("pub", "pub_topics", "pub_one", "mpub", "sub", "sub_iterate")
BACKLOG_WORKLOADS = ("sub", "sub_iterate")
TARGET_WORKLOADS = ("pub", "pub_topics", "sub")
TARGET = 3.0  # times the best of the others in Python
BACKLOG = 900_000
MESSAGES_MAX = {
    workload: BACKLOG * 9 // 10 if workload in BACKLOG_WORKLOADS else 10**9
    for workload in WORKLOADS
}
EXIT_GRACE_S = 30.0
OURS = ("pumpline", "pumpline-uvloop")
OTHERS = ("pynsq", "ansq", "gnsq")
GO = "go"
GO_WORKLOADS = ("mpub", "sub")
ITERATING = (*OURS, "ansq")  # clients with `async for`


@dataclass(frozen=True)
class Result:
    workload: str
    client: str
    round: int
    rate: float
    cpu_us: float | None  # the client's CPU time for a message


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    console = Console()
    results: list[Result] = []
    failed = False
    stamp = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "commit": git_commit()}
    for workload, number, clients in plan(options):
        for client in clients:
            try:
                result, other_cores = measure(workload, client, number, options)
            except BenchFailure as failure:
                console.print(f"[red]{workload} {client}: {failure}")
                failed = True
                continue
            results.append(result)
            disturbed = "  (disturbed)" if other_cores > 0.2 else ""
            console.print(f"{workload:11} {client:16} {result.rate:12,.0f} msg/s{disturbed}")
            record = {**stamp, **vars(result), "other_cores": round(other_cores, 2), **machine()}
            append(options.results, record)
    console.print(table(results))
    return int(failed)


def plan(options: argparse.Namespace) -> Iterator[tuple[str, int, list[str]]]:
    for workload in options.workload or WORKLOADS:
        for number in range(options.rounds):
            clients = list(options.client or (*OURS, *OTHERS))
            if workload == "sub_iterate":
                clients = [client for client in clients if client in ITERATING]
            if options.go_clients and workload in GO_WORKLOADS:
                clients.append(GO)
            # Each round begins with another client, so that none always runs first.
            turn = number % max(1, len(clients))
            yield workload, number, clients[turn:] + clients[:turn]


def measure(
    workload: str, client: str, number: int, options: argparse.Namespace
) -> tuple[Result, float]:
    words = (options.server or f"{sys.executable} -m pumpline.tools.nsqd").split()
    with Server(Command("nsqd", tuple(words))) as server:
        if client == GO:
            return measure_go(workload, number, server, options)
        topic = f"{workload}_{client}"
        topics = topics_of(workload, topic)
        for each in topics:
            server.create(each, CHANNEL)
        if workload in BACKLOG_WORKLOADS:
            preload(server, topic, BACKLOG)
        busy_s, broker_s = machine_busy_s(), server.cpu_s()
        done = run_driver(workload, client, topic, server, options.seconds)
        broker_s, busy_s = server.cpu_s() - broker_s, machine_busy_s() - busy_s
        stored = sum(map(server.stored, topics))
        if done["messages"] > stored:
            raise BenchFailure(f"counted {done['messages']:,}, server took in {stored:,}")
    seconds, messages = done["seconds"], max(done["messages"], 1)
    other = max(0.0, busy_s - broker_s - done["total_cpu_s"]) / seconds
    cpu_us = done["cpu_s"] / messages * 1e6
    return Result(workload, client, number, done["messages"] / seconds, cpu_us), other


def run_driver(
    workload: str, client: str, topic: str, server: Server, seconds: float
) -> dict[str, Any]:
    library = client.removesuffix("-uvloop")
    env = dict(os.environ)
    if client.endswith("-uvloop"):
        env["PUMPLINE_BENCH_UVLOOP"] = "1"
    address = f"127.0.0.1:{server.tcp_port}"
    words = [sys.executable, "-m", f"bench.clients.drivers.{library}_driver"]
    words += [workload, address, topic, str(seconds), str(MESSAGES_MAX[workload])]
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=False,
            env=env,
            timeout=seconds + EXIT_GRACE_S,
        )
    except subprocess.TimeoutExpired:
        raise BenchFailure("the driver did not end") from None
    server.check_alive()
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise BenchFailure(f"the driver ended with {done.returncode}: {done.stderr[-300:]}")
    outcome: dict[str, Any] = json.loads(lines[-1])
    return outcome


def measure_go(
    workload: str, number: int, server: Server, options: argparse.Namespace
) -> tuple[Result, float]:
    clients = GoClients(options.go_clients)
    size = Size(seconds=options.seconds, backlog=BACKLOG)
    run = clients.run_mpub if workload == "mpub" else clients.run_sub
    figure = run(server, size)
    cpu_us = figure.client_us_per_message
    return Result(workload, GO, number, figure.value, cpu_us), figure.other_cores or 0.0


def table(results: list[Result]) -> Table:
    shown = Table("workload", "client", "msg/s", "client CPU, us/msg", "ours to it")
    for workload in WORKLOADS:
        rates = medians([each for each in results if each.workload == workload])
        ours = rates.get("pumpline", (0.0, 0.0))[0]
        best = max((rates[name][0] for name in OTHERS if name in rates), default=0.0)
        for client, (rate, cpu_us) in sorted(rates.items(), key=lambda row: -row[1][0]):
            ratio = "" if client in OURS else f"{ours / rate:.1f}"
            if best and rate == best and workload in TARGET_WORKLOADS:
                ratio += f" (target {TARGET:g}: {'met' if ours >= TARGET * best else 'missed'})"
            shown.add_row(workload, client, f"{rate:,.0f}", f"{cpu_us:.2f}", ratio)
        shown.add_section()
    return shown


def medians(results: list[Result]) -> dict[str, tuple[float, float]]:
    """Rate and CPU by client."""
    return {
        client: (
            statistics.median(each.rate for each in results if each.client == client),
            statistics.median(each.cpu_us or 0.0 for each in results if each.client == client),
        )
        for client in {each.client for each in results}
    }


def append(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as lines:
        lines.write(json.dumps(record) + "\n")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.clients", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--workload", action="append", choices=WORKLOADS)
    parser.add_argument("--client", action="append", choices=(*OURS, *OTHERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--server", help="the command of another nsqd to measure with")
    parser.add_argument(
        "--go-clients", type=Path, metavar="DIR", help="where bench_writer and bench_reader are"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON lines to append to")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
