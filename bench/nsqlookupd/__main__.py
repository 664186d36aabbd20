"""Compares nsqlookupds with a whole fleet registered: `python -m bench.nsqlookupd`.

| scenario | topics of the nodes                                                   |
|----------|-----------------------------------------------------------------------|
| shared   | every node has the same topics: an answer of /lookup names every node |
| own      | every node has its own topics: an answer names one node               |

Servers take turns; figures are medians over rounds. Each run is one JSON line:

| key                                         | meaning                                        |
|---------------------------------------------|------------------------------------------------|
| run, date, commit, scenario, server, round  | which                                          |
| register_s, register_single_s               | all nodes at once, 64 or 1 commands at a time  |
| rss_mb, rss_after_mb                        | resident memory, all registered; after asking  |
| lookup_rate, lookup_p50_us, lookup_p99_us   | answers a second over 8 connections that stay  |
| alone_p50_us, alone_p99_us                  | the same over one                              |
| anew_rate                                   | with a new connection for each                 |
| server_cores, client_cores, other_cores     | CPU time over time passed, while asking over 8 |
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.kit.report import OTHER_CORES_MAX, append
from bench.kit.servers import BenchFailure, Command, Server, git_commit, machine, machine_busy_s
from bench.nsqlookupd.load import Fleet, ask, ask_anew

NODES = 200
TOPICS = 500
UNANSWERED_MAX = 64  # as pumpline's nsqd has them
CONNECTIONS = 8
SCENARIOS = ("shared", "own")
RESULTS = Path(__file__).parents[1] / "results" / "lookup.jsonl"
# Higher is better for rates, lower for all else.
FIGURES = {
    "register_s": "register, 64 at a time, s",
    "register_single_s": "register, 1 at a time, s",
    "rss_mb": "memory, all registered, MB",
    "rss_after_mb": "memory, after all the asking, MB",
    "lookup_rate": "/lookup a second, 8 connections",
    "lookup_p50_us": "  median, us",
    "lookup_p99_us": "  99 %, us",
    "alone_p50_us": "/lookup on 1 connection, median, us",
    "alone_p99_us": "  99 %, us",
    "anew_rate": "/lookup a second, a connection each",
}


class Nsqlookupd(Server):
    """A running nsqlookupd."""

    def flags(self) -> list[str]:
        return self.listen_flags()


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    console = Console(width=110)
    servers = [Command("pumpline", (sys.executable, "-m", "pumpline.tools.nsqlookupd"))]
    if options.peer:
        servers.append(Command("go", (options.peer,)))
    records: list[dict[str, Any]] = []
    began, facts, commit = _now(), machine(), git_commit()
    for number in range(1, options.rounds + 1):
        for scenario in options.scenario or SCENARIOS:
            for command in servers:
                with console.status(f"round {number} {scenario} {command.name}"):
                    found = measure(command, scenario, options)
                record = {
                    "run": began,
                    "date": _now(),
                    "commit": commit,
                    "scenario": scenario,
                    "server": command.name,
                    "round": number,
                    **found,
                    "nodes": options.nodes,
                    "topics": options.topics,
                    "machine": facts,
                }
                append(options.results, record)
                records.append(record)
    for table in tables(records, [command.name for command in servers]):
        console.print(table)
    disturbed = [record for record in records if record["other_cores"] > OTHER_CORES_MAX]
    worst = max(record["other_cores"] for record in records)
    console.print(f"disturbed: {len(disturbed)} of {len(records)} runs, {worst:.2f} cores at worst")
    return 0


def measure(command: Command, scenario: str, options: argparse.Namespace) -> dict[str, float]:
    """Measures one server in one scenario."""
    found = {}
    topics_of = _topics_of(scenario, options.nodes, options.topics)
    with Nsqlookupd(command) as server, Fleet(server.tcp_port, topics_of=topics_of) as fleet:
        found["register_single_s"] = fleet.register(unanswered_max=1)
    with Nsqlookupd(command) as server, Fleet(server.tcp_port, topics_of=topics_of) as fleet:
        found["register_s"] = fleet.register(unanswered_max=UNANSWERED_MAX)
        found["rss_mb"] = server.rss_mb()
        asked = sorted({topic for topics in topics_of for topic in topics})
        random.Random(1).shuffle(asked)
        found |= _asking(server, asked[: options.topics], options.seconds)
        found["rss_after_mb"] = server.rss_mb()
    return found


def _asking(server: Server, topics: list[str], seconds: float) -> dict[str, float]:
    ask(server.http_port, topics, connections=1, seconds=seconds / 4)  # warm
    started, server_s, own_s, busy_s = _times(server)
    many = ask(server.http_port, topics, connections=CONNECTIONS, seconds=seconds)
    ended, server_end_s, own_end_s, busy_end_s = _times(server)
    alone = ask(server.http_port, topics, connections=1, seconds=seconds)
    anew = ask_anew(server.http_port, topics, seconds=seconds)
    elapsed = ended - started
    server_cores = (server_end_s - server_s) / elapsed
    client_cores = (own_end_s - own_s) / elapsed
    return {
        "lookup_rate": many.rate,
        "lookup_p50_us": many.percentile_us(0.5),
        "lookup_p99_us": many.percentile_us(0.99),
        "alone_p50_us": alone.percentile_us(0.5),
        "alone_p99_us": alone.percentile_us(0.99),
        "anew_rate": anew.rate,
        "server_cores": server_cores,
        "client_cores": client_cores,
        "other_cores": max((busy_end_s - busy_s) / elapsed - server_cores - client_cores, 0.0),
    }


def _times(server: Server) -> tuple[float, float, float, float]:
    return time.perf_counter(), server.cpu_s(), time.process_time(), machine_busy_s()


def _topics_of(scenario: str, nodes: int, topics: int) -> list[list[str]]:
    if scenario == "shared":
        return [[f"topic-{number}" for number in range(topics)]] * nodes
    return [[f"topic-{node}-{number}" for number in range(topics)] for node in range(nodes)]


def tables(records: list[dict[str, Any]], servers: list[str]) -> Iterator[Table]:
    for scenario in dict.fromkeys(record["scenario"] for record in records):
        mine = [record for record in records if record["scenario"] == scenario]
        table = Table(
            title=f"{scenario}: {mine[0]['nodes']} nodes, {mine[0]['topics']} topics each"
        )
        table.add_column("")
        for server in servers:
            table.add_column(server, justify="right")
        if len(servers) > 1:
            table.add_column("better by", justify="right")
        for key, title in FIGURES.items():
            values = [
                statistics.median(record[key] for record in mine if record["server"] == server)
                for server in servers
            ]
            cells = [f"{value:,.2f}" if value < 100 else f"{value:,.0f}" for value in values]
            if len(values) > 1:
                ratio = values[0] / values[1]
                cells.append(f"{ratio if key.endswith('_rate') else 1 / ratio:.2f}")
            table.add_row(title, *cells)
        yield table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.nsqlookupd",
        description="Compare nsqlookupds with a fleet registered.",
    )
    parser.add_argument(
        "--peer", metavar="NSQLOOKUPD", help="another nsqlookupd to compare with, such as Go's"
    )
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="only this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a phase")
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--topics", type=int, default=TOPICS, help="of each node")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    return parser


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchFailure as failure:
        sys.exit(f"failed: {failure}")
