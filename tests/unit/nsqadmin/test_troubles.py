"""What needs a person, found in rows and said in words."""

import pytest

from pumpline.cluster.stats import SeenChannel, SeenTopic
from pumpline.nsqadmin.live.rows import NodeRow, TopicRow
from pumpline.nsqadmin.live.state import ClusterState
from pumpline.nsqadmin.live.sums import PolledTopicSum
from pumpline.nsqadmin.live.troubles import find_troubles, in_bytes, in_time

NOW_S = 1_700_000_000.0


async def settle(
    state: ClusterState, now_s: float, *channels: SeenChannel, paused: int = 0
) -> None:
    """What one node says of topic t."""
    told = SeenTopic(topic_name="t", channels=list(channels), depth=7 * paused, paused=bool(paused))
    total = PolledTopicSum()
    total.add(told, "n", 1)
    row = state.topics.setdefault("t", TopicRow("t"))
    row.settle(total, now_s)
    state.at_s = now_s
    state.give_histories()
    state.troubles = await find_troubles(state)


def channel(**figures: int) -> SeenChannel:
    return SeenChannel(channel_name="c", **figures)


def words(state: ClusterState) -> list[tuple[str, str, str]]:
    return [(each.kind, each.severity, each.text) for each in state.troubles]


async def test_quiet_when_all_is_well() -> None:
    state = ClusterState()
    await settle(state, NOW_S, channel(depth=5, client_count=1), channel())
    assert words(state) == []


async def test_no_consumers() -> None:
    state = ClusterState()
    oldest_ns = int((NOW_S - 12 * 60) * 1e9)
    await settle(state, NOW_S, channel(depth=5, oldest_timestamp=oldest_ns))
    assert words(state) == [("no_consumers", "trouble", "12 min behind, no consumer")]
    assert state.topics["t"].troubles == state.topics["t"].by_channel["c"].troubles == 1
    since_ms = state.troubles[0].since_ms
    await settle(state, NOW_S + 10, channel(depth=5, oldest_timestamp=oldest_ns))
    assert state.troubles[0].since_ms == since_ms
    await settle(state, NOW_S + 20, channel(depth=5))
    assert words(state) == [("no_consumers", "trouble", "5 messages waiting, no consumer")]
    await settle(state, NOW_S + 30, channel(depth=5, hold=True))
    assert words(state) == []


async def test_paused() -> None:
    state = ClusterState()
    await settle(state, NOW_S, channel(depth=1, paused=True), paused=1)
    assert words(state) == [
        ("paused", "warning", "paused, 7 messages waiting"),
        ("paused", "warning", "paused, 1 message waiting"),
    ]


async def test_growing_through_five_minutes() -> None:
    state = ClusterState()
    for step in range(0, 320, 10):
        await settle(state, NOW_S + step, channel(depth=1000 + step, client_count=1))
    ((kind, severity, text),) = words(state)
    assert (kind, severity) == ("growing", "warning")
    assert text == "grew by 300 messages in 5 min, 1,310 waiting"
    await settle(state, NOW_S + 330, channel(depth=1000, client_count=1))
    assert words(state) == []


async def test_timeouts() -> None:
    state = ClusterState()
    for step in range(0, 30, 2):
        await settle(state, NOW_S + step, channel(timeout_count=step, client_count=1))
    assert words(state) == [("timeouts", "warning", "60 messages a minute time out")]


async def test_nodes() -> None:
    state = ClusterState()
    state.at_s = NOW_S
    gone, sick, full = NodeRow("gone:1"), NodeRow("sick:1"), NodeRow("full:1")
    gone.fail("connection refused", NOW_S)
    sick.health = "NOK - failed to write"
    full.disk_free, full.disk_total = 3_100_000_000, 51_000_000_000
    full.missing_at = ["lookupd:1"]
    state.nodes = {node.node: node for node in (full, sick, gone)}
    found = [
        (each.node, each.kind, each.severity, each.text) for each in await find_troubles(state)
    ]
    assert found == [
        ("gone:1", "node_silent", "trouble", "does not answer: connection refused"),
        ("sick:1", "unhealthy", "trouble", "NOK - failed to write"),
        ("full:1", "disk_full", "warning", "disk 94 % full, 3.1 GB left"),
        ("full:1", "missing", "warning", "not known at lookupd:1"),
    ]
    assert (full.troubles, gone.troubles) == (2, 1)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "<1 s"),
        (40_000, "40 s"),
        (60_000, "1 min"),
        (719_000, "11 min"),
        (7_200_000, "2 h"),
        (200_000_000, "2 d"),
    ],
)
def test_time_as_people_say_it(ms: int, text: str) -> None:
    assert in_time(ms) == text


def test_bytes_as_people_say_them() -> None:
    assert [in_bytes(count) for count in (7, 1500, 3_100_000_000, 5 * 10**12)] == [
        "7 bytes",
        "1.5 KB",
        "3.1 GB",
        "5.0 TB",
    ]
