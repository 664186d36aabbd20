"""An hour of figures: what was known when, with gaps, in a circle."""

from pumpline.nsqadmin.live.history import STEPS, HourHistory, Series


def test_values_are_kept_by_step_and_gaps_stay_gaps() -> None:
    series = Series()
    series.put(100, 1.0)
    series.put(103, 4.0)
    series.put(103, 5.0)
    assert series.last(104, 6) == [None, 1.0, None, None, 5.0, None]
    assert series.known(104, 6) == [1.0, None, None, 5.0, None]
    assert series.at(99) is None


def test_an_hour_later_nothing_is_left() -> None:
    series = Series()
    series.put(1, 1.0)
    series.put(1 + STEPS, 2.0)
    assert series.at(1) is None
    series.put(1 + 10 * STEPS, None)
    assert series.known(1 + 10 * STEPS, STEPS) == []


def test_a_clock_that_goes_back_changes_nothing() -> None:
    series = Series()
    series.put(50, 1.0)
    series.put(20, 9.0)
    assert (series.at(50), series.at(20)) == (1.0, None)


def test_series_of_one_thing_are_of_one_length() -> None:
    history = HourHistory(("a", "b"))
    history.put(10, {"a": None, "b": 1.0})
    history.put(11, {"a": 1234567.0, "b": 0.123456})
    assert history.last(11) == {"a": [None, 1234567.0], "b": [1.0, 0.1235]}
