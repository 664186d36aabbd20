"""Heartbeats: when a client is sent one, and when it is dropped.

A client that sends nothing for two intervals, or reads nothing during a whole one, is dropped. It
need not send anything while nsqd keeps it waiting, nor during a TLS handshake, which has its own
time limit.
"""

import asyncio
import logging
from collections import Counter
from typing import Protocol

SILENT = "silent"  # why a client was dropped: it said nothing,
SLOW = "slow"  # or took nothing

_LOG = logging.getLogger(__name__)


class Client(Protocol):
    peer: str
    heard_s: float  # when it last said something, by the loop's clock

    @property
    def blocked(self) -> bool:
        """Whether it takes nothing at present."""

    @property
    def is_kept_waiting(self) -> bool: ...

    def beat(self) -> None: ...

    def close(self) -> None: ...


class Heartbeat:
    __slots__ = (
        "_beat_s",
        "_blocked_before",
        "_client",
        "_dropped",
        "_interval_s",
        "_loop",
        "_timer",
    )

    def __init__(
        self, client: Client, loop: asyncio.AbstractEventLoop, dropped: Counter[str]
    ) -> None:
        """`dropped` counts the clients that were given up, by the reason."""
        self._client = client
        self._dropped = dropped
        self._loop = loop
        self._interval_s = 0.0
        self._beat_s = 0.0
        self._blocked_before = False  # at the last beat
        self._timer: asyncio.TimerHandle | None = None

    def start(self, interval_ms: int) -> None:
        """Begin, or begin anew; none if the interval is not over 0."""
        self._interval_s = interval_ms / 1000
        self._beat_s = self._loop.time()
        self._set_timer()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        self.stop()
        if self._interval_s > 0:
            silent_s = self._client.heard_s + 2 * self._interval_s
            at_s = min(self._beat_s + self._interval_s, silent_s)
            self._timer = self._loop.call_at(at_s, self._on_timer)

    def _on_timer(self) -> None:
        client = self._client
        now_s = self._loop.time()
        if client.is_kept_waiting:
            client.heard_s = now_s
        if now_s >= client.heard_s + 2 * self._interval_s:
            _LOG.error("[%s] - heartbeat timed out", client.peer)
            self._dropped[SILENT] += 1
            client.close()
            return
        if now_s >= self._beat_s + self._interval_s:
            if client.blocked and self._blocked_before:
                _LOG.error("[%s] - does not read, dropped", client.peer)
                self._dropped[SLOW] += 1
                client.close()
                return
            self._blocked_before = client.blocked
            self._beat_s = now_s
            if not client.blocked:
                client.beat()
        self._set_timer()
