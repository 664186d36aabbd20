"""What /stats of an nsqd says, as far as commands show it, and the sum over nodes.

Stock nsqds work as well, with what they have: no lag in time, no holds.
"""

import time
from collections.abc import Iterable, Mapping

import msgspec

from pumpline.cluster.node import ClusterNode, NodeFailure
from pumpline.core.text.durations import NS_PER_S

NO_LATENCY = msgspec.Raw(b"null")


class SeenChannel(msgspec.Struct, kw_only=True):
    """A channel in /stats."""

    channel_name: str
    depth: int = 0
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    message_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    client_count: int = 0
    clients: list[msgspec.Raw] | None = None  # if they were asked for
    paused: bool = False
    hold: bool = False
    oldest_timestamp: int = 0
    e2e_processing_latency: msgspec.Raw = NO_LATENCY


class SeenTopic(msgspec.Struct, kw_only=True):
    """A topic in /stats."""

    topic_name: str
    channels: list[SeenChannel] = []
    depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    message_bytes: int = 0
    log_bytes: int = 0
    paused: bool = False
    e2e_processing_latency: msgspec.Raw = NO_LATENCY


class SeenNode(msgspec.Struct, kw_only=True):
    """The reply of /stats."""

    version: str = ""
    health: str = ""
    start_time: int = 0
    topics: list[SeenTopic] | None = None


class _RawNode(msgspec.Struct, kw_only=True):
    """The same, with topics that are not decoded yet."""

    version: str = ""
    health: str = ""
    start_time: int = 0
    topics: list[msgspec.Raw] | None = None


class TopicSum(msgspec.Struct, kw_only=True):
    """A topic over all its nodes."""

    topic: str
    nodes: list[str]
    channels: int
    depth: int
    messages: int
    bytes: int
    paused: bool


class ChannelSum(msgspec.Struct, kw_only=True):
    """A channel over all its nodes."""

    topic: str
    channel: str
    nodes: list[str]
    depth: int
    in_flight: int
    deferred: int
    consumers: int
    messages: int
    requeues: int
    timeouts: int
    lag_seconds: float | None  # since its oldest unfinished message; none if there is none
    paused: bool
    hold: bool


STATS_QUERY = {"format": "json", "include_clients": "false", "include_mem": "false"}

_topic_decoder = msgspec.json.Decoder(SeenTopic)


def read_stats(node: ClusterNode, topic: str | None = None, **more: str) -> SeenNode:
    """/stats of a node, of one topic if it is given; without clients unless `more` asks for them.

    Topics are decoded one by one: 50,000 channels are 14 MB, and other threads get no turn within
    one call of a decoder.
    """
    raw = node.get_as(_RawNode, "/stats", {**STATS_QUERY, "topic": topic, **more})
    try:
        topics = [_topic_decoder.decode(each) for each in raw.topics or ()]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NodeFailure(f"its /stats is not that of an nsqd: {error}") from None
    return SeenNode(
        version=raw.version, health=raw.health, start_time=raw.start_time, topics=topics
    )


def topic_sums(stats: Mapping[str, SeenNode]) -> list[TopicSum]:
    """By name."""
    sums: dict[str, TopicSum] = {}
    channels: dict[str, set[str]] = {}
    for node, topic in topics_of(stats):
        names = channels.setdefault(topic.topic_name, set())
        names.update(each.channel_name for each in topic.channels if not each.hold)
        row = sums.get(topic.topic_name)
        if row is None:
            row = sums[topic.topic_name] = TopicSum(
                topic=topic.topic_name,
                nodes=[],
                channels=0,
                depth=0,
                messages=0,
                bytes=0,
                paused=False,
            )
        row.nodes.append(node)
        row.channels = len(names)
        row.depth += topic.depth
        row.messages += topic.message_count
        row.bytes += topic.message_bytes
        row.paused = row.paused or topic.paused
    return [sums[name] for name in sorted(sums)]


def channel_sums(stats: Mapping[str, SeenNode], *, now_ns: int = 0) -> list[ChannelSum]:
    """By topic and name; the lag is that of the node that is furthest behind."""
    now_ns = now_ns or time.time_ns()
    sums: dict[tuple[str, str], ChannelSum] = {}
    for node, topic in topics_of(stats):
        for channel in topic.channels:
            key = topic.topic_name, channel.channel_name
            row = sums.get(key) or _empty(*key)
            sums[key] = row
            row.nodes.append(node)
            row.depth += channel.depth
            row.in_flight += channel.in_flight_count
            row.deferred += channel.deferred_count
            row.consumers += channel.client_count
            row.messages += channel.message_count
            row.requeues += channel.requeue_count
            row.timeouts += channel.timeout_count
            row.paused = row.paused or channel.paused
            row.hold = row.hold or channel.hold
            if channel.oldest_timestamp:
                lag_s = max(now_ns - channel.oldest_timestamp, 0) / NS_PER_S
                row.lag_seconds = max(row.lag_seconds or 0.0, round(lag_s, 3))
    return [sums[key] for key in sorted(sums)]


def topics_of(stats: Mapping[str, SeenNode]) -> Iterable[tuple[str, SeenTopic]]:
    for node, seen in stats.items():
        for topic in seen.topics or ():
            yield node, topic


def _empty(topic: str, channel: str) -> ChannelSum:
    return ChannelSum(
        topic=topic,
        channel=channel,
        nodes=[],
        depth=0,
        in_flight=0,
        deferred=0,
        consumers=0,
        messages=0,
        requeues=0,
        timeouts=0,
        lag_seconds=None,
        paused=False,
        hold=False,
    )
