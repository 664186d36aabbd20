"""Rates of `pumpline top`: by elapsed time, over nodes, and with nodes that come and go."""

from typing import Any

import msgspec

from pumpline.cluster.stats import SeenNode
from pumpline.tools.top.rates import Reading, measure

NOW_NS = 1_000_000 * 10**9


def seen(count: int, *, start_time: int = 1, **channel: Any) -> SeenNode:
    """A node with one topic that was published to so often, and one channel."""
    channels = [{"channel_name": "billing", "message_count": count, **channel}]
    topic = {"topic_name": "orders", "message_count": count, "channels": channels}
    answer = {"version": "1", "health": "OK", "start_time": start_time, "topics": [topic]}
    return msgspec.convert(answer, SeenNode)


def reading(taken_s: float, nodes: dict[str, SeenNode], **failures: str) -> Reading:
    return Reading(taken_s, NOW_NS, nodes, failures)


def test_rates_are_by_the_time_that_passed_and_summed_over_nodes() -> None:
    before = reading(10.0, {"a": seen(100, depth=50), "b": seen(0)})
    now = reading(14.0, {"a": seen(300, depth=150, in_flight_count=20), "b": seen(40)})
    measured = measure(before, now)
    assert measured.topics[0]["in"] == (200 + 40) / 4
    channel = measured.channels[0]
    assert (channel["in"], channel["out"]) == (60.0, (200 - 120 + 40) / 4)
    assert [row["in"] for row in measured.nodes] == [50.0, 10.0]
    assert [row["depth"] for row in measured.nodes] == [150, 0]


def test_the_first_reading_has_no_rates() -> None:
    measured = measure(None, reading(1.0, {"a": seen(5)}))
    assert (measured.topics[0]["in"], measured.channels[0]["out"]) == (None, None)
    assert measured.channels[0]["messages"] == 5


def test_a_node_that_was_started_again_adds_nothing() -> None:
    before = reading(1.0, {"a": seen(1000), "b": seen(10)})
    now = reading(2.0, {"a": seen(2000, start_time=2), "b": seen(11)})
    assert measure(before, now).topics[0]["in"] == 1.0


def test_a_seek_back_is_no_negative_rate() -> None:
    before = reading(1.0, {"a": seen(1000)})
    now = reading(2.0, {"a": seen(1000, depth=1000)})
    assert measure(before, now).channels[0]["out"] == 0.0


def test_a_node_that_fails_is_a_row() -> None:
    measured = measure(None, reading(1.0, {"a": seen(1)}, b="connection refused"))
    assert [(row["node"], row["health"]) for row in measured.nodes] == [
        ("a", "OK"),
        ("b", "connection refused"),
    ]
    assert measured.failures == {"b": "connection refused"}


def test_the_lag_is_that_of_the_node_furthest_behind_and_holds_have_no_rates() -> None:
    old = seen(1, depth=1, oldest_timestamp=NOW_NS - 9 * 10**9)
    new = seen(1, depth=1, oldest_timestamp=NOW_NS - 3 * 10**9)
    assert measure(None, reading(1.0, {"a": new, "b": old})).channels[0]["lag_seconds"] == 9.0
    held = reading(1.0, {"a": seen(1, hold=True)})
    assert measure(held, held).channels[0]["in"] is None
