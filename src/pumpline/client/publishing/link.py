"""A producer's way to one nsqd: connects, reconnects, and keeps what was sent until it is answered.

Knows the connection and the publications under way on it. What to send, and what to do with what
comes back, is the producer's to say (`Owner`).
"""

import asyncio
import logging
import random
from collections import deque
from math import inf
from typing import Protocol

from pumpline.client.connection.connection import Connection
from pumpline.client.connection.settings import Settings
from pumpline.client.errors import ConnectError, ConnectionClosed, ServerError, Stalled
from pumpline.client.publishing.publication import Publication

RECONNECT_MIN_S = 0.1
RECONNECT_MAX_S = 5.0

_LOG = logging.getLogger(__name__)


class Owner(Protocol):
    def link_changed(self) -> None:
        """A link can be written to that could not be before, or has failed to connect."""

    def answered(self, publication: Publication, failure: Exception | None) -> None:
        """nsqd has confirmed the publication; or it has failed."""


class Link:
    def __init__(
        self, address: str, settings: Settings, owner: Owner, *, confirm_timeout_s: float
    ) -> None:
        self.address = address
        self.failure: ConnectError | None = None  # of the last try to connect
        self.connection: Connection | None = None
        self._settings = settings
        self._owner = owner
        self._confirm_timeout_s = confirm_timeout_s
        self._loop = asyncio.get_running_loop()
        self._under_way: deque[Publication] = deque()
        self._answered_s = -inf  # the last time
        self._watch: asyncio.TimerHandle | None = None
        self._lost = asyncio.Event()
        self._failures = 0  # since something was confirmed
        self._task = self._loop.create_task(self._run(), name=f"nsqd {address}")

    @property
    def is_ready(self) -> bool:
        return self.connection is not None and self.connection.is_writable

    def send(self, publication: Publication) -> None:
        """To be called when it is ready."""
        assert self.connection is not None
        publication.sent_s = self._loop.time()
        publication.under_way = True
        self._under_way.append(publication)
        self.connection.ask(publication.command(), self._on_answer)
        if self._watch is None:
            self._watch = self._loop.call_later(self._confirm_timeout_s, self._look)

    def flush(self) -> None:
        if self.connection is not None:
            self.connection.flush()

    def drop(self, reason: Exception) -> None:
        """Give the connection up; what is under way on it fails, and a new one is opened."""
        if self.connection is not None:
            self.connection.abort(reason)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self.connection is not None:
            await self.connection.close()
        if self._watch is not None:
            self._watch.cancel()

    async def _run(self) -> None:
        while True:
            try:
                await self._connect()
            except ConnectError as error:
                self.failure = error
                _LOG.warning("%s", error)
            except Exception as error:  # or the link would be dead, and never say a word
                self.failure = ConnectError(f"{self.address}: {error!r}")
                _LOG.exception("%s", self.address)
            self._failures += 1
            self._owner.link_changed()
            await asyncio.sleep(_pause_s(self._failures))

    async def _connect(self) -> None:
        """Connect, and stay as long as that lasts."""
        self._lost.clear()
        self.connection = await Connection.open(
            self.address,
            self._settings,
            on_close=self._on_close,
            on_writable=lambda _: self._owner.link_changed(),
        )
        self.failure = None
        self._owner.link_changed()
        await self._lost.wait()

    def _on_close(self, connection: Connection, reason: Exception | None) -> None:
        self.connection = None
        self._lost.set()
        if reason is not None:
            _LOG.warning("%s", reason)

    def _on_answer(self, data: bytes, failure: Exception | None) -> None:
        publication = self._under_way.popleft()
        publication.under_way = False
        self._answered_s = self._loop.time()
        if failure is None and data != b"OK":
            failure = ConnectionClosed(f"{self.address}: nsqd answered {data[:64]!r}")
            self.drop(failure)  # nothing more it says can be relied on
        if failure is None:
            self._failures = 0
        elif isinstance(failure, ServerError):
            self.drop(failure)  # nsqd does so, too: nothing more must be sent on it
        self._owner.answered(publication, failure)

    def _look(self) -> None:
        """Drop a connection on which nothing is answered; one that is slow may go on."""
        self._watch = None
        if not self._under_way:
            return
        since_s = max(self._under_way[0].sent_s, self._answered_s)
        left_s = since_s + self._confirm_timeout_s - self._loop.time()
        if left_s > 0:
            self._watch = self._loop.call_later(left_s, self._look)
        else:
            timeout_s = self._confirm_timeout_s
            self.drop(Stalled(f"{self.address}: nsqd confirmed nothing for {timeout_s:g} s"))


def _pause_s(failures: int) -> float:
    """Doubling, with half of it left to chance, so that many clients do not come back at once."""
    longest_s = min(RECONNECT_MIN_S * 2.0 ** min(failures - 1, 10), RECONNECT_MAX_S)
    return longest_s * random.uniform(0.5, 1.0)
