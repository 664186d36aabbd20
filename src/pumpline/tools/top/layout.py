"""How wide each column of a live table is, so that a line fits the terminal. Pure.

Numbers are never cut. Names are shortened, the longest first, down to NAME_MIN; if that is not
enough, whole columns go, the least important first.
"""

from collections.abc import Sequence
from typing import NamedTuple

GAP = 2
NAME_MIN = 12
ELLIPSIS = "…"


class ColumnShape(NamedTuple):
    key: str
    width: int  # that it would like
    is_number: bool


def fitted(columns: Sequence[ColumnShape], width: int, drop: Sequence[str]) -> dict[str, int]:
    """The width of each column that is shown, by key; `drop` has those that may go, in order."""
    kept = list(columns)
    going = list(drop)
    while True:
        least = sum(_least(each) for each in kept) + GAP * (len(kept) - 1)
        if least <= width or not going:
            break
        gone = going.pop(0)
        kept = [each for each in kept if each.key != gone]
    widths = {each.key: each.width for each in kept}
    names = {each.key: _least(each) for each in kept if not each.is_number}
    over = sum(widths.values()) + GAP * (len(kept) - 1) - width
    while over > 0:
        longest = max(names, key=lambda key: widths[key] - names[key], default="")
        if not longest or widths[longest] <= names[longest]:
            break
        widths[longest] -= 1
        over -= 1
    return widths


def cell(text: str, width: int, *, is_number: bool) -> str:
    if len(text) > width:  # in the middle: names of one kind often differ at the end
        tail = (width - 1) // 2
        text = text[: width - 1 - tail] + ELLIPSIS + text[len(text) - tail :]
    return text.rjust(width) if is_number else text.ljust(width)


def _least(column: ColumnShape) -> int:
    return column.width if column.is_number else min(column.width, NAME_MIN)
