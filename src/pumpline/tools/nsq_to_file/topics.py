"""Which topics nsq_to_file writes: those that were named, and those of a pattern.

nsqlookupds are asked at once and every --topic-refresh. A topic that none of them knows twice in a
row, while all answer, was deleted: its file is completed. Knows nothing of files and messages.
"""

import asyncio
import json
import logging
import re
from collections.abc import Iterable

from pumpline.client.http_connection import HttpFailure, HttpThread
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
        self._lookupds = {
            each: HttpThread(topics_url(each)) for each in options.lookupd_http_address
        }
        self._absent_polls: dict[str, int] = {}

    def matches(self, topic: str) -> bool:
        return self._pattern.search(topic) is not None

    async def found(self, written: Iterable[str]) -> set[str]:
        """The topics to write from now on, given those that are written."""
        answers = await asyncio.gather(*map(self._ask, self._lookupds))
        named = {topic for answer in answers for topic in answer or () if self.matches(topic)}
        absent = set(written) - named
        if None in answers:
            return named | absent  # somebody who did not answer may know them
        self._absent_polls = {each: self._absent_polls.get(each, 0) + 1 for each in absent}
        return named | {each for each, polls in self._absent_polls.items() if polls < ABSENT_POLLS}

    async def _ask(self, lookupd: str) -> list[str] | None:
        try:
            status, body = await self._lookupds[lookupd].get(
                headers={"Accept": "application/vnd.nsq; version=1.0"},
                timeout_s=self._timeout_s,
                bytes_max=ANSWER_BYTES_MAX,
            )
            if status != 200:
                raise HttpFailure(f"status {status}")
            return topics_in(body)
        except HttpFailure as error:
            log.error("nsqlookupd %s: could not retrieve topic list: %s", lookupd, error)
            return None


def topics_url(lookupd: str) -> str:
    return f"{lookupd if '://' in lookupd else f'http://{lookupd}'}".rstrip("/") + "/topics"


def topics_in(body: bytes) -> list[str]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HttpFailure("the answer is not JSON") from error
    if isinstance(answer, dict) and isinstance(answer.get("data"), dict):
        answer = answer["data"]  # as nsqlookupd before 1.0 wrapped it
    topics = answer.get("topics") if isinstance(answer, dict) else None
    if not isinstance(topics, list):
        raise HttpFailure("the answer has no topics")
    return [each for each in topics if isinstance(each, str) and is_valid_name(each)]
