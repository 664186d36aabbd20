"""Filters become bounds where they can, and Spark is given all of them back."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    Not,
    StringStartsWith,
)

from pyspark_nsq.options import parse_read
from pyspark_nsq.reading.batch import BatchReader
from pyspark_nsq.reading.filters import Limits, ValueRange, limits_of

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
NOON_US = 1_794_830_400_000_000


def reader() -> BatchReader:
    options = parse_read({"nsqd": "127.0.0.1:4151", "subscribe": "t"}, streaming=False)
    return BatchReader(options, pa.schema([]))


def test_spark_takes_the_reader_for_one_without_pushdown_and_calls_it_all_the_same() -> None:
    """What Spark looks at while its setting is off, and what it calls while it is on."""
    made = reader()
    assert made.pushFilters.__func__ is DataSourceReader.pushFilters
    pushed: list[Filter] = [EqualTo(("offset",), 5), EqualTo(("body",), b"x")]
    assert made.pushFilters(pushed) is pushed
    assert made.pushFilters.limits.offsets == ValueRange(5, 5)


@pytest.mark.parametrize(
    ("pushed", "limits"),
    [
        ([GreaterThan(("offset",), 5), LessThan(("offset",), 9)], Limits(offsets=ValueRange(6, 8))),
        ([In(("offset",), (7, None, 3))], Limits(offsets=ValueRange(3, 7))),
        ([In(("offset",), (None,))], Limits(is_nothing=True)),
        ([GreaterThanOrEqual(("timestamp",), NOON)], Limits(times_us=ValueRange(NOON_US, None))),
        ([EqualTo(("timestamp",), NOON)], Limits(times_us=ValueRange(NOON_US, NOON_US))),
        # What is not understood limits nothing.
        ([Not(EqualTo(("offset",), 5))], Limits()),
        ([EqualTo(("offset",), True)], Limits()),
        ([EqualTo(("offset",), 1.5)], Limits()),
        ([EqualTo(("timestamp",), NOON.replace(tzinfo=None))], Limits()),
        ([EqualTo(("offset", "part"), 5)], Limits()),
        ([EqualTo(("body",), b"x")], Limits()),
    ],
)
def test_limits(pushed: list[Filter], limits: Limits) -> None:
    assert limits_of(pushed) == limits


def test_names_choose_logs() -> None:
    limits = limits_of([StringStartsWith(("topic",), "ord"), Not(EqualTo(("node",), "b"))])
    assert limits.wants("orders", "a")
    assert not limits.wants("refunds", "a")
    assert not limits.wants("orders", "b")
