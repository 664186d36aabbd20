"""The HTTP client for everything that is not a daemon, on the standard library's `http.client`.

Used for questions to nsqlookupds, and by `pumpline.cluster`. `HttpClientConnection` blocks; the
first request opens the connection, and it is kept open for the next one. `ask` sends a request and
reads a small answer whole. `send`, `receive` and `read_into` are the same in steps, for callers
that do something else while the server works, or that read a large answer into memory of their own.
`HttpThread` is the way in for asyncio.

| bounded         | by                                                                      |
|-----------------|-------------------------------------------------------------------------|
| size            | `bytes_max` of an answer; 64 KiB a header line and 100 headers          |
| silence         | `timeout_s`, for connecting and for each read or write                  |
| the whole of it | `HttpThread`'s `timeout_s`; it aborts the connection when time is up    |

Every failure is an `HttpRequestError`, with the exception of the standard library as its cause.
Follows no redirects and knows no proxies. Must not know what is asked for.
"""

import asyncio
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import (
    BadStatusLine,
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
    LineTooLong,
    RemoteDisconnected,
)
from socket import SHUT_RDWR
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

from pumpline.core.protocol.verification import verifying_context

PIECE_BYTES = 64 * 1024

NewTlsContext = Callable[[], ssl.SSLContext]
T = TypeVar("T")

_FAILURES = (OSError, HTTPException, ValueError)  # ValueError: a chunk's size is not a number


class HttpRequestError(OSError):
    """There is no usable answer; the text says why."""


class HttpAnswer(NamedTuple):
    status: int
    body: bytes


class HttpClientConnection:
    """Requests to one server, one after another. `abort` may be called from any thread."""

    def __init__(
        self,
        origin: str,
        *,
        timeout_s: float | None,
        connect_timeout_s: float | None = None,
        tls: NewTlsContext = verifying_context,
    ) -> None:
        """`origin` is `http://host:port` or `https://host:port`; `tls` is called when needed.
        `connect_timeout_s` is `timeout_s` unless it is given; None for both is no limit."""
        self._origin = urlsplit(origin)
        self._timeout_s = timeout_s
        self._connect_timeout_s = timeout_s if connect_timeout_s is None else connect_timeout_s
        self._tls = tls
        self._connection: HTTPConnection | None = None
        self._response: HTTPResponse | None = None
        self._is_aborted = False

    @property
    def is_open(self) -> bool:
        """Whether a connection is kept from an earlier request. The server may have closed it."""
        return self._connection is not None

    def ask(
        self,
        method: str,
        target: str,
        *,
        bytes_max: int,
        headers: Mapping[str, str] | None = None,
        body: bytes | memoryview | None = None,
    ) -> HttpAnswer:
        """Send a request and read the whole answer."""
        self.send(method, target, headers=headers, body=body)
        return HttpAnswer(self.receive(), self.read(bytes_max))

    def send(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | memoryview | None = None,
    ) -> None:
        """Send a request. The answer to the last one must have been read whole."""
        try:
            if self._connection is None:
                self._connection = self._opened()
            self._connection.request(method, target, body, headers or {})
        except (BrokenPipeError, ConnectionResetError) as error:
            # A server that refuses a body half-way answers and closes: the answer says why.
            if body is None:
                raise self._failed(error) from error
        except _FAILURES as error:
            raise self._failed(error) from error

    def receive(self) -> int:
        """Wait for the answer; return its status."""
        assert self._connection is not None
        try:
            self._response = self._connection.getresponse()
        except _FAILURES as error:
            raise self._failed(error) from error
        return self._response.status

    def header(self, name: str) -> str:
        """Of the answer; empty if it has no such header."""
        assert self._response is not None
        return self._response.getheader(name) or ""

    def read(self, bytes_max: int) -> bytes:
        """The rest of the answer."""
        # readinto in pieces, because read() takes a chunk of whatever size the server claims.
        body = bytearray()
        piece = memoryview(bytearray(min(PIECE_BYTES, bytes_max + 1)))
        while count := self._read_some(piece):
            body += piece[:count]
            if len(body) > bytes_max:
                self.close()
                raise HttpRequestError(f"the answer is over the limit of {bytes_max:,} bytes")
        return bytes(body)

    def read_start(self, bytes_max: int) -> bytes:
        """The first bytes of an answer; if there are more, close, because they are not read."""
        piece = bytearray(bytes_max)
        count = self._read_some(memoryview(piece))
        assert self._response is not None
        if not self._response.isclosed():
            self.close()
        return bytes(piece[:count])

    def read_piece(self, bytes_max: int) -> bytes:
        """What has arrived, or arrives next, of an answer without end; empty at its end."""
        assert self._response is not None
        try:
            return self._response.read1(bytes_max)
        except _FAILURES as error:
            raise self._failed(error) from error

    def read_into(self, view: memoryview) -> None:
        """Fill `view` with the body, which must have this size."""
        filled = 0
        while filled < len(view):
            count = self._read_some(view[filled:])
            if not count:
                raise self._failed(IncompleteRead(b"", len(view) - filled))
            filled += count
        self._read_some(memoryview(bytearray(1)))  # marks the answer as read to its end

    def close(self) -> None:
        self._response = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def abort(self) -> None:
        """Make a call that blocks in another thread fail, unless it is still connecting."""
        self._is_aborted = True
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):  # it is closed already
                connection.sock.shutdown(SHUT_RDWR)

    def _opened(self) -> HTTPConnection:
        host, port = self._origin.hostname, self._origin.port
        assert host is not None
        timeout_s = self._connect_timeout_s
        if self._origin.scheme == "http":
            connection = HTTPConnection(host, port, timeout=timeout_s)
        else:
            context = self._tls()
            connection = HTTPSConnection(host, port, timeout=timeout_s, context=context)
        try:
            connection.connect()
        except TimeoutError:
            raise OSError(f"no connection within {timeout_s:g} s") from None
        connection.sock.settimeout(self._timeout_s)
        if self._is_aborted:
            connection.close()
            raise ConnectionAbortedError("nobody waits for the answer any more")
        return connection

    def _read_some(self, view: memoryview) -> int:
        """Some of the body; 0 at its end. A body shorter than announced is an error."""
        response = self._response
        assert response is not None
        try:
            count = response.readinto(view)
        except _FAILURES as error:
            raise self._failed(error) from error
        if not count and len(view) and response.length:
            raise self._failed(IncompleteRead(b"", response.length))
        return count

    def _failed(self, error: Exception) -> HttpRequestError:
        self.close()
        if isinstance(error, TimeoutError):
            return HttpRequestError(f"no answer within {self._timeout_s:g} s")
        return HttpRequestError(_text_of(error))


def _text_of(error: Exception) -> str:
    if isinstance(error, IncompleteRead):
        return "the answer ends early"
    if isinstance(error, BadStatusLine) and not isinstance(error, RemoteDisconnected):
        if "E_BAD_PROTOCOL" in str(error):
            return "this is a TCP port of NSQ; the HTTP port is needed"
        return "the answer is not HTTP"
    if isinstance(error, LineTooLong):
        return "a line of the answer is too long"
    if isinstance(error, UnicodeError):
        return "this is not the name of a host"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def split_url(url: str) -> tuple[str, str]:
    """What to connect to, and what to ask for there."""
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", target


class HttpThread:
    """Asks one URL on behalf of an event loop, at most one request at a time."""

    def __init__(self, url: str, *, tls: ssl.SSLContext | None = None) -> None:
        self._origin, self._target = split_url(url)
        self._tls = (lambda: tls) if tls is not None else verifying_context
        self._is_asking = False

    async def get(
        self, *, headers: Mapping[str, str], timeout_s: float, bytes_max: int
    ) -> HttpAnswer:
        """HttpRequestError if there is no answer in time; a cancelled request is aborted."""
        if self._is_asking:
            raise HttpRequestError("it has not answered the last request yet")
        connection = HttpClientConnection(self._origin, timeout_s=timeout_s, tls=self._tls)
        sent = {**headers, "Connection": "close"}

        def work() -> HttpAnswer:
            try:
                return connection.ask("GET", self._target, headers=sent, bytes_max=bytes_max)
            finally:
                connection.close()
                self._is_asking = False  # before the answer is seen: another may follow at once

        self._is_asking = True
        try:
            return await in_thread(work, timeout_s=timeout_s, abort=connection.abort)
        except RuntimeError:  # there are too many threads
            self._is_asking = False
            raise


async def in_thread(
    work: Callable[[], T], *, timeout_s: float | None, abort: Callable[[], None]
) -> T:
    """Do blocking work for an event loop; `abort` makes it fail when nobody waits any more.
    HttpRequestError if it takes too long, RuntimeError if there are too many threads.

    asyncio.to_thread would not do: its threads are waited for when the loop and the program end,
    and a name server that does not answer can hold one up for half a minute. These are daemon
    threads, and nobody waits for them.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def complete(results: list[T], error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(results[0])

    def run() -> None:
        results: list[T] = []
        failure: BaseException | None = None
        try:
            results.append(work())
        except BaseException as error:  # the root of a thread: the one who waits gets it
            failure = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(complete, results, failure)

    threading.Thread(target=run, name="pumpline-http", daemon=True).start()
    try:
        async with asyncio.timeout(timeout_s):
            return await done
    except TimeoutError:
        raise HttpRequestError(f"no answer within {timeout_s:g} s") from None
    finally:
        if not done.done() or done.cancelled():
            abort()
