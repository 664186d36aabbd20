"""What statsd is told: NSQ's keys, as lines in packets. Pure; `statsd_push` sends them.

| key                                                                     | type |
|-------------------------------------------------------------------------|------|
| topic.<t>.message_count, .message_bytes                                 | c    |
| topic.<t>.depth, .backend_depth, .e2e_processing_latency_<percent>      | g    |
| topic.<t>.channel.<c>.message_count, .requeue_count, .timeout_count     | c    |
| topic.<t>.channel.<c>.depth, .backend_depth, .in_flight_count,          | g    |
|   .deferred_count, .clients, .e2e_processing_latency_<percent>          |      |
| topic.<t>.channel.<c>.zone_local_msg_count, .region_local_msg_count,    | c    |
|   .global_msg_count (only where deliveries are told apart by that)      |      |
| mem.<field of MemoryStats>, but mem.gc_runs                             | g, c |

A counter (c) is what was added since the last push, or since the start. Names are not escaped.
Times are in ns, with no decimals; nor have percentages: 0.999 is `_100`, as in NSQ.
"""

from collections.abc import Iterable, Iterator

from pumpline.core.text.names import is_ephemeral
from pumpline.nsqd.stats.memory import MemoryStats
from pumpline.nsqd.stats.stats import ChannelStats, LatencyStats, Stats, TopicStats

_LOCALITIES = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")


def full_prefix(prefix: str, host: str, port: int) -> str:
    """The prefix of every key, with the host filled in and a dot at the end; empty if it is."""
    if not prefix:
        return ""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    filled = prefix.replace("%s", address.replace(".", "_").replace(":", "_"))
    return filled if filled.endswith(".") else filled + "."


def lines(stats: Stats, last: Stats | None, *, exclude_ephemeral: bool) -> Iterator[str]:
    """Key, value and type of each figure; counters as they grew since `last`."""
    before = {topic.topic_name: topic for topic in (last and last.topics) or ()}
    for topic in stats.topics or ():
        if not (exclude_ephemeral and is_ephemeral(topic.topic_name)):
            yield from _topic_lines(topic, before.get(topic.topic_name), exclude_ephemeral)
    if stats.memory is not None:
        yield from _memory_lines(stats.memory, last.memory if last else None)


def packets(prefix: str, pieces: Iterable[str], bytes_max: int) -> Iterator[bytes]:
    """Lines in as few packets as hold them whole; a longer one gets a packet of its own."""
    packet = bytearray()
    for piece in pieces:
        line = f"{prefix}{piece}\n".encode("utf-8", "surrogateescape")
        if packet and len(packet) + len(line) > bytes_max:
            yield bytes(packet)
            packet.clear()
        packet += line
    if packet:
        yield bytes(packet)


def _topic_lines(
    topic: TopicStats, last: TopicStats | None, exclude_ephemeral: bool
) -> Iterator[str]:
    key = f"topic.{topic.topic_name}"
    for name in ("message_count", "message_bytes"):
        yield f"{key}.{name}:{_growth(topic, last, name)}|c"
    for name in ("depth", "backend_depth"):
        yield f"{key}.{name}:{getattr(topic, name)}|g"
    yield from _latency_lines(key, topic.e2e_processing_latency)
    before = {channel.channel_name: channel for channel in (last.channels if last else ())}
    for channel in topic.channels:
        if not (exclude_ephemeral and is_ephemeral(channel.channel_name)):
            yield from _channel_lines(key, channel, before.get(channel.channel_name))


def _channel_lines(
    topic_key: str, channel: ChannelStats, last: ChannelStats | None
) -> Iterator[str]:
    key = f"{topic_key}.channel.{channel.channel_name}"
    yield f"{key}.message_count:{_growth(channel, last, 'message_count')}|c"
    for name in ("depth", "backend_depth", "in_flight_count", "deferred_count"):
        yield f"{key}.{name}:{getattr(channel, name)}|g"
    for name in ("requeue_count", "timeout_count"):
        yield f"{key}.{name}:{_growth(channel, last, name)}|c"
    yield f"{key}.clients:{channel.client_count}|g"
    if any(getattr(channel, name) for name in _LOCALITIES):
        for name in _LOCALITIES:
            yield f"{key}.{name}:{_growth(channel, last, name)}|c"
    yield from _latency_lines(key, channel.e2e_processing_latency)


def _latency_lines(key: str, latency: LatencyStats) -> Iterator[str]:
    for each in latency.percentiles or ():
        yield f"{key}.e2e_processing_latency_{each.quantile * 100:.0f}:{each.value:.0f}|g"


def _memory_lines(memory: MemoryStats, last: MemoryStats | None) -> Iterator[str]:
    for name in memory.__struct_fields__:
        if name != "gc_total_runs":
            yield f"mem.{name}:{getattr(memory, name)}|g"
    yield f"mem.gc_runs:{_growth(memory, last, 'gc_total_runs')}|c"


def _growth(now: object, last: object | None, name: str) -> int:
    """The increase since the last push; the whole value if the counter began anew."""
    value: int = getattr(now, name)
    before: int = getattr(last, name) if last is not None else 0
    return value - before if value >= before else value
