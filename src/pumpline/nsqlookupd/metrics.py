"""GET /metrics: nsqlookupd's figures for Prometheus, read when they are asked for.

`topic=` leaves out the series of all other topics. Knows the registry and the server's counters;
`web.prometheus_text` knows the format.
"""

import asyncio
import time
from typing import Protocol

from pumpline.nsqlookupd.connection import V1Connections
from pumpline.nsqlookupd.lost_nodes import LostNodes
from pumpline.nsqlookupd.node_memory import NodeMemory
from pumpline.nsqlookupd.registry import Registry
from pumpline.web.process_metrics import LoopDelay, add_build, add_http, add_process
from pumpline.web.prometheus_text import COUNTER, GAUGE, Exposition, Family, labels
from pumpline.web.replies import Reply
from pumpline.web.request import Request
from pumpline.web.server import HttpServer
from pumpline.web.yielding import Pace

CONNECTIONS = Family("nsqlookupd_connections", GAUGE, "TCP connections.")
REFUSED = Family("nsqlookupd_refused_connections", COUNTER, "Nodes over --max-connections.")
COMMANDS = Family("nsqlookupd_commands", COUNTER, "Commands of nodes.", ("command",))
CLIENT_ERRORS = Family(
    "nsqlookupd_client_errors", COUNTER, "Errors that ended a connection, by code.", ("code",)
)
NODES = Family("nsqlookupd_nodes", GAUGE, "Nodes that have introduced themselves.")
SILENT_NODES = Family("nsqlookupd_silent_nodes", GAUGE, "Those hidden, not being heard of.")
LOST_NODES = Family("nsqlookupd_lost_nodes", GAUGE, "Nodes that went away and are remembered.")
LOST_NODES_DROPPED = Family(
    "nsqlookupd_lost_nodes_dropped",
    COUNTER,
    "Lost nodes that were forgotten: expired, dismissed, or too many.",
    ("reason",),
)
MEMORY_FAILURES = Family(
    "nsqlookupd_memory_failures", COUNTER, "Failed writes of the nodes to --data-path."
)
TOPICS = Family("nsqlookupd_topics", GAUGE, "Topics known.")
CHANNELS = Family("nsqlookupd_channels", GAUGE, "Channels known.")
REGISTRATIONS = Family(
    "nsqlookupd_registrations", GAUGE, "Pairs of a topic and a node that has it."
)
TOMBSTONES = Family("nsqlookupd_tombstones", GAUGE, "Pairs hidden from lookups of the topic.")
EXPIRED = Family("nsqlookupd_expired_names", COUNTER, "Topics and channels no node had any more.")
TOPIC_NODES = Family(
    "nsqlookupd_topic_producers", GAUGE, "Nodes that lookups of a topic show.", ("topic",)
)
TOPIC_CHANNELS = Family("nsqlookupd_topic_channels", GAUGE, "Channels of a topic.", ("topic",))

FAMILIES = tuple(each for each in tuple(globals().values()) if isinstance(each, Family))


class MeasuredServer(Protocol):
    """What the metrics read from nsqlookupd."""

    registry: Registry
    lost: LostNodes
    memory: NodeMemory | None
    connections: V1Connections
    expired: int
    http: HttpServer
    loop: asyncio.AbstractEventLoop


class LookupdMetrics:
    def __init__(self, server: MeasuredServer) -> None:
        self._server = server
        self._delay = LoopDelay()

    def watch(self) -> None:
        self._delay.start(self._server.loop)

    def close(self) -> None:
        self._delay.close()

    async def get(self, request: Request) -> Reply:
        wanted = request.query().get("topic", "")
        exposition = Exposition()
        add_build(exposition, "nsqlookupd", self._server.loop)
        self._add_connections(exposition)
        add_http(exposition, "nsqlookupd", [self._server.http])
        self._delay.add_to(exposition, "nsqlookupd")
        add_process(exposition)
        await self._add_registry(exposition, wanted)
        return await exposition.reply(request.header("Accept"))

    def _add_connections(self, exposition: Exposition) -> None:
        counts = self._server.connections.counters
        exposition.add(CONNECTIONS, len(self._server.connections.open))
        exposition.add(REFUSED, counts.refused)
        for verb, count in sorted(counts.commands.items()):
            exposition.add(COMMANDS, count, labels(command=verb))
        for code, count in sorted(counts.errors.items()):
            exposition.add(CLIENT_ERRORS, count, labels(code=code))

    async def _add_registry(self, exposition: Exposition, wanted: str) -> None:
        registry = self._server.registry
        now_ns = time.monotonic_ns()
        pace = Pace()
        channels = pairs = hidden = 0
        for topic in list(registry.topics.values()):
            tombstones = [each for each in topic.nodes.values() if each is not None]
            channels += len(topic.channels)
            pairs += len(topic.nodes)
            hidden += sum(registry.is_hidden(each, now_ns) for each in tombstones)
            if wanted in ("", topic.name):
                where = labels(topic=topic.name)
                exposition.add(TOPIC_NODES, len(registry.producers(topic, now_ns)), where)
                exposition.add(TOPIC_CHANNELS, len(topic.channels), where)
            await pace.breathe()
        active = len(registry.active_nodes(now_ns))
        exposition.add(NODES, len(registry.nodes))
        exposition.add(SILENT_NODES, len(registry.nodes) - active)
        exposition.add(LOST_NODES, len(self._server.lost.away()))
        for reason, count in sorted(self._server.lost.dropped.items()):
            exposition.add(LOST_NODES_DROPPED, count, labels(reason=reason))
        memory = self._server.memory
        exposition.add(MEMORY_FAILURES, 0 if memory is None else memory.failures)
        exposition.add(TOPICS, len(registry.topics))
        exposition.add(CHANNELS, channels)
        exposition.add(REGISTRATIONS, pairs)
        exposition.add(TOMBSTONES, hidden)
        exposition.add(EXPIRED, self._server.expired)
