"""Dead letters of a topic: look at them, and publish them again, some or all.

A letter is published again on the node that has it, to the topic that it came from, with a publish
token made of its place in the log: what was published before is not published twice, by the page,
by `pumpline deadletters` or by both. Letters stay where they are.
"""

from typing import Any

import msgspec

from pumpline.core.text.names import dead_letter_topic_of, is_ephemeral
from pumpline.core.text.settings import FORM_BODY
from pumpline.nsqadmin.api.bodies import check_topic, json_body
from pumpline.nsqadmin.api.messages import (
    BODY_MAX,
    NS_PER_MS,
    LogMessage,
    PeekedPage,
    raw_body,
    read_next,
    write_next,
)
from pumpline.nsqadmin.api.topic_nodes import TopicNodes, change_reply, failures, warning_of
from pumpline.nsqadmin.cluster.upstream import UpstreamError
from pumpline.nsqadmin.live.polled import ToldExtent, in_ms
from pumpline.nsqadmin.live.tables import number
from pumpline.nsqadmin.notifications import Notifier
from pumpline.web.replies import HttpError, Reply, json_reply
from pumpline.web.request import Request

LIMIT = 20
LIMIT_MAX = 200
PAGE = 500  # letters asked for at once
LETTERS_MAX = 100_000  # published by one request
CHOSEN_MAX = 1000


class LetterPlace(msgspec.Struct):
    node: str
    letter_offset: int


class PublishLetters(msgspec.Struct, kw_only=True):
    topic: str = ""
    letters: list[LetterPlace] = []
    all: bool = False
    contains: str = ""
    channel: str = ""
    node: str = ""


class LetterSettings(msgspec.Struct, kw_only=True):
    """Of /topic/settings, what dead letters are about."""

    max_attempts: int | None = None
    dead_letter_topic: str | None = None
    dead_letter_form: str | None = None


class ToldSettings(msgspec.Struct):
    settings: LetterSettings


class LetterBox(msgspec.Struct, kw_only=True):
    """Where one node keeps the dead letters of a topic."""

    dead_letter_topic: str
    form: str
    letters: int = 0
    first_timestamp_ms: int | None = None


class WrittenLetter(msgspec.Struct, kw_only=True):
    """A letter in the form `json`."""

    topic: str = ""
    channel: str = ""
    id: str = ""
    attempts: int | None = None
    timestamp: int | None = None  # ns
    body: str | None = None
    body_base64: str | None = None


class ReadLetter(msgspec.Struct, kw_only=True):
    offset: int
    log: str
    written_ns: int
    origin: WrittenLetter

    def raw(self) -> bytes:
        return raw_body(self.origin.body, self.origin.body_base64)

    def shown(self, node: str) -> dict[str, Any]:
        origin = self.origin
        size_bytes = len(self.raw())
        told: dict[str, Any] = {
            "key": f"{node}/{self.offset}",
            "node": node,
            "letter_offset": self.offset,
            "letter_timestamp_ms": self.written_ns / NS_PER_MS,
            "channel": origin.channel,
            "id": origin.id,
            "attempts": origin.attempts,
            "timestamp_ms": origin.timestamp / NS_PER_MS if origin.timestamp else None,
            "bytes": size_bytes,
            "truncated": size_bytes > BODY_MAX,
        }
        if origin.body_base64 is not None:
            told["body_base64"] = origin.body_base64[:BODY_MAX]
        else:
            told["body"] = (origin.body or "")[:BODY_MAX]
        return told


class DeadLetterEndpoints:
    def __init__(self, nodes: TopicNodes, notifier: Notifier) -> None:
        self._nodes = nodes
        self._notifier = notifier

    async def get(self, request: Request) -> Reply:
        query = request.query()
        topic = check_topic(query.get("topic", ""))
        limit = max(1, min(number(query, "limit", LIMIT), LIMIT_MAX))
        starts = read_next(query.get("next", ""))
        nodes = await self._nodes.having(topic, query.get("node", ""))
        contains, channel = query.get("contains", ""), query.get("channel", "")

        async def look(node: str) -> tuple[LetterBox, list[ReadLetter], int, int]:
            box = await self._box(node, topic)
            if starts and node not in starts:
                return box, [], 0, 0
            start = starts.get(node)
            page = await self._page(node, box, limit, start=start, contains=contains)
            own = letters_of(box, page, channel)
            for letter in own:
                letter.raw()  # what cannot be read is the node's failure
            return box, own, page.first, page.next

        found = await self._nodes.ask(nodes, look)
        every = [(each, node) for node, (_, own, _, _) in found.answers.items() for each in own]
        every.sort(key=lambda pair: pair[0].written_ns, reverse=True)
        after = {}
        for node, (_, _, first, at) in found.answers.items():
            left = [each.offset for each, of in every[limit:] if of == node]
            if left or at > first:
                after[node] = max(left) + 1 if left else at
        boxes = [
            {"node": node, "ok": True, "error": "", **msgspec.structs.asdict(box)}
            for node, (box, _, _, _) in found.answers.items()
        ]
        return json_reply(
            {
                "topic": topic,
                "total": sum(box.letters for box, _, _, _ in found.answers.values()),
                "boxes": [*boxes, *failures(found.errors)],
                "letters": [each.shown(node) for each, node in every[:limit]],
                "next": write_next(after),
                "message": warning_of(found.errors),
            }
        )

    async def publish(self, request: Request) -> Reply:
        asked = json_body(request, PublishLetters)
        topic = check_topic(asked.topic)
        if asked.all == bool(asked.letters) or len(asked.letters) > CHOSEN_MAX:
            raise HttpError(400, "INVALID_LETTERS")
        chosen: dict[str, list[int]] = {}
        for place in asked.letters:
            chosen.setdefault(self._nodes.known(place.node), []).append(place.letter_offset)
        nodes = list(chosen) or await self._nodes.having(topic, asked.node)

        async def publish(node: str) -> int:
            box = await self._box(node, topic)
            if asked.all:
                return await self._publish_all(node, topic, box, asked)
            for offset in chosen[node]:
                page = await self._page(node, box, 1, start=offset, newest=False)
                own = [each for each in letters_of(box, page) if each.offset == offset]
                if not own:
                    raise UpstreamError(f"there is no letter at {offset}")
                await self._publish(node, topic, own[0])
            return len(chosen[node])

        found = await self._nodes.ask(nodes, publish)
        published = sum(found.answers.values())
        if published:
            self._notifier.tell(request, "publish_dead_letters", topic=topic, node=asked.node)
        shown = {
            "published": published,
            "nodes": [
                *(
                    {"node": node, "ok": True, "error": "", "published": count}
                    for node, count in found.answers.items()
                ),
                *failures(found.errors),
            ],
        }
        return change_reply(shown, found.errors, ok=len(found.answers))

    async def _publish_all(
        self, node: str, topic: str, box: LetterBox, asked: PublishLetters
    ) -> int:
        """Up to the end there was when it began: letters may come back while it works."""
        count, at, end = 0, 0, None
        while end is None or at < end:
            page = await self._page(
                node, box, PAGE, start=at or None, contains=asked.contains, newest=False
            )
            end = page.end if end is None else end
            for letter in letters_of(box, page, asked.channel):
                if letter.offset < end:
                    await self._publish(node, topic, letter)
                    count += 1
            at = page.next
            if count > LETTERS_MAX:
                raise UpstreamError(f"stopped after {count} letters")
        return count

    async def _publish(self, node: str, topic: str, letter: ReadLetter) -> None:
        token = f"deadletter:{letter.log}:{letter.offset}"
        query = {"topic": topic, "token": token}
        await self._nodes.upstream.post(node, "/pub", query, letter.raw())

    async def _box(self, node: str, topic: str) -> LetterBox:
        upstream = self._nodes.upstream
        own = LetterSettings()
        if not is_ephemeral(topic):
            query = {"topic": topic}
            own = (await upstream.get_as(ToldSettings, node, "/topic/settings", query)).settings
        box = LetterBox(
            dead_letter_topic=own.dead_letter_topic or dead_letter_topic_of(topic),
            form=own.dead_letter_form or "json",
        )
        try:
            extent = await upstream.get_as(
                ToldExtent, node, "/log/offsets", {"topic": box.dead_letter_topic}
            )
        except UpstreamError as error:
            if error.code in ("TOPIC_NOT_FOUND", "INVALID_TOPIC", "EPHEMERAL_TOPIC"):
                return box  # nothing was given up yet
            raise
        box.letters = extent.end - extent.first
        box.first_timestamp_ms = in_ms(extent.first_timestamp)
        return box

    async def _page(
        self,
        node: str,
        box: LetterBox,
        limit: int,
        *,
        start: int | None = None,
        contains: str = "",
        newest: bool = True,
    ) -> PeekedPage:
        if not box.letters:
            return PeekedPage(first=0, end=0, messages=[], next=0)
        query = {
            "topic": box.dead_letter_topic,
            "limit": limit,
            "from": start,
            "newest": "true" if newest else None,
            "contains": contains or None,
        }
        return await self._nodes.upstream.get_as(PeekedPage, node, "/log/peek", query)


def letters_of(box: LetterBox, page: PeekedPage, channel: str = "") -> list[ReadLetter]:
    """Those on the page that came from that channel; without one, all."""
    letters = (
        ReadLetter(
            offset=each.offset,
            log=page.log,
            written_ns=each.timestamp,
            origin=_origin(box, each),
        )
        for each in page.messages
    )
    return [each for each in letters if channel in ("", each.origin.channel)]


def _origin(box: LetterBox, message: LogMessage) -> WrittenLetter:
    """What was given up, whichever form it was written in."""
    if box.form != FORM_BODY and message.body is not None:
        try:
            return msgspec.json.decode(message.body, type=WrittenLetter)
        except msgspec.MsgspecError:
            pass  # somebody else's message, in the same topic
    return WrittenLetter(id=message.id, body=message.body, body_base64=message.body_base64)
