"""Histograms: quantiles are within the bound that the module promises."""

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from pumpline.core.text.histogram import Buckets, Histogram, merged

ERROR_MAX = 1 / 128

values = st.lists(
    st.one_of(st.integers(0, 300), st.integers(0, 10**12), st.integers(0, 2**63)), min_size=1
)
quantile = st.floats(0, 1, exclude_min=True)


def filled(numbers: list[int]) -> Histogram:
    histogram = Histogram()
    for number in numbers:
        histogram.record(number)
    return histogram


@given(values, quantile)
def test_a_quantile_is_that_value_within_a_128th(numbers: list[int], q: float) -> None:
    exact = sorted(numbers)[ceil(q * len(numbers)) - 1]
    [found] = filled(numbers).quantiles([q])
    assert abs(found - exact) <= exact * ERROR_MAX


@given(values)
def test_small_values_are_kept_exactly(numbers: list[int]) -> None:
    small = [number % 128 for number in numbers]
    assert filled(small).quantiles([1.0]) == [max(small)]


@given(st.lists(st.tuples(st.integers(0, 10**10), st.integers(1, 50)), min_size=1), quantile)
def test_a_count_is_as_good_as_repeating(rows: list[tuple[int, int]], q: float) -> None:
    counted = Histogram()
    for value, count in rows:
        counted.record(value, count)
    repeated = filled([value for value, count in rows for _ in range(count)])
    assert counted.count == repeated.count
    assert counted.quantiles([q]) == repeated.quantiles([q])


@given(values, values, quantile)
def test_merging_is_as_good_as_one_histogram(a: list[int], b: list[int], q: float) -> None:
    both = merged([filled(a), filled(b)])
    assert both.count == len(a) + len(b)
    assert both.quantiles([q]) == filled(a + b).quantiles([q])


def test_an_empty_histogram_has_zeros_for_quantiles() -> None:
    assert Histogram().quantiles([0.5, 1.0]) == [0.0, 0.0]


def test_a_clock_that_went_back_counts_as_no_time() -> None:
    assert filled([-5]).quantiles([1.0]) == [0.0]


@given(st.lists(st.floats(0, 100)), st.lists(st.floats(0, 100), min_size=1, unique=True))
def test_buckets_count_what_is_not_over_their_bound(
    numbers: list[float], bounds: list[float]
) -> None:
    buckets = Buckets(sorted(bounds))
    for number in numbers:
        buckets.record(number)
    *finite, (_, everything) = buckets.cumulative()
    assert finite == [(b, sum(n <= b for n in numbers)) for b in sorted(bounds)]
    assert everything == len(numbers)
