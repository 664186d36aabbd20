"""What `pumpline top` shows: which table, in which order, which part of it. Pure but for rich.

`TopScreen` is the state that keys change; `render` draws rows in a given size. Must not know how
rows are gathered, nor terminals.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from pumpline.tools.top.layout import GAP, ColumnShape, cell, fitted
from pumpline.tools.top.rates import Measured, MeasuredRow
from pumpline.tools.verbs.output import (
    Column,
    shown_bytes,
    shown_count,
    shown_number,
    shown_seconds,
    shown_yes,
)

HEAD_LINES = 3  # summary, empty line, titles
FOOT_LINES = 1
KEYS = "q quit  1 nodes  2 topics  3 channels  ←→ sort  r reverse  / filter  space pause  ↑↓ scroll"


def shown_rate(value: object) -> str:
    if not isinstance(value, int | float):
        return "-"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


VIEWS: dict[str, tuple[Column, ...]] = {
    "nodes": (
        Column("node", "node"),
        Column("health", "health"),
        Column("in", "in/s", shown_rate, is_number=True),
        Column("out", "out/s", shown_rate, is_number=True),
        Column("depth", "depth", shown_number, is_number=True),
        Column("in_flight", "in flight", shown_number, is_number=True),
        Column("consumers", "consumers", shown_number, is_number=True),
        Column("topics", "topics", shown_number, is_number=True),
        Column("channels", "channels", shown_number, is_number=True),
        Column("uptime_seconds", "up", shown_seconds, is_number=True),
        Column("version", "version", lambda value: str(value or "")),
    ),
    "topics": (
        Column("topic", "topic"),
        Column("in", "in/s", shown_rate, is_number=True),
        Column("depth", "depth", shown_number, is_number=True),
        Column("channels", "channels", shown_number, is_number=True),
        Column("messages", "messages", shown_number, is_number=True),
        Column("bytes", "bytes", shown_bytes, is_number=True),
        Column("nodes", "nodes", shown_count, is_number=True),
        Column("paused", "paused", shown_yes),
    ),
    "channels": (
        Column("topic", "topic"),
        Column("channel", "channel"),
        Column("in", "in/s", shown_rate, is_number=True),
        Column("out", "out/s", shown_rate, is_number=True),
        Column("depth", "depth", shown_number, is_number=True),
        Column("lag_seconds", "lag", shown_seconds, is_number=True),
        Column("in_flight", "in flight", shown_number, is_number=True),
        Column("deferred", "deferred", shown_number, is_number=True),
        Column("again", "again/s", shown_rate, is_number=True),
        Column("consumers", "consumers", shown_number, is_number=True),
        Column("state", "state"),
    ),
}
DROP = {  # what goes first when the terminal is narrow
    "nodes": "version channels topics uptime_seconds in_flight consumers health".split(),
    "topics": "nodes bytes messages paused channels".split(),
    "channels": "deferred again in_flight state in consumers out".split(),
}
FIRST_SORT = {"nodes": "node", "topics": "depth", "channels": "depth"}


@dataclass(slots=True)
class TopScreen:
    view: str = "channels"
    sort_key: dict[str, str] = field(default_factory=lambda: dict(FIRST_SORT))
    is_reversed: bool = False
    filter: str = ""
    is_typing: bool = False  # the filter
    is_paused: bool = False
    top: int = 0  # the first row shown
    wants_end: bool = False
    # The rows drawn last, and what they are of.
    _rows: tuple[object, list[MeasuredRow]] = field(default=(None, []), repr=False)

    @property
    def columns(self) -> tuple[Column, ...]:
        return VIEWS[self.view]

    @property
    def sort_column(self) -> Column:
        return next(each for each in self.columns if each.key == self.sort_key[self.view])

    def press(self, key: str, *, page: int = 10) -> None:
        """A key by its name, or the character it types."""
        if self.is_typing:
            self._type(key)
            return
        views = dict(zip("123", VIEWS, strict=True))
        if key in views or key == "tab":
            names = list(VIEWS)
            following = names[(names.index(self.view) + 1) % len(names)]
            self.view, self.top, self.is_reversed = views.get(key, following), 0, False
        elif key in ("left", "right"):
            self._move_sort(1 if key == "right" else -1)
        elif key in _SCROLL:
            self.top = max(_SCROLL[key](self.top, page), 0)
        elif key == "r":
            self.is_reversed = not self.is_reversed
        elif key == "/":
            self.is_typing = True
        elif key == "escape":
            self.filter, self.top = "", 0
        elif key in (" ", "p"):
            self.is_paused = not self.is_paused
        elif key == "q":
            self.wants_end = True

    def _type(self, key: str) -> None:
        self.top = 0
        if key == "enter":
            self.is_typing = False
        elif key == "escape":
            self.is_typing, self.filter = False, ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key

    def _move_sort(self, step: int) -> None:
        keys = [each.key for each in self.columns]
        index = keys.index(self.sort_key[self.view])
        self.sort_key[self.view] = keys[(index + step) % len(keys)]
        self.is_reversed = False

    # -- rows -----------------------------------------------------------------------------------

    def rows(self, measured: Measured) -> list[MeasuredRow]:
        """Those of the view that fit the filter, in order: numbers from the top, text from A."""
        key = id(measured), self.view, self.sort_column.key, self.is_reversed, self.filter
        if self._rows[0] != key:  # it is drawn four times a second, of thousands of rows
            self._rows = key, self._new_rows(measured)
        return self._rows[1]

    def _new_rows(self, measured: Measured) -> list[MeasuredRow]:
        found: list[MeasuredRow] = getattr(measured, self.view)
        found = [{**row, "state": _state(row)} for row in found if self._fits(row)]
        column = self.sort_column
        names = [each.key for each in self.columns if not each.is_number]
        found.sort(key=lambda row: [str(row[name]) for name in names])
        found.sort(key=lambda row: _order(row[column.key]), reverse=column.is_number)
        return found[::-1] if self.is_reversed else found

    def _fits(self, row: MeasuredRow) -> bool:
        words = self.filter.lower().split()
        text = " ".join(str(row.get(key, "")) for key in ("topic", "channel", "node")).lower()
        return all(word in text for word in words)

    # -- drawing --------------------------------------------------------------------------------

    def render(
        self, measured: Measured | None, *, width: int, height: int, title: str
    ) -> RenderableType:
        if measured is None:
            return Text(f"{title}\n\nasking the nodes …")
        rows = self.rows(measured)
        room = max(height - HEAD_LINES - FOOT_LINES - len(measured.failures), 1)
        self.top = min(self.top, max(len(rows) - room, 0))
        shown = rows[self.top : self.top + room]
        parts: list[RenderableType] = [self._summary(measured, rows, shown, title)]
        parts += [
            Text(f"{node}: {why}", style="bold red", no_wrap=True, overflow="ellipsis")
            for node, why in measured.failures.items()
        ]
        parts += [Text(""), *self._table(shown, width)]
        parts += [Text("")] * (room - len(shown))
        foot = f"filter: {self.filter}█" if self.is_typing else KEYS
        parts.append(Text(foot, style="dim", no_wrap=True, overflow="ellipsis"))
        return Group(*parts)

    def _summary(
        self, measured: Measured, rows: Sequence[Any], shown: Sequence[Any], title: str
    ) -> Text:
        published = sum(row["in"] or 0 for row in measured.nodes)
        handled = sum(row["out"] or 0 for row in measured.nodes)
        alive = len(measured.nodes) - len(measured.failures)
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{title}  ", style="bold")
        text.append(f"{alive}/{len(measured.nodes)} nodes  ")
        text.append(f"in {shown_rate(published)}/s  out {shown_rate(handled)}/s  ")
        text.append(f"{self.view} ", style="bold")
        first = self.top + 1 if shown else 0
        text.append(f"{first}-{self.top + len(shown)} of {len(rows)}")
        if self.filter:
            text.append(f"  filter: {self.filter}", style="yellow")
        if self.is_paused:
            text.append("  PAUSED", style="bold yellow")
        return text

    def _table(self, rows: Sequence[MeasuredRow], width: int) -> list[Text]:
        """The titles, and a line for each row."""
        titles = {each.key: self._title(each) for each in self.columns}
        cells = [{each.key: each.show(row[each.key]) for each in self.columns} for row in rows]
        shapes = [
            ColumnShape(
                each.key,
                max(len(titles[each.key]), *(len(line[each.key]) for line in cells), 0),
                each.is_number,
            )
            for each in self.columns
        ]
        sorted_by = self.sort_column.key
        drop = [key for key in DROP[self.view] if key != sorted_by]
        widths = fitted(shapes, width, drop)
        shown = [each for each in self.columns if each.key in widths]

        def line(texts: dict[str, str], style: str) -> Text:
            parts = [
                (
                    cell(texts[each.key], widths[each.key], is_number=each.is_number),
                    "reverse" if texts is titles and each.key == sorted_by else "",
                )
                for each in shown
            ]
            text = Text(style=style, no_wrap=True, overflow="ellipsis")
            for index, (part, own) in enumerate(parts):
                text.append(" " * GAP if index else "")
                text.append(part, style=own)
            return text

        lines = [line(titles, "bold")]
        return lines + [line(texts, _style(row)) for texts, row in zip(cells, rows, strict=True)]

    def _title(self, column: Column) -> str:
        if column is not self.sort_column:
            return column.title
        return f"{column.title}{'▼' if column.is_number != self.is_reversed else '▲'}"


_SCROLL: dict[str, Callable[[int, int], int]] = {
    "up": lambda top, page: top - 1,
    "down": lambda top, page: top + 1,
    "pageup": lambda top, page: top - page,
    "pagedown": lambda top, page: top + page,
    "home": lambda top, page: 0,
    "end": lambda top, page: 1 << 31,
}


def _state(row: MeasuredRow) -> str:
    """What a colour alone must not tell."""
    if row.get("hold"):
        return "hold"
    if row.get("paused"):
        return "paused"
    if row.get("consumers") == 0 and row.get("depth"):
        return "no consumers"
    return ""


def _style(row: MeasuredRow) -> str:
    state = row.get("state")
    if state == "no consumers" or row.get("version", "") is None:
        return "red"
    return {"hold": "dim", "paused": "yellow"}.get(str(state), "")


def _order(value: object) -> tuple[float, str]:
    """Numbers by size, the unknown below all."""
    if isinstance(value, bool | int | float):
        return float(value), ""
    if isinstance(value, list):
        return float(len(value)), ""
    return -1.0, "" if value is None else str(value)
