"""JSON messages: what passes, in the bytes it came in."""

import pytest

from pumpline.tools.nsq_to_nsq.json_filter import JsonFilter, MissingField, NotAnObject


def test_values_keep_their_bytes_and_fields_their_order() -> None:
    body = b'{"z": 12345678901234567890, "x": 1.10, "y": {"a":  "<\\u00e9>"}, "drop": 1}'
    kept = JsonFilter(whitelist=["y", "z", "x", "none"]).apply(body)
    assert kept == b'{"z":12345678901234567890,"x":1.10,"y":{"a":  "<\\u00e9>"}}'


def test_nothing_of_the_whitelist_is_an_empty_object() -> None:
    assert JsonFilter(whitelist=["a"]).apply(b'{"b":1}') == b"{}"


@pytest.mark.parametrize("body", [b"", b"zz", b"[1]", b"3", b'{"a":'])
def test_what_is_no_object_is_told(body: bytes) -> None:
    with pytest.raises(NotAnObject):
        JsonFilter(whitelist=["a"]).apply(body)


@pytest.mark.parametrize(
    ("value", "wanted", "passes"),
    [
        (b'"paid"', "paid", True),
        (b'"open"', "paid", False),
        (b"1", "1", True),
        (b"1.0", "1", True),
        (b'"1"', "1", True),
        (b"2", "1", False),
        (b"1", "one", False),
        (b"true", "true", False),
        (b"null", "null", False),
        (b'"\xff"', "x", False),
    ],
)
def test_a_value_is_compared_as_a_string_or_a_number(
    value: bytes, wanted: str, passes: bool
) -> None:
    body = b'{"a":%b}' % value
    filtered = JsonFilter(required_field="a", required_value=wanted).apply(body)
    assert filtered == (body if passes else None)


def test_a_required_field_must_be_there() -> None:
    assert JsonFilter(required_field="a").apply(b'{"a":null}') == b'{"a":null}'
    assert JsonFilter(required_field="a").apply(b'{"b":1}') is None
    with pytest.raises(MissingField):
        JsonFilter(required_field="a", required_value="1").apply(b'{"b":1}')
