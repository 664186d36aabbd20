"""What a producer may send, and what is set aside before Spark's parser sees it."""

import json

import pytest
from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from pyspark_nsq.pipelines.json_events.faults import (
    BODY_BYTES_MAX,
    DEPTH_MAX,
    KEYS_MAX,
    checker,
)


def struct(**fields: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])  # type: ignore[arg-type]


SCHEMA = struct(
    id=LongType(),
    price=DoubleType(),
    note=StringType(),
    sizes=MapType(StringType(), struct(cm=LongType())),
    address=struct(lines=ArrayType(struct(number=LongType()))),
)
inferring = checker(StructType(), grows=True)
growing = checker(SCHEMA, grows=True)
closed = checker(SCHEMA, grows=False)


def nested(depth: int, *, lists: bool = False) -> bytes:
    """An object with this many objects or lists in each other, itself included."""
    before, after = (b"[", b"]") if lists else (b'{"a":', b"}")
    return (
        b'{"a":' + before * (depth - 2) + (b"[]" if lists else b"{}") + after * (depth - 2) + b"}"
    )


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"id":4}{"id":5}', "not JSON: Extra data: line 1 column 9 (char 8)"),
        (b'{"id":4} garbage', "not JSON: Extra data: line 1 column 10 (char 9)"),
        (b'{"id":4},', "not JSON: Extra data: line 1 column 9 (char 8)"),
        (b'{"x": NaN}', "not JSON: NaN is not a number"),
        (b'{"x": [-Infinity]}', "not JSON: -Infinity is not a number"),
        (b'{"x": 1e400}', "x: a number beyond the largest DOUBLE"),
        (b'{"x": [{"y": -1e999}]}', "x[0].y: a number beyond the largest DOUBLE"),
        (b"\xef\xbb\xbf{}", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"ab\xff", "not UTF-8: byte 0xff at 2"),
        (b"", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"'a'", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"[1]", "not an object, but a list"),
        (b"null", "not an object, but null"),
        (b'{"a": 1, "a": 2}', "the key a is there twice"),
        (b'{"b": [{"a": 1, "a": 1}]}', "the key a is there twice"),
        (b'{"name": 1, "Name": 2}', "Name: differs from name only in case"),
        (b'{"x": {"NAME": 1, "name": 2}}', "x.name: differs from NAME only in case"),
        (b'{"": 1}', "an empty key"),
        (b'{"x": [{"": 1}]}', "an empty key in x[0]"),
        (b'{"_corrupt_record": 1}', "the key _corrupt_record: Spark's parser uses it"),
        (b'{"_Corrupt_Record": {}}', "the key _Corrupt_Record: Spark's parser uses it"),
        (nested(DEPTH_MAX + 1), "too deep: more than 64 objects and lists in each other"),
        (nested(DEPTH_MAX + 1, lists=True), "too deep: more than 64 objects and lists"),
        (nested(990), "too deep"),
        (b"[" * 100_000, "too deep"),
        (b'{"a":' * 100_000, "too deep"),
        (json.dumps({str(n): n for n in range(KEYS_MAX + 1)}).encode(), "2,001 keys: more than"),
        (b'{"a": "%s"}' % (b"x" * BODY_BYTES_MAX), "16,777,225 bytes: more than the 16,777,216"),
        (b'{"a": %s}' % (b"9" * 5000), "not JSON: Exceeds the limit"),
    ],
    ids=lambda value: repr(value[:30]),
)
def test_what_no_table_can_keep_is_set_aside_with_the_reason(body: bytes, text: str) -> None:
    assert (inferring(body) or "").startswith(text)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b' {"a": 1}\r\n\t ',
        '{"ä": "ß", "a b,;{}()=": null}'.encode(),
        b'{"a": "NaN", "b": "{[{[", "c": 1e308, "d": 123456789012345678901234567890}',
        nested(DEPTH_MAX),
        nested(DEPTH_MAX, lists=True),
        json.dumps({str(n): n for n in range(KEYS_MAX)}).encode(),
        b'{"a": [%s]}' % b",".join([b"{}"] * 100),
        b'{"a": {"_corrupt_record": 1}}',
    ],
    ids=lambda value: repr(value[:30]),
)
def test_what_a_table_can_keep_has_no_fault(body: bytes) -> None:
    assert inferring(body) is None


@pytest.mark.parametrize("check", [growing, closed], ids=["growing", "closed"])
@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"ID": 1}', "ID: the table has the column id, which differs only in case"),
        (b'{"id": 1, "Id": 2}', "Id: the table has the column id, which differs only in case"),
        (
            b'{"address": {"lines": [{"number": 1}, {"Number": 2}]}}',
            "address.lines[1].Number: the table has the column number, which differs only in case",
        ),
        (
            b'{"sizes": {"a": {"CM": 1}}}',
            "sizes.a.CM: the table has the column cm, which differs only in case",
        ),
        (b'{"price": 1e400}', "price: a number beyond the largest DOUBLE"),
    ],
)
def test_a_key_that_differs_from_a_column_only_in_case_is_set_aside(
    check: object, body: bytes, text: str
) -> None:
    assert check(body) == text  # type: ignore[operator]


def test_keys_that_become_no_columns_may_differ_only_in_case() -> None:
    maps_and_texts = b'{"sizes": {"a": {"cm": 1}, "A": null}, "note": {"b": 1, "B": 1e400}}'
    assert growing(maps_and_texts) is None
    assert closed(maps_and_texts) is None
    left_out = b'{"other": {"b": 1, "B": 2}, "x": 1, "X": 1e400, "": 3, "_corrupt_record": 4}'
    assert closed(left_out) is None
    assert growing(left_out) == "other.B: differs from b only in case"
