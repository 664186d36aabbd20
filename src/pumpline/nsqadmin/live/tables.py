"""Tables of rows: search, filter, sort and page, here and not in the browser.

What is asked comes from a query string; what is wrong with it is a 400. An order of rows is kept
until the next poll, as several browsers often want the same. Rows without a value come last.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from pumpline.web.replies import HttpError

LIMIT = 50
LIMIT_MAX = 500
KEPT_MAX = 32  # orders


class TableRow(Protocol):
    @property
    def key(self) -> str: ...

    def shown(self, now_s: float) -> dict[str, Any]: ...


R = TypeVar("R", bound=TableRow)
Filters = Mapping[str, Callable[[Any], bool]]


class TableQuery(msgspec.Struct, frozen=True):
    search: str
    sort: str
    descending: bool
    filters: tuple[str, ...]
    offset: int
    limit: int


class TableKind(msgspec.Struct, Generic[R]):
    """What a table has."""

    columns: frozenset[str]
    filters: Filters
    sort: str  # if not asked otherwise
    searched: Callable[[R], str]

    def asked(self, query: Mapping[str, str]) -> TableQuery:
        sort = query.get("sort") or self.sort
        descending = sort.startswith("-")
        column = sort.removeprefix("-")
        if column not in self.columns:
            raise HttpError(400, "INVALID_SORT")
        filters = tuple(sorted({word for word in query.get("filter", "").split(",") if word}))
        if not set(filters) <= self.filters.keys():
            raise HttpError(400, "INVALID_FILTER")
        return TableQuery(
            search=query.get("search", "").casefold(),
            sort=column,
            descending=descending,
            filters=filters,
            offset=number(query, "offset", 0),
            limit=min(number(query, "limit", LIMIT), LIMIT_MAX),
        )

    def select(self, rows: Iterable[R], asked: TableQuery) -> list[R]:
        """All rows that match, in order."""
        tests = [self.filters[name] for name in asked.filters]
        search, searched = asked.search, self.searched
        found = [
            row
            for row in rows
            if (not search or search in searched(row).casefold())
            and all(test(row) for test in tests)
        ]
        found.sort(key=attrgetter("key"))
        value = attrgetter(asked.sort)
        known = [row for row in found if value(row) is not None]
        unknown = [row for row in found if value(row) is None]
        known.sort(key=value, reverse=asked.descending)
        return known + unknown


class KeptOrders:
    """Orders of rows, until the next poll."""

    def __init__(self) -> None:
        self._seq = -1
        self._orders: dict[object, Sequence[Any]] = {}

    def get(self, seq: int, key: object, make: Callable[[], Sequence[R]]) -> Sequence[R]:
        if seq != self._seq or len(self._orders) > KEPT_MAX:
            self._orders.clear()
            self._seq = seq
        if key not in self._orders:
            self._orders[key] = make()
        return self._orders[key]


def number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise HttpError(400, f"INVALID_{name.upper()}")
    return int(text)
