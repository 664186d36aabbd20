"""What no table can keep of a body, whatever its columns are."""

import json
from decimal import Decimal

import pytest

from pyspark_nsq.pipelines.json_events.faults import (
    BODY_BYTES_MAX,
    DEPTH_MAX,
    KEYS_MAX,
    Faulty,
    load,
)


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
        (b"\xef\xbb\xbf{}", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"ab\xff", "not UTF-8: byte 0xff at 2"),
        (b'{"id": 1', "not JSON: Expecting ',' delimiter: line 1 column 9 (char 8)"),
        (b"", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"'a'", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"[1]", "not an object, but a list"),
        (b"null", "not an object, but null"),
        (b"1.5", "not an object, but a number with a fraction"),
        (b'{"a": 1, "a": 2}', "the key a is there twice"),
        (b'{"b": [{"a": 1, "a": 1}]}', "the key a is there twice"),
        (rb'{"a": "\ud800"}', "half a surrogate pair, which no text can have"),
        (rb'{"\uDFFF": 1}', "half a surrogate pair, which no text can have"),
        (b'{"a": 1e99999999999999999999}', "a number beyond all types"),
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
    with pytest.raises(Faulty) as caught:
        load(body)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b' {"a": 1}\r\n\t ',
        '{"ä": "ß", "a b,;{}()=": null}'.encode(),
        rb'{"a": "NaN", "b": "{[{[", "c": 1e308, "d": "\ud83d\ude00 \\ud800"}',
        nested(DEPTH_MAX),
        nested(DEPTH_MAX, lists=True),
        json.dumps({str(n): n for n in range(KEYS_MAX)}).encode(),
        b'{"a": [%s]}' % b",".join([b"{}"] * 100),
        b'{"a": 123456789012345678901234567890}',
    ],
    ids=lambda value: repr(value[:30]),
)
def test_an_object_is_read_as_it_is(body: bytes) -> None:
    assert load(body) == json.loads(body, parse_float=Decimal)


def test_a_fault_names_the_place() -> None:
    fault = Faulty("odd")
    assert str(fault) == "odd"
    fault.path = ["c d", 0, 3, "b", "a"]
    assert str(fault) == "a.b[3][0].c d: odd"
