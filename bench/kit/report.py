"""Records of runs, one JSON object a line, and their summary: medians, ratios, the table.

| key                     | meaning                                                             |
|-------------------------|---------------------------------------------------------------------|
| run, date, commit       | when the whole run began, when this one ended, what was measured    |
| workload, server, round | which                                                               |
| basis                   | true for the server that ratios refer to                            |
| value, unit             | the workload's figure                                               |
| rate                    | messages a second, null where none is measured                      |
| cpu_us_per_message      | broker CPU time over messages                                       |
| client_us_per_message   | CPU time of all load processes over messages                        |
| broker_cores, client_cores, other_cores | CPU time over time passed: broker, load, all else   |
| client_bound            | the load set the figure, not the broker                             |
| rss_mb                  | the broker's peak resident memory                                   |
| error                   | why the run does not count; then value and rate are null            |
| seconds, machine        | length of a phase; cpu, cores, kernel, python                       |

Knows records and how to show them; must not start anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.clients.goclients import GoClients
from bench.nsqd.many_topics import MANY_TOPICS
from bench.nsqd.measuring import Figure
from bench.nsqd.verbs import VERBS
from bench.nsqd.workloads import WORKLOADS, Workload, middle

Record = dict[str, Any]

# If other work takes more cores than this, a run's figures are doubtful.
OTHER_CORES_MAX = 0.2

DEFINED = {
    workload.name: workload
    for workload in (*WORKLOADS, *MANY_TOPICS, *VERBS, *GoClients(Path()).workloads())
}


@dataclass(frozen=True)
class Row:
    """One workload on one server, over all rounds that count."""

    workload: Workload
    server: str
    basis: bool
    value: float
    low: float
    high: float
    ratio: float | None
    target_ratio: float | None
    met: bool | None
    records: Sequence[Record]

    def middle(self, key: str) -> float | None:
        """The median of another key of the records."""
        return middle(record.get(key) for record in self.records)


def figures(figure: Figure, workload: Workload) -> Record:
    """The measured part of a record."""
    return {
        "value": figure.value,
        "unit": workload.unit,
        "rate": figure.value if workload.unit.endswith("/s") else figure.extra.get("rate"),
        "cpu_us_per_message": figure.cpu_us_per_message,
        "client_us_per_message": figure.client_us_per_message,
        "broker_cores": figure.broker_cores,
        "client_cores": figure.client_cores,
        "other_cores": figure.other_cores,
        "client_bound": figure.client_bound,
        "rss_mb": figure.rss_mb,
        **{key: value for key, value in figure.extra.items() if key != "rate"},
    }


def append(path: Path, record: Record) -> None:
    """Appends a record to a file, as one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rounded = {
        key: round(value, 4) if isinstance(value, float) else value for key, value in record.items()
    }
    with path.open("a") as lines:
        lines.write(json.dumps(rounded) + "\n")


def last_run(path: Path) -> list[Record]:
    """The records of the newest run in a file."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [record for record in records if record["run"] == records[-1]["run"]]


def summarise(records: Iterable[Record]) -> list[Row]:
    """Rows in the order of the workloads' definition; the basis comes last in each."""
    records = [record for record in records if record.get("error") is None]
    rows = []
    for name, workload in DEFINED.items():
        mine = [record for record in records if record["workload"] == name]
        servers = dict.fromkeys(record["server"] for record in mine)
        peer = middle(record["value"] for record in mine if record["basis"])
        named = [
            _row(workload, server, [r for r in mine if r["server"] == server], peer)
            for server in servers
        ]
        rows += sorted(named, key=lambda row: row.basis)
    return rows


def _row(workload: Workload, server: str, records: list[Record], peer: float | None) -> Row:
    values = [record["value"] for record in records]
    value = middle(values)
    assert value is not None
    basis = records[0]["basis"]
    ratio = None if peer is None or basis else workload.ratio(value, peer)
    target = workload.target
    return Row(
        workload=workload,
        server=server,
        basis=basis,
        value=value,
        low=min(values),
        high=max(values),
        ratio=ratio,
        target_ratio=(
            target.bound
            if target.of == "ratio"
            else None
            if peer is None
            else workload.ratio(target.bound, peer)
        ),
        met=None if basis else target.met(value=value, ratio=ratio),
        records=records,
    )


def table(rows: Iterable[Row]) -> Table:
    """Absolute figures, ratios and targets, and which side was the limit."""
    shown = Table(title="nsqd servers, medians over rounds", title_justify="left")
    shown.add_column("workload")
    shown.add_column("server")
    for heading in ("median", "low - high", "ratio", "target"):
        shown.add_column(heading, justify="right")
    shown.add_column("met")
    for heading in (
        "broker\nµs/msg",
        "broker\ncores",
        "load\nµs/msg",
        "load\ncores",
        "RSS peak\nMB",
    ):
        shown.add_column(heading, justify="right")
    shown.add_column("limit")
    previous = None
    for row in rows:
        if previous not in (None, row.workload.name):
            shown.add_section()
        shown.add_row(
            row.workload.name if previous != row.workload.name else "",
            row.server,
            _value(row),
            f"{number(row.low)} - {number(row.high)}" if len(row.records) > 1 else "",
            "" if row.ratio is None else f"{row.ratio:.2f}x",
            "" if row.basis else target_text(row.workload),
            {True: "[green]yes", False: "[red]no", None: ""}[row.met],
            _optional(row.middle("cpu_us_per_message")),
            _optional(row.middle("broker_cores")),
            _optional(row.middle("client_us_per_message")),
            _optional(row.middle("client_cores")),
            f"{row.middle('rss_mb'):.0f}",
            limit_text(row),
        )
        previous = row.workload.name
    return shown


def notes(records: Iterable[Record]) -> list[str]:
    """Notes under the table: runs that do not count, and runs that were disturbed."""
    runs: dict[str, list[str]] = {}
    for record in records:
        if record.get("error") is not None:
            kind = f"not counted, {record['server']}: {record['error']}"
        elif (record.get("other_cores") or 0) > OTHER_CORES_MAX:
            kind = (
                f"disturbed, {record['server']}: other work took over {OTHER_CORES_MAX} of a core"
            )
        else:
            continue
        runs.setdefault(kind, []).append(f"{record['workload']} {record['round']}")
    return [f"{kind} (workload and round: {', '.join(which)})" for kind, which in runs.items()]


def target_text(workload: Workload) -> str:
    """A target as the table shows it."""
    target = workload.target
    sign = "≤" if target.at_most else "≥"
    return (
        f"{sign} {target.bound:g}x"
        if target.of == "ratio"
        else (f"{sign} {target.bound:g} {workload.unit}")
    )


def limit_text(row: Row) -> str:
    """Which side was the limit, in most of the rounds."""
    if row.workload.name in ("rss", "latency", "idle"):
        return ""
    bound = sum(record["client_bound"] for record in row.records)
    return "client-bound" if 2 * bound > len(row.records) else "broker"


def _value(row: Row) -> str:
    text = f"{number(row.value)} {row.workload.unit}"
    p99_ms = row.middle("p99_ms")
    rate = row.middle("rate_10") and row.middle("rate")
    if p99_ms is not None:
        text += f"\n{number(p99_ms)} ms p99"
    elif rate:
        text += f"\n{number(rate)} msg/s"
    return text


def number(value: float) -> str:
    """A figure as text: thousands as integers with commas, small ones to three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _optional(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
