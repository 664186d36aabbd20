"""NSQ's routes that only read: topics, channels, nodes, counter; fields and texts are NSQ's.

What some nodes failed at is a warning in `message`; when all failed it is a 502.
"""

import logging
import time
from collections.abc import Iterable, Sequence

import msgspec

from pumpline.cluster.node import ClusterNode
from pumpline.cluster.stats import read_stats
from pumpline.nsqadmin.cluster.directory import (
    ClusterDirectory,
    Failed,
    Gathered,
    KnownNode,
    warning_message,
    warnings,
)
from pumpline.nsqadmin.cluster.figures import (
    ChannelFigures,
    TopicFigures,
    sum_channel,
    sum_topic,
    topic_figures,
)
from pumpline.web.replies import HttpError, Reply, json_reply
from pumpline.web.request import Request

_LOG = logging.getLogger(__name__)


class CountedChannel(msgspec.Struct):
    node: str
    topic_name: str
    channel_name: str
    message_count: int


class NsqEndpoints:
    def __init__(self, directory: ClusterDirectory) -> None:
        self._directory = directory

    async def topics(self, request: Request) -> Reply:
        try:
            names, warned = await self._directory.topic_names()
        except Failed as error:
            raise upstream_error("get topics", error) from None
        _warn(warned)
        if request.query().get("inactive") == "true":
            inactive = await self._directory.inactive(names)
            return json_reply({"topics": inactive, "message": warning_message(warned)})
        return json_reply({"topics": names or None, "message": warning_message(warned)})

    async def topic(self, request: Request) -> Reply:
        topic = request.variable
        try:
            found = await self._directory.topic_nodes(topic)
            parts, warned = await self._figures(found.nodes, topic=topic, clients=False)
        except Failed as error:
            raise upstream_error(f"get topic {topic}", error) from None
        warned = _warn([*found.warnings, *warned])
        total = sum_topic(topic, [part for part in parts if part.topic_name == topic])
        return _with_message(total, warned)

    async def channel(self, request: Request) -> Reply:
        topic, _, channel = request.variable.partition("/")
        try:
            found = await self._directory.topic_nodes(topic)
            parts, warned = await self._figures(
                found.nodes, topic=topic, channel=channel, clients=True
            )
        except Failed as error:
            raise upstream_error(f"get channel {topic}:{channel}", error) from None
        warned = _warn([*found.warnings, *warned])
        own = [
            each
            for part in parts
            for each in part.channels or ()
            if part.topic_name == topic and each.channel_name == channel
        ]
        if not own:
            return json_reply({"message": warning_message(warned)})
        return _with_message(sum_channel(topic, channel, own), warned)

    async def nodes(self, request: Request) -> Reply:
        found = await self._nodes()
        return json_reply(
            {"nodes": found.nodes or None, "message": warning_message(_warn(found.warnings))}
        )

    async def node(self, request: Request) -> Reply:
        address = request.variable
        found = await self._nodes()
        known = [node for node in found.nodes if node.address == address]
        if not known:
            raise HttpError(404, "NODE_NOT_FOUND")
        try:
            topics, warned = await self._figures(known, clients=True)
        except Failed as error:
            raise upstream_error(f"get node {address}", error) from None
        channels = [each for topic in topics for each in topic.channels or ()]
        return json_reply(
            {
                "node": address,
                "topics": topics or None,
                "total_messages": sum(topic.message_count for topic in topics),
                "total_clients": sum(channel.client_count for channel in channels),
                "message": warning_message(_warn([*found.warnings, *warned])),
            }
        )

    async def counter(self, request: Request) -> Reply:
        found = await self._nodes()
        try:
            topics, warned = await self._figures(found.nodes, clients=False)
        except Failed as error:
            raise upstream_error("get counters", error) from None
        stats = {
            f"{each.topic_name}:{each.channel_name}:{each.node}": CountedChannel(
                each.node, each.topic_name, each.channel_name, each.message_count
            )
            for topic in topics
            for each in topic.channels or ()
        }
        by_key = {key: stats[key] for key in sorted(stats)}
        message = warning_message(_warn([*found.warnings, *warned]))
        return json_reply({"stats": by_key, "message": message})

    async def _nodes(self) -> Gathered:
        try:
            return await self._directory.nodes()
        except Failed as error:
            raise upstream_error("get nodes", error) from None

    async def _figures(
        self, nodes: Sequence[KnownNode], *, topic: str = "", channel: str = "", clients: bool
    ) -> tuple[list[TopicFigures], list[str]]:
        """Of all these nodes, by name and host; and warnings."""
        more = {"channel": channel} if channel else {}
        more["include_clients"] = "true" if clients else "false"
        hostnames = {node.address: node.hostname for node in nodes}

        def figures(node: ClusterNode) -> list[TopicFigures]:
            told = read_stats(node, topic or None, **more)
            host, now_s = hostnames[node.address], int(time.time())
            return [
                topic_figures(each, node=node.address, hostname=host, now_s=now_s)
                for each in told.topics or ()
            ]

        found = await self._directory.ask_nsqds(
            hostnames, lambda address: self._directory.upstream.run(address, figures)
        )
        parts = [part for each in found.answers.values() for part in each]
        parts.sort(key=lambda part: (part.topic_name, part.hostname, part.node))
        return parts, warnings(found)


def upstream_error(what: str, error: Failed) -> HttpError:
    _LOG.error("failed to %s - %s", what, error)
    return HttpError(502, f"UPSTREAM_ERROR: {error}")


def _warn(warned: Iterable[str]) -> list[str]:
    kept = list(warned)
    for text in kept:
        _LOG.warning("%s", text)
    return kept


def _with_message(figures: TopicFigures | ChannelFigures, warned: Sequence[str]) -> Reply:
    return json_reply({**msgspec.structs.asdict(figures), "message": warning_message(warned)})
