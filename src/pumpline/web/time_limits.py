"""How long an HTTP server waits for its clients, and what ends those who take longer.

One timer for all: a timer each would cost a tenth of a small publish. A connection notes by when it
must have heard from its client, and by when the client must have taken what was sent to it; a sweep
every few seconds looks for those who are late. Knows no sockets.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:  # its server makes both
    from pumpline.web.connection import HttpConnection

_LOG = logging.getLogger(__name__)


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """Of a server; the same for all its clients."""

    keepalive_s: float = 120.0  # between requests, and for the head of one to come
    linger_s: float = 5.0  # to read what remains of a large body, so that the reply is seen
    send_s: float = 60.0  # for a client to take its reply, or the next piece of an endless one
    body_s: float = 60.0  # for a body to come
    body_bytes_per_s: float = 64 * 1024  # in addition, what a client must manage, either way
    sweep_s: float = 5.0  # between looks at who takes too long
    heartbeat_s: float = 15.0  # of nothing to send on an endless reply, before a sign of life
    stop_s: float = 0.5  # for requests under way when the server stops, and to be cancelled

    def to_receive_s(self, length_bytes: int) -> float:
        """What a client has to send a body of that length at most."""
        return self.body_s + length_bytes / self.body_bytes_per_s

    def to_send_s(self, length_bytes: float) -> float:
        """What a client has to take that many bytes."""
        return self.send_s + length_bytes / self.body_bytes_per_s


class TimeLimits:
    """Ends the connections of clients that take too long."""

    def __init__(
        self,
        patience: Patience,
        connections: Collection["HttpConnection"],
        on_sweep: Callable[[], None],
    ) -> None:
        self.dropped_count = 0
        self._on_sweep = on_sweep
        self._period_s = min(patience.sweep_s, patience.keepalive_s)
        self._connections = connections
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch, if nobody does yet."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._period_s, self._sweep, loop)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        for connection in list(self._connections):
            if connection.is_late(now_s):
                self.dropped_count += 1
                _LOG.error("HTTP: client (%s) takes too long, dropped", connection.address)
                connection.abort()
            elif connection.is_idle(now_s):
                connection.abort()
        self._on_sweep()
        self._timer = None
        if self._connections:
            self.start()
