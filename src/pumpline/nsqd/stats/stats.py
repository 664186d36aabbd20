"""The broker's figures as plain data: what /stats shows and statsd is sent.

The structs are the JSON of /stats: names and order are NSQ's, fields with a default are left out
when they have it. `gather` reads a running broker and lets it go on working every few
milliseconds, so the figures of a large broker are of slightly different moments.

`depth` counts what waits to be delivered. All of it is in the log; `backend_depth` is what NSQ
would have on disk: the part beyond `--mem-queue-size`. What is ephemeral has none.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from pumpline import NSQ_VERSION
from pumpline.core.protocol.layers import Deflate, Snappy
from pumpline.core.text.histogram import Histogram, merged
from pumpline.log.holds import StoredHold
from pumpline.nsqd.broker import Broker
from pumpline.nsqd.protocol.connection import Connection
from pumpline.nsqd.protocol.outbox import Outbox
from pumpline.nsqd.queue.channel import Channel
from pumpline.nsqd.queue.consumer import ChannelConsumer
from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.queue.topic_state import CLOSED
from pumpline.nsqd.queue.topology import Locality
from pumpline.nsqd.security.tls import go_cipher_name, go_version_name
from pumpline.nsqd.stats.memory import Memory, MemoryStats
from pumpline.nsqd.stats.oldest import OldestTimes, Search
from pumpline.web.query import BOOLEANS
from pumpline.web.yielding import Pace

PROTOCOL_VERSION = "V2"

T = TypeVar("T")


class Percentile(msgspec.Struct, frozen=True):
    quantile: float
    value: int  # ns


class LatencyStats(msgspec.Struct, frozen=True):
    count: int = 0
    percentiles: list[Percentile] | None = None


class PubCount(msgspec.Struct, frozen=True):
    topic: str
    count: int


class ClientStats(msgspec.Struct, kw_only=True, omit_defaults=True):
    client_id: str
    hostname: str
    version: str
    remote_address: str
    state: int
    ready_count: int
    in_flight_count: int
    message_count: int
    zone_local_msg_count: int = 0
    region_local_msg_count: int = 0
    global_msg_count: int = 0
    finish_count: int
    requeue_count: int
    connect_ts: int
    sample_rate: int
    deflate: bool
    snappy: bool
    user_agent: str
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    topology_zone: str
    topology_region: str
    pub_counts: list[PubCount] = []
    tls: bool
    tls_cipher_suite: str
    tls_version: str
    tls_negotiated_protocol: str
    tls_negotiated_protocol_is_mutual: bool
    longest_held_offset: int | None = None  # of what is in flight; absent if nothing is
    longest_held_since: int = 0  # ns


class ChannelStats(msgspec.Struct, kw_only=True, omit_defaults=True):
    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    zone_local_msg_count: int = 0
    region_local_msg_count: int = 0
    global_msg_count: int = 0
    requeue_count: int
    timeout_count: int
    client_count: int
    clients: list[ClientStats] | None
    paused: bool
    e2e_processing_latency: LatencyStats
    hold: bool = False
    oldest_timestamp: int = 0  # of what is neither finished nor deferred; absent if nothing is


class TopicStats(msgspec.Struct, kw_only=True, omit_defaults=True):
    topic_name: str
    channels: list[ChannelStats]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    e2e_processing_latency: LatencyStats
    log_bytes: int = 0  # of its files; absent if there are none


class Stats(msgspec.Struct, kw_only=True, omit_defaults=True):
    version: str
    health: str
    start_time: int
    topics: list[TopicStats] | None
    memory: MemoryStats | None = None
    producers: list[ClientStats] | None


class Selection(msgspec.Struct, kw_only=True, frozen=True):
    """What to gather; an empty name selects all."""

    topic: str = ""
    channel: str = ""
    clients: bool = True

    @classmethod
    def asked(cls, query: Mapping[str, str], *, clients: bool) -> "Selection":
        """By a query string; `clients` if it does not say."""
        return cls(
            topic=query.get("topic", ""),
            channel=query.get("channel", ""),
            clients=BOOLEANS.get(query.get("include_clients", ""), clients),
        )


Gathered = tuple[list[TopicStats] | None, list[ClientStats] | None]


async def gather(
    broker: Broker,
    selection: Selection,
    memory: Memory | None,
    oldest: OldestTimes | None = None,
) -> Stats:
    """Read the figures: of memory if `memory` is given, times of messages if `oldest` is."""
    search = oldest.search() if oldest is not None else None
    topics, producers = await _gather(broker, selection, search)
    if oldest is not None and search is not None:
        search.saw_all = not selection.topic and not selection.channel
        await oldest.finish(search)
    return Stats(
        version=NSQ_VERSION,
        health=str(broker.disk.health),
        start_time=broker.started_at_s,
        topics=topics,
        memory=memory.stats() if memory else None,
        producers=producers,
    )


async def _gather(broker: Broker, selection: Selection, search: Search | None) -> Gathered:
    """Topics and producers; None where NSQ has no list at all."""
    chosen = choose(broker.topics, selection.topic)
    if chosen is None:
        return None, None
    pace = Pace()
    topics: list[TopicStats] = []
    for topic in chosen:
        channels = choose(topic.channels, selection.channel)
        holds = choose(topic.upkeep.holds.by_name, selection.channel) or []
        if (channels is not None or holds) and topic.state is not CLOSED:
            told = topic_stats(topic, await topic_latency(topic, pace))
            topics.append(told)
            for channel in channels or ():
                await pace.breathe()
                if not channel.deleted:
                    told.channels.append(channel_stats(channel, selection))
                    if search is not None:
                        search.tell_channel(told.channels[-1], channel)
            for hold in holds:
                told.channels.append(_hold_stats(topic, hold, selection))
                if search is not None:
                    end = topic.log.end
                    search.tell(told.channels[-1], topic.log, hold.name, hold.offset, end=end)
        await pace.breathe()
    producers: list[ClientStats] = []
    if selection.clients:
        for connection in broker.connections:
            if not connection.is_gone and connection.published.by_topic():
                producers.append(client_stats(connection, selection.topic))
                await pace.breathe()
    return topics, producers or None


def choose(by_name: Mapping[str, T], name: str) -> list[T] | None:
    """The one of that name, or all by name; None if there is none of that name."""
    if not name:
        return [by_name[each] for each in sorted(by_name)]
    return [by_name[name]] if name in by_name else None


def topic_stats(topic: Topic, latency: LatencyStats) -> TopicStats:
    """Of a topic, without its channels."""
    return TopicStats(
        topic_name=topic.name,
        channels=[],
        depth=topic.depth,
        backend_depth=0 if topic.ephemeral else _backend_depth(topic, topic.depth),
        message_count=topic.message_count,
        message_bytes=topic.log.message_bytes,
        paused=topic.paused,
        e2e_processing_latency=latency,
        log_bytes=0 if topic.ephemeral else topic.log.size_bytes,
    )


def channel_stats(channel: Channel, selection: Selection) -> ChannelStats:
    depth = channel.depth
    clients = list(_consumers(channel, selection.topic)) if selection.clients else None
    zone, region, globally = channel.delivered or (0, 0, 0)
    return ChannelStats(
        channel_name=channel.name,
        depth=depth,
        backend_depth=0 if channel.ephemeral else _backend_depth(channel.topic, depth),
        in_flight_count=channel.in_flight_count,
        deferred_count=channel.delivery.deferred_count,
        message_count=channel.message_count,
        zone_local_msg_count=zone,
        region_local_msg_count=region,
        global_msg_count=globally,
        requeue_count=channel.requeue_count,
        timeout_count=channel.timeout_count,
        client_count=len(channel.consumers),
        clients=clients,
        paused=channel.paused,
        e2e_processing_latency=_channel_latency(channel),
    )


def _backend_depth(topic: Topic, depth: int) -> int:
    return max(depth - topic.options.mem_queue_size, 0)


async def topic_latency(topic: Topic, pace: Pace) -> LatencyStats:
    """Of all channels together."""
    if not topic.options.e2e_processing_latency_percentile:
        return LatencyStats()
    total = Histogram()
    for channel in list(topic.channels.values()):
        if channel.latency is not None:
            for each in channel.latency.histograms(topic.tick.steady_ns):
                total.add(each)
            await pace.breathe()
    return _latency_stats(topic, total)


def _channel_latency(channel: Channel) -> LatencyStats:
    if channel.latency is None:
        return LatencyStats()
    histograms = channel.latency.histograms(channel.topic.tick.steady_ns)
    return _latency_stats(channel.topic, merged(histograms))


def _latency_stats(topic: Topic, histogram: Histogram) -> LatencyStats:
    wanted = topic.options.e2e_processing_latency_percentile
    percentiles = [
        Percentile(int(quantile) if quantile == 1 else quantile, round(value))  # as Go writes it
        for quantile, value in zip(wanted, histogram.quantiles(wanted), strict=True)
    ]
    return LatencyStats(count=histogram.count, percentiles=percentiles)


def _hold_stats(topic: Topic, hold: StoredHold, selection: Selection) -> ChannelStats:
    """A hold as a channel: nobody consumes it, and its depth is what its owner has yet to read."""
    depth = topic.upkeep.holds.depth(hold)
    return ChannelStats(
        channel_name=hold.name,
        depth=depth,
        backend_depth=_backend_depth(topic, depth),
        in_flight_count=0,
        deferred_count=0,
        message_count=0,
        requeue_count=0,
        timeout_count=0,
        client_count=0,
        clients=[] if selection.clients else None,
        paused=False,
        e2e_processing_latency=LatencyStats(),
        hold=True,
    )


def _consumers(channel: Channel, topic_name: str) -> Iterator[ClientStats]:
    for consumer in channel.consumers:
        outlet = consumer.outlet
        if isinstance(outlet, Outbox) and isinstance(outlet.owner, Connection):
            yield client_stats(outlet.owner, topic_name)


def client_stats(connection: Connection, topic_name: str) -> ClientStats:
    client = connection.protocol.client_options
    consumer = connection.consumer
    layers = connection.layers
    tls = layers.tls if layers and layers.open else None
    compression = layers.compression.name if layers and layers.compression else ""
    held_offset, held_since_ns = _longest_held(consumer)
    access = connection.protocol.access
    grant = access.grant if access else None
    return ClientStats(
        client_id=client.client_id,
        hostname=client.hostname,
        version=PROTOCOL_VERSION,
        remote_address=connection.peer,
        state=connection.protocol.state,
        ready_count=consumer.rdy if consumer else 0,
        in_flight_count=len(consumer.leases) if consumer else 0,
        message_count=consumer.message_count if consumer else 0,
        zone_local_msg_count=_delivered(consumer, Locality.ZONE),
        region_local_msg_count=_delivered(consumer, Locality.REGION),
        global_msg_count=_delivered(consumer, Locality.GLOBAL),
        finish_count=consumer.finish_count if consumer else 0,
        requeue_count=consumer.requeue_count if consumer else 0,
        connect_ts=connection.connected_at_s,
        sample_rate=client.sample_rate,
        deflate=compression == Deflate.name,
        snappy=compression == Snappy.name,
        user_agent=client.user_agent,
        authed=bool(grant and grant.rows),
        auth_identity=grant.identity if grant else "",
        auth_identity_url=grant.identity_url if grant else "",
        topology_zone=client.topology_zone,
        topology_region=client.topology_region,
        pub_counts=_pub_counts(connection.published.by_topic(), topic_name),
        tls=tls is not None,
        tls_cipher_suite=go_cipher_name(tls.cipher) if tls else "",
        tls_version=go_version_name(tls.version) if tls else "",
        tls_negotiated_protocol="",
        tls_negotiated_protocol_is_mutual=tls is not None,  # what Go always says
        longest_held_offset=held_offset,
        longest_held_since=held_since_ns,
    )


def _longest_held(consumer: ChannelConsumer | None) -> tuple[int | None, int]:
    """The message that a consumer has had longest, and since when."""
    if consumer is None:
        return None, 0
    topic = consumer.channel.topic
    held = consumer.leases.longest(
        timeout_ns=consumer.msg_timeout_ns, timeout_max_ns=topic.options.max_msg_timeout_ns
    )
    if held is None:
        return None, 0
    offset, delivered_ns = held
    return offset, topic.tick.wall_ns - (topic.tick.steady_ns - delivered_ns)


def _delivered(consumer: ChannelConsumer | None, locality: Locality) -> int:
    """Deliveries to the consumer if it is that near; 0 without topology-aware delivery."""
    if consumer is None or not consumer.channel.topology_aware:
        return 0
    return consumer.message_count if consumer.locality is locality else 0


def _pub_counts(counts: dict[str, int], topic_name: str) -> list[PubCount]:
    """At most one, as in NSQ: the topic asked for, or the one published to most."""
    name = topic_name or max(counts, key=counts.__getitem__, default="")
    return [PubCount(name, counts[name])] if name in counts else []
