"""What statsd is told, line by line, and in which packets."""

import pytest

from pumpline.nsqd.stats.memory import MemoryStats
from pumpline.nsqd.stats.stats import ChannelStats, LatencyStats, Percentile, Stats, TopicStats
from pumpline.nsqd.stats.statsd import full_prefix, lines, packets


def channel(name: str, *, count: int = 0, **figures: object) -> ChannelStats:
    defaults = {
        "depth": 1,
        "backend_depth": 2,
        "in_flight_count": 3,
        "deferred_count": 4,
        "requeue_count": 5,
        "timeout_count": 6,
        "client_count": 7,
        "clients": None,
        "paused": False,
        "e2e_processing_latency": LatencyStats(),
    }
    return ChannelStats(channel_name=name, message_count=count, **{**defaults, **figures})  # type: ignore[arg-type]


def topic(
    name: str, *channels: ChannelStats, count: int = 0, latency: LatencyStats | None = None
) -> TopicStats:
    return TopicStats(
        topic_name=name,
        channels=list(channels),
        depth=8,
        backend_depth=9,
        message_count=count,
        message_bytes=10 * count,
        paused=False,
        e2e_processing_latency=latency or LatencyStats(),
    )


def stats(*topics: TopicStats, memory: MemoryStats | None = None) -> Stats:
    return Stats(
        version="", health="OK", start_time=0, topics=list(topics), memory=memory, producers=None
    )


def all_lines(now: Stats, last: Stats | None = None, *, exclude: bool = False) -> list[str]:
    return list(lines(now, last, exclude_ephemeral=exclude))


def test_a_topic_and_its_channels() -> None:
    assert all_lines(stats(topic("t.x", channel("c", count=12), count=3))) == [
        "topic.t.x.message_count:3|c",
        "topic.t.x.message_bytes:30|c",
        "topic.t.x.depth:8|g",
        "topic.t.x.backend_depth:9|g",
        "topic.t.x.channel.c.message_count:12|c",
        "topic.t.x.channel.c.depth:1|g",
        "topic.t.x.channel.c.backend_depth:2|g",
        "topic.t.x.channel.c.in_flight_count:3|g",
        "topic.t.x.channel.c.deferred_count:4|g",
        "topic.t.x.channel.c.requeue_count:5|c",
        "topic.t.x.channel.c.timeout_count:6|c",
        "topic.t.x.channel.c.clients:7|g",
    ]


def test_percentiles_follow_with_whole_percents_and_nanoseconds() -> None:
    latency = LatencyStats(count=2, percentiles=[Percentile(0.999, 1500), Percentile(0.5, 20)])
    told = all_lines(
        stats(topic("t", channel("c", e2e_processing_latency=latency), latency=latency))
    )
    assert told[4:6] == [
        "topic.t.e2e_processing_latency_100:1500|g",
        "topic.t.e2e_processing_latency_50:20|g",
    ]
    assert told[-2:] == [
        "topic.t.channel.c.e2e_processing_latency_100:1500|g",
        "topic.t.channel.c.e2e_processing_latency_50:20|g",
    ]


def test_memory_comes_last() -> None:
    memory = MemoryStats(
        heap_objects=1,
        heap_in_use_bytes=2,
        gc_pause_usec_100=3,
        gc_pause_usec_99=4,
        gc_pause_usec_95=5,
        gc_total_runs=6,
    )
    assert all_lines(stats(memory=memory)) == [
        "mem.heap_objects:1|g",
        "mem.heap_idle_bytes:0|g",
        "mem.heap_in_use_bytes:2|g",
        "mem.heap_released_bytes:0|g",
        "mem.gc_pause_usec_100:3|g",
        "mem.gc_pause_usec_99:4|g",
        "mem.gc_pause_usec_95:5|g",
        "mem.next_gc_bytes:0|g",
        "mem.gc_runs:6|c",
    ]
    assert all_lines(stats(memory=memory), stats(memory=memory))[-1] == "mem.gc_runs:0|c"


def test_counters_tell_what_was_added_since_the_last_push() -> None:
    last = stats(topic("t", channel("c", count=5), count=5))
    told = all_lines(stats(topic("t", channel("c", count=9), count=7), topic("new", count=1)), last)
    assert "topic.t.message_count:2|c" in told
    assert "topic.t.message_bytes:20|c" in told
    assert "topic.t.channel.c.message_count:4|c" in told
    assert "topic.t.channel.c.requeue_count:0|c" in told
    assert "topic.new.message_count:1|c" in told


def test_a_topic_made_anew_counts_from_nothing() -> None:
    told = all_lines(stats(topic("t", count=2)), stats(topic("t", count=100)))
    assert told[0] == "topic.t.message_count:2|c"


def test_ephemeral_ones_can_be_left_out() -> None:
    now = stats(topic("t", channel("c#ephemeral"), channel("d")), topic("u#ephemeral"))
    assert any("#ephemeral" in line for line in all_lines(now))
    told = all_lines(now, exclude=True)
    assert not any("#ephemeral" in line for line in told)
    assert any(line.startswith("topic.t.channel.d.") for line in told)


@pytest.mark.parametrize(
    ("prefix", "host", "full"),
    [
        ("nsq.%s", "10.0.0.1", "nsq.10_0_0_1_4151."),
        ("nsq.%s.", "my.host", "nsq.my_host_4151."),
        ("%s.%s", "::1", "[__1]_4151.[__1]_4151."),
        ("plain", "x", "plain."),
        ("", "x", ""),
    ],
)
def test_prefixes(prefix: str, host: str, full: str) -> None:
    assert full_prefix(prefix, host, 4151) == full


def test_packets_hold_whole_lines_and_no_more_than_fits() -> None:
    assert list(packets("p.", ["aa", "bb", "cc"], 10)) == [b"p.aa\np.bb\n", b"p.cc\n"]
    assert list(packets("p.", ["aa", "bb"], 9)) == [b"p.aa\n", b"p.bb\n"]


def test_a_line_longer_than_a_packet_goes_alone() -> None:
    assert list(packets("", ["a", "b" * 20, "c"], 10)) == [b"a\n", b"b" * 20 + b"\n", b"c\n"]


def test_nothing_to_say_is_no_packet() -> None:
    assert list(packets("p.", [], 10)) == []


def test_localities_are_told_where_they_are_counted() -> None:
    near = {"zone_local_msg_count": 5, "region_local_msg_count": 2}
    told = all_lines(stats(topic("t", channel("c", **near))), stats(topic("t", channel("c"))))
    assert told[-3:] == [
        "topic.t.channel.c.zone_local_msg_count:5|c",
        "topic.t.channel.c.region_local_msg_count:2|c",
        "topic.t.channel.c.global_msg_count:0|c",
    ]
