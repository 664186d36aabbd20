"""Durations read and print as Go's do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumpline.core.text.durations import format_duration, parse_duration

INT64_MAX = (1 << 63) - 1


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [
        ("0", 0),
        ("-0", 0),
        ("0s", 0),
        ("5s", 5_000_000_000),
        ("+5s", 5_000_000_000),
        ("-5s", -5_000_000_000),
        ("1478s", 1_478_000_000_000),
        ("250ms", 250_000_000),
        ("10ns", 10),
        ("11us", 11_000),
        ("12\u00b5s", 12_000),
        ("12\u03bcs", 12_000),
        ("1h0m0s", 3_600_000_000_000),
        ("3h30m", 12_600_000_000_000),
        ("10.5s4m", 250_500_000_000),
        ("-2m3.4s", -123_400_000_000),
        ("5.s", 5_000_000_000),
        (".5s", 500_000_000),
        ("1.0s", 1_000_000_000),
        ("1.5ns", 1),
        ("39h9m14.425s", 140_954_425_000_000),
        ("0.3333333333333333333h", 1_199_999_999_999),
        ("0.100000000000000000000h", 360_000_000_000),
        ("9223372036854775807ns", INT64_MAX),
        ("-9223372036854775808ns", -INT64_MAX - 1),
        ("00000000000000000000001s", 1_000_000_000),
    ],
)
def test_texts_that_go_takes_give_its_nanoseconds(text: str, duration_ns: int) -> None:
    assert parse_duration(text) == duration_ns


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'time: invalid duration ""'),
        ("3", 'time: missing unit in duration "3"'),
        ("1m3", 'time: missing unit in duration "1m3"'),
        ("-", 'time: invalid duration "-"'),
        ("s", 'time: invalid duration "s"'),
        (".", 'time: invalid duration "."'),
        (".s", 'time: invalid duration ".s"'),
        ("+.s", 'time: invalid duration "+.s"'),
        ("5 s", 'time: unknown unit " s" in duration "5 s"'),
        ("5d", 'time: unknown unit "d" in duration "5d"'),
        ("5S", 'time: unknown unit "S" in duration "5S"'),
        ("1-2s", 'time: unknown unit "-" in duration "1-2s"'),
        ("\u0665s", 'time: invalid duration "\u0665s"'),
        ("9223372036854775808ns", 'time: invalid duration "9223372036854775808ns"'),
        ("3000000h", 'time: invalid duration "3000000h"'),
        ("2562047h47m17s", 'time: invalid duration "2562047h47m17s"'),
    ],
)
def test_texts_that_go_refuses_are_refused_in_its_words(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_duration(text)
    assert str(caught.value) == message


def test_a_very_long_number_is_refused_like_any_other() -> None:
    with pytest.raises(ValueError, match="time: invalid duration"):
        parse_duration("9" * 10_000 + "s")


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_100, "1.1\u00b5s"),
        (2_200_000, "2.2ms"),
        (100_000_000, "100ms"),
        (3_300_000_000, "3.3s"),
        (60_000_000_000, "1m0s"),
        (245_000_000_000, "4m5s"),
        (245_001_000_000, "4m5.001s"),
        (18_367_001_000_000, "5h6m7.001s"),
        (3_600_000_000_000, "1h0m0s"),
        (480_000_000_001, "8m0.000000001s"),
        (-250_000_000, "-250ms"),
        (INT64_MAX, "2562047h47m16.854775807s"),
        (-INT64_MAX - 1, "-2562047h47m16.854775808s"),
    ],
)
def test_nanoseconds_print_as_go_prints_them(duration_ns: int, text: str) -> None:
    assert format_duration(duration_ns) == text


@given(st.integers(min_value=-INT64_MAX - 1, max_value=INT64_MAX))
def test_every_printed_duration_reads_back_as_itself(duration_ns: int) -> None:
    assert parse_duration(format_duration(duration_ns)) == duration_ns
