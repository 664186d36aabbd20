"""Which nsqds have a topic: asks nsqlookupds, and merges what they say.

Every poll asks all nsqlookupds at once. Of one that gives no valid answer, the last valid answer
counts. What is wrong is logged once, and again when it changes: an nsqlookupd that cannot be asked,
and a topic that no nsqd has. An nsqd that no nsqlookupd has named for two polls in a row is
dropped; one poll is not enough, because an nsqlookupd that has just started does not know the nsqds
yet.

`Sightings` is the merging, without I/O; `Discovery` does the asking. Neither connects to nsqds.
"""

import asyncio
import json
import logging
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote, urlsplit

from pumpline.client.http_connection import HttpRequestError, HttpThread
from pumpline.client.settings import POLL_INTERVAL_S, POLL_JITTER, POLL_TIMEOUT_S

SEARCH_INTERVAL_S = 0.5  # first pause while no nsqd is known; doubles up to the poll interval
ANSWER_BYTES_MAX = 5 * 1024 * 1024
NODES_MAX = 1000  # nsqds of one topic
STALE_POLLS = 2
TOPIC_UNKNOWN = b"TOPIC_NOT_FOUND"  # in the answer of an nsqlookupd
ACCEPT = "application/vnd.nsq; version=1.0"

_HOST = re.compile(r"[A-Za-z0-9._:%-]{1,255}")

logger = logging.getLogger("pumpline.client")


class Sightings:
    """The nsqds that each nsqlookupd named, and how many polls ago the others were last named."""

    def __init__(self) -> None:
        self.nodes: set[str] = set()
        self._views: dict[str, frozenset[str]] = {}
        self._absent_polls: dict[str, int] = {}

    @property
    def named(self) -> frozenset[str]:
        """The nsqds in the last valid answers."""
        return frozenset().union(*self._views.values())

    def add(self, named: frozenset[str]) -> None:
        """Add nsqds from one answer of a poll that is still going on."""
        self.nodes = set(sorted(self.nodes | named)[:NODES_MAX])

    def merge(self, answers: Mapping[str, frozenset[str] | None]) -> None:
        """The outcome of one poll, by nsqlookupd; None from one that gave no answer."""
        for source, answer in answers.items():
            if answer is not None:
                self._views[source] = answer
        named = self.named
        if all(answer is None for answer in answers.values()):
            return  # nothing was learnt
        absent = self.nodes - named
        self._absent_polls = {node: self._absent_polls.get(node, 0) + 1 for node in absent}
        stale = {node for node, polls in self._absent_polls.items() if polls >= STALE_POLLS}
        self.nodes = set(sorted(self.nodes - stale | named)[:NODES_MAX])
        if len(named) > NODES_MAX:
            logger.warning("%d nsqds were found, of which %d are used", len(named), NODES_MAX)


class Discovery:
    def __init__(
        self,
        topic: str,
        lookupds: Sequence[str],
        *,
        interval_s: float = POLL_INTERVAL_S,
        jitter: float = POLL_JITTER,
        timeout_s: float = POLL_TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
        random: Callable[[], float],
    ) -> None:
        """`random` gives numbers in [0, 1)."""
        self._lookupds = {each: HttpThread(lookup_url(each, topic), tls=tls) for each in lookupds}
        self._interval_s = interval_s
        self._jitter = jitter
        self._timeout_s = timeout_s
        self._random = random
        self._search_s = SEARCH_INTERVAL_S
        self._topic = topic
        self._troubles: dict[str, str] = {}  # what is wrong, as it was logged, by nsqlookupd
        self._is_unknown = False  # no nsqd has the topic
        self.sightings = Sightings()
        self.polls = 0

    @property
    def nodes(self) -> set[str]:
        """Addresses of the nsqds that have the topic, as of the last poll."""
        return self.sightings.nodes

    async def poll(self, on_found: Callable[[], None] = lambda: None) -> None:
        """Ask all nsqlookupds; call `on_found` as soon as an answer names new nsqds."""

        async def ask(lookupd: str) -> frozenset[str] | None:
            answer = await self._ask(lookupd)
            if answer is not None and not answer <= self.nodes:
                self.sightings.add(answer)
                on_found()
            return answer

        answers = await asyncio.gather(*map(ask, self._lookupds))
        self.sightings.merge(dict(zip(self._lookupds, answers, strict=True)))
        self.polls += 1
        if any(answer is not None for answer in answers):
            self._warn_unknown(is_unknown=not self.sightings.named)

    def pause_s(self) -> float:
        """How long to wait before the next poll; short at first while no nsqd is known."""
        pause_s = self._interval_s
        if self.nodes:
            self._search_s = SEARCH_INTERVAL_S
        else:
            pause_s = min(self._search_s, pause_s)
            self._search_s = pause_s * 2
        return pause_s * (1 + self._jitter * (self._random() - 0.5))

    async def _ask(self, lookupd: str) -> frozenset[str] | None:
        try:
            status, body = await self._lookupds[lookupd].get(
                headers={"Accept": ACCEPT},
                timeout_s=self._timeout_s,
                bytes_max=ANSWER_BYTES_MAX,
            )
            if status == 404 and TOPIC_UNKNOWN in body:
                found: frozenset[str] = frozenset()
            elif status == 404:
                raise HttpRequestError("this is not an nsqlookupd's HTTP port; perhaps an nsqd's")
            elif status != 200:
                raise HttpRequestError(f"status {status}")
            else:
                found = parse_answer(body)
        except HttpRequestError as error:
            self._warn(lookupd, str(error))
            return None
        self._warn(lookupd, "")
        return found

    def _warn(self, lookupd: str, trouble: str) -> None:
        """Unless this was logged before. Empty: nothing is wrong."""
        before = self._troubles.get(lookupd, "")
        self._troubles[lookupd] = trouble
        if trouble != before:
            logger.warning("nsqlookupd %s: %s", lookupd, trouble or "answers again")

    def _warn_unknown(self, *, is_unknown: bool) -> None:
        if is_unknown and not self._is_unknown:
            text = (
                "no nsqlookupd knows an nsqd with the topic %r: nothing to consume until one has it"
            )
            logger.warning(text, self._topic)
        elif self._is_unknown and not is_unknown:
            logger.warning("the topic %r is found: %s", self._topic, ", ".join(sorted(self.nodes)))
        self._is_unknown = is_unknown


def lookup_url(lookupd: str, topic: str) -> str:
    """The URL of a lookup at `host:port`, or at a URL with or without a path."""
    text = lookupd if "://" in lookupd else f"http://{lookupd}"
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port:
        raise ValueError(f"{lookupd!r} is no address of an nsqlookupd: expected host:port or a URL")
    path = parts.path if parts.path not in ("", "/") else "/lookup"
    query = f"{parts.query}&" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}{path}?{query}topic={quote(topic, safe='')}"


def parse_answer(body: bytes) -> frozenset[str]:
    """Addresses in the answer to /lookup. Invalid entries are logged and left out."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HttpRequestError("the answer is not JSON") from error
    if isinstance(answer, dict) and isinstance(answer.get("data"), dict):
        answer = answer["data"]  # as nsqlookupd before 1.0 wrapped it
    producers = answer.get("producers") if isinstance(answer, dict) else None
    if not isinstance(producers, list):
        raise HttpRequestError("the answer names no producers")
    addresses = [_address(producer) for producer in producers]
    if bad := addresses.count(None):
        logger.warning("%d of %d nsqds in an answer have no usable address", bad, len(addresses))
    return frozenset(address for address in addresses if address is not None)


def _address(producer: object) -> str | None:
    if not isinstance(producer, dict):
        return None
    host, port = producer.get("broadcast_address"), producer.get("tcp_port")
    if not isinstance(host, str) or not _HOST.fullmatch(host):
        return None
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65_536:
        return None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
