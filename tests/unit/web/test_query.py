"""Query strings: what is in them, and what is malformed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumpline.web.query import PAIRS_MAX, QueryError, parse_query


@pytest.mark.parametrize(
    ("raw", "query"),
    [
        ("", {}),
        ("&&", {}),
        ("a=1&b=2", {"a": "1", "b": "2"}),
        ("a=1&a=2", {"a": "1"}),
        ("a", {"a": ""}),
        ("a&a=1", {"a": ""}),
        ("=1", {"": "1"}),
        ("a=b=c", {"a": "b=c"}),
        ("a=1+2%2B3%20", {"a": "1 2+3 "}),
        ("%61=%c3%a9", {"a": "é"}),
        ("a=%ff", {"a": "\udcff"}),
        ("a=%3B%26", {"a": ";&"}),
        ("&" * (PAIRS_MAX - 1) + "a=1", {"a": "1"}),
    ],
)
def test_parse(raw: str, query: dict[str, str]) -> None:
    assert parse_query(raw) == query


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        ("a;b", "invalid semicolon separator in query"),
        ("a=1&b=;", "invalid semicolon separator in query"),
        ("a=%zz", 'invalid URL escape "%zz"'),
        ("a=1%4", 'invalid URL escape "%4"'),
        ("%=1", 'invalid URL escape "%"'),
        ("&" * PAIRS_MAX, "more than 1000 parameters"),
    ],
)
def test_malformed(raw: str, cause: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_query(raw)
    assert str(caught.value) == cause


@given(st.text())
def test_anything_is_parsed_or_malformed(raw: str) -> None:
    try:
        parse_query(raw)
    except QueryError as error:
        assert str(error).startswith("invalid ")
