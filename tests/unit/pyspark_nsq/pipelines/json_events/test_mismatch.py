"""Why a body is no event, in one line; and how a schema grows. Neither needs a session."""

import json

import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from pyspark_nsq.pipelines.json_events.events import FIELDS_MAX, merged
from pyspark_nsq.pipelines.json_events.mismatch import reason


def struct(**fields: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])  # type: ignore[arg-type]


SCHEMA = struct(
    id=LongType(),
    small=ByteType(),
    price=DoubleType(),
    paid=BooleanType(),
    day=DateType(),
    note=StringType(),
    tags=ArrayType(StringType()),
    sizes=MapType(StringType(), LongType()),
    address=struct(lines=ArrayType(struct(number=LongType()))),
)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"ab\xff", "not UTF-8: byte 0xff at 2"),
        (b'{"id": 1', "not JSON: Expecting ',' delimiter: line 1 column 9 (char 8)"),
        (b"", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"[" * 100_000, "too deep: more than 64 objects and lists in each other"),
        (b"[1]", "not an object, but a list"),
        (b"null", "not an object, but null"),
        (b'{"id": "1"}', "id: a string where bigint is expected"),
        (b'{"id": true}', "id: a boolean where bigint is expected"),
        (b'{"id": 1.5}', "id: a number with a fraction where bigint is expected"),
        (b'{"small": 128}', "small: an integer where tinyint is expected"),
        (b'{"small": -129}', "small: an integer where tinyint is expected"),
        (b'{"id": %d}' % (1 << 63), "id: an integer where bigint is expected"),
        (b'{"price": "much"}', "price: a string where double is expected"),
        (b'{"price": false}', "price: a boolean where double is expected"),
        (b'{"paid": 1}', "paid: an integer where boolean is expected"),
        (b'{"day": 20261116}', "day: an integer where date is expected"),
        (b'{"tags": {}}', "tags: an object where array<string> is expected"),
        (b'{"sizes": {"a": 1, "b": []}}', "sizes.b: a list where bigint is expected"),
        (
            b'{"address": {"lines": [{"number": 1}, {"number": "x"}]}}',
            "address.lines[1].number: a string where bigint is expected",
        ),
    ],
)
def test_the_first_thing_that_is_wrong_is_named(body: bytes, text: str) -> None:
    assert reason(body, SCHEMA) == text


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"id": None, "tags": None, "address": None, "unknown": [1]},
        {"id": (1 << 63) - 1, "small": -128, "price": 5, "paid": False, "day": "2026-11-16"},
        {"note": 5, "tags": ["a", 5, None], "sizes": {}, "address": {"lines": []}},
    ],
    ids=["nothing", "nulls", "extremes", "texts of all kinds"],
)
def test_nothing_is_named_where_nothing_is_wrong(value: dict[str, object]) -> None:
    """The parser has its own reasons then."""
    assert reason(json.dumps(value).encode(), SCHEMA) == "does not fit the schema"


def test_a_schema_takes_new_fields_and_keeps_the_types_it_has() -> None:
    before = struct(id=LongType(), inner=struct(a=LongType()), many=ArrayType(struct(b=LongType())))
    news = struct(
        id=StringType(),
        inner=struct(a=StringType(), c=StringType()),
        many=ArrayType(struct(d=StringType())),
        fresh=BooleanType(),
    )
    assert merged(before, news) == struct(
        id=LongType(),
        inner=struct(a=LongType(), c=StringType()),
        many=ArrayType(struct(b=LongType(), d=StringType())),
        fresh=BooleanType(),
    )


def test_names_that_differ_in_case_only_are_one_field_wherever_they_are() -> None:
    news = struct(ID=StringType(), new=struct(a=LongType(), A=StringType()))
    assert merged(struct(id=LongType()), news) == struct(id=LongType(), new=struct(a=LongType()))


def test_a_schema_stops_growing_before_keys_that_are_data_become_its_columns() -> None:
    news = struct(**{f"user_{number}": LongType() for number in range(FIELDS_MAX + 5)})
    grown = merged(struct(id=LongType()), news)
    assert (len(grown.fields), grown.fields[0].name) == (FIELDS_MAX, "id")
