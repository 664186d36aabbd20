"""One nsqd's connection to nsqlookupd: protocol V1 over a socket, and its entries in the registry.

A node's registrations last as long as its connection. `V1Connections` holds what all connections
share: the registry, the counters, the limit on their number, and the reply to IDENTIFY. Knows
sockets and the registry; `protocol` parses what is said. Must not know HTTP.
"""

import asyncio
import logging
import socket
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

from pumpline.core.protocol.errors import ProtocolError
from pumpline.core.text.addresses import join_address
from pumpline.core.text.lines import one_line
from pumpline.nsqlookupd.lost_nodes import LostNodes
from pumpline.nsqlookupd.protocol import OK, Event, Identify, Register, Unregister, V1Reader, reply
from pumpline.nsqlookupd.registry import Node, NodeIdentity, Registry
from pumpline.web.batched_log import LogSoon

LINGER_S = 1.0  # time for a client to read the error that ends its connection
OUTPUT_BYTES_MAX = 64 * 1024  # unsent replies at which we stop reading from a client
TURN_COMMANDS = 300  # of one connection, about 2 ms; then the others get their turn
KEEPALIVE_S = 15  # of silence before the first TCP probe, and between probes

_OK = reply(OK)
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class NodeCounters:
    """What nsqds did since nsqlookupd started."""

    commands: Counter[str] = field(default_factory=Counter)  # by verb
    errors: Counter[str] = field(default_factory=Counter)  # by code
    refused: int = 0  # connections over the limit


class V1Connections:
    """All connections of nsqds. An instance is the protocol factory of a listener."""

    def __init__(self, registry: Registry, lost: LostNodes, *, connections_max: int) -> None:
        self.registry = registry
        self.lost = lost
        self.connections_max = connections_max  # 0 for no limit
        self.counters = NodeCounters()
        self.identify_reply = b""
        self.log_soon = LogSoon(_LOG)
        self.open: set[V1Connection] = set()
        self._parting: asyncio.Handle | None = None

    def __call__(self) -> "V1Connection":
        return V1Connection(self)

    def close(self) -> None:
        for connection in list(self.open):
            connection.close()
        if self._parting is not None:
            self._parting.cancel()

    def remove_node(self, node: Node) -> int:
        """Returns how many topics it had. If they are many, others get their turn meanwhile."""
        now_ns = time.monotonic_ns()
        dismissed = self.registry.hidden_topics(node, now_ns)
        self.lost.left(node.identity, node.topics, time.time_ns(), dismissed=dismissed)
        count = self.registry.remove_node(node, now_ns)
        if self._parting is None:
            self._part()
        return count

    def _part(self) -> None:
        more = self.registry.part()
        self._parting = asyncio.get_running_loop().call_soon(self._part) if more else None


class V1Connection(asyncio.Protocol):
    """One nsqd. Its registrations last as long as the connection."""

    def __init__(self, connections: V1Connections) -> None:
        self._connections = connections
        self._counters = connections.counters
        self._registry = connections.registry
        self._lost = connections.lost
        self._reader = V1Reader()
        self._node: Node | None = None
        self._peer = ""
        self._ended = False
        self._linger: asyncio.TimerHandle | None = None
        self._turn: asyncio.Handle | None = None  # there are commands left for the next one
        self._full = False  # the client does not take its replies
        self._paused = False  # nothing is read for now

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport does not subclass asyncio.Transport, hence the cast.
        self._transport = cast(asyncio.Transport, transport)
        self._peer = join_address(transport.get_extra_info("peername"))
        limit = self._connections.connections_max
        if limit and len(self._connections.open) >= limit:
            self._counters.refused += 1
            _LOG.warning(
                "TCP: refused client(%s), there are %d connections already (%d refused so far)",
                self._peer,
                limit,
                self._counters.refused,
            )
            self._ended = True
            self._transport.abort()
            return
        self._connections.open.add(self)
        _LOG.info("TCP: new client(%s)", self._peer)
        self._transport.set_write_buffer_limits(high=OUTPUT_BYTES_MAX)
        _keep_alive(self._transport)

    def data_received(self, data: bytes) -> None:
        if not self._ended:
            self._reader.feed(data)
            if self._turn is None:
                self._carry_out()

    def eof_received(self) -> bool:
        if not self._ended:
            try:
                self._reader.end()
            except ProtocolError as error:
                self._fail(error, [])
            else:
                self._ended = True
                self._gone("")  # before the socket is closed: a node that stops waits for that
        return False

    def pause_writing(self) -> None:
        self._full = True
        self._regulate()

    def resume_writing(self) -> None:
        self._full = False
        self._regulate()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        if self._linger is not None:
            self._linger.cancel()
        self._gone(f" - {exc}" if exc else "")

    def close(self) -> None:
        """Leave the registry now: the process may end before the loop calls `connection_lost`."""
        self._ended = True
        self._gone("")
        self._transport.abort()

    def _carry_out(self) -> None:
        """Some of the commands that are there. Nothing more is read before all are done: uvloop
        would read 32 times 256 KiB of one client, 1.6 million PINGs, before it serves another."""
        self._turn = None
        if self._ended:
            return
        replies: list[bytes] = []
        try:
            for _ in range(TURN_COMMANDS):
                event = self._reader.next_event()
                if event is None:
                    break
                replies.append(self._on_event(event))
            else:
                self._turn = asyncio.get_running_loop().call_soon(self._carry_out)
        except ProtocolError as error:
            self._fail(error, replies)
        else:
            if replies:
                self._transport.write(b"".join(replies))
        self._regulate()

    def _regulate(self) -> None:
        pause = not self._ended and (self._full or self._turn is not None)
        if pause == self._paused or self._transport.is_closing():
            return
        self._paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _on_event(self, event: Event) -> bytes:
        """Carry out a command; return the reply."""
        self._counters.commands[event.verb] += 1
        if isinstance(event, Register):
            assert self._node is not None
            if self._registry.register(self._node, event.topic, event.channel):
                self._lost.registered(self._node.identity, event.topic)
                self._note_key(event)
        elif isinstance(event, Unregister):
            assert self._node is not None
            now_ns = time.monotonic_ns()
            if self._registry.unregister(self._node, event.topic, event.channel, now_ns):
                self._lost.unregistered()
                self._note_key(event)
        elif isinstance(event, Identify):
            return self._identify(event.identity)
        elif self._node is not None:
            self._registry.heard(self._node, time.monotonic_ns())
            self._lost.heard(self._node.identity)
        return _OK

    def _identify(self, identity: NodeIdentity) -> bytes:
        self._node = self._registry.add_node(self._peer, identity, time.monotonic_ns())
        self._lost.arrived(identity)
        _LOG.info(
            "DB: client(%s) REGISTER category:client key: subkey: (%s, version %s)",
            self._peer,
            one_line(self._node.http_address),
            one_line(identity.version),
        )
        return reply(self._connections.identify_reply)

    def _note_key(self, event: Register | Unregister) -> None:
        if self._connections.log_soon.enabled:
            category = "channel" if event.channel else "topic"
            self._connections.log_soon.add(
                f"DB: client({self._peer}) {event.verb} category:{category} "
                f"key:{event.topic} subkey:{event.channel}"
            )

    def _fail(self, error: ProtocolError, replies: list[bytes]) -> None:
        """Send the replies and then the error, and end the connection.

        For LINGER_S we read and drop what the client still sends. Closing earlier would reset the
        connection, and the client might never read the error.
        """
        self._ended = True
        self._leave()
        self._counters.errors[error.code] += 1
        _LOG.error("client(%s) - %s", self._peer, one_line(str(error)))
        self._transport.write(b"".join((*replies, reply(error.data))))
        with suppress(OSError):  # the client is gone already
            self._transport.write_eof()
        self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)

    def _gone(self, cause: str) -> None:
        if self in self._connections.open:
            self._connections.open.remove(self)
            self._leave()
            _LOG.info("TCP: client(%s) closed%s", self._peer, cause)

    def _leave(self) -> None:
        if self._node is not None:
            self._connections.log_soon.flush()
            count = self._connections.remove_node(self._node)
            self._node = None
            _LOG.info(
                "DB: client(%s) UNREGISTER category:client key: subkey: (and %d topics)",
                self._peer,
                count,
            )


def _keep_alive(transport: asyncio.Transport) -> None:
    """Have the kernel probe idle connections: only that detects an nsqd whose machine is gone."""
    sock = transport.get_extra_info("socket")
    with suppress(OSError, AttributeError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
