"""The cluster as the last poll saw it: rows, totals, history, and who is told of news.

One for the whole process, written by the poller and read by everybody. What is kept is bounded: an
hour of history for so many topics and channels, and for those beyond that are looked at.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from pumpline.nsqadmin.live.history import SPARK_STEPS, STEP_MS, HourHistory, step_of
from pumpline.nsqadmin.live.rows import (
    CHANNEL_SERIES,
    TOPIC_SERIES,
    ChannelRow,
    FlowRates,
    NodeRow,
    TopicRow,
    figures_of,
)

TOPIC_HISTORIES_MAX = 10_000  # 4.3 KB each
CHANNEL_HISTORIES_MAX = 5_000  # 13 KB each
LOOKED_AT_MAX = 500  # beyond these, of what somebody looked at
TOTAL_SERIES = (
    "in_rate out_rate finish_rate requeue_rate timeout_rate waiting in_flight deferred".split()
)


class LookupdRow(msgspec.Struct, kw_only=True):
    lookupd: str
    ok: bool = True
    error: str = ""
    since_ms: int | None = None
    version: str = ""
    nodes: int | None = None
    topics: int | None = None
    missing: list[str] = []

    def answered(self) -> None:
        self.ok, self.error, self.since_ms = True, "", None

    def fail(self, error: str, now_s: float) -> None:
        self.ok, self.error = False, error
        self.nodes = self.topics = None
        if self.since_ms is None:
            self.since_ms = int(now_s * 1000)


class TotalRow(FlowRates):
    """The cluster in one row. Rates are sums of those that are known."""

    def __init__(self) -> None:
        super().__init__()
        self.topics = self.channels = self.consumers = self.nodes = self.silent = 0
        self.waiting = self.in_flight = self.deferred = 0
        self.taken = 0  # by channels, since nsqadmin started
        self.history = HourHistory(TOTAL_SERIES)
        self._taken: dict[str, int] = {}  # by node

    def shown(self) -> dict[str, Any]:
        own = ("topics", "channels", "consumers", "nodes", "silent", "taken")
        return figures_of(self, own) | figures_of(self, TOTAL_SERIES)

    def count_taken(self, by_node: dict[str, int]) -> None:
        """It never falls: a node that is gone, or came back, took what it took."""
        for node, taken in by_node.items():
            self.taken += max(taken - self._taken.get(node, 0), 0)
        self._taken = by_node


class Trouble(msgspec.Struct, kw_only=True):
    kind: str
    severity: str
    topic: str = ""
    channel: str = ""
    node: str = ""
    lookupd: str = ""
    text: str
    since_ms: int = 0

    @property
    def place(self) -> tuple[str, ...]:
        return self.kind, self.topic, self.channel, self.node, self.lookupd


class ClusterState:
    def __init__(self) -> None:
        self.seq = 0  # of the last poll
        self.at_s = 0.0
        self.topics: dict[str, TopicRow] = {}
        self.nodes: dict[str, NodeRow] = {}
        self.lookupds: dict[str, LookupdRow] = {}
        self.total = TotalRow()
        self.troubles: list[Trouble] = []  # the worst first
        self.listeners: set[Callable[[], None]] = set()
        self._looked_at: OrderedDict[str, TopicRow | ChannelRow] = OrderedDict()

    @property
    def at_ms(self) -> int:
        return int(self.at_s * 1000)

    def channel(self, topic: str, channel: str) -> ChannelRow | None:
        row = self.topics.get(topic)
        return row.by_channel.get(channel) if row is not None else None

    def channels(self) -> list[ChannelRow]:
        return [row for topic in self.topics.values() for row in topic.by_channel.values()]

    def look_at(self, row: TopicRow | ChannelRow) -> None:
        """Somebody looks at it: from now on it has a history."""
        if row.history is None:
            row.history = HourHistory(
                CHANNEL_SERIES if isinstance(row, ChannelRow) else TOPIC_SERIES
            )
            self._looked_at[row.key] = row
            if len(self._looked_at) > LOOKED_AT_MAX:
                _, forgotten = self._looked_at.popitem(last=False)
                forgotten.history = None
        elif row.key in self._looked_at:
            self._looked_at.move_to_end(row.key)

    def give_histories(self) -> None:
        """To topics and channels that have none, while there are few enough."""
        topics = sum(row.history is not None for row in self.topics.values())
        channels = 0
        for row in self.topics.values():
            channels += sum(each.history is not None for each in row.by_channel.values())
        for row in self.topics.values():
            if row.history is None and topics < TOPIC_HISTORIES_MAX:
                row.history = HourHistory(TOPIC_SERIES)
                topics += 1
            for each in row.by_channel.values():
                if each.history is None and channels < CHANNEL_HISTORIES_MAX:
                    each.history = HourHistory(CHANNEL_SERIES)
                    channels += 1

    def settle_total(self) -> None:
        total = self.total
        nodes = self.nodes.values()
        total.nodes = len(nodes)
        total.silent = sum(not node.ok for node in nodes)
        total.topics = len(self.topics)
        total.channels = sum(row.channels for row in self.topics.values())
        for name in ("consumers", "waiting", "in_flight", "deferred"):
            setattr(total, name, sum(getattr(row, name) for row in self.topics.values()))
        for name in ("in_rate", "out_rate", "finish_rate", "requeue_rate", "timeout_rate"):
            known = [rate for node in nodes if (rate := getattr(node, name)) is not None]
            setattr(total, name, round(sum(known), 3) if known else None)
        total.count_taken({node.node: node.taken for node in nodes})
        total.history.put(step_of(self.at_s), figures_of(total, TOTAL_SERIES))

    def short_history(self) -> dict[str, Any]:
        """Ten minutes of the cluster, for sparklines."""
        series = self.total.history.series
        step = step_of(self.at_s) - 1
        wanted = ("in_rate", "out_rate", "finish_rate", "waiting")
        return {
            "step_ms": STEP_MS,
            "end_ms": (step + 1) * STEP_MS,
            **{name: series[name].known(step, SPARK_STEPS) for name in wanted},
        }

    def tell(self) -> None:
        """There is news."""
        self.seq += 1
        for listener in list(self.listeners):
            listener()
