"""What filters become never leaves out a row that matches, whatever Spark pushes.

The model evaluates filters as SQL does, with NULL, on the columns that a row has in Spark.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from pyspark_nsq.reading.filters import limits_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME_NS_END = 1 << 63

COMPARED: dict[type, Callable[[object, object], bool]] = {
    EqualTo: lambda mine, other: mine == other,
    EqualNullSafe: lambda mine, other: mine == other,
    GreaterThan: lambda mine, other: mine > other,
    GreaterThanOrEqual: lambda mine, other: mine >= other,
    LessThan: lambda mine, other: mine < other,
    LessThanOrEqual: lambda mine, other: mine <= other,
    StringStartsWith: lambda mine, other: mine.startswith(other),
    StringEndsWith: lambda mine, other: mine.endswith(other),
    StringContains: lambda mine, other: other in mine,
}


@dataclass(frozen=True)
class Row:
    topic: str
    node: str
    offset: int
    published_ns: int

    @property
    def columns(self) -> dict[str, object]:
        at = EPOCH + timedelta(microseconds=self.published_ns // 1000)
        return {"topic": self.topic, "node": self.node, "offset": self.offset, "timestamp": at}


def truth(filter: Filter, row: Row) -> bool | None:
    """True, False or NULL."""
    if isinstance(filter, Not):
        inner = truth(filter.child, row)
        return None if inner is None else not inner
    mine = row.columns[filter.attribute[0]]
    if isinstance(filter, IsNull | IsNotNull):
        return isinstance(filter, IsNotNull)
    if isinstance(filter, In):
        if mine in [value for value in filter.value if value is not None]:
            return True
        return None if None in filter.value else False
    if filter.value is None:
        return False if isinstance(filter, EqualNullSafe) else None
    if isinstance(mine, str):
        return COMPARED[type(filter)](mine.encode(), filter.value.encode())
    return COMPARED[type(filter)](mine, filter.value)


# Few values that are near each other, so that rows match and edges are met, and the extremes.
names = st.sampled_from(["a", "ab", "b", "orders", "orders.dlq", "ö", "z"])
offsets = st.integers(0, 5) | st.sampled_from([10**12, (1 << 63) - 1])
moments_ns = (
    st.integers(1_700_000_000_000_000_000, 1_700_000_000_000_004_000)
    | st.integers(0, 3000)
    | st.sampled_from([TIME_NS_END - 1, TIME_NS_END - 1000])
)
zones = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(0, 1))])
rows = st.builds(Row, names, names, offsets, moments_ns)


@st.composite
def times(draw: st.DrawFn) -> datetime:
    edges = [datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC), EPOCH]
    moment = EPOCH + timedelta(microseconds=draw(moments_ns) // 1000)
    return draw(st.just(moment) | st.sampled_from(edges)).astimezone(draw(zones))


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(["topic", "node", "offset", "timestamp"]))
    strings = column in ("topic", "node")
    numbers = offsets | st.integers(-(1 << 63), -1)
    values = st.none() | (names if strings else numbers if column == "offset" else times())
    kinds = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
    kinds += [StringStartsWith, StringEndsWith, StringContains] if strings else []
    kind = draw(st.sampled_from([*kinds, In, IsNull, IsNotNull]))
    made: Filter
    if kind in (IsNull, IsNotNull):
        made = kind((column,))
    elif kind is In:
        made = In((column,), tuple(draw(st.lists(values, min_size=1, max_size=4))))
    else:
        made = kind((column,), draw(values))
    return Not(made) if draw(st.booleans()) else made


@given(rows, st.lists(filters(), max_size=4))
@example(
    Row("a", "b", 0, 1_700_000_000_000_000_999),
    [LessThanOrEqual(("timestamp",), datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC))],
)
def test_a_row_that_matches_is_within_the_limits(row: Row, pushed: list[Filter]) -> None:
    if not all(truth(filter, row) is True for filter in pushed):
        return
    limits = limits_of(pushed)
    assert limits.wants(row.topic, row.node)
    assert limits.offsets.low is None or limits.offsets.low <= row.offset
    assert limits.offsets.high is None or row.offset <= limits.offsets.high
    assert limits.time_begin_ns is None or limits.time_begin_ns <= row.published_ns
    assert limits.time_end_ns is None or row.published_ns < limits.time_end_ns


@given(st.lists(filters(), max_size=4))
def test_a_node_can_be_asked_for_every_limit_of_time(pushed: list[Filter]) -> None:
    limits = limits_of(pushed)
    for edge in (limits.time_begin_ns, limits.time_end_ns):
        assert edge is None or 0 <= edge < TIME_NS_END
