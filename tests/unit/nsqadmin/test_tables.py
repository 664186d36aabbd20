"""Tables: search, filter, sort, pages."""

from typing import Any

import pytest

from pumpline.nsqadmin.live.tables import KeptOrders, TableKind
from pumpline.web.replies import HttpError


class Row:
    def __init__(self, key: str, depth: int | None) -> None:
        self.key = key
        self.depth = depth

    def shown(self, now_s: float) -> dict[str, Any]:
        return {"key": self.key}


KIND: TableKind[Row] = TableKind(
    columns=frozenset({"key", "depth"}),
    filters={"deep": lambda row: (row.depth or 0) > 1},
    sort="key",
    searched=lambda row: row.key,
)
ROWS = [Row("b", 2), Row("A", None), Row("c", 2), Row("d", 1)]


def keys(**query: str) -> str:
    return "".join(row.key for row in KIND.select(ROWS, KIND.asked(query)))


def test_order() -> None:
    assert keys() == "Abcd"
    assert keys(sort="-key") == "dcbA"
    assert keys(sort="depth") == "dbcA"  # nobody knows A's, so it comes last
    assert keys(sort="-depth") == "bcdA"


def test_search_and_filter() -> None:
    assert keys(search="a") == "A"
    assert keys(filter="deep") == "bc"
    assert keys(filter="deep", search="C") == "c"


@pytest.mark.parametrize(
    "query",
    [
        {"sort": "shown"},
        {"sort": "--key"},
        {"filter": "x"},
        {"offset": "-1"},
        {"limit": "1e9"},
        {"offset": "9" * 30},
        {"offset": "\u0663"},
    ],
)
def test_what_cannot_be_asked(query: dict[str, str]) -> None:
    with pytest.raises(HttpError) as caught:
        KIND.asked(query)
    assert caught.value.status == 400


def test_a_page_is_bounded() -> None:
    assert KIND.asked({"limit": "1000000"}).limit == 500


def test_orders_are_kept_until_the_next_poll() -> None:
    orders, made = KeptOrders(), []

    def make() -> list[Row]:
        made.append(1)
        return ROWS

    for seq in (1, 1, 2):
        orders.get(seq, "x", make)
    assert len(made) == 2
