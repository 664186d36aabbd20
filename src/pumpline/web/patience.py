"""How long an HTTP server waits for its clients, and what ends those who take longer.

One timer for all: a timer each would cost a tenth of a small publish.
"""

import asyncio
import logging
from dataclasses import dataclass

from aiohttp import web

from pumpline.core.addresses import join_address

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Of a server; the same for all its clients."""

    keepalive_s: float = 120.0  # between requests, and for the head of one to come
    linger_s: float = 5.0  # to read what remains of a large body, so that the reply is seen
    send_s: float = 60.0  # for a client to take its reply, or the next piece of an endless one
    body_s: float = 60.0  # for a body to come, and in addition:
    body_bytes_per_s: float = 64 * 1024  # what a client must manage on a larger one
    sweep_s: float = 5.0  # between looks at who takes too long
    heartbeat_s: float = 15.0  # of nothing to send on an endless reply, before a sign of life
    stop_s: float = 0.5  # for requests under way when the server stops, and to be cancelled


class TimeLimits:
    """Ends the connections of clients that take too long over a body or a reply."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self.dropped_count = 0
        self._ends_s: dict[web.RequestHandler, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set(self, connection: web.RequestHandler, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._ends_s[connection] = loop.time() + seconds
        if self._timer is None:
            self._timer = loop.call_later(self.patience.sweep_s, self._sweep, loop)

    def clear(self, connection: web.RequestHandler) -> None:
        self._ends_s.pop(connection, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now_s = loop.time()
        for connection, end_s in list(self._ends_s.items()):
            if end_s <= now_s:
                del self._ends_s[connection]
                self.dropped_count += 1
                peer = peer_of(connection.transport)
                _LOG.error("HTTP: client (%s) takes too long, dropped", peer)
                if connection.transport is not None:
                    connection.transport.abort()
        if self._ends_s:
            self._timer = loop.call_later(self.patience.sweep_s, self._sweep, loop)


class Allowance:
    """The time that one client has to take its reply."""

    def __init__(self, limits: TimeLimits, connection: web.RequestHandler) -> None:
        self.patience = limits.patience
        self._limits = limits
        self._connection = connection

    def give(self, length_bytes: int) -> None:
        """From now on, for a reply, or a piece of one, of that length."""
        seconds = self.patience.send_s + length_bytes / self.patience.body_bytes_per_s
        self._limits.set(self._connection, seconds)

    def end(self) -> None:
        self._limits.clear(self._connection)


def peer_of(transport: asyncio.BaseTransport | None) -> str:
    return "" if transport is None else join_address(transport.get_extra_info("peername"))
