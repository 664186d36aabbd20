"""What the page looks at: overview, tables, one topic, channel or node, nsqlookupds, history.

A view is a function from a query string to an object, so that `/api/v1/<view>` can answer with it
and `/api/v1/events` can send what changes in it. With `keys`, a table has these rows instead of
those that are next in order, and None for one that is gone. docs/nsqadmin.md has every field.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from pumpline.cluster.node import NodeFailure
from pumpline.core.text.names import is_dead_letter_topic
from pumpline.nsqadmin.api.bodies import check_channel, check_topic
from pumpline.nsqadmin.api.consumers import ConsumerTable
from pumpline.nsqadmin.cluster.directory import ClusterDirectory, Failed, warning_message
from pumpline.nsqadmin.live.closeups import Closeup, Closeups
from pumpline.nsqadmin.live.history import STEP_MS, STEPS, HourHistory, step_of
from pumpline.nsqadmin.live.poller import ClusterPoller
from pumpline.nsqadmin.live.rows import (
    CHANNEL_FIGURES,
    NODE_FIGURES,
    TOPIC_FIGURES,
    ChannelRow,
    NodeRow,
    TopicRow,
    figures_of,
)
from pumpline.nsqadmin.live.state import ClusterState, Trouble
from pumpline.nsqadmin.live.tables import KeptOrders, TableKind, TableQuery
from pumpline.web.replies import HttpError, Reply, json_reply
from pumpline.web.request import Request

TROUBLES_SHOWN = 100
INACTIVE_SHOWN = 1000
INACTIVE_S = 10.0  # between looks for topics without nodes, which ask for each of them
PRODUCERS_OF_MAX = 2000  # channels and consumers: /stats tells of producers only with all of these

Shown = dict[str, Any]
Query = Mapping[str, str]
Keys = Sequence[str] | None
AnyRow = TopicRow | ChannelRow | NodeRow


class View(Protocol):
    def __call__(self, query: Query, keys: Keys = None) -> Awaitable[Shown]: ...


TOPICS: TableKind[TopicRow] = TableKind(
    columns=frozenset({"topic", *TOPIC_FIGURES}),
    filters={
        "trouble": lambda row: row.troubles > 0,
        "paused": lambda row: row.paused > 0,
        "waiting": lambda row: row.waiting > 0,
        "no_consumers": lambda row: row.consumers == 0,
        "dead_letters": lambda row: is_dead_letter_topic(row.topic),
    },
    sort="topic",
    searched=lambda row: row.topic,
)
CHANNELS: TableKind[ChannelRow] = TableKind(
    columns=frozenset({"topic", "channel", "key", *CHANNEL_FIGURES}),
    filters={
        "trouble": lambda row: row.troubles > 0,
        "paused": lambda row: row.paused > 0,
        "waiting": lambda row: row.waiting > 0,
        "no_consumers": lambda row: row.consumers == 0 and not row.hold,
        "holds": lambda row: row.hold,
    },
    sort="key",
    searched=lambda row: row.key,
)
NODES: TableKind[NodeRow] = TableKind(
    columns=frozenset(NODE_FIGURES) - {"missing_at", "tombstones"},
    filters={"trouble": lambda row: row.troubles > 0, "silent": lambda row: not row.ok},
    sort="node",
    searched=lambda row: f"{row.node} {row.hostname}",
)


class PageViews:
    def __init__(
        self,
        directory: ClusterDirectory,
        state: ClusterState,
        poller: ClusterPoller,
        closeups: Closeups,
    ) -> None:
        self._directory = directory
        self._state = state
        self._poller = poller
        self._closeups = closeups
        self._orders = KeptOrders()
        self._inactive: tuple[dict[str, list[str] | None], list[str]] = ({}, [])
        self._inactive_at_s = -INACTIVE_S
        self._consumers = ConsumerTable(directory, state)
        self.by_name: dict[str, View] = {
            "overview": self.overview,
            "table/topics": self.topics,
            "table/channels": self.channels,
            "table/nodes": self.nodes,
            "table/consumers": self._consumers.page,
            "topic": self.topic,
            "channel": self.channel,
            "node": self.node,
            "lookupds": self.lookupds,
        }

    def handler(self, view: View) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Reply:
            self._poller.look()
            await self._poller.ready()
            return json_reply(await view(request.query()))

        return handle

    async def closeup_of(self, view: str, query: Query) -> Closeup | None:
        """What to look at closely for a view; None: the poller's figures will do."""
        if view in ("topic", "channel"):
            return await self._closeups.topic(query.get("topic", ""))
        if view in ("table/topics", "table/channels") and query.get("node"):
            row = self._known_node(query["node"])
            return await self._closeups.node(row.node) if row.ok else None
        if view == "table/channels" and query.get("topic"):
            return await self._closeups.topic(query["topic"])
        return None

    # -- everything at once -------------------------------------------------------------------

    async def overview(self, query: Query, keys: Keys = None) -> Shown:
        state = self._state
        silent = [
            {"node": node.node, "error": node.error, "since_ms": node.since_ms}
            for node in state.nodes.values()
            if not node.ok
        ]
        silent += [
            {"lookupd": each.lookupd, "error": each.error, "since_ms": each.since_ms}
            for each in state.lookupds.values()
            if not each.ok
        ]
        return {
            **self._stamp(),
            "totals": state.total.shown(),
            "troubles": state.troubles[:TROUBLES_SHOWN],
            "troubles_total": len(state.troubles),
            "left_out": silent[:TROUBLES_SHOWN],
            "history": state.short_history(),
        }

    # -- tables -------------------------------------------------------------------------------

    async def topics(self, query: Query, keys: Keys = None) -> Shown:
        asked = TOPICS.asked(query)
        if query.get("node"):
            node = self._known_node(query["node"])
            if not node.ok:
                return self._unknown(node)
            found = await self._closeups.node(node.node)
            own = TOPICS.select(found.topics.values(), asked)
            return without_sparks(self._page(own, asked, keys, found.topics.get))
        rows = self._state.topics
        order = self._orders.get(
            self._state.seq,
            ("topics", key_of(asked)),
            lambda: TOPICS.select(rows.values(), asked),
        )
        return self._page(order, asked, keys, rows.get)

    async def channels(self, query: Query, keys: Keys = None) -> Shown:
        asked = CHANNELS.asked(query)
        topic = query.get("topic", "")
        if query.get("node"):
            node = self._known_node(query["node"])
            if not node.ok:
                return self._unknown(node)
            found = await self._closeups.node(node.node)
            topics = [each for each in found.topics.values() if topic in ("", each.topic)]
        elif topic:
            total = (await self._closeups.topic(check_topic(topic))).total
            topics = [total] if total is not None else []
        else:
            order = self._orders.get(
                self._state.seq,
                ("channels", key_of(asked)),
                lambda: CHANNELS.select(self._state.channels(), asked),
            )
            return self._page(order, asked, keys, self._channel_at)
        rows = {row.key: row for each in topics for row in each.by_channel.values()}
        page = self._page(CHANNELS.select(rows.values(), asked), asked, keys, rows.get)
        return without_sparks(page) if query.get("node") else page

    async def nodes(self, query: Query, keys: Keys = None) -> Shown:
        asked = NODES.asked(query)
        rows = self._state.nodes
        return self._page(NODES.select(rows.values(), asked), asked, keys, rows.get)

    def _unknown(self, node: NodeRow) -> Shown:
        """What a node has that does not answer: nobody knows, and nobody waits for it."""
        message = f"does not answer: {node.error}"
        return {**self._stamp(), "total": 0, "offset": 0, "rows": [], "message": message}

    def _channel_at(self, key: str) -> ChannelRow | None:
        topic, _, channel = key.partition("/")
        return self._state.channel(topic, channel)

    def _page(
        self,
        order: Sequence[AnyRow],
        asked: TableQuery,
        keys: Keys,
        find: Callable[[str], AnyRow | None],
    ) -> Shown:
        rows: Iterable[AnyRow | None] = order[asked.offset : asked.offset + asked.limit]
        if keys is not None:
            rows = map(find, keys)
        return {
            **self._stamp(),
            "total": len(order),
            "offset": asked.offset,
            "rows": [None if row is None else self._shown(row) for row in rows],
        }

    # -- one of them --------------------------------------------------------------------------

    async def topic(self, query: Query, keys: Keys = None) -> Shown:
        topic = check_topic(query.get("topic", ""))
        found = await self._closeups.topic(topic)
        row = found.total
        return {
            **self._stamp(found),
            "topic": topic,
            "found": row is not None,
            "total": self._shown(row) if row is not None else None,
            "nodes": [
                *(
                    {**self._node_part(node, each), "log": found.logs.get(node)}
                    for node, each in sorted(found.by_node.items())
                ),
                *(_silent(node, error) for node, error in sorted(found.errors.items())),
            ],
            "troubles": self._troubles(lambda each: each.topic == topic),
            "message": _told(found.error, found.errors.values()),
        }

    async def channel(self, query: Query, keys: Keys = None) -> Shown:
        topic = check_topic(query.get("topic", ""))
        channel = check_channel(query.get("channel", ""))
        found = await self._closeups.topic(topic)
        row = found.total.by_channel.get(channel) if found.total is not None else None
        parts = [
            self._node_part(node, each.by_channel[channel])
            for node, each in sorted(found.by_node.items())
            if channel in each.by_channel
        ]
        return {
            **self._stamp(found),
            "topic": topic,
            "channel": channel,
            "found": row is not None,
            "total": self._shown(row) if row is not None else None,
            "nodes": [
                *parts,
                *(_silent(node, error) for node, error in sorted(found.errors.items())),
            ],
            "troubles": self._troubles(
                lambda each: each.topic == topic and each.channel in ("", channel)
            ),
            "message": _told(found.error, found.errors.values()),
        }

    async def node(self, query: Query, keys: Keys = None) -> Shown:
        row = self._known_node(query.get("node", ""))
        upstream = self._directory.upstream
        info: Shown | None = None
        stats: Shown = {}
        message = ""
        try:
            if row.ok:
                info = await upstream.get_as(dict[str, Any], row.node, "/info", {})
            if row.ok and (row.consumers or 0) + (row.channels or 0) < PRODUCERS_OF_MAX:
                stats = await upstream.get_as(
                    dict[str, Any], row.node, "/stats", {"format": "json"}
                )
        except NodeFailure as error:
            message = warning_message([str(error)])
        return {
            **self._stamp(),
            "node": row.shown(self._state.at_s),
            "info": info,
            "memory": stats.get("memory"),
            "producers": _publishers(stats.get("producers")) if stats else None,
            "registered": [
                {"lookupd": each.lookupd, "ok": each.ok, "known": row.node not in each.missing}
                for each in self._state.lookupds.values()
            ],
            "troubles": self._troubles(lambda each: each.node == row.node),
            "message": message,
        }

    async def lookupds(self, query: Query, keys: Keys = None) -> Shown:
        state = self._state
        await self._ask_versions()
        if time.monotonic() - self._inactive_at_s >= INACTIVE_S or query.get("fresh") == "true":
            self._inactive_at_s = time.monotonic()
            self._inactive = await self._find_inactive()
        inactive, warned = self._inactive
        return {
            **self._stamp(),
            "lookupds": list(state.lookupds.values()),
            "inactive": [
                {"topic": topic, "channels": channels or []}
                for topic, channels in sorted(inactive.items())
            ],
            "inactive_total": len(inactive),
            "tombstones": [
                {"topic": topic, "node": node.node}
                for node in state.nodes.values()
                for topic in node.tombstones
            ],
            "message": warning_message(warned),
        }

    async def _find_inactive(self) -> tuple[dict[str, list[str] | None], list[str]]:
        """Topics that no nsqd has, with their channels; and warnings."""
        if not self._directory.lookupds:
            return {}, []
        try:
            names, warned = await self._directory.topic_names()
        except Failed as error:
            return {}, [str(error)]
        orphans = [name for name in names if name not in self._state.topics]
        return await self._directory.inactive(orphans[:INACTIVE_SHOWN]), warned

    async def _ask_versions(self) -> None:
        rows = {row.lookupd: row for row in self._state.lookupds.values() if not row.version}

        async def ask(lookupd: str) -> dict[str, Any]:
            return await self._directory.upstream.get_as(dict[str, Any], lookupd, "/info", {})

        found = await self._directory.upstream.each(rows, ask)
        for lookupd, told in found.answers.items():
            rows[lookupd].version = str(told.get("version", ""))

    async def history(self, query: Query, keys: Keys = None) -> Shown:
        topic, channel = query.get("topic", ""), query.get("channel", "")
        state = self._state
        found: HourHistory | None = None
        if query.get("node"):
            found = self._known_node(query["node"]).history
        elif not topic:
            found = state.total.history
        else:
            row = state.channel(topic, channel) if channel else state.topics.get(topic)
            if row is not None:
                state.look_at(row)
                found = row.history
        step = step_of(state.at_s or time.time())
        return {
            "step_ms": STEP_MS,
            "end_ms": (step + 1) * STEP_MS,
            "series": found.last(step, STEPS) if found is not None else {},
        }

    # -- parts --------------------------------------------------------------------------------

    def _stamp(self, closeup: Closeup | None = None) -> Shown:
        state = self._state
        at_ms = int(closeup.at_s * 1000) if closeup is not None else state.at_ms
        return {"at_ms": at_ms, "seq": closeup.seq if closeup is not None else state.seq}

    def _known_node(self, address: str) -> NodeRow:
        row = self._state.nodes.get(address)
        if row is None:
            raise HttpError(404, "NODE_NOT_FOUND")
        return row

    def _shown(self, row: AnyRow) -> Shown:
        """A row, with the history and the troubles that the poller knows of."""
        shown = row.shown(self._state.at_s)
        if isinstance(row, NodeRow):
            return shown
        polled = self._polled(row)
        if polled is not None:
            self._state.look_at(polled)
        if polled is not None and polled is not row:
            shown["spark"] = polled.shown(self._state.at_s)["spark"]
            shown["troubles"] = polled.troubles
        return shown

    def _polled(self, row: TopicRow | ChannelRow) -> TopicRow | ChannelRow | None:
        if isinstance(row, TopicRow):
            return self._state.topics.get(row.topic)
        return self._state.channel(row.topic, row.channel)

    def _node_part(self, node: str, row: TopicRow | ChannelRow) -> Shown:
        """What one node has of a topic or channel."""
        names = TOPIC_FIGURES if isinstance(row, TopicRow) else CHANNEL_FIGURES
        figures = figures_of(row, names)
        del figures["nodes"], figures["troubles"]
        known = self._state.nodes.get(node)
        return {
            "key": node,
            "node": node,
            "ok": True,
            "error": "",
            "is_pumpline": known is not None and known.pumpline is not None,
            **figures,
            "paused": bool(row.paused),
        }

    def _troubles(self, concerns: Callable[[Trouble], bool]) -> list[Trouble]:
        return [each for each in self._state.troubles if concerns(each)][:TROUBLES_SHOWN]


def key_of(asked: TableQuery) -> tuple[object, ...]:
    """What decides an order; where the page begins does not."""
    return asked.search, asked.sort, asked.descending, asked.filters


def without_sparks(page: Shown) -> Shown:
    """Histories are of the whole cluster: rows of one node have none."""
    for row in page["rows"]:
        if row is not None:
            row["spark"] = []
    return page


def _silent(node: str, error: NodeFailure) -> Shown:
    return {"key": node, "node": node, "ok": False, "error": str(error)}


def _told(error: str, errors: Iterable[NodeFailure]) -> str:
    texts = [str(each) for each in errors]
    return warning_message([error] if error else texts and ["\n".join(texts)])


def _publishers(told: object) -> list[Shown]:
    """Connections that publish, as /stats tells of them."""
    found = []
    for each in told if isinstance(told, list) else ():
        counts = each.get("pub_counts") if isinstance(each, dict) else None
        for count in counts if isinstance(counts, list) else ():
            if not isinstance(count, dict):
                continue
            found.append(
                {
                    "key": str(each.get("remote_address", "")),
                    "remote_address": str(each.get("remote_address", "")),
                    "client_id": str(each.get("client_id", "")),
                    "hostname": str(each.get("hostname", "")),
                    "user_agent": str(each.get("user_agent", "")),
                    "topic": str(count.get("topic", "")),
                    "count": count.get("count", 0),
                }
            )
    return found
