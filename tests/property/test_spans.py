"""Span arithmetic gives what the same sets of single offsets give."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pumpline.core.messages.spans import Span, gaps, joined, length, outside

OFFSETS = st.integers(0, 40)
SPANS = st.lists(st.tuples(OFFSETS, st.integers(1, 9)).map(lambda each: (each[0], sum(each))))


def offsets_of(spans: list[Span]) -> set[int]:
    return {offset for start, end in spans for offset in range(start, end)}


@given(SPANS, OFFSETS)
def test_a_union_has_all_offsets_above_the_low_mark_in_spans_apart(
    spans: list[Span], low: int
) -> None:
    found = joined(spans, low)
    assert offsets_of(found) == {offset for offset in offsets_of(spans) if offset >= low}
    assert all(a[1] < b[0] for a, b in pairwise(found))
    assert length(found) == len(offsets_of(found))


@given(SPANS, OFFSETS, OFFSETS)
def test_gaps_are_what_no_span_has(spans: list[Span], start: int, end: int) -> None:
    apart = joined(spans)
    assert offsets_of(gaps(start, end, apart)) == set(range(start, end)) - offsets_of(apart)


@given(SPANS, st.sets(OFFSETS))
def test_offsets_outside_are_in_no_span(spans: list[Span], offsets: set[int]) -> None:
    apart = joined(spans)
    assert set(outside(sorted(offsets), apart)) == offsets - offsets_of(apart)
