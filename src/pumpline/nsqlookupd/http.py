"""nsqlookupd's HTTP API: the table of its routes, and what they answer.

| JSON     | fields                                                                             |
|----------|------------------------------------------------------------------------------------|
| producer | remote_address, hostname, broadcast_address, tcp_port, http_port, version,         |
|          | topology_zone and topology_region if there are any                                 |
| node     | the same, with topics, and tombstones: whether it is hidden there, topic by topic  |
| lost     | a node that went away, only for those who ask with `lost=true`: as a producer, with |
|          | lost_at (ns since 1970); in /nodes with topics, and any_topic if they were too many |

Requests and replies are `http`'s affair, what is known the registry's.
"""

import heapq
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from pumpline import NSQ_VERSION
from pumpline.core.text.names import is_valid_name
from pumpline.nsqlookupd.lost_nodes import LostNodes
from pumpline.nsqlookupd.registry import Node, NodeIdentity, RegisteredTopic, Registry
from pumpline.web.endpoint import Endpoint, Handler
from pumpline.web.pprof import command_line, pprof_index
from pumpline.web.replies import JSON_HEADERS, NOTHING, HttpError, Reply, json_reply, plain_reply
from pumpline.web.request import Request, printable
from pumpline.web.routes import Routes
from pumpline.web.yielding import Pace

ZERO_TIME_NS = -6795364578871345152
"""How NSQ's /debug writes a time that never was: Go's zero time in nanoseconds, overflown."""
SORTED_AT_ONCE = 5000  # keys of /debug: 5 ms

_LOG = logging.getLogger(__name__)


class ListedProducer(msgspec.Struct, omit_defaults=True):
    remote_address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    topology_zone: str = ""
    topology_region: str = ""


class ListedNode(ListedProducer, omit_defaults=True, kw_only=True):
    tombstones: list[bool]
    topics: list[str]


class LostProducer(msgspec.Struct, omit_defaults=True, kw_only=True):
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    topology_zone: str = ""
    topology_region: str = ""
    lost_at: int
    topics: list[str] | None = None
    any_topic: bool = False


class Registration(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A node under a key of /debug."""

    broadcast_address: str
    hostname: str
    http_port: int
    id: str
    last_update: int
    tcp_port: int
    tombstoned: bool
    tombstoned_at: int
    topology_region: str = ""
    topology_zone: str = ""
    version: str


def nsqlookupd_routes(registry: Registry, lost: LostNodes, *, metrics: Handler) -> Routes[Endpoint]:
    lookups = LookupEndpoints(registry, lost)
    admin = RegistrationEndpoints(registry, lost)
    debug = DebugEndpoints(registry)
    gets: dict[str, Handler] = {
        "/ping": lookups.ping,
        "/info": lookups.info,
        "/lookup": lookups.lookup,
        "/topics": lookups.topics,
        "/channels": lookups.channels,
        "/nodes": lookups.nodes,
        "/metrics": metrics,
        "/debug": debug.registrations,
        "/debug/pprof": pprof_index,
        "/debug/pprof/cmdline": command_line,
    }
    posts: dict[str, Handler] = {
        "/topic/create": admin.create_topic,
        "/topic/delete": admin.delete_topic,
        "/topic/tombstone": admin.tombstone,
        "/channel/create": admin.create_channel,
        "/channel/delete": admin.delete_channel,
        "/node/forget": admin.forget_node,
    }
    table = {("GET", path): Endpoint(handler) for path, handler in gets.items()}
    table |= {("POST", path): Endpoint(handler) for path, handler in posts.items()}
    return Routes(table)


class LookupEndpoints:
    """What consumers, nsqds and nsqadmin ask."""

    def __init__(self, registry: Registry, lost: LostNodes) -> None:
        self._registry = registry
        self._lost = lost

    def ping(self, request: Request) -> Reply:
        return plain_reply("OK")

    def info(self, request: Request) -> Reply:
        return json_reply({"version": NSQ_VERSION})

    def lookup(self, request: Request) -> Reply:
        query = request.query()
        name = _argument(query, "topic")
        topic = self._registry.topics.get(name)
        lost = self._lost_of(name, topic) if _wants_lost(query) else None
        if topic is None and not lost:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        channels = msgspec.json.encode([] if topic is None else list(topic.channels))
        nodes = [] if topic is None else self._registry.producers(topic, time.monotonic_ns())
        producers = b",".join([node.shown or _show(node) for node in nodes])
        more = b"" if lost is None else b',"lost":%b' % msgspec.json.encode(lost)
        body = b'{"channels":%b,"producers":[%b]%b}' % (channels, producers, more)
        return Reply(body=body, headers=JSON_HEADERS)

    def _lost_of(self, name: str, topic: RegisteredTopic | None) -> list[LostProducer]:
        """The lost nodes of a topic; and those that are connected, but silent."""
        found = [
            _lost_producer(entry.identity, entry.lost_ns) for entry in self._lost.of_topic(name)
        ]
        if topic is not None:
            nodes = [n for n, at in topic.nodes.items() if not self._is_hidden(at)]
            found += self._silent(nodes)
        return found

    def _silent(self, nodes: Iterable[Node]) -> list[LostProducer]:
        """Nodes that are connected, and have not been heard of for too long."""
        now_ns = time.monotonic_ns()
        wall_ahead_ns = time.time_ns() - now_ns
        return [
            _lost_producer(node.identity, node.heard_ns + wall_ahead_ns, list(node.topics))
            for node in nodes
            if node in self._registry.nodes and not self._registry.is_active(node, now_ns)
        ]

    def _is_hidden(self, tombstoned_ns: int | None) -> bool:
        return self._registry.is_hidden(tombstoned_ns, time.monotonic_ns())

    def topics(self, request: Request) -> Reply:
        return json_reply({"topics": list(self._registry.topics)})

    def channels(self, request: Request) -> Reply:
        topic = self._registry.topics.get(_argument(request.query(), "topic"))
        return json_reply({"channels": [] if topic is None else list(topic.channels)})

    async def nodes(self, request: Request) -> Reply:
        now_ns = time.monotonic_ns()
        pace = Pace()
        nodes = []
        for node in self._registry.active_nodes(now_ns):
            if node in self._registry.nodes:  # it may have left since
                nodes.append(_listed(node, self._registry, now_ns))
            await pace.breathe()
        if not _wants_lost(request.query()):
            return json_reply({"producers": nodes})
        lost = self._silent(self._registry.nodes)
        for entry in self._lost.away():
            topics = entry.lasting_topics()
            lost.append(_lost_producer(entry.identity, entry.lost_ns, topics, entry.any_topic))
            await pace.breathe()
        return json_reply({"producers": nodes, "lost": lost})


class RegistrationEndpoints:
    """What operators and nsqadmin change."""

    def __init__(self, registry: Registry, lost: LostNodes) -> None:
        self._registry = registry
        self._lost = lost

    def create_topic(self, request: Request) -> Reply:
        topic = _name(request.query(), "topic")
        _LOG.info("DB: adding topic(%s)", topic)
        self._registry.create_topic(topic)
        return NOTHING

    def delete_topic(self, request: Request) -> Reply:
        topic = _argument(request.query(), "topic")
        self._lost.forget_topic(topic)
        if self._registry.delete_topic(topic):
            _LOG.info("DB: removing topic(%s)", topic)
        return NOTHING

    def create_channel(self, request: Request) -> Reply:
        topic, channel = _topic_and_channel(request)
        _LOG.info("DB: adding channel(%s) in topic(%s)", channel, topic)
        self._registry.create_channel(topic, channel)
        return NOTHING

    def delete_channel(self, request: Request) -> Reply:
        topic, channel = _topic_and_channel(request)
        if not self._registry.delete_channel(topic, channel):
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        _LOG.info("DB: removing channel(%s) from topic(%s)", channel, topic)
        return NOTHING

    def tombstone(self, request: Request) -> Reply:
        query = request.query()
        topic = _argument(query, "topic")
        node = _argument(query, "node")
        _LOG.info(
            "DB: setting tombstone for producer@%s of topic(%s)", printable(node), printable(topic)
        )
        self._registry.tombstone(topic, node, time.monotonic_ns())
        self._lost.forget_topic(topic, node)
        return NOTHING

    def forget_node(self, request: Request) -> Reply:
        node = _argument(request.query(), "node")
        if not self._lost.forget(node):
            raise HttpError(404, "NODE_NOT_FOUND")
        _LOG.info("DB: forgetting lost node %s", printable(node))
        return NOTHING


class DebugEndpoints:
    """Everything there is."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def registrations(self, request: Request) -> Reply:
        """By key, sorted. Each list is encoded when it is made: one JSON of 200,000 names, encoded
        at the end, kept everybody waiting for 2 s."""
        wall_ahead_ns = time.time_ns() - time.monotonic_ns()
        pace = Pace()
        entries: dict[str, bytes] = {}

        def add(key: str, nodes: Iterable[tuple[Node, int | None]]) -> None:
            listed = [_registration(node, when_ns, wall_ahead_ns) for node, when_ns in nodes]
            if listed:
                entries[key] = msgspec.json.encode(listed)

        add("client::", [(node, None) for node in self._registry.nodes])
        for topic in list(self._registry.topics.values()):
            add(f"topic:{topic.name}:", topic.nodes.items())
            for channel in list(topic.channels.values()):
                key = f"channel:{topic.name}:{channel.name}"
                add(key, [(node, None) for node in channel.nodes])
                await pace.breathe()
            await pace.breathe()
        keys = list(entries)
        runs = []
        for at in range(0, len(keys), SORTED_AT_ONCE):
            runs.append(sorted(keys[at : at + SORTED_AT_ONCE]))
            await pace.breathe()
        body = bytearray(b"{")
        for key in heapq.merge(*runs):
            body += b"%b:%b," % (msgspec.json.encode(key), entries[key])
            await pace.breathe()
        body[len(body) - 1 if keys else 1 :] = b"}"
        return Reply(body=bytes(body), headers=JSON_HEADERS)


def _wants_lost(query: Mapping[str, str]) -> bool:
    return query.get("lost") == "true"


def _argument(query: Mapping[str, str], key: str) -> str:
    if key not in query:
        raise HttpError(400, f"MISSING_ARG_{key.upper()}")
    return query[key]


def _name(query: Mapping[str, str], key: str) -> str:
    name = _argument(query, key)
    if not is_valid_name(name):
        raise HttpError(400, f"INVALID_ARG_{key.upper()}")
    return name


def _topic_and_channel(request: Request) -> tuple[str, str]:
    query = request.query()
    return _name(query, "topic"), _name(query, "channel")


def _told(identity: NodeIdentity) -> dict[str, Any]:
    """What every JSON of a node says of it."""
    return {
        "hostname": identity.hostname,
        "broadcast_address": identity.broadcast_address,
        "tcp_port": identity.tcp_port,
        "http_port": identity.http_port,
        "version": identity.version,
        "topology_zone": identity.topology_zone,
        "topology_region": identity.topology_region,
    }


def _show(node: Node) -> bytes:
    """A producer's JSON. It is kept: a topic may have hundreds of them, who are asked for often."""
    producer = ListedProducer(remote_address=node.remote_address, **_told(node.identity))
    node.shown = msgspec.json.encode(producer)
    return node.shown


def _lost_producer(
    identity: NodeIdentity, lost_ns: int, topics: list[str] | None = None, any_topic: bool = False
) -> LostProducer:
    return LostProducer(**_told(identity), lost_at=lost_ns, topics=topics, any_topic=any_topic)


def _listed(node: Node, registry: Registry, now_ns: int) -> ListedNode:
    return ListedNode(
        remote_address=node.remote_address,
        **_told(node.identity),
        tombstones=[
            registry.is_hidden(topic.nodes[node], now_ns) for topic in node.topics.values()
        ],
        topics=list(node.topics),
    )


def _registration(node: Node, tombstoned_ns: int | None, wall_ahead_ns: int) -> Registration:
    return Registration(
        id=node.remote_address,
        **_told(node.identity),
        last_update=node.heard_ns + wall_ahead_ns,
        tombstoned=tombstoned_ns is not None,
        tombstoned_at=ZERO_TIME_NS if tombstoned_ns is None else tombstoned_ns + wall_ahead_ns,
    )
