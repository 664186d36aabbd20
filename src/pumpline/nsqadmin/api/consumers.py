"""The consumers of a channel, as a table: asked for when somebody looks, as there may be thousands.

Answers are kept for a second, so that several browsers cost as much as one, and for a while longer,
so that the next look has rates.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from pumpline.cluster.node import ClusterNode, decoded
from pumpline.cluster.stats import read_stats
from pumpline.nsqadmin.api.bodies import check_channel, check_topic
from pumpline.nsqadmin.cluster.directory import ClusterDirectory, Failed, warning_message
from pumpline.nsqadmin.live.rates import CounterReading, RateWindow, positive
from pumpline.nsqadmin.live.state import ClusterState
from pumpline.nsqadmin.live.tables import TableKind

FRESH_S = 1.0
NS_PER_MS = 1_000_000
KEPT_MAX = 50  # channels

COLUMNS = (
    "node remote_address client_id hostname user_agent ready_count in_flight message_count "
    "finish_count requeue_count done_rate connected_at_ms tls compression authed auth_identity "
    "sample_rate zone region longest_held_offset longest_held_ms".split()
)


class PolledClient(msgspec.Struct, kw_only=True):
    """A consumer in /stats."""

    client_id: str = ""
    hostname: str = ""
    remote_address: str = ""
    user_agent: str = ""
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    connect_ts: int = 0
    sample_rate: int = 0
    deflate: bool = False
    snappy: bool = False
    tls: bool = False
    authed: bool = False
    auth_identity: str = ""
    topology_zone: str = ""
    topology_region: str = ""
    longest_held_offset: int | None = None  # of our nsqds
    longest_held_since: int = 0  # ns


class ConsumerRow:
    def __init__(self, node: str, told: PolledClient) -> None:
        self.node = node
        self.told = told
        self.done_rate: float | None = None
        self.remote_address = told.remote_address
        self.client_id = told.client_id
        self.hostname = told.hostname
        self.user_agent = told.user_agent
        self.ready_count = told.ready_count
        self.in_flight = told.in_flight_count
        self.message_count = told.message_count
        self.finish_count = told.finish_count
        self.requeue_count = told.requeue_count
        self.connected_at_ms = told.connect_ts * 1000
        self.tls = told.tls
        self.compression = "deflate" if told.deflate else "snappy" if told.snappy else ""
        self.authed = told.authed
        self.auth_identity = told.auth_identity
        self.sample_rate = told.sample_rate
        self.zone = told.topology_zone
        self.region = told.topology_region
        self.longest_held_offset = told.longest_held_offset
        since_ns = told.longest_held_since
        self.longest_held_ms = max(time.time_ns() - since_ns, 0) // NS_PER_MS if since_ns else None

    @property
    def key(self) -> str:
        return f"{self.node}/{self.remote_address}"

    def shown(self, now_s: float) -> dict[str, Any]:
        return {"key": self.key, **{name: getattr(self, name) for name in COLUMNS}}


CONSUMERS: TableKind[ConsumerRow] = TableKind(
    columns=frozenset(COLUMNS),
    filters={},
    sort="remote_address",
    searched=lambda row: f"{row.remote_address} {row.client_id} {row.hostname} {row.user_agent}",
)


class ChannelConsumers:
    """Of one channel."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self.seq = 0
        self.rows: list[ConsumerRow] = []
        self.warnings: list[str] = []
        self.lock = asyncio.Lock()
        self._windows: dict[str, RateWindow] = {}

    def settle(self, rows: list[ConsumerRow], warnings: list[str]) -> None:
        self.at_s, self.rows, self.warnings = time.time(), rows, warnings
        self.seq += 1
        windows = {}
        for row in rows:
            window = windows[row.key] = self._windows.get(row.key) or RateWindow()
            rates = window.rates(
                CounterReading(self.at_s, row.connected_at_ms, (row.finish_count,))
            )
            row.done_rate = None if rates is None else positive(rates[0])
        self._windows = windows


class ConsumerTable:
    def __init__(self, directory: ClusterDirectory, state: ClusterState) -> None:
        self._directory = directory
        self._state = state
        self._kept: OrderedDict[tuple[str, str], ChannelConsumers] = OrderedDict()

    async def page(
        self, query: Mapping[str, str], keys: Sequence[str] | None = None
    ) -> dict[str, Any]:
        asked = CONSUMERS.asked(query)
        topic = check_topic(query.get("topic", ""))
        channel = check_channel(query.get("channel", ""))
        found = await self._look(topic, channel)
        node = query.get("node", "")
        rows = [row for row in found.rows if node in ("", row.node)]
        order = CONSUMERS.select(rows, asked)
        by_key = {row.key: row for row in rows} if keys is not None else {}
        shown: Iterable[ConsumerRow | None] = order[asked.offset : asked.offset + asked.limit]
        if keys is not None:
            shown = map(by_key.get, keys)
        return {
            "at_ms": int(found.at_s * 1000),
            "seq": found.seq,
            "total": len(order),
            "offset": asked.offset,
            "rows": [None if row is None else row.shown(found.at_s) for row in shown],
            "message": warning_message(found.warnings),
        }

    async def _look(self, topic: str, channel: str) -> ChannelConsumers:
        key = topic, channel
        found = self._kept.setdefault(key, ChannelConsumers())
        self._kept.move_to_end(key)
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        async with found.lock:
            if time.time() - found.at_s >= FRESH_S:
                await self._ask(found, topic, channel)
        return found

    async def _ask(self, found: ChannelConsumers, topic: str, channel: str) -> None:
        known = self._state.topics.get(topic)
        if known is not None:
            nodes = known.on
        else:
            try:
                told = await self._directory.topic_nodes(topic)
            except Failed as error:
                found.settle([], [str(error)])
                return
            nodes = [node.address for node in told.nodes]

        def consumers(node: ClusterNode) -> list[PolledClient]:
            stats = read_stats(node, topic, channel=channel, include_clients="true")
            return [
                decoded(client, PolledClient, node.address)
                for each in stats.topics or ()
                for own in each.channels
                if each.topic_name == topic and own.channel_name == channel
                for client in own.clients or ()
            ]

        async def ask(node: str) -> list[ConsumerRow]:
            told = await self._directory.upstream.run(node, consumers)
            return [ConsumerRow(node, client) for client in told]

        asked = await self._directory.upstream.each(nodes, ask)
        rows = [row for each in asked.answers.values() for row in each]
        found.settle(rows, asked.in_nsq_words())
