"""A producer's connection to one nsqd: connects, reconnects, and pairs answers with publications.

Knows the publications that were sent and are not answered, and drops a connection on which nothing
is answered. Must not know what is sent next, or what an answer means for a publication.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from math import inf

from pumpline.client.connection.connection import NsqdConnection
from pumpline.client.errors import ConnectError, ConnectionClosedError, ServerError, StalledError
from pumpline.client.publishing.message_limit import limit_told
from pumpline.client.publishing.publication import Publication
from pumpline.client.repeated_warnings import RepeatedWarnings
from pumpline.client.settings import Settings

RECONNECT_MIN_S = 0.1
RECONNECT_MAX_S = 5.0

_LOG = logging.getLogger(__name__)


OnPublicationAnswer = Callable[[Publication, Exception | None], None]
"""nsqd has confirmed the publication; or why it has not."""


class ProducerConnection:
    def __init__(
        self,
        address: str,
        settings: Settings,
        *,
        on_change: Callable[[], None],
        on_answer: OnPublicationAnswer,
        confirm_timeout_s: float,
        needs_tokens: bool,
    ) -> None:
        """`on_change`: it has become writable, or it could not connect."""
        self.address = address
        self.failure: ConnectError | None = None  # of the last try to connect
        self.connection: NsqdConnection | None = None
        self.message_bytes_max = 0  # nsqd's, if it has told; 0 if not
        self._settings = settings
        self._on_change = on_change
        self._on_publication_answer = on_answer
        self._confirm_timeout_s = confirm_timeout_s
        self._needs_tokens = needs_tokens
        self._loop = asyncio.get_running_loop()
        self._warnings = RepeatedWarnings(_LOG, self._loop.time)
        self._under_way: deque[Publication] = deque()
        self._last_answer_s = -inf
        self._watch: asyncio.TimerHandle | None = None
        self._lost = asyncio.Event()
        self._failures = 0  # since something was confirmed
        self._task = self._loop.create_task(self._run(), name=f"nsqd {address}")

    @property
    def is_ready(self) -> bool:
        return self.connection is not None and self.connection.is_writable

    @property
    def takes_tokens(self) -> bool:
        return self.connection is not None and self.connection.negotiated.publish_tokens

    def send(self, publication: Publication) -> None:
        """Only while `is_ready`."""
        assert self.connection is not None
        publication.sent_s = self._loop.time()
        publication.sent_to = self.address
        publication.under_way = True
        self._under_way.append(publication)
        self.connection.ask(publication.command(), self._on_answer)
        if self._watch is None:
            self._watch = self._loop.call_later(self._confirm_timeout_s, self._look)

    def flush(self) -> None:
        if self.connection is not None:
            self.connection.flush()

    def drop(self, reason: Exception) -> None:
        """Abort the connection: its unanswered publications fail, and a new one is opened."""
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
                self.message_bytes_max = 0
                self._warnings.warn(str(error))
            except Exception as error:  # the root of a task: log it and go on trying
                self.failure = ConnectError(f"{self.address}: {error!r}")
                _LOG.exception("%s", self.address)
            self._failures += 1
            self._on_change()
            await asyncio.sleep(_pause_s(self._failures))

    async def _connect(self) -> None:
        """Connect, and return when the connection is lost."""
        self._lost.clear()
        connection = await NsqdConnection.open(
            self.address,
            self._settings,
            on_close=self._on_close,
            on_writable=lambda _: self._on_change(),
        )
        if self._needs_tokens and not connection.negotiated.publish_tokens:
            await connection.close()
            raise no_tokens(self.address)
        self.connection = connection
        self.failure = None
        self._warnings.forget()
        if told := connection.negotiated.max_msg_size:
            self.message_bytes_max = told
        self._on_change()
        await self._lost.wait()

    def _on_close(self, connection: NsqdConnection, reason: Exception | None) -> None:
        self.connection = None
        self._lost.set()
        if not isinstance(reason, ServerError):
            self.message_bytes_max = 0  # it may start again with another limit
        if reason is not None:
            _LOG.warning("%s", reason)

    def _on_answer(self, data: bytes, failure: Exception | None) -> None:
        publication = self._under_way.popleft()
        publication.under_way = False
        self._last_answer_s = self._loop.time()
        if failure is None and data != b"OK":
            failure = ConnectionClosedError(f"{self.address}: nsqd answered {data[:64]!r}")
            self.drop(failure)  # it does not follow the protocol
        if failure is None:
            self._failures = 0
        elif isinstance(failure, ServerError):
            self.message_bytes_max = limit_told(failure) or self.message_bytes_max
            self.drop(failure)  # nsqd closes it after any error to a publish: send no more on it
        self._on_publication_answer(publication, failure)

    def _look(self) -> None:
        """Drop the connection if nothing was answered for confirm_timeout_s; slow is allowed."""
        self._watch = None
        if not self._under_way:
            return
        since_s = max(self._under_way[0].sent_s, self._last_answer_s)
        left_s = since_s + self._confirm_timeout_s - self._loop.time()
        if left_s > 0:
            self._watch = self._loop.call_later(left_s, self._look)
        else:
            timeout_s = self._confirm_timeout_s
            self.drop(StalledError(f"{self.address}: nsqd confirmed nothing for {timeout_s:g} s"))


def no_tokens(address: str) -> ConnectError:
    text = "nsqd knows no publish tokens: it is NSQ's, or has --max-publish-tokens=0"
    return ConnectError(f"{address}: {text}")


def _pause_s(failures: int) -> float:
    """Exponential, with jitter of one half, so that many clients do not reconnect at once."""
    longest_s = min(RECONNECT_MIN_S * 2.0 ** min(failures - 1, 10), RECONNECT_MAX_S)
    return longest_s * random.uniform(0.5, 1.0)
