"""Rows of topics and channels: sums, rates, lag."""

from pumpline.cluster.stats import SeenChannel, SeenTopic
from pumpline.nsqadmin.live.rows import TopicRow
from pumpline.nsqadmin.live.state import (
    CHANNEL_HISTORIES_MAX,
    LOOKED_AT_MAX,
    ClusterState,
)
from pumpline.nsqadmin.live.sums import PolledTopicSum

NOW_S = 1_700_000_000.0


def row_after(*readings: tuple[float, list[SeenChannel]]) -> TopicRow:
    row = TopicRow("t")
    for at_s, channels in readings:
        total = PolledTopicSum()
        came = max((each.message_count for each in channels), default=0)
        told = SeenTopic(topic_name="t", channels=channels, message_count=came)
        total.add(told, "n", 1)
        row.settle(total, at_s)
    return row


def test_what_comes_goes_and_fails() -> None:
    before = SeenChannel(channel_name="c", message_count=100, depth=50, in_flight_count=10)
    after = SeenChannel(
        channel_name="c",
        message_count=200,
        depth=70,
        in_flight_count=20,
        requeue_count=10,
        timeout_count=4,
    )
    row = row_after((NOW_S, [before]), (NOW_S + 2, [after])).by_channel["c"]
    assert row.in_rate == 50
    assert row.finish_rate == 35  # 100 came, 30 more are unfinished
    assert (row.requeue_rate, row.timeout_rate) == (5, 2)
    assert row.out_rate == 47  # finished, requeued, timed out, and 10 more in flight


def test_an_emptied_channel_has_no_negative_rates() -> None:
    before = SeenChannel(channel_name="c", message_count=100, depth=0)
    after = SeenChannel(channel_name="c", message_count=100, depth=100)  # rewound
    row = row_after((NOW_S, [before]), (NOW_S + 2, [after])).by_channel["c"]
    assert (row.in_rate, row.finish_rate, row.out_rate) == (0, 0, 0)


def test_holds_are_no_channels() -> None:
    hold = SeenChannel(channel_name="h", depth=1000, hold=True)
    row = row_after((NOW_S, [hold, SeenChannel(channel_name="c", depth=1, client_count=2)]))
    assert (row.channels, row.waiting, row.consumers) == (1, 1, 2)


def test_lag_is_that_of_what_is_not_finished() -> None:
    oldest_ns = int((NOW_S - 5) * 1e9)
    behind = SeenChannel(channel_name="a", depth=1, oldest_timestamp=oldest_ns)
    done = SeenChannel(channel_name="b", oldest_timestamp=oldest_ns)
    stock = SeenChannel(channel_name="c", depth=9)
    row = row_after((NOW_S, [behind, done, stock]))
    assert row.lag_ms == row.by_channel["a"].lag_ms == 5000
    assert row.by_channel["b"].lag_ms is None
    assert row.by_channel["c"].lag_ms is None


def test_channels_that_are_gone_go() -> None:
    row = row_after((NOW_S, [SeenChannel(channel_name="c")]), (NOW_S + 2, []))
    assert row.by_channel == {}


def test_histories_are_bounded() -> None:
    channels = [SeenChannel(channel_name=f"c{n}") for n in range(CHANNEL_HISTORIES_MAX + 1000)]
    state = ClusterState()
    state.topics["t"] = row_after((NOW_S, channels))
    state.give_histories()
    rows = list(state.topics["t"].by_channel.values())
    without = [row for row in rows if row.history is None]
    assert len(without) == 1000
    for row in without:
        state.look_at(row)
    kept = sum(row.history is not None for row in rows)
    assert kept == CHANNEL_HISTORIES_MAX + LOOKED_AT_MAX
    assert without[-1].history is not None
