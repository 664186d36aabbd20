"""Compares nsqd servers, each given as a command, on the same load; `--help` says how.

Every run gets a fresh server and a fresh data path. Servers take turns within a workload and a
round, so that other work on the machine affects all of them; figures are medians over rounds.
Results go to a table, to a file of JSON lines and to a picture. Knows the order of runs and the
command line; load, servers, figures and drawing are elsewhere in this package.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.clients.goclients import GoClients
from bench.kit import report
from bench.kit.servers import BenchFailure, Command, git_commit, machine
from bench.nsqd import plot
from bench.nsqd.many_topics import MANY_TOPICS
from bench.nsqd.measuring import Size
from bench.nsqd.upgrades import UPGRADES
from bench.nsqd.verbs import VERBS
from bench.nsqd.workloads import WORKLOADS, Workload, run
from pumpline.core.messages import kernels

PEER, PEER_DEFAULT = "go", "go-default"
PEER_MEM_QUEUE = 1_000_000
TABLE_WIDTH_MIN = 150

EPILOG = """
examples:
  python -m bench.nsqd --peer ./nsqd                     all workloads against Go nsqd
  python -m bench.nsqd --peer ./nsqd --workload mpub --workload sub
  python -m bench.nsqd --peer ./nsqd --go-clients ./bin  also with bench_writer and bench_reader
  python -m bench.nsqd --quick --workload rdy1           a smoke run, kept apart from results
  python -m bench.nsqd --basis old \\
      --server "old=old/bin/nsqd" --server "new=PUMPLINE_KERNELS=python new/bin/nsqd"

The command of a server must be the server itself, not a wrapper: its CPU time and memory are read
from /proc. Words of the form VAR=VALUE before it are its environment.

workloads and targets:
"""

SERVER_HELP = "a server to measure, instead of pumpline; repeatable"
PEER_HELP = (
    f"a Go nsqd: `{PEER}` with --mem-queue-size={PEER_MEM_QUEUE}, or `{PEER_DEFAULT}` with its "
    "own defaults where the workload is about those"
)
BASIS_HELP = "the server that ratios refer to (default: %(default)s)"
WORKLOAD_HELP = "only this, or these with commas; tls, snappy and deflate stand for two each"
GO_CLIENTS_HELP = "where bench_writer and bench_reader are: adds mpub_go, sub_go and both_go"
RESULTS_HELP = "JSON lines to append to, the picture beside it (bench/results/broker.jsonl)"
DATA_ROOT_HELP = "where data paths are made (default: the system's temporary directory)"
UNCOMPILED_HELP = "also measure pumpline without its compiled kernels, as pumpline-python"
QUICK_HELP = "a smoke run: small and short, its results kept apart in quick.jsonl"


@dataclass(frozen=True)
class Run:
    """One run to do: which workload, on which server, in which round."""

    workload: Workload
    command: Command
    round: int
    basis: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Runs it all; 1 when any run could not be counted."""
    options = parse(argv)
    _raise_file_limit()
    # Exit normally on SIGTERM, so that the context managers end servers and load.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console()
    if console.width < TABLE_WIDTH_MIN:
        console.width = TABLE_WIDTH_MIN
    if not kernels.compiled:
        console.print("[yellow]the compiled kernels are not installed: consumers will be slow")
    records: list[report.Record] = []
    try:
        for record in carry_out(options, console):
            report.append(options.results, record)
            records.append(record)
    except KeyboardInterrupt:
        console.print("interrupted")
    if not records:
        return 1
    console.print(report.table(report.summarise(records)))
    for note in report.notes(records):
        console.print(note, style="yellow", markup=False)
    picture = options.results.with_suffix(".svg")
    drawn = plot.draw(records, picture)
    console.print(f"{options.results}{f' and {picture}' if drawn else ''}", soft_wrap=True)
    return 1 if any("error" in record for record in records) else 0


def carry_out(options: argparse.Namespace, console: Console) -> Iterator[report.Record]:
    """Does every run and yields its record."""
    began, facts, commit = _now(), machine(), git_commit()
    todo = list(plan(options))
    for done, item in enumerate(todo, 1):
        with console.status(f"{done}/{len(todo)} {item.workload.name} {item.command.name}"):
            try:
                figure = run(item.workload, item.command, options.size, options.data_root)
                found = report.figures(figure, item.workload)
            except (BenchFailure, OSError) as error:
                found = {"value": None, "rate": None, "error": str(error) or repr(error)}
        outcome = found.get("error") or f"{report.number(found['value'])} {item.workload.unit}"
        console.print(
            f"{done:3}/{len(todo)}  round {item.round}  {item.workload.name:14} "
            f"{item.command.name:16} {outcome}",
            markup=False,
            highlight=False,
        )
        yield {
            "run": began,
            "date": _now(),
            "commit": commit,
            "workload": item.workload.name,
            "server": item.command.name,
            "round": item.round,
            "basis": item.basis,
            **found,
            "seconds": options.size.seconds,
            "machine": facts,
        }


def plan(options: argparse.Namespace) -> Iterator[Run]:
    """All runs in order: in each round, each workload on each server."""
    for number in range(1, options.rounds + 1):
        for workload in options.workloads:
            for command in options.servers:
                yield Run(workload, command, number, basis=command.name == options.basis)
            if options.peer:
                yield Run(
                    workload,
                    _peer(options.peer, with_defaults=workload.peer_default),
                    number,
                    basis=options.basis == PEER,
                )


def _parser() -> argparse.ArgumentParser:
    targets = (f"  {w.name:15} {report.target_text(w)}" for w in report.DEFINED.values())
    parser = argparse.ArgumentParser(
        prog="python -m bench.nsqd",
        description="Compare nsqd servers on the same load.",
        epilog=EPILOG + "\n".join(targets),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    values: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("--server", {"action": "append", "metavar": "NAME=COMMAND"}, SERVER_HELP),
        ("--peer", {"metavar": "NSQD"}, PEER_HELP),
        ("--basis", {"default": PEER, "metavar": "NAME"}, BASIS_HELP),
        ("--go-clients", {"type": Path, "metavar": "DIR"}, GO_CLIENTS_HELP),
        ("--workload", {"action": "append", "metavar": "NAME"}, WORKLOAD_HELP),
        ("--rounds", {"type": int}, "default 3, 1 with --quick"),
        ("--seconds", {"type": float}, "length of a measured phase (4, 1 with --quick)"),
        ("--results", {"type": Path, "metavar": "FILE"}, RESULTS_HELP),
        ("--data-root", {"type": Path, "metavar": "DIR"}, DATA_ROOT_HELP),
        ("--uncompiled", {"action": "store_true"}, UNCOMPILED_HELP),
        ("--quick", {"action": "store_true"}, QUICK_HELP),
    )
    for flag, how, text in values:
        parser.add_argument(flag, help=text, **how)
    return parser


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line; adds servers, workloads and sizes to it."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        options.servers = _servers(options)
        options.workloads = _workloads(options)
    except ValueError as error:
        parser.error(str(error))
    size = Size.quick() if options.quick else Size()
    if options.seconds:
        size = replace(size, seconds=options.seconds)
    options.size = size
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.results = options.results or plot.RESULTS / (
        "quick.jsonl" if options.quick else "broker.jsonl"
    )
    return options


def _servers(options: argparse.Namespace) -> list[Command]:
    ours = (sys.executable, "-m", "pumpline.tools.nsqd")
    servers = [Command.parse(text) for text in options.server or ()]
    if not servers:
        servers.append(Command("pumpline", ours))
    if options.uncompiled:
        servers.append(Command("pumpline-python", ours, {"PUMPLINE_KERNELS": "python"}))
    names = [server.name for server in servers] + ([PEER, PEER_DEFAULT] if options.peer else [])
    if len(set(names)) != len(names):
        raise ValueError(f"two servers of one name: {', '.join(names)}")
    if options.basis != PEER and options.basis not in names:
        raise ValueError(f"--basis {options.basis}: no such server")
    return servers


def _workloads(options: argparse.Namespace) -> list[Workload]:
    known = [*WORKLOADS, *MANY_TOPICS, *VERBS]
    if options.go_clients:
        known += GoClients(options.go_clients).workloads()
    by_name = {workload.name: workload for workload in known}
    if not options.workload:
        return known
    chosen: list[Workload] = []
    for name in ",".join(options.workload).split(","):
        found = [by_name[name]] if name in by_name else _group(known, name)
        if not found:
            raise ValueError(f"--workload {name}: expected one of {', '.join(by_name)}")
        chosen += found
    return chosen


def _group(known: Sequence[Workload], name: str) -> list[Workload]:
    """The workloads over one kind of upgraded connection."""
    return [each for each in known if name in UPGRADES and each.name.startswith(f"{name}_")]


def _peer(program: str, *, with_defaults: bool) -> Command:
    if with_defaults:
        return Command(PEER_DEFAULT, (program,), is_peer=True)
    return Command(PEER, (program, f"--mem-queue-size={PEER_MEM_QUEUE}"), is_peer=True)


def _raise_file_limit() -> None:
    """A thousand consumers need more than the 1,024 files that many shells allow."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main())
