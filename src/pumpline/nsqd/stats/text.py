"""The text form of /stats, for people: the same figures in NSQ's columns. Pure."""

from collections.abc import Iterator
from datetime import datetime

from pumpline.core.text.durations import NS_PER_MS, NS_PER_S, NS_PER_US, format_duration
from pumpline.core.text.lines import escaped
from pumpline.nsqd.stats.stats import ChannelStats, ClientStats, LatencyStats, Stats, TopicStats


def text_lines(stats: Stats, *, program: str, now_s: int, uptime_ns: int) -> Iterator[str]:
    """Line by line, or rather a topic or client at a time, so that a caller can pause between."""
    yield f"{program}\n"
    yield f"start_time {_rfc3339(stats.start_time)}\n"
    yield f"uptime {format_duration(uptime_ns)}\n"
    yield f"\nHealth: {stats.health}\n"
    if stats.memory is not None:
        yield "\nMemory:\n"
        for name in stats.memory.__struct_fields__:
            yield f"   {name:<25}\t{getattr(stats.memory, name)}\n"
    yield "\nTopics:" if stats.topics else "\nTopics: None\n"
    for topic in stats.topics or ():
        yield _topic(topic)
        for channel in topic.channels:
            yield _channel(channel)
            for client in channel.clients or ():
                yield f"        {_client(client, now_s)}\n"
    yield "\nProducers:\n" if stats.producers else "\nProducers: None\n"
    for client in stats.producers or ():
        yield f"   {_client(client, now_s)}\n"


def _topic(topic: TopicStats) -> str:
    mark = "*P " if topic.paused else "   "
    return (
        f"\n{mark}[{topic.topic_name:<15}] depth: {topic.depth:<5} "
        f"be-depth: {topic.backend_depth:<5} msgs: {topic.message_count:<8} "
        f"e2e%: {_latencies(topic.e2e_processing_latency)}\n"
    )


def _channel(channel: ChannelStats) -> str:
    mark = "   *P " if channel.paused else "      "
    return (
        f"{mark}[{channel.channel_name:<25}] depth: {channel.depth:<5} "
        f"be-depth: {channel.backend_depth:<5} inflt: {channel.in_flight_count:<4} "
        f"def: {channel.deferred_count:<4} re-q: {channel.requeue_count:<5} "
        f"timeout: {channel.timeout_count:<5} msgs: {channel.message_count:<8} "
        f"{_localities(channel)}e2e%: {_latencies(channel.e2e_processing_latency)}\n"
    )


def _localities(channel: ChannelStats) -> str:
    """Only where deliveries are told apart by that."""
    zone, region = channel.zone_local_msg_count, channel.region_local_msg_count
    if not (zone or region or channel.global_msg_count):
        return ""
    return f"zone: {zone:<8} region: {region:<8} global: {channel.global_msg_count:<8} "


def _client(client: ClientStats, now_s: int) -> str:
    port = client.remote_address.rpartition(":")[2]
    who = escaped(f"{client.hostname}:{port} {client.user_agent}")
    connected = format_duration((now_s - client.connect_ts) * NS_PER_S)
    if client.pub_counts:
        total = sum(each.count for each in client.pub_counts)
        topics = ",".join(f"{each.topic}={each.count}" for each in client.pub_counts)
        return (
            f"[{client.version} {who:<21}] msgs: {total:<8} topics: {topics} connected: {connected}"
        )
    return (
        f"[{client.version} {who:<21}] state: {client.state} inflt: {client.in_flight_count:<4} "
        f"rdy: {client.ready_count:<4} fin: {client.finish_count:<8} "
        f"re-q: {client.requeue_count:<8} msgs: {client.message_count:<8} connected: {connected}"
    )


def _latencies(latency: LatencyStats) -> str:
    return ", ".join(_humane(each.value) for each in latency.percentiles or ())


def _humane(duration_ns: float) -> str:
    """One decimal, in the largest unit that fits."""
    for unit, unit_ns in (("s", NS_PER_S), ("ms", NS_PER_MS), ("us", NS_PER_US)):
        if duration_ns > unit_ns:
            return f"{duration_ns / unit_ns:.1f}{unit}"
    return f"{duration_ns:.1f}ns"


def _rfc3339(unix_s: int) -> str:
    text = datetime.fromtimestamp(unix_s).astimezone().isoformat(timespec="seconds")
    return text.replace("+00:00", "Z")
