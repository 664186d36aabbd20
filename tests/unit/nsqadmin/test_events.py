"""Deltas of views, and reading server-sent events piece by piece."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pumpline.nsqadmin.api.events import delta, event
from pumpline.nsqadmin.api.tail import EVENT_BYTES_MAX, parse_events


def view(seq: int, *rows: Any, **more: Any) -> dict[str, Any]:
    return {"seq": seq, "at_ms": seq * 10, "rows": list(rows), **more}


def test_only_what_changed() -> None:
    old = view(1, {"key": "a", "x": 1, "y": 2}, {"key": "b", "x": 1}, total=2)
    new = view(2, {"key": "a", "x": 5, "y": 2}, {"key": "b", "x": 1}, total=3)
    assert delta(["a", "b"], old, new) == {
        "seq": 2,
        "at_ms": 20,
        "set": {"total": 3},
        "rows": {"a": {"x": 5}},
    }


def test_nothing_changed_but_the_time() -> None:
    row = {"key": "a", "x": 1}
    assert delta(["a"], view(1, row), view(2, dict(row))) is None


def test_rows_go_and_come_back() -> None:
    row = {"key": "a", "x": 1}
    gone = delta(["a"], view(1, row), view(2, None))
    assert gone is not None and gone["rows"] == {"a": None}
    back = delta(["a"], view(2, None), view(3, row))
    assert back is not None and back["rows"] == {"a": row}


def test_an_object_without_rows() -> None:
    told = delta([], {"seq": 1, "found": True}, {"seq": 2, "found": False})
    assert told == {"seq": 2, "at_ms": None, "set": {"found": False}}


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


STREAM = b'retry: 1000\n\n:\n\nid: 3\ndata: {"a":1}\n\nevent: gone\ndata: {"b":2}\n\n'


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_events_are_read_whatever_the_pieces(size: int) -> None:
    cut = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    found = [each async for each in parse_events(pieces(*cut))]
    assert found == [("message", b'{"a":1}'), ("gone", b'{"b":2}')]


async def test_an_event_without_end_is_given_up() -> None:
    with pytest.raises(ValueError, match="without end"):
        async for _ in parse_events(pieces(b"data: " + b"x" * EVENT_BYTES_MAX, b"y")):
            pass


def test_markup_cannot_leave_its_line() -> None:
    sent = event("full", {"x": "a\n\nevent: evil\ndata: {}"})
    assert sent.count(b"\n\n") == 1
