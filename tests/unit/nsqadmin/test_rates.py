"""Rates from counters, over five to ten seconds, of the same nodes."""

from pumpline.nsqadmin.live.rates import CounterReading, RateWindow, positive


def test_a_rate_needs_two_readings() -> None:
    window = RateWindow()
    assert window.rates(CounterReading(0.0, 1, (0,))) is None
    assert window.rates(CounterReading(2.0, 1, (10,))) == (5.0,)


def test_the_window_is_five_to_ten_seconds_long() -> None:
    window = RateWindow()
    rates = {}
    for second in range(0, 60, 2):
        count = 0 if second < 30 else (second - 30) * 100
        found = window.rates(CounterReading(float(second), 1, (count,)))
        rates[second] = found[0] if found else None
    assert rates[30] == 0
    assert rates[42] == 100  # nothing older than ten seconds counts
    assert 0 < rates[34] < 100


def test_a_node_that_leaves_or_restarts_makes_no_rate() -> None:
    window = RateWindow()
    window.rates(CounterReading(0.0, 1, (1000,)))
    assert window.rates(CounterReading(2.0, 2, (400,))) is None
    assert window.rates(CounterReading(4.0, 2, (500,))) == (50.0,)


def test_a_clock_that_stands_still_makes_no_rate() -> None:
    window = RateWindow()
    window.rates(CounterReading(1.0, 1, (0,)))
    assert window.rates(CounterReading(1.0, 1, (5,))) is None


def test_what_falls_is_no_rate() -> None:
    assert (positive(-3.0), positive(1.23456)) == (0.0, 1.235)
