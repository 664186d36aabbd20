"""Puts a million messages through each of NSQ's tools, ours and the Go ones, and counts them.

Every run has fresh nsqds of ours and the same numbered lines. A run counts only if every line is
where it belongs; a tool that may deliver twice says how often it did.

| workload      | from, to                                                          | repeats |
|---------------|-------------------------------------------------------------------|---------|
| to_nsq        | a file, nsqd                                                      | no      |
| nsq_tail      | nsqd, a file                                                      | counted |
| nsq_to_file   | nsqd, files                                                       | counted |
| nsq_to_nsq    | nsqd, another nsqd                                                | counted |
| tokens        | the same with --tokens, which only ours has                       | no      |
| nsq_to_http   | nsqd, the HTTP API of another nsqd                                | counted |
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.kit.servers import (
    BenchFailure,
    Command,
    Server,
    cpu_s,
    git_commit,
    machine,
    machine_busy_s,
)

RESULTS = Path(__file__).parents[1] / "results" / "tools.jsonl"
MESSAGES = 1_000_000
LINE_BYTES = 200
TOPIC, CHANNEL = "lines", "tool"
IN_FLIGHT = "--max-in-flight=2500"
STALLED_S = 60.0
POLL_S = 0.05
OURS, GO = "pumpline", "go"
NSQD = Command("nsqd", (sys.executable, "-m", "pumpline.tools.nsqd"))


@dataclass(frozen=True)
class ToolRun:
    """What one run works with."""

    words: list[str]  # the tool's command
    server: Server
    target: Server
    lines: Path
    directory: Path
    messages: int


@dataclass(frozen=True)
class Outcome:
    seconds: float
    cpu_s: float  # of the tool
    repeats: int


def run_to_nsq(run: ToolRun) -> Outcome:
    words = [*run.words, f"--topic={TOPIC}", f"--nsqd-tcp-address={tcp(run.target)}"]
    began_s = time.monotonic()
    with run.lines.open("rb") as lines:
        used_s = finished(subprocess.Popen(words, stdin=lines, stderr=subprocess.DEVNULL))
    seconds = time.monotonic() - began_s
    if run.target.stored(TOPIC) != run.messages:
        raise BenchFailure(f"nsqd has {run.target.stored(TOPIC):,} messages")
    return Outcome(seconds, used_s, 0)


def run_nsq_tail(run: ToolRun) -> Outcome:
    out = run.directory / "tail"
    words = [*source(run), f"-n={run.messages}"]
    began_s = time.monotonic()
    with out.open("wb") as file:
        used_s = finished(subprocess.Popen(words, stdout=file, stderr=subprocess.DEVNULL))
    seconds = time.monotonic() - began_s
    return Outcome(seconds, used_s, repeats_in([out], run.messages))


def run_nsq_to_file(run: ToolRun) -> Outcome:
    outcome = until_consumed(run, [*source(run), f"--output-dir={run.directory / 'out'}"])
    repeats = repeats_in((run.directory / "out").iterdir(), run.messages)
    return Outcome(outcome.seconds, outcome.cpu_s, repeats)


def run_nsq_to_nsq(run: ToolRun) -> Outcome:
    words = [*source(run), f"--destination-nsqd-tcp-address={tcp(run.target)}"]
    return counted(run, until_consumed(run, words))


def run_tokens(run: ToolRun) -> Outcome:
    words = [*source(run), "--tokens", f"--destination-nsqd-http-address={http(run.target)}"]
    outcome = counted(run, until_consumed(run, words))
    if outcome.repeats:
        raise BenchFailure(f"{outcome.repeats:,} messages came twice")
    return outcome


def run_nsq_to_http(run: ToolRun) -> Outcome:
    words = [*source(run), f"--post=http://{http(run.target)}/pub?topic={TOPIC}"]
    return counted(run, until_consumed(run, words))


WORKLOADS: dict[str, Callable[[ToolRun], Outcome]] = {
    "to_nsq": run_to_nsq,
    "nsq_tail": run_nsq_tail,
    "nsq_to_file": run_nsq_to_file,
    "nsq_to_nsq": run_nsq_to_nsq,
    "tokens": run_tokens,
    "nsq_to_http": run_nsq_to_http,
}
TOOLS = {"tokens": "nsq_to_nsq"}  # others have the name of their workload


def source(run: ToolRun) -> list[str]:
    address = f"--nsqd-tcp-address={tcp(run.server)}"
    return [*run.words, f"--topic={TOPIC}", f"--channel={CHANNEL}", IN_FLIGHT, address]


def until_consumed(run: ToolRun, words: list[str]) -> Outcome:
    """A tool that runs until it is stopped, which is when all messages are finished."""
    began_s = time.monotonic()
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            seconds = wait_until_consumed(run.server, process) - began_s
            used_s = cpu_s(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
        if process.wait(STALLED_S):
            raise BenchFailure(f"the tool ended with {process.returncode}")
    return Outcome(seconds, used_s, 0)


def wait_until_consumed(server: Server, process: subprocess.Popen[bytes]) -> float:
    """When the last message was finished, by the monotonic clock."""
    before, moved_s = -1, time.monotonic()
    while True:
        (topic,) = server.stats(f"topic={TOPIC}")["topics"]
        (channel,) = topic["channels"]
        left = channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
        now_s = time.monotonic()
        if not left:
            return now_s
        if left != before:
            before, moved_s = left, now_s
        if now_s - moved_s > STALLED_S or process.poll() is not None:
            raise BenchFailure(f"{left:,} messages were not consumed")
        time.sleep(POLL_S)


def counted(run: ToolRun, outcome: Outcome) -> Outcome:
    """With the repeats in the nsqd that messages went to."""
    stored = run.target.stored(TOPIC)
    if stored < run.messages:
        raise BenchFailure(f"only {stored:,} messages arrived")
    return Outcome(outcome.seconds, outcome.cpu_s, stored - run.messages)


def repeats_in(paths: Iterable[Path], messages: int) -> int:
    """How many lines are there again; BenchFailure if one is missing."""
    seen = bytearray(messages)
    lines = 0
    for path in paths:
        with path.open("rb") as file:
            for line in file:
                seen[int(line[:9])] = 1
                lines += 1
    if sum(seen) != messages:
        raise BenchFailure(f"{messages - sum(seen):,} lines are missing")
    return lines - messages


def finished(process: subprocess.Popen[bytes]) -> float:
    """The CPU time of a tool that ends by itself."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise BenchFailure(f"the tool ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def tcp(server: Server) -> str:
    return f"127.0.0.1:{server.tcp_port}"


def http(server: Server) -> str:
    return f"127.0.0.1:{server.http_port}"


def measure(
    workload: str, name: str, options: argparse.Namespace, lines: Path
) -> dict[str, object]:
    words = command(TOOLS.get(workload, workload), name, options.peer_tools)
    keep = ["--max-publish-tokens=10000000"]
    with (
        tempfile.TemporaryDirectory(prefix="bench-tools-") as directory,
        Server(NSQD) as server,
        Server(NSQD, flags=lambda _: keep) as target,
    ):
        run = ToolRun(words, server, target, lines, Path(directory), options.messages)
        server.create(TOPIC, CHANNEL)
        if workload != "to_nsq":
            fill = [*command("to_nsq", OURS, None), f"--topic={TOPIC}"]
            with lines.open("rb") as file:
                address = f"--nsqd-tcp-address={tcp(server)}"
                subprocess.run([*fill, address], stdin=file, check=True)
        busy_s, brokers_s = machine_busy_s(), server.cpu_s() + target.cpu_s()
        outcome = WORKLOADS[workload](run)
        busy_s = machine_busy_s() - busy_s
        brokers_s = server.cpu_s() + target.cpu_s() - brokers_s
    other_cores = max(busy_s - brokers_s - outcome.cpu_s, 0.0) / outcome.seconds
    return {
        "workload": workload,
        "tool": name,
        "messages": options.messages,
        "rate": round(options.messages / outcome.seconds),
        "tool_us_per_message": round(outcome.cpu_s / options.messages * 1e6, 2),
        "repeats": outcome.repeats,
        "other_cores": round(other_cores, 2),
    }


def command(tool: str, name: str, peer_tools: Path | None) -> list[str]:
    if name == GO:
        assert peer_tools is not None
        return [str(peer_tools / tool)]
    return [sys.executable, "-m", f"pumpline.tools.{tool}.command"]


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    console = Console()
    stamp = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "commit": git_commit()}
    shown = Table("workload", "tool", "msg/s", "tool CPU, us/msg", "twice", "other cores")
    failed = False
    with tempfile.NamedTemporaryFile(prefix="bench-lines-") as file:
        for number in range(options.messages):
            file.write(b"%09d %s\n" % (number, b"x" * (LINE_BYTES - 10)))
        file.flush()
        for workload in options.workload or WORKLOADS:
            names = [OURS, GO] if options.peer_tools and workload not in TOOLS else [OURS]
            for name in names:
                try:
                    record = measure(workload, name, options, Path(file.name))
                except BenchFailure as failure:
                    console.print(f"{workload} {name}: {failure}", style="red")
                    failed = True
                    continue
                with options.results.open("a") as results:
                    results.write(json.dumps({**stamp, **record, **machine()}) + "\n")
                figures = [f"{record['rate']:,}", str(record["tool_us_per_message"])]
                shown.add_row(
                    workload, name, *figures, str(record["repeats"]), str(record["other_cores"])
                )
                console.print(f"{workload:12} {name:9} {figures[0]:>12} msg/s")
    console.print(shown)
    return int(failed)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.tools", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--peer-tools", type=Path, help="directory of NSQ's own tools")
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS))
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
