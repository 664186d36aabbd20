"""What nodes say in one poll, summed topic by topic and channel by channel.

A poll adds to sums of its own, so that nobody sees half of it; rows take the sums when all nodes
have answered. Pure.
"""

import msgspec

from pumpline.cluster.stats import SeenChannel, SeenTopic


class PolledChannelSum:
    __slots__ = (
        "consumers",
        "deferred",
        "hold",
        "in_flight",
        "message_count",
        "nodes",
        "oldest_ns",
        "paused",
        "requeue_count",
        "signature",
        "timeout_count",
        "waiting",
    )

    def __init__(self) -> None:
        self.waiting = self.in_flight = self.deferred = self.consumers = 0
        self.message_count = self.requeue_count = self.timeout_count = 0
        self.nodes = self.paused = self.oldest_ns = self.signature = 0
        self.hold = False

    def add(self, told: SeenChannel, signature: int) -> None:
        self.waiting += told.depth
        self.in_flight += told.in_flight_count
        self.deferred += told.deferred_count
        self.message_count += told.message_count
        self.requeue_count += told.requeue_count
        self.timeout_count += told.timeout_count
        self.consumers += told.client_count
        self.paused += told.paused
        self.nodes += 1
        self.signature += signature
        self.hold = told.hold
        oldest_ns = told.oldest_timestamp
        if oldest_ns and (not self.oldest_ns or oldest_ns < self.oldest_ns):
            self.oldest_ns = oldest_ns


class PolledTopicSum:
    __slots__ = (
        "channels",
        "depth",
        "log_bytes",
        "message_bytes",
        "message_count",
        "nodes",
        "paused",
        "signature",
    )

    def __init__(self) -> None:
        self.depth = self.message_count = self.message_bytes = self.log_bytes = 0
        self.paused = self.signature = 0
        self.nodes: list[str] = []
        self.channels: dict[str, PolledChannelSum] = {}

    def add(self, told: SeenTopic, node: str, signature: int) -> None:
        self.depth += told.depth
        self.message_count += told.message_count
        self.message_bytes += told.message_bytes
        self.log_bytes += told.log_bytes
        self.paused += told.paused
        self.signature += signature
        self.nodes.append(node)
        channels = self.channels
        for each in told.channels:
            channel = channels.get(each.channel_name)
            if channel is None:
                channel = channels[each.channel_name] = PolledChannelSum()
            channel.add(each, signature)


class NodeSum(msgspec.Struct):
    """One node, over its topics."""

    topics: int = 0
    channels: int = 0
    consumers: int = 0
    waiting: int = 0
    in_flight: int = 0
    deferred: int = 0
    unfinished: int = 0  # in channels
    message_count: int = 0  # that came
    delivered_count: int = 0  # to channels
    requeue_count: int = 0
    timeout_count: int = 0

    def add(self, told: SeenTopic) -> None:
        self.topics += 1
        self.message_count += told.message_count
        self.waiting += told.depth
        for each in told.channels:
            if not each.hold:
                self.channels += 1
                self.consumers += each.client_count
                self.waiting += each.depth
                self.in_flight += each.in_flight_count
                self.deferred += each.deferred_count
                self.unfinished += each.depth + each.in_flight_count + each.deferred_count
                self.delivered_count += each.message_count
                self.requeue_count += each.requeue_count
                self.timeout_count += each.timeout_count
