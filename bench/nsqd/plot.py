"""Draws the ratios of a run to its basis as an SVG bar chart, each with its target marked.

`python -m bench.nsqd.plot` draws the newest run in bench/results/broker.jsonl again. The axis is
logarithmic and bars begin at 1, so twice as good and half as good are bars of equal length to
either side. No dependency: the chart is rectangles and text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from bench.kit.report import Record, Row, last_run, summarise, target_text

RESULTS = Path(__file__).parents[1] / "results"

WIDTH, LEFT, RIGHT, TOP = 760, 150, 90, 76
BAR, GAP, FOOT_LINE = 16, 12, 17
SERIES = ("#2f7ed8", "#e08a1e", "#2a9d6f", "#a05fc4", "#c0504d")
MISSED_OPACITY = 0.45
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.small{font-size:11px;fill:#555}"
    ".grid{stroke:#ccc}.one{stroke:#555}.target{stroke:#111;stroke-width:2}"
    ".paper{fill:#fff}"
)


def draw(records: Sequence[Record], path: Path) -> bool:
    """Writes the chart; False, and no file, when there is nothing to compare."""
    rows = [row for row in summarise(records) if not row.basis]
    bars = [row for row in rows if row.ratio and row.workload.name != "consumers1000"]
    if not bars:
        return False
    path.write_text(chart(bars, [row for row in rows if row not in bars], records[0]))
    return True


def chart(bars: Sequence[Row], others: Sequence[Row], first: Record) -> str:
    """The picture as text."""
    servers = list(dict.fromkeys(row.server for row in bars))
    names = list(dict.fromkeys(row.workload.name for row in bars))
    ends = [end for row in bars for end in (row.ratio, row.target_ratio) if end]
    low = math.floor(math.log2(min(1.0, *ends)))
    high = max(1, math.ceil(math.log2(max(ends))))

    def x(ratio: float) -> float:
        return LEFT + (math.log2(ratio) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    group_height = len(servers) * BAR + GAP
    bottom = TOP + len(names) * group_height
    height = bottom + 34 + FOOT_LINE * (len(others) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        *_heading(servers),
    ]
    for power in range(low, high + 1):
        at = x(2.0**power)
        parts.append(line(at, TOP - 6, bottom, "one" if power == 0 else "grid"))
        parts.append(text(at, bottom + 14, f"{2.0**power:g}x", anchor="middle", small=True))
    for row in bars:
        top = TOP + names.index(row.workload.name) * group_height
        parts += _bar(row, x, top, top + servers.index(row.server) * BAR, servers)
    foot = bottom + 34
    for row in others:
        parts.append(text(12, foot, _aside(row), small=True))
        foot += FOOT_LINE
    parts.append(text(12, foot, _origin(first), small=True))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _heading(servers: Sequence[str]) -> list[str]:
    parts = [
        text(12, 24, "Times better than the peer, by workload"),
        text(12, 42, "black mark: target; pale bar: target missed", small=True),
    ]
    at = 12.0
    for index, server in enumerate(servers):
        parts.append(rect(at, 52, 10, 10, SERIES[index % len(SERIES)]))
        parts.append(text(at + 14, 61, server, small=True))
        at += 30 + 7 * len(server)
    return parts


def _bar(
    row: Row,
    x: Callable[[float], float],
    group_top: float,
    top: float,
    servers: Sequence[str],
) -> list[str]:
    assert row.ratio
    left, right = sorted((x(1.0), x(row.ratio)))
    colour = SERIES[servers.index(row.server) % len(SERIES)]
    opacity = MISSED_OPACITY if row.met is False else 1.0
    parts = [rect(left, top + 1, max(right - left, 1), BAR - 2, colour, opacity)]
    parts.append(text(WIDTH - RIGHT + 10, top + 12, f"{row.ratio:.2f}x"))
    if top == group_top:
        middle = group_top + len(servers) * BAR / 2 + 4
        parts.append(text(LEFT - 10, middle, row.workload.name, anchor="end"))
    if row.target_ratio:
        parts.append(line(x(row.target_ratio), top - 1, top + BAR + 1, "target"))
    return parts


def _aside(row: Row) -> str:
    met = {True: "met", False: "missed", None: "nothing to compare with"}[row.met]
    unit, target = row.workload.unit, target_text(row.workload)
    return f"{row.workload.name}, {row.server}: {row.value:.3g} {unit}, target {target}: {met}"


def _origin(first: Record) -> str:
    machine = first["machine"]
    return (
        f"{first['run'][:10]}, {machine['cores']} cores {machine['cpu']}, "
        f"kernel {machine['kernel']}, Python {machine['python']}, "
        f"commit {first['commit'] or 'none'}"
    )


def rect(x: float, y: float, width: float, height: float, fill: str, opacity: float = 1.0) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="{fill}" opacity="{opacity:g}"/>'
    )


def line(x: float, top: float, bottom: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'


def text(x: float, y: float, text: str, *, anchor: str = "start", small: bool = False) -> str:
    kind = ' class="small"' if small else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(text)}</text>'


if __name__ == "__main__":
    source = RESULTS / "broker.jsonl"
    picture = source.with_suffix(".svg")
    print(picture if draw(last_run(source), picture) else "nothing to compare in the last run")
