"""Which topics nsq_to_file writes: those that were named, and those of a pattern.

nsqlookupds are asked at once and every --topic-refresh. A topic that is absent twice in a row,
while all of them answer, was deleted: its file is completed.

| absent is a topic that                                                         |
|--------------------------------------------------------------------------------|
| no nsqlookupd knows                                                            |
| no nsqd has any more, while those that had it are there: deleted on the nsqds  |

Knows nothing of files and messages.
"""

import asyncio
import json
import logging
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from pumpline.client.http_connection import HttpRequestError, HttpThread
from pumpline.core.text.durations import NS_PER_S
from pumpline.core.text.names import is_valid_name
from pumpline.tools.nsq_to_file.options import ToFileOptions

ANSWER_BYTES_MAX = 32 << 20
ABSENT_POLLS = 2

log = logging.getLogger("pumpline.tools.nsq_to_file")


class TopicPattern:
    def __init__(self, options: ToFileOptions) -> None:
        self._pattern = re.compile(options.topic_pattern)
        self._timeout_s = (
            options.http_client_connect_timeout_ns + options.http_client_request_timeout_ns
        ) / NS_PER_S
        self._topics = {
            each: HttpThread(url_of(each, "/topics")) for each in options.lookupd_http_address
        }
        self._nodes = {each: HttpThread(url_of(each, "/nodes")) for each in self._topics}
        self._having: dict[str, set[str]] = {}  # the nsqds that have a topic, or went away with it
        self._absent_polls: dict[str, int] = {}

    def matches(self, topic: str) -> bool:
        return self._pattern.search(topic) is not None

    async def found(self, written: Iterable[str]) -> set[str]:
        """The topics to write from now on, given those that are written."""
        answers = await asyncio.gather(*map(self._ask, self._topics))
        valid = [answer for answer in answers if answer is not None]
        named = {topic for answer in valid for topic in answer.topics if self.matches(topic)}
        having: dict[str, set[str]] = {}
        for answer in valid:
            for node, topics in answer.nodes.items():
                for topic in topics & named:
                    having.setdefault(topic, set()).add(node)
        if len(valid) < len(answers):  # somebody who did not answer may know more
            self._having |= having
            return {*having, *written}
        nodes = {node for answer in valid for node in answer.nodes}
        away = {
            topic: had for topic, had in self._having.items() if topic in named and not had <= nodes
        }
        self._having = away | having
        absent = set(written) - self._having.keys()
        self._absent_polls = {each: self._absent_polls.get(each, 0) + 1 for each in absent}
        passing = {each for each, polls in self._absent_polls.items() if polls < ABSENT_POLLS}
        return {*self._having, *passing}

    async def _ask(self, lookupd: str) -> "TopicDirectory | None":
        try:
            topics = topics_in(await self._get(self._topics[lookupd]))
            return TopicDirectory(topics, nodes_in(await self._get(self._nodes[lookupd])))
        except HttpRequestError as error:
            log.error("nsqlookupd %s: could not retrieve topic list: %s", lookupd, error)
            return None

    async def _get(self, place: HttpThread) -> dict[str, Any]:
        status, body = await place.get(
            headers={"Accept": "application/vnd.nsq; version=1.0"},
            timeout_s=self._timeout_s,
            bytes_max=ANSWER_BYTES_MAX,
        )
        if status != 200:
            raise HttpRequestError(f"status {status}")
        return object_in(body)


class TopicDirectory(NamedTuple):
    """What one nsqlookupd knows."""

    topics: set[str]
    nodes: dict[str, set[str]]  # topics by nsqd


def url_of(lookupd: str, path: str) -> str:
    return f"{lookupd if '://' in lookupd else f'http://{lookupd}'}".rstrip("/") + path


def object_in(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HttpRequestError("the answer is not JSON") from error
    if isinstance(answer, dict) and isinstance(answer.get("data"), dict):
        answer = answer["data"]  # as nsqlookupd before 1.0 wrapped it
    if not isinstance(answer, dict):
        raise HttpRequestError("the answer is no object")
    return answer


def topics_in(answer: dict[str, Any]) -> set[str]:
    topics = answer.get("topics")
    if not isinstance(topics, list):
        raise HttpRequestError("the answer has no topics")
    return {each for each in topics if isinstance(each, str) and is_valid_name(each)}


def nodes_in(answer: dict[str, Any]) -> dict[str, set[str]]:
    producers = answer.get("producers")
    if not isinstance(producers, list):
        raise HttpRequestError("the answer has no producers")
    nodes = {}
    for each in producers:
        if isinstance(each, dict):
            topics = each.get("topics", [])
            if not isinstance(topics, list):
                raise HttpRequestError("the answer has an nsqd without topics")
            node = f"{each.get('broadcast_address')}:{each.get('tcp_port')}"
            nodes[node] = {one for one in topics if isinstance(one, str)}
    return nodes
