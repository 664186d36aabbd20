"""A network in memory: connections of clients to the listeners of one process.

What a client sends arrives in pieces, in order, after a while. What the process sends is seen by
the client's side at once (`Peer.written`): from there on a kill cannot take it back, as it is in
the system's buffers. So whoever keeps the books sees both directions at the process's own sockets,
where there is one order of events.
"""

import asyncio
import random
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from tests.kit.sim.loop import VirtualLoop

LATENCY_S = 0.002
PIECE_BYTES_MIN = 7
TOGETHER = 0.2  # of what is sent arrives just before a timer is due, if one is so soon


class Peer(Protocol):
    """A client, as its connection sees it."""

    def arrived(self, end: int) -> None:
        """The process has read all of what was sent up to byte `end`."""

    def written(self, data: bytes) -> None:
        """The process has written this."""

    def lost(self) -> None:
        """The connection is over."""


class Address:
    """In place of a bound socket (`web.sockets.ListeningSocket`)."""

    is_unix = False
    is_loopback = False  # requests are for a host named sim
    host = "127.0.0.1"

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self.shown = f"{self.host}:{port}"
        self.sockets = [self]

    def close(self) -> None: ...


class Addresses:
    """In place of `web.sockets.ListeningSockets`."""

    def __init__(self) -> None:
        self.by_name = {"TCP": Address("TCP", 4150), "HTTP": Address("HTTP", 4151)}

    def close(self) -> None: ...


class DataPath:
    def __init__(self, path: str) -> None:
        self.path = path


class SimClaim:
    """In place of `nsqd.claim.Claim`."""

    def __init__(self, path: str) -> None:
        self.data_path = DataPath(path)
        self.sockets = Addresses()

    def release(self) -> None: ...


class Listener:
    """In place of an asyncio.Server."""

    def __init__(self, make: Callable[[], asyncio.BufferedProtocol]) -> None:
        self.make = make
        self.is_open = False

    async def start_serving(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


class Network:
    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        self.loop = loop
        self.chance = chance
        self.links: list[Link] = []
        self._listeners: dict[str, Listener] = {}
        self._closed: list[weakref.ref[asyncio.BufferedProtocol]] = []
        self._port = 40_000
        loop.listen = self._listen

    def _listen(self, make: Callable[[], asyncio.BufferedProtocol], sock: Address) -> Listener:
        listener = self._listeners[sock.name] = Listener(make)
        return listener

    def connect(self, name: str, peer: Peer) -> "Link | None":
        """None: nobody listens."""
        listener = self._listeners.get(name)
        if listener is None or not listener.is_open or self.loop.is_dead:
            return None
        self._port += 1
        link = Link(self, peer, self._port, name)
        self.links.append(link)
        link.open(listener.make)
        return link

    def count(self, name: str) -> int:
        """How many connections there are to a listener."""
        return sum(link.name == name for link in self.links)

    def note_closed(self, protocol: asyncio.BufferedProtocol) -> None:
        self._closed.append(weakref.ref(protocol))

    def leftovers(self) -> int:
        """How many connections are closed, and still in memory."""
        self._closed = [each for each in self._closed if each() is not None]
        return len(self._closed)

    def die(self) -> None:
        """The process is dead."""
        for link in list(self.links):
            link.drop()


class Link(asyncio.Transport):
    """One connection: the transport of the process's side."""

    def __init__(self, network: Network, peer: Peer, port: int, name: str) -> None:
        super().__init__()
        self.name = name  # of the listener
        self._network = network
        self._loop = network.loop
        self._peer = peer
        self._port = port
        self._protocol: asyncio.BufferedProtocol | None = None
        self._coming: list[bytes] = []  # pieces that have arrived, and were not read
        self._read = 0  # bytes, in all
        self._busy_until_s = 0.0  # pieces sent before are on their way
        self._reads = True
        self._closing = False
        self._over = False
        self._high_bytes = 64 << 10
        self._unsent_bytes = 0
        self._full = False
        self.stalled = False  # the client takes nothing
        self.sent = 0  # by the client: bytes, in all
        # How much of that is cut into pieces. With much of it hardly anything is in a run of PUBs:
        # a PUB that is not whole yet goes to the log.
        self._splits = network.chance.choice((0.0, 0.5))
        self._ended = False

    def open(self, make: Callable[[], asyncio.BufferedProtocol]) -> None:
        def made() -> None:
            self._protocol = make()
            self._protocol.connection_made(self)

        self._busy_until_s = self._loop.time()
        self._loop.call_soon(made)

    # -- the client's side ---------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self._over

    def send(self, data: bytes) -> None:
        self.sent += len(data)
        chance = self._network.chance
        pieces = chance.randint(1, 4) if chance.random() < self._splits else 1
        for _ in range(pieces):
            size = len(data) if pieces == 1 else chance.randint(1, max(len(data), PIECE_BYTES_MIN))
            if data:
                self._later(self._arrive, data[:size])
            data = data[size:]
            pieces -= 1
        if data:
            self._later(self._arrive, data)

    def hang_up(self, *, politely: bool) -> None:
        """The client closes, or is gone without a word."""
        self._later(self._end if politely else self._reset)

    def stall(self, stalled: bool) -> None:
        self.stalled = stalled
        if not stalled and self._unsent_bytes:
            self._loop.call_soon(self._drain)

    def _later(self, call: Callable[..., None], *args: Any) -> None:
        now_s = self._loop.time()
        chance = self._network.chance
        at_s = now_s + chance.random() * LATENCY_S
        if chance.random() < TOGETHER:
            at_s = self._loop.just_before_timer(now_s + LATENCY_S) or at_s
        # What waited for the piece before arrives with it, or a round later.
        self._busy_until_s = max(at_s, self._busy_until_s + chance.choice((0, 1e-6)))
        self._loop.read_at(self._busy_until_s, call, *args)

    def _arrive(self, data: bytes) -> None:
        self._coming.append(data)
        self._feed()

    def _feed(self) -> None:
        while self._coming and self._reads and not self._closing and self._protocol is not None:
            data = self._coming.pop(0)
            buffer = self._protocol.get_buffer(-1)
            size = min(len(data), len(buffer))
            buffer[:size] = data[:size]
            if size < len(data):
                self._coming.insert(0, data[size:])
            self._read += size
            self._peer.arrived(self._read)
            self._protocol.buffer_updated(size)
        if self._ended and not self._coming and not self._closing and self._protocol is not None:
            self._ended = False
            if not self._protocol.eof_received():
                self.close()

    def _end(self) -> None:
        self._ended = True
        self._feed()

    def _reset(self) -> None:
        self._closing = True
        self._lose(ConnectionResetError())

    def _lose(self, error: Exception | None = None) -> None:
        if not self._over and self._protocol is not None:
            self._over = True
            self._network.links.remove(self)
            self._peer.lost()
            self._protocol.connection_lost(error)
            self._network.note_closed(self._protocol)
            self._protocol = None

    def drop(self) -> None:
        """The process is dead."""
        if not self._over:
            self._over = True
            self._network.links.remove(self)
            self._peer.lost()

    # -- asyncio.Transport ---------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._over or self._loop.is_dead:
            return
        if self.stalled:
            self._unsent_bytes += len(data)
        self._peer.written(bytes(data))
        if self._unsent_bytes > self._high_bytes and not self._full:
            self._full = True
            assert self._protocol is not None
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def _drain(self) -> None:
        self._unsent_bytes = 0
        if self._full and not self._over and self._protocol is not None:
            self._full = False
            self._protocol.resume_writing()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._lose)

    def abort(self) -> None:
        self._closing = True
        self._loop.call_soon(self._lose)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        if not self._reads:
            self._reads = True
            self._loop.call_soon(self._feed)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = 64 << 10 if high is None else high

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.1", self._port) if name == "peername" else default
