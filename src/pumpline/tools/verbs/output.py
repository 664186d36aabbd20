"""How verbs show rows: a table on a terminal, JSON in a pipe; and questions before what destroys.

Data goes to stdout, all else to stderr. In a pipe nothing is ever cut to a width. Knows rows and
columns; must not know where they come from.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TextIO

import msgspec

from pumpline.cluster.node import printable
from pumpline.core.text.durations import NS_PER_S

BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
ENDLESS_S = 100 * 365 * 86_400

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table; `key` is the row's."""

    key: str
    title: str
    show: Callable[[object], str] = str
    is_number: bool = False
    is_rare: bool = False  # left out of a table in which no row has it


class Output:
    def __init__(self, *, as_json: bool, as_table: bool, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self.is_table = as_table or (not as_json and self._stream.isatty())
        self._has_styles = self._stream.isatty() and not os.environ.get("NO_COLOR")

    def rows(self, columns: Sequence[Column], rows: Sequence[Row], *, empty: str) -> None:
        """`empty` is said, on stderr, in place of a table without rows."""
        if not self.is_table:
            self.document(list(rows))
        elif rows:
            self._table(columns, rows)
        else:
            note(empty)

    def document(self, value: object) -> None:
        """As JSON, with a line for each row of a list."""
        if isinstance(value, list) and value:
            lines = ",\n ".join(json.dumps(each, ensure_ascii=False) for each in value)
            print(f"[{lines}]", file=self._stream)
        else:
            print(json.dumps(value, ensure_ascii=False), file=self._stream)

    def names(self, rows: Sequence[Row], key: str) -> None:
        """Each once, one a line, for scripts."""
        for name in dict.fromkeys(str(row[key]) for row in rows):
            self.line(name)

    def line(self, text: str) -> None:
        print(text, file=self._stream)

    def _table(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        """As wide as it needs to be: names are to be read, and a terminal wraps long lines."""
        shown = [each for each in columns if not each.is_rare or any(row[each.key] for row in rows)]
        lines = [[each.title for each in shown]]
        lines += [[printable(each.show(row[each.key])) for each in shown] for row in rows]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        for index, cells in enumerate(lines):
            parts = [
                cell.rjust(width) if column.is_number else cell.ljust(width)
                for cell, width, column in zip(cells, widths, shown, strict=True)
            ]
            text = "  ".join(parts).rstrip()
            self.line(f"{BOLD}{text}{PLAIN}" if index == 0 and self._has_styles else text)


def note(text: str) -> None:
    """Something to know that is not data."""
    print(text, file=sys.stderr)


def confirmed(question: str, *, yes: bool) -> bool:
    """Ask before something is destroyed; `yes` answers. Without a terminal the answer is no."""
    if yes:
        return True
    if not sys.stdin.isatty():
        note(f"{question}\nNothing was done: there is no terminal to ask. Say --yes.")
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    note("Nothing was done.")
    return False


def as_dict(row: msgspec.Struct) -> dict[str, object]:
    return msgspec.structs.asdict(row)


# -- how values look in a table -----------------------------------------------------------------


def shown_number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "-" if value is None else str(value)


def shown_yes(value: object) -> str:
    return "yes" if value else ""


def shown_count(value: object) -> str:
    """Of a list."""
    return str(len(value)) if isinstance(value, list) else str(value)


def shown_list(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def shown_bytes(value: object) -> str:
    if not isinstance(value, int):
        return "-"
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"


def shown_seconds(value: object) -> str:
    """A time that passed, in two units at most."""
    if not isinstance(value, int | float):
        return "-"
    if value < 1:
        return "<1s" if value > 0 else "0s"
    if value < 10:
        return f"{value:.1f}s"
    seconds = int(min(value, ENDLESS_S))
    for unit_s, unit, smaller_s, smaller in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if seconds >= unit_s:
            rest = seconds % unit_s // smaller_s
            return (
                f"{seconds // unit_s}{unit}{rest}{smaller}"
                if rest
                else f"{seconds // unit_s}{unit}"
            )
    return f"{seconds}s"


def shown_time(value: object) -> str:
    """Nanoseconds since 1970, in local time."""
    if not isinstance(value, int) or not 0 < value < 1 << 63:
        return "-"
    when = datetime.fromtimestamp(value // NS_PER_S).astimezone()
    return when.isoformat(sep=" ", timespec="seconds")
