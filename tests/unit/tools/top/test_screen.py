"""What `pumpline top` draws, and what keys do to it."""

import io

import hypothesis.strategies as st
import pytest
from hypothesis import given
from rich.console import Console

from pumpline.tools.top.keyboard import split_keys
from pumpline.tools.top.layout import GAP, ColumnShape, cell, fitted
from pumpline.tools.top.rates import Measured
from pumpline.tools.top.screen import VIEWS, TopScreen


def channel(topic: str, name: str, **figures: object) -> dict[str, object]:
    row = {each.key: 0 for each in VIEWS["channels"]} | {"lag_seconds": None, "in": 1.0}
    return {**row, "topic": topic, "channel": name, "consumers": 1, **figures}


def measured(*channels: dict[str, object], **failures: str) -> Measured:
    node = {each.key: 0 for each in VIEWS["nodes"]} | {"node": "a:1", "version": "1.3.0"}
    return Measured(nodes=[node], channels=list(channels), failures=failures)


def drawn(screen: TopScreen, rows: Measured | None, width: int = 100, height: int = 12) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, color_system=None)
    console.print(screen.render(rows, width=width, height=height, title="top"))
    return out.getvalue()


ROWS = measured(
    channel("orders", "billing", depth=5),
    channel("orders", "archive", depth=50, consumers=0),
    channel("mail", "send", depth=500, paused=True),
    channel("mail", "spark", depth=1, hold=True, **{"in": None}),
)


def names(screen: TopScreen) -> list[str]:
    return [row["channel"] for row in screen.rows(ROWS)]


def test_rows_are_sorted_by_the_chosen_column() -> None:
    screen = TopScreen()
    assert names(screen) == ["send", "archive", "billing", "spark"]
    screen.press("r")
    assert names(screen) == ["spark", "billing", "archive", "send"]
    screen.press("left")
    screen.press("left")
    assert (screen.sort_column.key, names(screen)[-1]) == ("in", "spark")  # the unknown is last
    for _ in range(2):
        screen.press("left")
    assert (screen.sort_column.key, names(screen)[0]) == ("topic", "send")


def test_a_filter_is_typed() -> None:
    screen = TopScreen()
    for key in split_keys(b"/mail sq"):
        screen.press(key)
    assert (screen.filter, screen.wants_end) == ("mail sq", False)
    screen.press("backspace")
    assert names(screen) == ["send", "spark"]
    assert "filter: mail s█" in drawn(screen, ROWS)
    screen.press("enter")
    assert "filter: mail s" in drawn(screen, ROWS)
    screen.press("escape")
    assert len(names(screen)) == 4


def test_other_keys() -> None:
    screen = TopScreen()
    for key, view in (("1", "nodes"), ("2", "topics"), ("tab", "channels"), ("tab", "nodes")):
        screen.press(key)
        assert screen.view == view
    for key in (" ", "p"):
        paused = screen.is_paused
        screen.press(key)
        assert screen.is_paused is not paused
    for key in ("pagedown", "end", "up", "home", "down", "pageup", "x", "é"):
        screen.press(key)
    assert screen.top == 0
    screen.press("q")
    assert screen.wants_end


def test_states_are_told_in_words() -> None:
    text = drawn(TopScreen(), ROWS)
    for word in ("no consumers", "paused", "hold"):
        assert word in text
    assert "asking the nodes" in drawn(TopScreen(), None)
    assert "b:2: connection refused" in drawn(
        TopScreen(), measured(**{"b:2": "connection refused"})
    )


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("width", "height"), [(200, 50), (80, 24), (40, 8), (20, 5), (1, 1)])
def test_it_fits_any_terminal(view: str, width: int, height: int) -> None:
    long = channel("t" * 64, "c" * 64, depth=123_456_789)
    rows = measured(*[long] * 100, **{"b:2": "connection refused " * 20})
    rows.topics = [{**long, "channels": 1, "messages": 1, "bytes": 1, "nodes": [], "paused": False}]
    screen = TopScreen(view=view)
    screen.press("end")
    lines = drawn(screen, rows, width, height).splitlines()
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= max(height, 6)


shapes = st.lists(st.tuples(st.integers(1, 70), st.booleans()), min_size=1, max_size=12).map(
    lambda pairs: [
        ColumnShape(str(index), width, number) for index, (width, number) in enumerate(pairs)
    ]
)


@given(shapes, st.integers(1, 250))
def test_columns_fit_or_everything_was_tried(columns: list[ColumnShape], width: int) -> None:
    drop = [each.key for each in columns[2:]]
    widths = fitted(columns, width, drop)
    wanted = {each.key: each for each in columns}
    assert all(widths[key] == wanted[key].width for key in widths if wanted[key].is_number)
    total = sum(widths.values()) + GAP * (len(widths) - 1)
    assert total <= width or set(widths) == {each.key for each in columns[:2]}


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[B1", ["up", "down", "1"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[99;5~x", ["x"]),
        (b"\x1bOC\r\x7f\t", ["right", "enter", "backspace", "tab"]),
        ("ü".encode() + b"\xff", ["ü"]),
        (b"\x1b[", []),
    ],
)
def test_keys_of_a_terminal(data: bytes, keys: list[str]) -> None:
    assert split_keys(data) == keys


def test_names_are_cut_in_the_middle() -> None:
    """Names of one kind often differ at their end."""
    assert cell("orders_of_germany_7", 12, is_number=False) == "orders…any_7"
    assert cell("orders", 12, is_number=False) == "orders      "
    assert len(cell("orders_of_germany_7", 11, is_number=False)) == 11
