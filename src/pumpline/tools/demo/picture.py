"""The demo's picture as SVG text: counts over time, and when an nsqd was dead.

The axes are marked at round numbers. The lines lie nearly on each other, so the first is drawn wide
and pale and the last narrow and dark. Knows counts of messages; must not know who counts them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 92, 52
LINES = (("#9cc4f0", 7.0), ("#e08a1e", 3.5), ("#14532d", 1.8))  # colour and width
TICKS_MAX = 6
SPACING = 190  # between the entries of the legend
STYLE = (
    "text{font:13px system-ui,'DejaVu Sans',sans-serif;fill:#444}.title{font-size:17px;fill:#111}"
    ".alarm{fill:#b00020;font-weight:bold}.grid{stroke:#e4e4e4}.axis{stroke:#999}.paper{fill:#fff}"
    ".mark{stroke:#b00020;stroke-width:1.5;stroke-dasharray:5 3}.dead{fill:#fbe9eb}"
)


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    counts: tuple[int, ...]  # one for each line


@dataclass(frozen=True, slots=True)
class Outage:
    """From when to when something was dead, and the words for both moments."""

    start_s: float
    end_s: float
    start_text: str
    end_text: str


@dataclass(frozen=True, slots=True)
class Axes:
    """From seconds and counts to places in the picture."""

    end_s: float
    top: float

    def x(self, at_s: float) -> float:
        return LEFT + at_s / self.end_s * (WIDTH - LEFT - RIGHT)

    def y(self, count: float) -> float:
        return HEIGHT - BOTTOM - count / self.top * (HEIGHT - TOP - BOTTOM)


def chart(
    title: str,
    description: str,
    names: Sequence[str],
    samples: Sequence[Sample],
    outage: Outage | None,
) -> str:
    end_s = max([sample.at_s for sample in samples] or [1.0]) or 1.0
    highest = max([count for sample in samples for count in sample.counts] or [1]) or 1
    step = round_step(highest)
    axes = Axes(end_s, math.ceil(highest / step) * step)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
        _text(16, 28, title, kind="title"),
        *(_dead(axes, outage) if outage else ()),
        *_scales(axes, step),
        *(_marks(axes, outage) if outage else ()),
    ]
    for number, name in enumerate(names):
        colour, width = LINES[number % len(LINES)]
        stroke = f'stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"'
        points = " ".join(f"{axes.x(s.at_s):.1f},{axes.y(s.counts[number]):.1f}" for s in samples)
        left = 16 + SPACING * number
        parts.append(f'<polyline points="{points}" fill="none" {stroke}/>')
        parts.append(f'<line x1="{left}" x2="{left + 22}" y1="50" y2="50" {stroke}/>')
        parts.append(_text(left + 30, 54, name))
    return "\n".join([*parts, "</svg>"]) + "\n"


def round_step(highest: float, marks_max: int = TICKS_MAX) -> float:
    """The smallest of 1, 2, 5, 10, 20, 50 ... with which at most `marks_max` steps reach it."""
    power = 10.0 ** math.floor(math.log10(highest / marks_max))
    return next(n * power for n in (1, 2, 5, 10) if n * power * marks_max >= highest)


def _scales(axes: Axes, step: float) -> Iterator[str]:
    left, right = axes.x(0), axes.x(axes.end_s)
    for number in range(round(axes.top / step) + 1):
        at = axes.y(number * step)
        kind = "grid" if number else "axis"
        yield f'<line class="{kind}" x1="{left}" x2="{right:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield _text(LEFT - 10, at + 4, f"{number * step:,.0f}", anchor="end")
    yield _text(16, TOP - 10, "messages")
    step_s = round_step(axes.end_s)
    bottom = HEIGHT - BOTTOM
    for number in range(int(axes.end_s / step_s) + 1):
        at = axes.x(number * step_s)
        yield f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 5}"/>'
        yield _text(at, bottom + 20, f"{number * step_s:g}", anchor="middle")
    yield _text((left + right) / 2, bottom + 40, "seconds", anchor="middle")


def _dead(axes: Axes, outage: Outage) -> Iterator[str]:
    start, end = axes.x(outage.start_s), axes.x(outage.end_s)
    size = f'width="{end - start:.1f}" height="{HEIGHT - BOTTOM - TOP}"'
    yield f'<rect class="dead" x="{start:.1f}" y="{TOP}" {size}/>'


def _marks(axes: Axes, outage: Outage) -> Iterator[str]:
    for at_s, text in ((outage.start_s, outage.start_text), (outage.end_s, outage.end_text)):
        at = axes.x(at_s)
        ends = f'x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 4}" y2="{HEIGHT - BOTTOM}"'
        yield f'<line class="mark" {ends}/>'
        yield _text(at, TOP - 10, text, anchor="middle", kind="alarm")


def _text(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
