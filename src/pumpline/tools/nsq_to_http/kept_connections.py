"""Requests over HTTP/1.1 connections that are kept open, one request at a time on each.

aiohttp, which the daemons ask with, costs 0.15 ms of CPU a request, most of what this tool does
for a message. This sends a request in one write, reads the answer with httptools, and throws its
body away: only the status and two headers matter.

A redirect is followed as Go does: to a GET, unless its status says that method and body stay. From
the first redirect to another host on, no credentials are sent: neither to that host nor further on.
"""

import asyncio
import ssl
from base64 import b64encode
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import cast

import httptools
from yarl import URL

from pumpline.core.protocol.verification import verifying_context

HEAD_BYTES_MAX = 1 << 20
REDIRECTS_MAX = 10
CONNECTING_MAX = 4  # a server with a short queue drops what comes beyond it, for a second or more
JOINED_BYTES_MAX = 1 << 16  # a larger body is not copied behind its head
KEPT_METHOD = (307, 308)
REDIRECTS = (301, 302, 303, *KEPT_METHOD)
SWITCHING_PROTOCOLS = 101
CREDENTIALS = {"authorization", "cookie", "cookie2", "proxy-authorization", "www-authenticate"}

Place = tuple[str, int, bool]  # host, port, whether with TLS


@dataclass(frozen=True, slots=True)
class RequestAnswer:
    status: int
    retry_after: str
    location: str


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """Where a request goes, and its head as far as it does not depend on the body."""

    url: URL
    place: Place
    head: bytes


class NoHttpAnswer(ConnectionError):
    """The connection ended before an answer, or the answer is none of HTTP."""


class KeptConnection(asyncio.Protocol):
    """One request at a time; an answer that nobody asked for ends the connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.WriteTransport
        self._answered: asyncio.Future[RequestAnswer] | None = None
        self.is_first = True  # it has answered nothing yet
        self._parser = httptools.HttpResponseParser(self)
        self._begin()

    def _begin(self) -> None:
        self._status = 0  # 0 until the head is there
        self._head_bytes = 0
        self._headers: dict[bytes, bytes] = {}
        self.is_untouched = True  # no byte of an answer has come

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    def ask(self, head: bytes, body: bytes) -> asyncio.Future[RequestAnswer]:
        self._begin()
        self._answered = answered = self._loop.create_future()
        if len(body) <= JOINED_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.writelines([head, body])
        return answered

    def close(self) -> None:
        self._answered = None
        self._transport.abort()

    # -- asyncio's ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport does not subclass asyncio.Transport, hence the cast.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        if self._answered is None:  # an answer to nothing
            self._transport.abort()
            return
        self.is_untouched = False
        if not self._status:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._fail("the head of the answer is too long")
                return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # after its status was taken for an answer
            self._transport.abort()
        except httptools.HttpParserError as error:
            self._fail(f"the answer is not HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        if self._answered is None:
            return
        names = self._headers.keys()
        if self._status and not error and not names & {b"content-length", b"transfer-encoding"}:
            self._finish()  # the body ended with the connection
        else:
            self._fail(str(error or "the server closed the connection before it answered"))

    def _fail(self, why: str) -> None:
        answered, self._answered = self._answered, None
        if answered is not None and not answered.done():
            answered.set_exception(NoHttpAnswer(why))
        self._transport.abort()

    def _finish(self) -> None:
        answered, self._answered = self._answered, None
        if answered is not None and not answered.done():
            found = (self._headers.get(name, b"") for name in (b"retry-after", b"location"))
            answered.set_result(
                RequestAnswer(self._status, *(value.decode("latin-1") for value in found))
            )

    # -- httptools' ---------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._answered is None:  # behind the answer comes another
            self._transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != SWITCHING_PROTOCOLS:
            self._headers.clear()  # the answer is still to come
        else:
            self._status = status

    def on_message_complete(self) -> None:
        if not self._status:
            return
        if not self._parser.should_keep_alive():
            self._transport.close()
        self._finish()


class KeptConnections:
    """Requests side by side, `requests_max` at most; others wait for their turn."""

    def __init__(
        self,
        headers: Mapping[str, str],
        *,
        requests_max: int,
        connect_timeout_s: float,
        timeout_s: float,
    ) -> None:
        self._headers = headers
        self._turn = asyncio.Semaphore(requests_max)
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s
        self._idle: defaultdict[Place, list[KeptConnection]] = defaultdict(list)
        self._connecting = asyncio.Semaphore(CONNECTING_MAX)
        self._failed: dict[Place, tuple[float, str]] = {}  # when, and why there was no connection
        self._tls: ssl.SSLContext | None = None

    def target(
        self, method: str, url: URL, *, without: Collection[str] = frozenset()
    ) -> RequestTarget:
        """`without`: headers that are not sent, in lower case. ValueError if the URL cannot be
        asked."""
        if url.scheme not in ("http", "https") or not url.raw_host or url.port is None:
            raise ValueError(f"{url} is not a URL of HTTP")
        headers = {"Host": url.host_port_subcomponent or ""}
        if url.raw_user is not None:
            said = f"{url.user}:{url.password or ''}".encode()
            headers["Authorization"] = f"Basic {b64encode(said).decode()}"
        given = {
            name: value for name, value in self._headers.items() if name.lower() not in without
        }
        named = {name.lower() for name in given}
        headers = {name: value for name, value in headers.items() if name.lower() not in named}
        lines = [f"{name}: {value}" for name, value in (headers | given).items()]
        if any(character in line for line in lines for character in "\r\n\0"):
            raise ValueError("a header has a line break")
        head = "\r\n".join([f"{method} {url.raw_path_qs} HTTP/1.1", *lines, ""])
        place = (url.raw_host, url.port, url.scheme == "https")
        return RequestTarget(url, place, head.encode("utf-8", "surrogateescape"))

    async def ask(self, target: RequestTarget, body: bytes | None) -> RequestAnswer:
        """TimeoutError, OSError or ValueError if there is no answer."""
        asked, without = target.url, set[str]()
        async with self._turn, asyncio.timeout(self._timeout_s):
            answer = await self._exchange(target, body)
            for _ in range(REDIRECTS_MAX):
                if answer.status not in REDIRECTS or not answer.location:
                    return answer
                if answer.status not in KEPT_METHOD:
                    body = None
                url = target.url.join(URL(answer.location))
                if not _is_same_host_or_below(url, asked):
                    without = CREDENTIALS
                method = "GET" if body is None else "POST"
                target = self.target(method, url, without=without)
                answer = await self._exchange(target, body)
            raise NoHttpAnswer(f"redirected more than {REDIRECTS_MAX} times")

    async def _exchange(self, target: RequestTarget, body: bytes | None) -> RequestAnswer:
        length = b"\r\n" if body is None else b"Content-Length: %d\r\n\r\n" % len(body)
        head, place = target.head + length, target.place
        connection = self._taken(place) or await self._connected(place)
        try:
            return await self._on(connection, place, head, body or b"")
        except NoHttpAnswer:
            if connection.is_first or not connection.is_untouched:
                raise
        # The server had closed it: once more, on a new one.
        connection = await self._connected(place, anew=True)
        return await self._on(connection, place, head, body or b"")

    async def _on(
        self, connection: KeptConnection, place: Place, head: bytes, body: bytes
    ) -> RequestAnswer:
        try:
            answer = await connection.ask(head, body)
        except BaseException:
            connection.close()
            raise
        if connection.is_open:
            connection.is_first = False
            self._idle[place].append(connection)
        return answer

    def _taken(self, place: Place) -> KeptConnection | None:
        """An open connection that nobody uses."""
        idle = self._idle[place]
        while idle:
            if (connection := idle.pop()).is_open:
                return connection
        return None

    async def _connected(self, place: Place, *, anew: bool = False) -> KeptConnection:
        """A new connection, or one that another request has left meanwhile, unless it is to be
        `anew`."""
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        async with self._connecting:
            if not anew and (connection := self._taken(place)):
                return connection
            failed_s, failure = self._failed.get(place, (0.0, ""))
            if failed_s > since_s:
                raise NoHttpAnswer(failure)
            try:
                async with asyncio.timeout(self._connect_timeout_s):
                    return await self._dial(loop, place)
            except OSError as error:  # TimeoutError, too
                self._failed[place] = loop.time(), str(error) or "no connection in time"
                raise

    async def _dial(self, loop: asyncio.AbstractEventLoop, place: Place) -> KeptConnection:
        host, port, is_tls = place
        if is_tls and self._tls is None:
            self._tls = verifying_context()
        tls = self._tls if is_tls else None
        _, connection = await loop.create_connection(
            lambda: KeptConnection(loop), host, port, ssl=tls
        )
        return connection

    def close(self) -> None:
        for idle in self._idle.values():
            for connection in idle:
                connection.close()


def _is_same_host_or_below(url: URL, other: URL) -> bool:
    """Whether the host of a URL is that of the other, on any port, or a subdomain of it."""
    host, parent = url.raw_host or "", other.raw_host or ""
    return host == parent or (host.endswith(f".{parent}") and ":" not in host)
