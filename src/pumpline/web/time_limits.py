"""How long an HTTP server waits for its clients, and what ends those who take longer.

One timer for all: a timer each would cost a tenth of a small publish.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import NamedTuple

from pumpline.core.text.addresses import join_address

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Of a server; the same for all its clients."""

    keepalive_s: float = 120.0  # between requests, and for the head of one to come
    linger_s: float = 5.0  # to read what remains of a large body, so that the reply is seen
    send_s: float = 60.0  # for a client to take its reply, or the next piece of an endless one
    body_s: float = 60.0  # for a body to come
    body_bytes_per_s: float = 64 * 1024  # in addition, what a client must manage, either way
    sweep_s: float = 5.0  # between looks at who takes too long
    heartbeat_s: float = 15.0  # of nothing to send on an endless reply, before a sign of life
    stop_s: float = 0.5  # for requests under way when the server stops, and to be cancelled


class Limit(NamedTuple):
    end_s: float
    unsent_only: bool  # all that can be late is that the client takes what was sent


class TimeLimits:
    """Ends the connections of clients that take too long over a body or a reply. A connection may
    be closing: only when its client has taken the rest is it closed."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self.dropped_count = 0
        self._limits: dict[asyncio.Transport, Limit] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set(
        self, transport: asyncio.Transport | None, seconds: float, *, unsent_only: bool = False
    ) -> None:
        """None is a connection that is lost."""
        if transport is None:
            return
        loop = asyncio.get_running_loop()
        self._limits[transport] = Limit(loop.time() + seconds, unsent_only)
        if self._timer is None:
            self._timer = loop.call_later(self.patience.sweep_s, self._sweep, loop)

    def clear(self, transport: asyncio.Transport | None) -> None:
        if transport is not None:
            self._limits.pop(transport, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now_s = loop.time()
        for transport, limit in list(self._limits.items()):
            if limit.end_s <= now_s:
                del self._limits[transport]
                if transport.get_write_buffer_size() or not limit.unsent_only:
                    self._drop(transport)
        if self._limits:
            self._timer = loop.call_later(self.patience.sweep_s, self._sweep, loop)

    def _drop(self, transport: asyncio.Transport) -> None:
        self.dropped_count += 1
        _LOG.error("HTTP: client (%s) takes too long, dropped", peer_of(transport))
        transport.abort()


class Allowance:
    """The time that one client has to take its reply."""

    def __init__(self, limits: TimeLimits, transport: asyncio.Transport | None) -> None:
        self.patience = limits.patience
        self._limits = limits
        self._transport = transport

    def give(self, length_bytes: int) -> None:
        """From now on, for a reply, or a piece of one, of that length."""
        self._limits.set(self._transport, self._seconds(length_bytes))

    def end(self) -> None:
        """All is sent, but for what the client has not taken yet."""
        transport = self._transport
        unsent_bytes = transport.get_write_buffer_size() if transport is not None else 0
        if unsent_bytes:
            self._limits.set(transport, self._seconds(unsent_bytes), unsent_only=True)
        else:
            self._limits.clear(transport)

    def _seconds(self, length_bytes: int) -> float:
        return self.patience.send_s + length_bytes / self.patience.body_bytes_per_s


def peer_of(transport: asyncio.BaseTransport | None) -> str:
    return "" if transport is None else join_address(transport.get_extra_info("peername"))
