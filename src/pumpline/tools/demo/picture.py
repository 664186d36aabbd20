"""The demo's picture: three lines over time, and where nsqd died and came back. SVG by hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 360
LEFT, RIGHT, TOP, BOTTOM = 80, 24, 60, 44
COLOURS = ("#2f7ed8", "#e08a1e", "#2a9d6f")
GRID_LINES = 4
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.small{font-size:11px;fill:#555}"
    ".grid{stroke:#ddd}.mark{stroke:#b00;stroke-dasharray:4 3}.paper{fill:#fff}"
)


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    counts: tuple[int, ...]  # one a line


def chart(
    title: str, names: Sequence[str], samples: Sequence[Sample], marks: Sequence[tuple[float, str]]
) -> str:
    """The picture as text."""
    end_s = max([sample.at_s for sample in samples] or [1.0]) or 1.0
    top = max([count for sample in samples for count in sample.counts] or [1]) or 1

    def x(at_s: float) -> float:
        return LEFT + at_s / end_s * (WIDTH - LEFT - RIGHT)

    def y(count: float) -> float:
        return HEIGHT - BOTTOM - count / top * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img">',
        f'<style>{STYLE}</style><rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
        _text(12, 22, title),
    ]
    for line in range(GRID_LINES + 1):
        count = top * line / GRID_LINES
        at = y(count)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{x(end_s):.1f}" y1="{at}" y2="{at}"/>')
        parts.append(_text(LEFT - 8, at + 4, f"{count:,.0f}", anchor="end"))
    for at_s, text in marks:
        ends = f'x1="{x(at_s):.1f}" x2="{x(at_s):.1f}" y1="{TOP - 8}" y2="{HEIGHT - BOTTOM}"'
        parts.append(f'<line class="mark" {ends}/>')
        parts.append(_text(x(at_s) + 4, TOP - 2, text))
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x(s.at_s):.1f},{y(s.counts[number]):.1f}" for s in samples)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        left = 12 + 150 * number
        parts.append(f'<rect x="{left}" y="32" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(left + 15, 41, name))
    parts.append(_text(LEFT, HEIGHT - 16, "seconds: 0"))
    parts.append(_text(x(end_s), HEIGHT - 16, f"{end_s:.0f}", anchor="end"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return (
        f'<text class="small" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )
