"""Positions survive JSON, and limits are kept and shared."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.errors import NsqError
from pyspark_nsq.nodes.positions import (
    Position,
    Positions,
    from_json,
    limited,
    rows_between,
    to_json,
)

keys = st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["n1:4150", "n2:4150"]))
positions_of_any_kind = st.dictionaries(
    keys,
    st.builds(
        Position,
        st.sampled_from(["00", "01"]),
        st.integers(0, 1000),
        st.integers(1, 1000),
        st.integers(0, 1 << 62),
    ),
)


@given(positions_of_any_kind)
def test_positions_survive_the_checkpoint(positions: Positions) -> None:
    assert from_json(json.loads(json.dumps(to_json(positions)))) == positions


def test_equal_positions_are_equal_texts_whatever_their_order() -> None:
    one = {
        ("b", "n"): Position("00", 1),
        ("a", "m"): Position("00", 2),
        ("a", "l"): Position("00", 3),
    }
    other = dict(reversed(one.items()))
    assert json.dumps(to_json(one)) == json.dumps(to_json(other))


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1},
        {"a": {"n": 5}},
        {"a": {"n": {"log": "00"}}},
        {"a": {"n": {"log": 1, "offset": 2}}},
        {"a": {"n": {"log": "00", "offset": -1}}},
        {"a": {"n": {"log": "00", "offset": 2, "row_bytes": 0}}},
        {"a": {"n": {"log": "00", "offset": 2, "at_ns": "now"}}},
    ],
)
def test_another_source_s_checkpoint_is_told_as_such(value: dict[str, object]) -> None:
    with pytest.raises(NsqError, match="did not write"):
        from_json(value)


def test_a_log_that_is_new_or_another_has_no_rows_yet() -> None:
    start = {("a", "n"): Position("00", 5), ("b", "n"): Position("00", 5)}
    end = {**start, ("a", "n"): Position("01", 9), ("c", "n"): Position("00", 9)}
    assert rows_between(start, end) == {}
    assert rows_between(start, {**end, ("b", "n"): Position("00", 8)}) == {("b", "n"): 3}


@given(positions_of_any_kind, positions_of_any_kind, st.integers(1, 2000))
def test_a_limit_is_kept_and_used_up(start: Positions, end: Positions, rows_max: int) -> None:
    reached = limited(start, end, rows_max=rows_max)
    wanted = sum(rows_between(start, end).values())
    assert sum(rows_between(start, reached).values()) == min(wanted, rows_max)
    assert reached.keys() == end.keys()
    for key, place in reached.items():
        assert place.log == end[key].log and place.offset <= max(
            end[key].offset, start[key].offset if key in start else 0
        )


def test_a_limit_is_shared_in_proportion_to_lag() -> None:
    start = {("a", "n"): Position("00", 0), ("b", "n"): Position("00", 0)}
    end = {("a", "n"): Position("00", 900), ("b", "n"): Position("00", 100)}
    reached = limited(start, end, rows_max=100)
    assert (reached["a", "n"].offset, reached["b", "n"].offset) == (90, 10)


def test_bytes_limit_rows_by_the_average_row_of_each_log() -> None:
    start = {("t", "a"): Position("1", 0), ("t", "b"): Position("2", 0)}
    end = {
        ("t", "a"): Position("1", 1000, row_bytes=100),
        ("t", "b"): Position("2", 1000, row_bytes=1900),
    }
    reached = limited(start, end, bytes_max=200_000)
    assert rows_between(start, reached) == {("t", "a"): 100, ("t", "b"): 100}
    reached = limited(start, end, bytes_max=200_000, rows_max=50)
    assert sum(rows_between(start, reached).values()) == 50
    assert limited(start, end, bytes_max=2_000_000) == end
    assert sum(rows_between(start, limited(start, end, bytes_max=1)).values()) == 1
