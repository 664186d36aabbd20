"""nsqlookupd as a process: the connections of nsqds, the listeners, and an end in order."""

import asyncio
import json
import logging
import socket
import time
from contextlib import suppress
from typing import cast

from pumpline import NSQ_VERSION
from pumpline.core.protocol.errors import ProtocolError
from pumpline.core.text.addresses import join_address
from pumpline.core.text.lines import one_line
from pumpline.nsqlookupd.http import nsqlookupd_routes
from pumpline.nsqlookupd.metrics import Counts, Metrics
from pumpline.nsqlookupd.options import Options
from pumpline.nsqlookupd.protocol import OK, Event, Identify, Reader, Register, Unregister, reply
from pumpline.nsqlookupd.registry import Identity, Node, Registry
from pumpline.web.batched_log import LogSoon
from pumpline.web.listeners import Listeners
from pumpline.web.server import HttpServer

LINGER_S = 1.0  # for a client to see the error that ends its connection
OUTPUT_BYTES_MAX = 64 * 1024  # that a client has not taken, before no more is read from it
EXPIRE_S = 1.0  # between looks at what expires
KEEPALIVE_S = 15  # of silence, and between probes; nine lost end the connection

_OK = reply(OK)
_LOG = logging.getLogger(__name__)


class Server:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.registry = Registry(
            inactive_ns=options.inactive_producer_timeout_ns,
            tombstone_ns=options.tombstone_lifetime_ns,
        )
        self.connections: set[Connection] = set()
        self.counts = Counts()
        self.log_soon = LogSoon(_LOG)
        self.about: bytes = b""  # the reply to IDENTIFY
        self.metrics = Metrics(self)
        self.http = HttpServer(nsqlookupd_routes(self.registry, metrics=self.metrics.get))
        self._listeners = Listeners(options.program)
        self._expiry: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        options = self.options
        bind = self._listeners.bind
        _, tcp_port = await bind("TCP", options.tcp_address, lambda: Connection(self))
        _, http_port = await bind("HTTP", options.http_address, self.http)
        about = {
            "broadcast_address": options.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": http_port,
            "tcp_port": tcp_port,
            "version": NSQ_VERSION,
        }
        self.about = json.dumps(about, separators=(",", ":"), ensure_ascii=False).encode()
        await self._listeners.start()
        self._expire()
        self.metrics.watch()

    @property
    def connection_count(self) -> int:
        return len(self.connections)

    def reload(self) -> bool:
        """There is nothing to read again."""
        return False

    async def close(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self.metrics.close()
        self._listeners.close()
        for connection in list(self.connections):
            connection.close()
        await self.http.close()

    def _expire(self) -> None:
        for topic, channel in self.registry.expire(time.monotonic_ns()):
            self.counts.expired += 1
            if channel is None:
                _LOG.info("DB: no nsqd has topic(%s) any more, removed", topic)
            else:
                _LOG.info("DB: no nsqd has channel(%s) of topic(%s), removed", channel, topic)
        self._expiry = self.loop.call_later(EXPIRE_S, self._expire)


class Connection(asyncio.Protocol):
    """One nsqd. Its registrations last as long as the connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._registry = server.registry
        self._reader = Reader()
        self._node: Node | None = None
        self._peer = ""
        self._ended = False
        self._linger: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        self._peer = join_address(transport.get_extra_info("peername"))
        limit = self._server.options.max_connections
        if limit and len(self._server.connections) >= limit:
            self._server.counts.refused += 1
            _LOG.warning(
                "TCP: refused client(%s), there are %d connections already (%d refused so far)",
                self._peer,
                limit,
                self._server.counts.refused,
            )
            self._ended = True
            self._transport.abort()
            return
        self._server.connections.add(self)
        _LOG.info("TCP: new client(%s)", self._peer)
        self._transport.set_write_buffer_limits(high=OUTPUT_BYTES_MAX)
        _keep_alive(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        replies: list[bytes] = []
        try:
            self._reader.feed(data)
            while (event := self._reader.next_event()) is not None:
                replies.append(self._on_event(event))
        except ProtocolError as error:
            self._fail(error, replies)
            return
        if replies:
            self._transport.write(b"".join(replies))

    def eof_received(self) -> bool:
        if not self._ended:
            try:
                self._reader.end()
            except ProtocolError as error:
                self._fail(error, [])
        return False

    def pause_writing(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._linger is not None:
            self._linger.cancel()
        self._gone(f" - {exc}" if exc else "")

    def close(self) -> None:
        """At once: the process ends before the loop gets round to `connection_lost`."""
        self._ended = True
        self._gone("")
        self._transport.abort()

    def _on_event(self, event: Event) -> bytes:
        """The reply."""
        self._server.counts.commands[event.verb] += 1
        if isinstance(event, Register):
            assert self._node is not None
            if self._registry.register(self._node, event.topic, event.channel):
                self._note_key(event)
        elif isinstance(event, Unregister):
            assert self._node is not None
            now_ns = time.monotonic_ns()
            if self._registry.unregister(self._node, event.topic, event.channel, now_ns):
                self._note_key(event)
        elif isinstance(event, Identify):
            return self._identify(event.identity)
        elif self._node is not None:
            self._registry.heard(self._node, time.monotonic_ns())
        return _OK

    def _identify(self, identity: Identity) -> bytes:
        self._node = self._registry.add_node(self._peer, identity, time.monotonic_ns())
        _LOG.info(
            "DB: client(%s) REGISTER category:client key: subkey: (%s, version %s)",
            self._peer,
            one_line(self._node.http_address),
            one_line(identity.version),
        )
        return reply(self._server.about)

    def _note_key(self, event: Register | Unregister) -> None:
        if self._server.log_soon.enabled:
            category = "channel" if event.channel else "topic"
            self._server.log_soon.add(
                f"DB: client({self._peer}) {event.verb} category:{category} "
                f"key:{event.topic} subkey:{event.channel}"
            )

    def _fail(self, error: ProtocolError, replies: list[bytes]) -> None:
        """Send the error after the replies before it, and end the connection.

        What the client still sends is read and dropped for a moment: closing on it would reset
        the connection, and the client might never see why.
        """
        self._ended = True
        self._leave()
        self._server.counts.errors[error.code] += 1
        _LOG.error("client(%s) - %s", self._peer, one_line(str(error)))
        self._transport.write(b"".join((*replies, reply(error.data))))
        with suppress(OSError):  # the client is gone already
            self._transport.write_eof()
        self._linger = self._server.loop.call_later(LINGER_S, self._transport.abort)

    def _gone(self, cause: str) -> None:
        if self in self._server.connections:
            self._server.connections.remove(self)
            self._leave()
            _LOG.info("TCP: client(%s) closed%s", self._peer, cause)

    def _leave(self) -> None:
        if self._node is not None:
            self._server.log_soon.flush()
            count = self._registry.remove_node(self._node, time.monotonic_ns())
            self._node = None
            _LOG.info(
                "DB: client(%s) UNREGISTER category:client key: subkey: (and %d topics)",
                self._peer,
                count,
            )


def _keep_alive(transport: asyncio.Transport) -> None:
    """Have the system notice an nsqd whose machine vanished: nothing else would."""
    sock = transport.get_extra_info("socket")
    with suppress(OSError, AttributeError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
