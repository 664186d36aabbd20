"""Settings of a topic, what retention will delete and when, and holds; on all its nodes."""

import time
from typing import Any

import msgspec

from pumpline.cluster.log import LogOffsets, in_ms
from pumpline.cluster.node import NodeFailure
from pumpline.cluster.stats import read_stats
from pumpline.core.text.durations import format_duration, parse_duration
from pumpline.nsqadmin.api.bodies import check_topic, json_body
from pumpline.nsqadmin.api.topic_nodes import TopicNodes, change_reply, failures, warning_of
from pumpline.nsqadmin.live.state import ClusterState
from pumpline.nsqadmin.notifications import Notifier
from pumpline.web.replies import HttpError, Reply, json_reply
from pumpline.web.request import Request

HOLD_TOPICS_MAX = 1000  # looked into, when no topic is given
NS_PER_MS = 1_000_000


class SettingsBody(msgspec.Struct):
    topic: str = ""
    settings: dict[str, Any] = {}
    node: str = ""


class NodeSettings(msgspec.Struct, kw_only=True):
    """The answer of /topic/settings."""

    settings: dict[str, Any]
    refused: int = 0
    dropped: int = 0
    channels: dict[str, Any] = {}


class ListedHold(msgspec.Struct, kw_only=True):
    hold: str
    offset: int
    depth: int = 0
    bytes: int = 0
    bytes_max: int = 0
    dropped: bool = False
    committed_at: int = 0  # ns
    description: str = ""


class ListedHolds(msgspec.Struct):
    holds: list[ListedHold]


class TopicSettingsEndpoints:
    def __init__(self, nodes: TopicNodes, state: ClusterState, notifier: Notifier) -> None:
        self._nodes = nodes
        self._state = state
        self._notifier = notifier

    async def get(self, request: Request) -> Reply:
        query = request.query()
        topic = check_topic(query.get("topic", ""))
        nodes = await self._nodes.having(topic, query.get("node", ""))

        async def look(node: str) -> dict[str, Any]:
            told = await self._nodes.upstream.get_as(
                NodeSettings, node, "/topic/settings", {"topic": topic}
            )
            retention = await self._retention(node, topic, told.settings)
            return {**msgspec.structs.asdict(told), "retention": retention}

        found = await self._nodes.ask(nodes, look)
        answers = [each["settings"] for each in found.answers.values()]
        first = answers[0] if answers else {}
        differ = [name for name in first if any(each.get(name) != first[name] for each in answers)]
        return json_reply(
            {
                "topic": topic,
                "settings": first,
                "differ": differ,
                "nodes": [
                    *(
                        {"node": node, "ok": True, "error": "", **each}
                        for node, each in found.answers.items()
                    ),
                    *failures(found.errors),
                ],
                "message": warning_of(found.errors),
            }
        )

    async def change(self, request: Request) -> Reply:
        asked = json_body(request, SettingsBody)
        topic = check_topic(asked.topic)
        if not asked.settings:
            raise HttpError(400, "INVALID_SETTINGS", details={"detail": "there are none"})
        nodes = await self._nodes.having(topic, asked.node)
        body = msgspec.json.encode(asked.settings)

        async def change(node: str) -> NodeSettings:
            return await self._nodes.upstream.post_as(
                NodeSettings, node, "/topic/settings", {"topic": topic}, body
            )

        found = await self._nodes.ask(nodes, change)
        for error in found.errors.values():
            if error.code == "INVALID_SETTINGS" and not found.answers:
                raise HttpError(400, error.code, details={"detail": error.details.get("detail")})
        if found.answers:
            self._notifier.tell(request, "change_settings", topic=topic, node=asked.node)
        shown = {
            "nodes": [
                *(
                    {"node": node, "ok": True, "error": "", "settings": each.settings}
                    for node, each in found.answers.items()
                ),
                *failures(found.errors),
            ]
        }
        return change_reply(shown, found.errors, ok=len(found.answers))

    async def _retention(
        self, node: str, topic: str, settings: dict[str, Any]
    ) -> dict[str, Any] | None:
        """What will be deleted, and what keeps it; None if nobody knows."""
        upstream = self._nodes.upstream
        try:
            extent = await upstream.get_as(LogOffsets, node, "/log/offsets", {"topic": topic})
            stats = await upstream.run(node, lambda asked: read_stats(asked, topic))
            time_ns = await self._limit(node, "retention_time", settings)
            size_bytes = await self._limit(node, "retention_bytes", settings)
        except NodeFailure:
            return None
        first_ms = in_ms(extent.first_timestamp)
        kept_by = [
            channel.channel_name
            for each in stats.topics or ()
            for channel in each.channels
            if first_ms and in_ms(channel.oldest_timestamp) == first_ms
        ]
        return {
            "time": None if time_ns is None else format_duration(time_ns),
            "bytes": size_bytes,
            "log_bytes": extent.bytes,
            "messages": extent.messages,
            "first_timestamp_ms": first_ms,
            "deletes_at_ms": (
                first_ms + time_ns // NS_PER_MS if first_ms and time_ns is not None else None
            ),
            "kept_by": kept_by,
        }

    async def _limit(self, node: str, name: str, settings: dict[str, Any]) -> int | None:
        """The topic's own, or that of its nsqd."""
        own = settings.get(name)
        if isinstance(own, int):
            return own
        try:
            if isinstance(own, str):
                return parse_duration(own)
            return await self._nodes.upstream.get_as(int, node, f"/config/{name}", {})
        except (ValueError, NodeFailure):
            return None

    # -- holds --------------------------------------------------------------------------------

    async def holds(self, request: Request) -> Reply:
        query = request.query()
        topic = query.get("topic", "")
        if topic:
            places = [(node, check_topic(topic)) for node in await self._nodes.having(topic)]
        else:
            places = [
                (node, row.topic)
                for row in self._state.topics.values()
                if any(channel.hold for channel in row.by_channel.values())
                for node in row.on
            ][:HOLD_TOPICS_MAX]

        async def look(place: tuple[str, str]) -> list[ListedHold]:
            node, name = place
            answer = await self._nodes.upstream.get_as(
                ListedHolds, node, "/hold/list", {"topic": name}
            )
            return answer.holds

        found = await self._nodes.upstream.each(places, look)
        errors = {node: error for (node, _), error in found.errors.items()}
        answered = {node for node, _ in found.answers}
        return json_reply(
            {
                "holds": [
                    _hold(node, name, hold)
                    for (node, name), own in found.answers.items()
                    for hold in own
                ],
                "nodes": [
                    *({"node": node, "ok": True, "error": ""} for node in sorted(answered)),
                    *failures(errors),
                ],
                "message": warning_of(errors),
            }
        )


def _hold(node: str, topic: str, hold: ListedHold) -> dict[str, Any]:
    committed_ms = in_ms(hold.committed_at)
    return {
        "key": f"{node}/{topic}/{hold.hold}",
        "node": node,
        "topic": topic,
        "hold": hold.hold,
        "offset": hold.offset,
        "depth": hold.depth,
        "bytes": hold.bytes,
        "bytes_max": hold.bytes_max,
        "dropped": hold.dropped,
        "description": hold.description,
        "committed_at_ms": committed_ms,
        "idle_ms": max(int(time.time() * 1000) - committed_ms, 0) if committed_ms else None,
    }
