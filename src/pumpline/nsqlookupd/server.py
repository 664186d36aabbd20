"""nsqlookupd as a whole: the registry, the listeners, expiry, and an orderly end.

Knows every room of nsqlookupd and joins them; `connection` serves nsqds, `http` everybody else.
"""

import asyncio
import json
import logging
import socket
import time

from pumpline import NSQ_VERSION
from pumpline.core.text.lines import Lines, one_line
from pumpline.nsqlookupd.connection import V1Connections
from pumpline.nsqlookupd.http import nsqlookupd_routes
from pumpline.nsqlookupd.lost_nodes import LostNodes
from pumpline.nsqlookupd.metrics import LookupdMetrics
from pumpline.nsqlookupd.node_memory import NodeMemory
from pumpline.nsqlookupd.options import NsqlookupdOptions
from pumpline.nsqlookupd.registry import SLICE_NAMES, Registry
from pumpline.web.hosts import answers_any_host, own_hosts
from pumpline.web.listeners import Listeners
from pumpline.web.server import HttpServer
from pumpline.web.sockets import ListeningSockets

EXPIRE_S = 1.0  # between two calls of Registry.expire

_LOG = logging.getLogger(__name__)


class Nsqlookupd:
    def __init__(self, options: NsqlookupdOptions, sockets: ListeningSockets) -> None:
        """The sockets are the server's from here on; `close` closes them."""
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.registry = Registry(
            inactive_ns=options.inactive_producer_timeout_ns,
            tombstone_ns=options.tombstone_lifetime_ns,
        )
        self.lost = LostNodes(timeout_ns=options.lost_node_timeout_ns)
        self.memory: NodeMemory | None = None
        if options.data_path:
            self.memory = NodeMemory(options.data_path, self.registry, self.lost)
        self.connections = V1Connections(
            self.registry, self.lost, connections_max=options.max_connections
        )
        self.expired = 0  # topics and channels, since the start
        self.tcp_port = self.http_port = 0  # once it has started
        self.metrics = LookupdMetrics(self)
        self.http = HttpServer(
            nsqlookupd_routes(self.registry, self.lost, metrics=self.metrics.get),
            own_hosts=own_hosts(options.broadcast_address, *options.http_host),
            any_host=answers_any_host(sockets.by_name["HTTP"], options.http_host),
        )
        self._listeners = Listeners(sockets)
        self._expiry: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        options = self.options
        if self.memory is not None:
            self.memory.load()
            self.memory.start()
        self.tcp_port = (await self._listeners.prepare("TCP", self.connections)).port
        self.http_port = (await self._listeners.prepare("HTTP", self.http)).port
        reply = {
            "broadcast_address": options.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": self.http_port,
            "tcp_port": self.tcp_port,
            "version": NSQ_VERSION,
        }
        text = json.dumps(reply, separators=(",", ":"), ensure_ascii=False)
        self.connections.identify_reply = text.encode()
        await self._listeners.start()
        self._expire()
        self.metrics.watch()

    def reload(self) -> bool:
        """SIGHUP: nsqlookupd has no files to read again."""
        return False

    async def close(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self.metrics.close()
        self._listeners.close()
        if self.memory is not None:
            await self.memory.close()
        self.connections.close()
        await self.http.close()

    def _expire(self) -> None:
        expired = self.registry.expire(time.monotonic_ns())
        if expired:
            self.expired += len(expired)
            _LOG.info(Lines([_farewell(*key) for key in expired]))
        for entry in self.lost.expire(time.time_ns()):
            _LOG.info("DB: node %s was away for too long, forgotten", one_line(entry.address))
        # Many may expire at once. Others get their turn between two slices of them.
        wait_s = 0.0 if len(expired) == SLICE_NAMES else EXPIRE_S
        self._expiry = self.loop.call_later(wait_s, self._expire)


def _farewell(topic: str, channel: str | None) -> str:
    if channel is None:
        return f"DB: no nsqd has topic({topic}) any more, removed"
    return f"DB: no nsqd has channel({channel}) of topic({topic}), removed"
