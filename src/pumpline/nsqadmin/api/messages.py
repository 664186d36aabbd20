"""Messages: a page of them by offset, time or text, one with where it stands, its body as a file.

Messages of several nodes are merged by time. Where to go on is kept in `next`, an offset for each
node: `<offset>@<node>` with commas between, which is opaque to the page. A Go nsqd has no log to
read, and says so. Bodies are bytes of strangers: they are only ever sent as JSON, or as a file to
keep.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from pumpline.cluster.log import LogMessage, LogPage
from pumpline.cluster.node import NodeFailure
from pumpline.cluster.stats import read_stats
from pumpline.nsqadmin.api.bodies import check_channel, check_topic
from pumpline.nsqadmin.api.topic_nodes import TopicNodes, failures, in_words, warning_of
from pumpline.nsqadmin.live.tables import number
from pumpline.web.replies import HttpError, Reply, json_reply
from pumpline.web.request import Request

LIMIT = 20
LIMIT_MAX = 200
BODY_MAX = 4096
BODY_MAX_MAX = 1 << 20
NEXT_CHARS_MAX = 64 << 10
NS_PER_MS = 1_000_000
STATES = ("waiting", "in_flight", "deferred", "requeued")

_FILE_NAME = re.compile(r"[^A-Za-z0-9._-]")


class PlacedHold(msgspec.Struct):
    hold: str
    offset: int


class PlacedHolds(msgspec.Struct):
    """The answer of /hold/list, of which only places count."""

    holds: list[PlacedHold]


class MessageEndpoints:
    def __init__(self, nodes: TopicNodes) -> None:
        self._nodes = nodes

    async def page(self, request: Request) -> Reply:
        query = request.query()
        topic = check_topic(query.get("topic", ""))
        if query.get("channel"):
            check_channel(query["channel"])
        if query.get("state", "") not in ("", *STATES):
            raise HttpError(400, "INVALID_STATE")
        limit = max(1, min(number(query, "limit", LIMIT), LIMIT_MAX))
        starts = read_next(query.get("next", ""))
        nodes = await self._nodes.having(topic, query.get("node", ""))
        if starts:
            nodes = [node for node in nodes if node in starts]
        elif query.get("from") and len(nodes) > 1:
            raise HttpError(400, "NODE_REQUIRED")
        shared = peek_query(query, topic, limit)

        async def peek(node: str) -> LogPage:
            asked = dict(shared)
            if node in starts:
                asked |= {"from": starts[node], "time": None}
            return await self._nodes.upstream.get_as(LogPage, node, "/log/peek", asked)

        found = await self._nodes.ask(nodes, peek)
        newest = query.get("newest") == "true"
        messages, after = merge(found.answers, limit, newest=newest, state=query.get("state", ""))
        return json_reply(
            {
                "topic": topic,
                "messages": messages,
                "next": write_next(after),
                "nodes": [
                    *(
                        {"node": node, "ok": True, "error": "", "first": p.first, "end": p.end}
                        for node, p in found.answers.items()
                    ),
                    *failures(found.errors),
                ],
                "message": warning_of(found.errors),
            }
        )

    async def one(self, request: Request) -> Reply:
        """A message, and where it stands in every channel."""
        query = request.query()
        topic, node, offset = self._place(query)
        message = await self._message(topic, node, offset, BODY_MAX_MAX)
        channels = await self._channels(topic, node)

        async def standing(channel: str) -> dict[str, Any]:
            return await self._standing(topic, node, offset, channel, hold=channels[channel])

        found = await self._nodes.ask(sorted(channels), standing)
        return json_reply(
            {
                "topic": topic,
                "message": shown(message, node),
                "channels": list(found.answers.values()),
                "warning": warning_of(found.errors),
            }
        )

    async def _channels(self, topic: str, node: str) -> dict[str, bool]:
        """The channels of a topic there, and whether each is a hold."""
        try:
            stats = await self._nodes.upstream.run(node, lambda asked: read_stats(asked, topic))
        except NodeFailure as error:
            raise HttpError(502, f"UPSTREAM_ERROR: {in_words(error)}") from None
        return {
            own.channel_name: own.hold
            for each in stats.topics or ()
            if each.topic_name == topic
            for own in each.channels
        }

    async def body(self, request: Request) -> Reply:
        """The body as a file, whatever its bytes are."""
        query = request.query()
        topic, node, offset = self._place(query)
        message = await self._message(topic, node, offset, None)
        name = _FILE_NAME.sub("_", f"{topic}-{offset}.bin")
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Disposition": f'attachment; filename="{name}"',
            "X-Content-Type-Options": "nosniff",
        }
        try:
            return Reply(body=message.raw(), headers=headers)
        except NodeFailure as error:
            raise HttpError(502, f"UPSTREAM_ERROR: {error.in_nsq_words()}") from None

    def _place(self, query: Mapping[str, str]) -> tuple[str, str, int]:
        topic = check_topic(query.get("topic", ""))
        node = self._nodes.known(query.get("node", ""))
        if not query.get("offset"):
            raise HttpError(400, "INVALID_OFFSET")
        return topic, node, number(query, "offset", 0)

    async def _message(
        self, topic: str, node: str, offset: int, body_max: int | None
    ) -> LogMessage:
        query = {"topic": topic, "from": offset, "limit": 1, "body_max": body_max}
        try:
            page = await self._nodes.upstream.get_as(LogPage, node, "/log/peek", query)
        except NodeFailure as error:
            if error.status in (404, 410, 416):
                raise HttpError(
                    404, "MESSAGE_NOT_FOUND", details={"detail": in_words(error)}
                ) from None
            raise HttpError(502, f"UPSTREAM_ERROR: {error.in_nsq_words()}") from None
        if not page.messages or page.messages[0].offset != offset:
            raise HttpError(404, "MESSAGE_NOT_FOUND")
        return page.messages[0]

    async def _standing(
        self, topic: str, node: str, offset: int, channel: str, *, hold: bool
    ) -> dict[str, Any]:
        """A channel's page begins with the first message that is not finished."""
        told: dict[str, Any] = {
            "channel": channel,
            "state": "finished",
            "attempts": None,
            "deferred_until_ms": None,
        }
        if hold:
            return {**told, "state": await self._held(topic, node, offset, channel)}
        query = {"topic": topic, "channel": channel, "from": offset, "limit": 1, "body_max": 0}
        page = await self._nodes.upstream.get_as(LogPage, node, "/log/peek", query)
        if page.messages and page.messages[0].offset == offset:
            own = page.messages[0]
            told |= {
                "state": own.state,
                "attempts": own.attempts,
                "deferred_until_ms": own.deferred_until // NS_PER_MS or None,
            }
        return told

    async def _held(self, topic: str, node: str, offset: int, hold: str) -> str:
        listed = await self._nodes.upstream.get_as(
            PlacedHolds, node, "/hold/list", {"topic": topic}
        )
        return (
            "hold" if any(e.hold == hold and e.offset <= offset for e in listed.holds) else "passed"
        )


def shown(message: LogMessage, node: str) -> dict[str, Any]:
    told: dict[str, Any] = {
        "key": f"{node}/{message.offset}",
        "node": node,
        "offset": message.offset,
        "id": message.id,
        "timestamp_ms": message.timestamp / NS_PER_MS,
        "attempts": message.attempts,
        "bytes": message.size_bytes,
        "state": message.state or None,
        "deferred_until_ms": message.deferred_until // NS_PER_MS or None,
        "truncated": message.truncated,
    }
    if message.body_base64 is not None:
        told["body_base64"] = message.body_base64
    else:
        told["body"] = message.body or ""
    return told


def peek_query(query: Mapping[str, str], topic: str, limit: int) -> dict[str, object]:
    """What every node is asked."""
    time_ms = query.get("time_ms", "")
    return {
        "topic": topic,
        "channel": query.get("channel") or None,
        "from": number(query, "from", 0) if query.get("from") else None,
        "time": number(query, "time_ms", 0) * NS_PER_MS if time_ms else None,
        "newest": "true" if query.get("newest") == "true" else None,
        "limit": limit,
        "contains": query.get("contains") or None,
        "id": query.get("id") or None,
        "body_max": min(number(query, "body_max", BODY_MAX), BODY_MAX_MAX),
    }


def merge(
    pages: Mapping[str, LogPage], limit: int, *, newest: bool, state: str = ""
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The first `limit` messages of all pages by time, and where each node goes on."""
    every = [(each, node) for node, page in pages.items() for each in page.messages]
    every.sort(key=lambda pair: pair[0].timestamp, reverse=newest)
    taken = every[:limit]
    after: dict[str, int] = {}
    for node, page in pages.items():
        left = [each.offset for each, of in every[limit:] if of == node]
        at = (max(left) + newest if newest else min(left)) if left else page.next
        is_over = at <= page.first if newest else at >= page.end
        if left or not is_over:
            after[node] = at
    messages = [shown(each, node) for each, node in taken if state in ("", each.state)]
    return messages, after


def write_next(after: Mapping[str, int]) -> str:
    return ",".join(f"{offset}@{node}" for node, offset in sorted(after.items()))


def read_next(text: str) -> dict[str, int]:
    """400 for anything but what `write_next` wrote."""
    starts = {}
    if len(text) > NEXT_CHARS_MAX:
        raise HttpError(400, "INVALID_NEXT")
    for part in text.split(",") if text else ():
        offset, at, node = part.partition("@")
        if not at or not offset.isascii() or not offset.isdigit() or len(offset) > 18:
            raise HttpError(400, "INVALID_NEXT")
        starts[node] = int(offset)
    return starts
