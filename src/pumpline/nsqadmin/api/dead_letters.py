"""Dead letters of a topic: look at them, and publish them again, some or all.

`cluster.dead_letters` does it on each node; this merges the letters of all nodes, newest first.
"""

from typing import Any

import msgspec

from pumpline.cluster.dead_letters import (
    DeadLetter,
    DeadLetterTopic,
    letter_at,
    letter_page,
    letters_on,
    letters_since,
    publish_letter,
    read_dead_letter_topic,
)
from pumpline.cluster.log import in_ms
from pumpline.cluster.node import ClusterNode, NodeFailure
from pumpline.nsqadmin.api.bodies import check_topic, json_body
from pumpline.nsqadmin.api.messages import (
    BODY_MAX,
    NS_PER_MS,
    read_next,
    write_next,
)
from pumpline.nsqadmin.api.topic_nodes import TopicNodes, change_reply, failures, warning_of
from pumpline.nsqadmin.live.tables import number
from pumpline.nsqadmin.notifications import Notifier
from pumpline.web.replies import HttpError, Reply, json_reply
from pumpline.web.request import Request

LIMIT = 20
LIMIT_MAX = 200
LETTERS_MAX = 100_000  # published by one request
CHOSEN_MAX = 1000
REASON_MAX = 1000  # characters


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


def shown(letter: DeadLetter, node: str) -> dict[str, Any]:
    origin = letter.origin
    size_bytes = len(letter.raw())
    told: dict[str, Any] = {
        "key": f"{node}/{letter.offset}",
        "node": node,
        "letter_offset": letter.offset,
        "letter_timestamp_ms": letter.written_ns / NS_PER_MS,
        "channel": origin.channel,
        "id": origin.id,
        "attempts": origin.attempts,
        "timestamp_ms": origin.timestamp / NS_PER_MS if origin.timestamp else None,
        "reason": origin.reason[:REASON_MAX],
        "bytes": size_bytes,
        "truncated": size_bytes > BODY_MAX,
    }
    if origin.body_base64 is not None:
        told["body_base64"] = origin.body_base64[:BODY_MAX]
    else:
        told["body"] = (origin.body or "")[:BODY_MAX]
    return told


def shown_topic(dlq: DeadLetterTopic, node: str) -> dict[str, Any]:
    return {
        "node": node,
        "ok": True,
        "error": "",
        "dead_letter_topic": dlq.dead_letter_topic,
        "form": dlq.form,
        "letters": dlq.letters,
        "first_timestamp_ms": in_ms(dlq.first_timestamp),
    }


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

        def look(node: ClusterNode) -> tuple[DeadLetterTopic, list[DeadLetter], int, int]:
            dlq = read_dead_letter_topic(node, topic)
            if starts and node.address not in starts:
                return dlq, [], 0, 0
            start = starts.get(node.address)
            page = letter_page(node, dlq, limit=limit, start=start, contains=contains, newest=True)
            own = letters_on(dlq, page, channel)
            for letter in own:
                letter.raw()  # a body that cannot be read is the node's failure
            return dlq, own, page.first, page.next

        found = await self._nodes.ask_in_threads(nodes, look)
        every = [(each, node) for node, (_, own, _, _) in found.answers.items() for each in own]
        every.sort(key=lambda pair: pair[0].written_ns, reverse=True)
        after = {}
        for node, (_, _, first, at) in found.answers.items():
            left = [each.offset for each, of in every[limit:] if of == node]
            if left or at > first:
                after[node] = max(left) + 1 if left else at
        topics = [shown_topic(dlq, node) for node, (dlq, _, _, _) in found.answers.items()]
        return json_reply(
            {
                "topic": topic,
                "total": sum(dlq.letters for dlq, _, _, _ in found.answers.values()),
                "boxes": [*topics, *failures(found.errors)],
                "letters": [shown(each, node) for each, node in every[:limit]],
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

        def publish(node: ClusterNode) -> int:
            dlq = read_dead_letter_topic(node, topic)
            if not asked.all:
                for offset in chosen[node.address]:
                    publish_letter(node, dlq, letter_at(node, dlq, offset))
                return len(chosen[node.address])
            count = 0
            for letter in letters_since(node, dlq, contains=asked.contains, channel=asked.channel):
                if count == LETTERS_MAX:
                    raise NodeFailure(f"stopped after {count} letters")
                publish_letter(node, dlq, letter)
                count += 1
            return count

        found = await self._nodes.ask_in_threads(nodes, publish)
        published = sum(found.answers.values())
        if published:
            self._notifier.tell(request, "publish_dead_letters", topic=topic, node=asked.node)
        told = {
            "published": published,
            "nodes": [
                *(
                    {"node": node, "ok": True, "error": "", "published": count}
                    for node, count in found.answers.items()
                ),
                *failures(found.errors),
            ],
        }
        return change_reply(told, found.errors, ok=len(found.answers))
