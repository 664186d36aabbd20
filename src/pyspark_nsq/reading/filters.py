"""What the filters of a query say about the rows to read: which logs, offsets and times.

Spark hands over filters that are joined by AND. Each one on `topic` or `node` is asked about every
log; those on `offset` and `timestamp` become one range each. A filter that is not understood limits
nothing. Spark checks all filters again on the rows that are read, so a range may be too wide, but
it must never leave out a row that matches. Knows values; must not know nodes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

TIME_NS_END = 1 << 63  # publish times are i64

_NS_PER_US = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The values from `low` to `high`, both included; None is no limit."""

    low: int | None = None
    high: int | None = None

    def within(self, low: int | None, high: int | None) -> "ValueRange":
        """The part of it that is in another range."""
        lows = [edge for edge in (self.low, low) if edge is not None]
        highs = [edge for edge in (self.high, high) if edge is not None]
        return ValueRange(max(lows, default=None), min(highs, default=None))


@dataclass(frozen=True, slots=True)
class Limits:
    """The rows that a query can use."""

    offsets: ValueRange = ValueRange()
    times_us: ValueRange = ValueRange()
    names: tuple[Filter, ...] = ()  # on topic and node
    is_nothing: bool = False  # a filter that no row passes, as `offset IN (NULL)`

    def wants(self, topic: str, node: str) -> bool:
        """Whether rows of this log can match."""
        texts = {"topic": topic, "node": node}
        return not self.is_nothing and all(_passes(filter, texts) for filter in self.names)

    @property
    def time_begin_ns(self) -> int | None:
        """No row that matches was published before; None for no limit."""
        low = self.times_us.low
        return None if low is None or low <= 0 else min(low * _NS_PER_US, TIME_NS_END - 1)

    @property
    def time_end_ns(self) -> int | None:
        """No row that matches was published at this time or later; None for no limit. The column
        has microseconds, so all nanoseconds of the last one are in it."""
        high = self.times_us.high
        end = None if high is None else (high + 1) * _NS_PER_US
        return None if end is None or not 0 < end < TIME_NS_END else end


class PushFilters:
    """Takes the filters of a query for a reader; Spark calls it in place of `pushFilters`.

    Spark refuses every read of a reader that overrides `pushFilters` while the setting
    spark.sql.python.filterPushdown.enabled is false, which is the default. It goes by `__func__`.
    With this one, Spark pushes filters if the setting is on, and reads everything if it is off.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self) -> None:
        self.limits = Limits()

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self.limits = limits_of(filters)
        return filters  # Spark checks them all


def limits_of(filters: Iterable[Filter]) -> Limits:
    limits = Limits()
    for filter in filters:
        limits = _narrowed(limits, filter)
    return limits


def _narrowed(limits: Limits, filter: Filter) -> Limits:
    column = _column(filter)
    if column in ("topic", "node"):
        return replace(limits, names=(*limits.names, filter))
    if column not in ("offset", "timestamp"):
        return limits
    values = filter.value if isinstance(filter, In) else (getattr(filter, "value", None),)
    if isinstance(filter, EqualTo | In):
        values = tuple(value for value in values if value is not None)  # NULL equals nothing
        if not values:
            return replace(limits, is_nothing=True)
    numbers = [_number(column, value) for value in values]
    known = [number for number in numbers if number is not None]
    if not known or len(known) < len(numbers):
        return limits
    low, high = _edges(filter, min(known), max(known))
    if column == "offset":
        return replace(limits, offsets=limits.offsets.within(low, high))
    return replace(limits, times_us=limits.times_us.within(low, high))


def _edges(filter: Filter, least: int, most: int) -> tuple[int | None, int | None]:
    """The least and the greatest number that can pass the filter."""
    match filter:
        case EqualTo() | EqualNullSafe() | In():
            return least, most
        case GreaterThan():
            return least + 1, None
        case GreaterThanOrEqual():
            return least, None
        case LessThan():
            return None, most - 1
        case LessThanOrEqual():
            return None, most
    return None, None  # Not, and what later versions of Spark may add


def _number(column: str, value: object) -> int | None:
    """The value as it is compared: an offset, or microseconds since 1970; None if it is neither."""
    if column == "offset":
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    since = value - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _column(filter: Filter) -> str | None:
    """The column that a filter is on; None if it is a part of one, or not known."""
    inner = filter.child if isinstance(filter, Not) else filter
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    return path[0] if len(path) == 1 else None


def _passes(filter: Filter, texts: dict[str, str]) -> bool:
    """Whether a name passes a filter; True if that is not known."""
    if isinstance(filter, Not):
        verdict = _verdict(filter.child, texts)
        return verdict is None or not verdict
    return _verdict(filter, texts) is not False


def _verdict(filter: Filter, texts: dict[str, str]) -> bool | None:
    """What the filter says of a name, as Spark would; None if that is not known."""
    text = texts[str(_column(filter))]
    wanted = getattr(filter, "value", None)
    if isinstance(filter, In):
        # NOT IN with a NULL is never true, and is left to Spark.
        known = all(isinstance(value, str) for value in wanted or ())
        return text in (wanted or ()) or (False if known else None)
    if not isinstance(wanted, str):
        return None
    mine, other = text.encode(), wanted.encode()  # Spark compares the bytes
    match filter:
        case EqualTo() | EqualNullSafe():
            return mine == other
        case GreaterThan():
            return mine > other
        case GreaterThanOrEqual():
            return mine >= other
        case LessThan():
            return mine < other
        case LessThanOrEqual():
            return mine <= other
        case StringStartsWith():
            return mine.startswith(other)
        case StringEndsWith():
            return mine.endswith(other)
        case StringContains():
            return other in mine
    return None
