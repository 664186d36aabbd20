"""Rows of nsq_stat: the difference of two rounds, and how it is printed.

Rates are over the nodes that answered in both rounds, so a node that comes or goes makes no rate.
Pure: time is an argument.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from pumpline.cluster.stats import SeenChannel, SeenNode
from pumpline.core.text.durations import NS_PER_S

HEADER_EVERY = 25
HEADER = (
    "------rate------+----------------depth----------------+--------------metadata---------------\n"
    "ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients\n"
)
NAMED_HEADER = (
    "------rate------+----------------depth----------------+"
    "--------------metadata---------------+--------\n"
    "ingress  egress |   total     mem    disk inflt   def |"
    "     req     t-o         msgs clients |     lag  channel\n"
)

ByNode = Mapping[str, SeenChannel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What nodes said at one time."""

    at_s: float
    channels: dict[str, dict[str, SeenChannel]]  # by name, then by node


class StatRow(msgspec.Struct, kw_only=True):
    topic: str
    channel: str
    ingress: float
    egress: float
    depth: int
    memory_depth: int
    backend_depth: int
    in_flight: int
    deferred: int
    requeues: int
    timeouts: int
    messages: int
    clients: int
    lag_seconds: float | None
    nodes: list[str]


def new_round(stats: Mapping[str, SeenNode], topic: str, at_s: float) -> Round:
    channels: dict[str, dict[str, SeenChannel]] = {}
    for node, seen in stats.items():
        for found in seen.topics or ():
            if found.topic_name == topic:
                for channel in found.channels:
                    channels.setdefault(channel.channel_name, {})[node] = channel
    return Round(at_s=at_s, channels=channels)


def new_row(
    topic: str, channel: str, before: ByNode, now: ByNode, *, elapsed_s: float, now_ns: int
) -> StatRow:
    both = before.keys() & now.keys()
    came = sum(now[node].message_count - before[node].message_count for node in both)
    grew = sum(now[node].depth - before[node].depth for node in both)
    depth = sum(each.depth for each in now.values())
    backend_depth = sum(each.backend_depth for each in now.values())
    oldest = [each.oldest_timestamp for each in now.values() if each.oldest_timestamp]
    return StatRow(
        topic=topic,
        channel=channel,
        ingress=came / elapsed_s,
        egress=(came - grew) / elapsed_s,
        depth=depth,
        memory_depth=depth - backend_depth,
        backend_depth=backend_depth,
        in_flight=sum(each.in_flight_count for each in now.values()),
        deferred=sum(each.deferred_count for each in now.values()),
        requeues=sum(each.requeue_count for each in now.values()),
        timeouts=sum(each.timeout_count for each in now.values()),
        messages=sum(each.message_count for each in now.values()),
        clients=sum(each.client_count for each in now.values()),
        lag_seconds=round(max(now_ns - min(oldest), 0) / NS_PER_S, 3) if oldest else None,
        nodes=sorted(now),
    )


def as_line(row: StatRow) -> str:
    return (
        f"{int(row.ingress):7d} {int(row.egress):7d} | {row.depth:7d} {row.memory_depth:7d} "
        f"{row.backend_depth:7d} {row.in_flight:5d} {row.deferred:5d} | {row.requeues:7d} "
        f"{row.timeouts:7d} {row.messages:12d} {row.clients:7d}\n"
    )


def as_named_line(row: StatRow) -> str:
    lag = "-" if row.lag_seconds is None else f"{row.lag_seconds:.1f}s"
    return f"{as_line(row)[:-1]} | {lag:>7}  {row.channel}\n"


def as_json_line(row: StatRow) -> str:
    return msgspec.json.encode(row).decode() + "\n"
