"""Who is in the cluster: nsqds and their topics, as nsqlookupds tell it, or the nsqds themselves.

What nsqlookupds say is put together: a topic is known if one of them knows it, and so is a node.
The same functions serve NSQ's routes and the poller. Knows the answers of /topics, /lookup,
/channels, /nodes, /info; must not know figures of topics.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import zip_longest
from typing import TypeVar

import msgspec

from pumpline.cluster.async_nodes import AsyncNodes
from pumpline.cluster.client import Outcome
from pumpline.cluster.directory import (
    Registered,
    RegisteredNode,
    host_and_port,
    is_host_and_port,
)
from pumpline.cluster.node import NodeFailure
from pumpline.cluster.stats import read_stats
from pumpline.nsqadmin.options import NsqadminOptions

T = TypeVar("T")

_NUMBER = re.compile(r"\d+")


class KnownTopic(msgspec.Struct):
    topic: str
    tombstoned: bool


class KnownNode(msgspec.Struct, kw_only=True):
    """An nsqd, as NSQ's nsqadmin shows it."""

    remote_addresses: list[str] | None = None
    remote_address: str = ""
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    topics: list[KnownTopic] | None = None
    out_of_date: bool = False

    @property
    def address(self) -> str:
        """Where it is asked."""
        return host_and_port(self.broadcast_address, self.http_port)


class TopicNames(msgspec.Struct):
    topics: list[str] | None = None


class ChannelNames(msgspec.Struct):
    channels: list[str] | None = None


class Failed(Exception):
    """Nobody could be asked, or nobody answered."""


class Gathered(msgspec.Struct):
    """What was found, and what some failed at."""

    nodes: list[KnownNode]
    warnings: list[str]


class ClusterDirectory:
    def __init__(self, upstream: AsyncNodes, options: NsqadminOptions) -> None:
        self.upstream = upstream
        self._options = options

    @property
    def lookupds(self) -> list[str]:
        return self._options.lookupd_http_address

    @property
    def nsqds(self) -> list[str]:
        return self._options.nsqd_http_address

    async def topic_names(self) -> tuple[list[str], list[str]]:
        """All topics by name, and warnings."""
        if self.lookupds:
            found = await self.ask_lookupds(self._lookupd_topics)
        else:
            found = await self.ask_nsqds(self.nsqds, self._nsqd_topics)
        names = {name for each in found.answers.values() for name in each}
        return sorted(names), warnings(found)

    async def nodes(self) -> Gathered:
        """All nsqds, by host name."""
        if self.lookupds:
            registered = await self.ask_lookupds(self.registered)
            nodes = merged(registered.answers)
            warned = warnings(registered)
        else:
            told = await self.ask_nsqds(self.nsqds, self._self_portrait)
            nodes, warned = list(told.answers.values()), warnings(told)
        mark_out_of_date(nodes)
        return Gathered(sorted(nodes, key=lambda node: node.hostname), warned)

    async def topic_nodes(self, topic: str) -> Gathered:
        """The nsqds that have a topic."""
        if not self.lookupds:
            return await self._topic_nsqds(topic)

        found = await self.ask_lookupds(lambda each: self._lookup(each, topic))
        nodes: dict[str, KnownNode] = {}
        for each in found.answers.values():
            for node in each:
                known = known_node(node)
                if is_host_and_port(known.address):
                    nodes.setdefault(known.address, known)
        return Gathered(list(nodes.values()), warnings(found))

    async def _topic_nsqds(self, topic: str) -> Gathered:
        async def portrait(nsqd: str) -> KnownNode | None:
            stats = await self.upstream.run(nsqd, lambda node: read_stats(node, topic))
            has = any(each.topic_name == topic for each in stats.topics or ())
            return await self._info(nsqd) if has else None

        found = await self.ask_nsqds(self.nsqds, portrait)
        return Gathered([node for node in found.answers.values() if node], warnings(found))

    async def inactive(self, topics: Sequence[str]) -> dict[str, list[str] | None]:
        """Those topics that no nsqd has, with their channels. One that nobody could be asked about
        is not among them: somebody might delete it."""

        async def channels(topic: str) -> list[str] | bool | None:
            found = await self.upstream.each(self.lookupds, lambda each: self._lookup(each, topic))
            answered = found.answers or any(error.status for error in found.errors.values())
            if not answered or any(found.answers.values()):
                return False
            return await self.lookupd_channels(topic) or None

        found = await self.upstream.each(topics if self.lookupds else (), channels)
        return {t: each for t, each in found.answers.items() if not isinstance(each, bool)}

    async def lookupd_channels(self, topic: str) -> list[str]:
        async def ask(lookupd: str) -> list[str]:
            answer = await self.upstream.get_as(
                ChannelNames, lookupd, "/channels", {"topic": topic}
            )
            return answer.channels or []

        found = await self.upstream.each(self.lookupds, ask)
        return sorted({name for each in found.answers.values() for name in each})

    async def registered(self, lookupd: str) -> list[RegisteredNode]:
        answer = await self.upstream.get_as(Registered, lookupd, "/nodes", {})
        return answer.producers or []

    async def node_at(self, address: str) -> KnownNode:
        """An nsqd that is asked who it is, or Failed."""
        if not is_host_and_port(address):
            raise Failed(f"failed to query any nsqd: {address} is no address")
        found = await self.ask_nsqds([address], self._info)
        return found.answers[address]

    async def ask_lookupds(self, ask: Callable[[str], Awaitable[T]]) -> Outcome[str, T]:
        """All of them; Failed if none answered."""
        found = await self.upstream.each(self.lookupds, ask)
        if not found.answers:
            raise Failed(f"failed to query any nsqlookupd: {join(found.in_nsq_words())}")
        return found

    async def ask_nsqds(
        self, nsqds: Iterable[str], ask: Callable[[str], Awaitable[T]]
    ) -> Outcome[str, T]:
        """All of these; Failed if none answered, or there are none."""
        found = await self.upstream.each(nsqds, ask)
        if not found.answers:
            raise Failed(f"failed to query any nsqd: {join(found.in_nsq_words())}")
        return found

    async def _lookup(self, lookupd: str, topic: str) -> list[RegisteredNode]:
        query = {"topic": topic}
        answer = await self.upstream.get_as(Registered, lookupd, "/lookup", query)
        return answer.producers or []

    async def _lookupd_topics(self, lookupd: str) -> list[str]:
        return (await self.upstream.get_as(TopicNames, lookupd, "/topics", {})).topics or []

    async def _nsqd_topics(self, nsqd: str) -> list[str]:
        stats = await self.upstream.run(nsqd, read_stats)
        return [topic.topic_name for topic in stats.topics or ()]

    async def _self_portrait(self, nsqd: str) -> KnownNode:
        node = await self._info(nsqd)
        node.topics = [KnownTopic(name, False) for name in await self._nsqd_topics(nsqd)]
        return node

    async def _info(self, nsqd: str) -> KnownNode:
        node = known_node(await self.upstream.get_as(RegisteredNode, nsqd, "/info"))
        if not is_host_and_port(node.address):
            raise NodeFailure(f"{nsqd} says that its address is {node.address!r}")
        return node


def known_node(told: RegisteredNode) -> KnownNode:
    return KnownNode(
        remote_address=told.remote_address,
        hostname=told.hostname,
        broadcast_address=told.broadcast_address,
        tcp_port=told.tcp_port,
        http_port=told.http_port,
        version=told.version,
    )


def merged(registered: dict[str, list[RegisteredNode]]) -> list[KnownNode]:
    """Nodes by nsqlookupd, each once: by its TCP address."""
    nodes: dict[tuple[str, int], KnownNode] = {}
    for lookupd, each in registered.items():
        for one in each:
            key = one.broadcast_address, one.tcp_port
            if key not in nodes:
                node = known_node(one)
                if not is_host_and_port(node.address):
                    continue
                pairs = zip_longest(one.topics or (), one.tombstones or ())
                node.topics = sorted(
                    (KnownTopic(topic, bool(hidden)) for topic, hidden in pairs if topic),
                    key=lambda topic: topic.topic,
                )
                node.remote_addresses = []
                nodes[key] = node
            told = nodes[key].remote_addresses
            assert told is not None
            told.append(f"{lookupd}/{one.remote_address}")
    return list(nodes.values())


def mark_out_of_date(nodes: Sequence[KnownNode]) -> None:
    """Those with an older version than another."""
    newest = max((_version(node.version) for node in nodes), default=())
    for node in nodes:
        node.out_of_date = _version(node.version) < newest


def warnings(found: Outcome[str, T]) -> list[str]:
    """One warning for all that failed."""
    return [join(found.in_nsq_words())] if found.errors else []


def join(texts: Iterable[str]) -> str:
    return "\n".join(texts)


def warning_message(warned: Sequence[str]) -> str:
    """The `message` of an answer."""
    return "WARNING: " + "; ".join(warned) if warned else ""


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(each[:9]) for each in _NUMBER.findall(text)[:4])
