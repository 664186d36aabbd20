"""Figures of topics and channels: of each node, and the sum over nodes, as NSQ's nsqadmin has them.

Names and order of the fields are NSQ's. A sum has `node: "*"` and the parts in `nodes`. Pure.

| difference | NSQ 1.3.0                                 | here                     |
|------------|-------------------------------------------|--------------------------|
| `nodes`    | of a topic's channel: without the first   | all of them              |
| a node     | the first of a topic has sums in channels | has its own figures      |
| e2e `min`  | made from maxima                          | the least                |
"""

from collections.abc import Iterable, Sequence

import msgspec

from pumpline.cluster.node import decoded
from pumpline.cluster.stats import SeenChannel, SeenTopic

Number = int | float


class LatencyPart(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A percentile, of one node or of several. Fields are in the order of NSQ's JSON."""

    average: Number
    count: int
    max: Number
    min: Number
    quantile: Number
    value: Number | None = None  # of one node


class LatencySum(msgspec.Struct):
    count: int = 0
    percentiles: list[LatencyPart] | None = None
    topic: str = ""
    channel: str = ""
    host: str = ""


class ChannelClient(msgspec.Struct, kw_only=True):
    node: str = ""
    remote_address: str = ""
    version: str = ""
    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    connect_ts: int = 0
    connected: int = 0  # ns
    in_flight_count: int = 0
    ready_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    message_count: int = 0
    sample_rate: int = 0
    deflate: bool = False
    snappy: bool = False
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    tls: bool = False
    tls_cipher_suite: str = ""
    tls_version: str = ""
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False


class ChannelFigures(msgspec.Struct, kw_only=True):
    node: str
    hostname: str
    topic_name: str
    channel_name: str
    depth: int = 0
    memory_depth: int = 0
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    message_count: int = 0
    client_count: int = 0
    nodes: "list[ChannelFigures] | None" = None
    clients: list[ChannelClient] | None = None
    paused: bool = False
    e2e_processing_latency: LatencySum = msgspec.field(default_factory=LatencySum)


class TopicFigures(msgspec.Struct, kw_only=True):
    node: str
    hostname: str
    topic_name: str
    depth: int = 0
    memory_depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    nodes: "list[TopicFigures] | None" = None
    channels: list[ChannelFigures] | None = None
    paused: bool = False
    e2e_processing_latency: LatencySum = msgspec.field(default_factory=LatencySum)


class ToldPercentile(msgspec.Struct):
    quantile: Number
    value: Number


class ToldLatency(msgspec.Struct):
    count: int = 0
    percentiles: list[ToldPercentile] | None = None


def topic_figures(told: SeenTopic, *, node: str, hostname: str, now_s: int) -> TopicFigures:
    """Of one node."""
    return TopicFigures(
        node=node,
        hostname=hostname,
        topic_name=told.topic_name,
        depth=told.depth,
        memory_depth=told.depth - told.backend_depth,
        backend_depth=told.backend_depth,
        message_count=told.message_count,
        channels=[
            _channel_figures(each, told.topic_name, node, hostname, now_s) for each in told.channels
        ],
        paused=told.paused,
        e2e_processing_latency=_latency(told.e2e_processing_latency, node),
    )


def _channel_figures(
    told: SeenChannel, topic: str, node: str, hostname: str, now_s: int
) -> ChannelFigures:
    clients = None
    if told.clients is not None:
        clients = [decoded(each, ChannelClient, node) for each in told.clients]
        for client in clients:
            client.node = node
            client.connected = max(now_s - client.connect_ts, 0) * 1_000_000_000
    return ChannelFigures(
        node=node,
        hostname=hostname,
        topic_name=topic,
        channel_name=told.channel_name,
        depth=told.depth,
        memory_depth=told.depth - told.backend_depth,
        backend_depth=told.backend_depth,
        in_flight_count=told.in_flight_count,
        deferred_count=told.deferred_count,
        requeue_count=told.requeue_count,
        timeout_count=told.timeout_count,
        message_count=told.message_count,
        client_count=max(told.client_count, len(clients or ())),  # NSQ before 1.0.1: only a list
        clients=clients,
        paused=told.paused,
        e2e_processing_latency=_latency(told.e2e_processing_latency, node),
    )


def _latency(raw: msgspec.Raw, node: str) -> LatencySum:
    told = ToldLatency() if bytes(raw) == b"null" else decoded(raw, ToldLatency, node)
    parts = None
    if told.percentiles is not None:
        parts = [
            LatencyPart(
                quantile=each.quantile,
                value=each.value,
                min=each.value,
                max=each.value,
                average=each.value,
                count=told.count,
            )
            for each in told.percentiles
        ]
        parts.sort(key=lambda part: -part.quantile)
    return LatencySum(count=told.count, percentiles=parts)


def sum_topic(topic: str, parts: Iterable[TopicFigures]) -> TopicFigures:
    """A topic over its nodes."""
    nodes = sorted(parts, key=lambda part: (part.hostname, part.node))
    total = TopicFigures(node="*", hostname="", topic_name=topic)
    channels: dict[str, list[ChannelFigures]] = {}
    for part in nodes:
        total.depth += part.depth
        total.memory_depth += part.memory_depth
        total.backend_depth += part.backend_depth
        total.message_count += part.message_count
        total.paused = total.paused or part.paused
        for channel in part.channels or ():
            channels.setdefault(channel.channel_name, []).append(channel)
    total.nodes = nodes
    total.channels = [_sum_in_topic(channels[name]) for name in sorted(channels)] or None
    total.e2e_processing_latency = _sum_latency(
        [part.e2e_processing_latency for part in nodes], topic, ""
    )
    return total


def _sum_in_topic(parts: list[ChannelFigures]) -> ChannelFigures:
    """A channel in the list of its topic: that of its node, if it has one only."""
    if len(parts) == 1:
        return parts[0]
    total = sum_channel(parts[0].topic_name, parts[0].channel_name, parts)
    total.hostname = parts[0].hostname
    latency = total.e2e_processing_latency
    latency.topic = latency.channel = ""
    return total


def sum_channel(topic: str, channel: str, parts: Iterable[ChannelFigures]) -> ChannelFigures:
    """A channel over its nodes."""
    nodes = sorted(parts, key=lambda part: (part.hostname, part.node))
    total = ChannelFigures(node="*", hostname="", topic_name=topic, channel_name=channel)
    clients: list[ChannelClient] = []
    for part in nodes:
        total.depth += part.depth
        total.memory_depth += part.memory_depth
        total.backend_depth += part.backend_depth
        total.in_flight_count += part.in_flight_count
        total.deferred_count += part.deferred_count
        total.requeue_count += part.requeue_count
        total.timeout_count += part.timeout_count
        total.message_count += part.message_count
        total.client_count += part.client_count
        total.paused = total.paused or part.paused
        clients += part.clients or ()
    total.nodes = nodes
    total.clients = sorted(clients, key=lambda client: client.hostname) or None
    total.e2e_processing_latency = _sum_latency(
        [part.e2e_processing_latency for part in nodes], topic, channel
    )
    return total


def _sum_latency(parts: Sequence[LatencySum], topic: str, channel: str) -> LatencySum:
    total = LatencySum(topic=topic, channel=channel, host="*")
    by_quantile: dict[Number, list[LatencyPart]] = {}
    for part in parts:
        total.count += part.count
        for each in part.percentiles or ():
            by_quantile.setdefault(each.quantile, []).append(each)
    if by_quantile:
        total.percentiles = [
            _sum_percentile(quantile, by_quantile[quantile])
            for quantile in sorted(by_quantile, reverse=True)
        ]
    return total


def _sum_percentile(quantile: Number, parts: list[LatencyPart]) -> LatencyPart:
    """Nodes without a message count for nothing."""
    counted = [part for part in parts if part.count] or parts
    count = sum(part.count for part in counted)
    weighted = sum(part.average * part.count for part in counted)
    return LatencyPart(
        average=_whole(weighted / count) if count else 0,
        count=count,
        max=max(part.max for part in counted),
        min=min(part.min for part in counted),
        quantile=quantile,
    )


def _whole(value: float) -> Number:
    """As Go writes a number: without a fraction of zero."""
    return int(value) if value.is_integer() else value
