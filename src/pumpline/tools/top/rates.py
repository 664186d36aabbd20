"""From two readings of all nodes to rows: rates by the time that passed, sums over nodes.

A counter is compared with the same one of the same process, so a node that was started again, or
that was not there before, adds to no rate until the next reading. Pure.

| rate        | of                                                                     |
|-------------|------------------------------------------------------------------------|
| in          | a topic's publishes; what a channel was given                          |
| out         | what a channel finished: what it was given, less what it has more of   |
| requeues    | a channel's REQs and timeouts                                          |
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pumpline.cluster.stats import (
    SeenChannel,
    SeenNode,
    SeenTopic,
    channel_sums,
    topic_sums,
    topics_of,
)
from pumpline.core.text.durations import NS_PER_S
from pumpline.tools.verbs.output import as_dict

MeasuredRow = dict[str, Any]
Counters = dict[tuple[str, ...], tuple[int, ...]]  # by node, topic and channel
Rates = dict[tuple[str, ...], tuple[float | None, ...]]

_NO_RATES = (None, None, None)


@dataclass(slots=True)
class Reading:
    taken_s: float  # by a steady clock
    now_ns: int  # since 1970
    stats: Mapping[str, SeenNode]
    failures: Mapping[str, str]  # why, by node


@dataclass(slots=True)
class Measured:
    nodes: list[MeasuredRow] = field(default_factory=list)
    topics: list[MeasuredRow] = field(default_factory=list)
    channels: list[MeasuredRow] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def measure(before: Reading | None, now: Reading) -> Measured:
    """Rates are None without a reading before."""
    topics = _rates(before, now, _topic_counters)
    channels = _rates(before, now, _channel_counters)
    measured = Measured(failures=dict(now.failures))
    by_name = _summed(topics, lambda key: key[1:])
    for topic in topic_sums(now.stats):
        measured.topics.append({**as_dict(topic), "in": by_name[topic.topic,][0]})
    by_place = _summed(channels, lambda key: key[1:])
    for channel in channel_sums(now.stats, now_ns=now.now_ns):
        rates = by_place.get((channel.topic, channel.channel), _NO_RATES)
        named = dict(zip(("in", "out", "again"), rates, strict=True))
        measured.channels.append({**as_dict(channel), **named})
    published = _summed(topics, lambda key: key[:1])
    handled = _summed(channels, lambda key: key[:1])
    for node, seen in now.stats.items():
        row = _node_row(node, seen, now.now_ns)
        row["in"] = published.get((node,), _NO_RATES)[0]
        row["out"] = handled.get((node,), _NO_RATES)[1]
        measured.nodes.append(row)
    for node, why in now.failures.items():
        measured.nodes.append({**dict.fromkeys(_NODE_KEYS), "node": node, "health": why})
    return measured


_NODE_KEYS = (
    "node version health topics channels in out depth in_flight consumers uptime_seconds".split()
)


def _node_row(node: str, seen: SeenNode, now_ns: int) -> MeasuredRow:
    channels = [each for topic in seen.topics or () for each in topic.channels if not each.hold]
    return {
        **dict.fromkeys(_NODE_KEYS),
        "node": node,
        "version": seen.version,
        "health": seen.health,
        "topics": len(seen.topics or ()),
        "channels": len(channels),
        "depth": sum(each.depth for each in (*(seen.topics or ()), *channels)),
        "in_flight": sum(each.in_flight_count for each in channels),
        "consumers": sum(each.client_count for each in channels),
        "uptime_seconds": max(now_ns // NS_PER_S - seen.start_time, 0),
    }


def _rates(
    before: Reading | None, now: Reading, counters: Callable[[str, SeenTopic], Counters]
) -> Rates:
    """Changes a second of each counter; None where there is nothing to compare it with."""
    earlier: Counters = {}
    if before is not None:
        same = {
            node: seen
            for node, seen in before.stats.items()
            if node in now.stats and now.stats[node].start_time == seen.start_time
        }
        for node, topic in topics_of(same):
            earlier.update(counters(node, topic))
    elapsed_s = max(now.taken_s - before.taken_s, 1e-3) if before is not None else 1.0
    rates: Rates = {}
    for node, topic in topics_of(now.stats):
        for key, values in counters(node, topic).items():
            old = earlier.get(key)
            if old is None:
                rates[key] = (None,) * len(values)
            else:
                pairs = zip(values, old, strict=True)
                rates[key] = tuple(max(new - last, 0) / elapsed_s for new, last in pairs)
    return rates


def _summed(rates: Rates, by: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Rates:
    """By a part of the key; None where there is nothing to add."""
    sums: Rates = {}
    for key, values in rates.items():
        part = by(key)
        old = sums.get(part)
        sums[part] = values if old is None else tuple(map(_added, old, values))
    return sums


def _added(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return one if other is None else other
    return one + other


def _topic_counters(node: str, topic: SeenTopic) -> Counters:
    return {(node, topic.topic_name): (topic.message_count,)}


def _channel_counters(node: str, topic: SeenTopic) -> Counters:
    return {
        (node, topic.topic_name, each.channel_name): _of_channel(each)
        for each in topic.channels
        if not each.hold
    }


def _of_channel(channel: SeenChannel) -> tuple[int, int, int]:
    left = channel.depth + channel.in_flight_count + channel.deferred_count
    again = channel.requeue_count + channel.timeout_count
    return channel.message_count, channel.message_count - left, again
