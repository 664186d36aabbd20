"""HTTP as NSQ's daemons speak it, over aiohttp's low-level server.

| reply                   | status     | body                 | headers                          |
|-------------------------|------------|----------------------|----------------------------------|
| success with data       | 200        | JSON                 | Content-Type, X-NSQ-Content-Type |
| success in words        | 200        | text                 | Content-Type, X-NSQ-Content-Type |
| success with nothing    | 200        | none                 | X-NSQ-Content-Type               |
| error                   | 4xx or 5xx | {"message":"<CODE>"} | Content-Type, X-NSQ-Content-Type |
| wrong method            | 405        | as an error          | and Allow                        |
| OPTIONS on a known path | 200        | none                 | Allow                            |
| path almost right       | 301, 307   | none                 | Location (301 for GET)           |

A handler gets a `Request` and returns a `Reply` or raises `HttpError`; anything else it raises is
a 500 and a log line. Everything a client sends or fails to send is bounded: heads by aiohttp,
bodies while they are read, and all waiting by the time limits below.

Knows nothing of topics, channels or what the routes are for.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from string import punctuation
from urllib.parse import quote, urlsplit

import msgspec
from aiohttp import web
from aiohttp.http import HttpProcessingError

from pumpline import __version__
from pumpline.core.addresses import is_loopback, join_address
from pumpline.core.durations import format_duration
from pumpline.web.half_open import HalfOpenHandler, begin_request
from pumpline.web.query import QueryError, parse_query, unescape
from pumpline.web.routes import OPTIONS, Allowed, Found, Redirect, Routes
from pumpline.web.shortcut import DateHeader, Shortcuts
from pumpline.web.soon import LogSoon
from pumpline.web.streams import Stream, stream_response

KEEPALIVE_S = 120.0  # between requests, and for the head of one to come
SKIP_BYTES_MAX = 64 * 1024  # of a body nobody wants, read so that the connection can go on
LINGER_S = 5.0  # to read what remains of a larger one, so that the reply is seen
SEND_S = 60.0  # for a client to take its reply
BODY_S = 60.0  # for a body to come, and in addition
BODY_BYTES_PER_S = 64 * 1024  # what a client must manage on a larger one
SWEEP_S = 5.0  # between looks at who takes too long
STOP_S = 0.5  # for requests under way when the server stops, and as much to be cancelled

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"

_NSQ_HEADERS = {"X-NSQ-Content-Type": "nsq; version=1.0"}
_CAN_CONTINUE = "100-continue"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
SERVER = f"pumpline/{__version__}"
_JSON_HEAD = (
    f"HTTP/1.1 200 OK\r\nServer: {SERVER}\r\nX-NSQ-Content-Type: nsq; version=1.0\r\n"
    f"Content-Type: {JSON}\r\nContent-Length: %d\r\nDate: %b\r\n\r\n"
).encode()

_LOG = logging.getLogger(__name__)


class HttpError(Exception):
    """A request cannot be done: a status, and NSQ's code for the reason; maybe details."""

    def __init__(
        self,
        status: int,
        code: str,
        *,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.headers = headers or {}
        self.details = details or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    stream: Stream | None = None  # instead of the body


def json_reply(value: object, *, status: int = 200) -> Reply:
    headers = {**_NSQ_HEADERS, "Content-Type": JSON}
    return Reply(status=status, body=msgspec.json.encode(value), headers=headers)


def text_reply(text: str) -> Reply:
    body = text.encode("utf-8", "surrogateescape")
    headers = {**_NSQ_HEADERS, "Content-Type": TEXT} if body else _NSQ_HEADERS
    return Reply(body=body, headers=headers)


def plain_reply(text: str, *, status: int = 200, content_type: str = TEXT) -> Reply:
    """Text without NSQ's header, as /ping and /debug give it."""
    body = text.encode("utf-8", "surrogateescape")
    return Reply(status=status, body=body, headers={"Content-Type": content_type})


def stream_reply(stream: Stream, headers: dict[str, str]) -> Reply:
    return Reply(stream=stream, headers={**_NSQ_HEADERS, **headers})


def error_reply(
    status: int,
    code: str,
    headers: Mapping[str, str] | None = None,
    details: Mapping[str, object] | None = None,
) -> Reply:
    reply = json_reply({"message": code, **(details or {})}, status=status)
    return replace(reply, headers={**reply.headers, **headers}) if headers else reply


OK = text_reply("OK")
NOTHING = text_reply("")


class TimeLimits:
    """Ends the connections of clients that take too long over a body or a reply.

    One timer for all: a timer each would cost a tenth of a small publish.
    """

    def __init__(self) -> None:
        self.dropped_count = 0
        self._ends_s: dict[web.RequestHandler, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set(self, connection: web.RequestHandler, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._ends_s[connection] = loop.time() + seconds
        if self._timer is None:
            self._timer = loop.call_later(SWEEP_S, self._sweep, loop)

    def clear(self, connection: web.RequestHandler) -> None:
        self._ends_s.pop(connection, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        for connection, end_s in list(self._ends_s.items()):
            if end_s <= now_s:
                del self._ends_s[connection]
                self.dropped_count += 1
                _LOG.error("HTTP: client (%s) takes too long, dropped", _peer(connection.transport))
                if connection.transport is not None:
                    connection.transport.abort()
        self._timer = loop.call_later(SWEEP_S, self._sweep, loop) if self._ends_s else None


class Request:
    """What a handler sees of a request."""

    __slots__ = ("_limits", "_web", "method", "path", "raw_query", "target", "variable")

    def __init__(self, web_request: web.BaseRequest, limits: TimeLimits) -> None:
        self._web = web_request
        self._limits = limits
        self.method = web_request.method
        self.target = _origin_form(web_request.raw_path)
        self.path, _, self.raw_query = self.target.partition("?")
        self.variable = ""  # the variable segment of the path

    @property
    def peer(self) -> str:
        return _peer(self._web.transport)

    def header(self, name: str) -> str:
        """Empty if there is none."""
        return self._web.headers.get(name, "")

    @property
    def is_local(self) -> bool:
        """Whether the client is on this machine."""
        transport = self._web.transport
        name = None if transport is None else transport.get_extra_info("peername")
        return is_loopback(name[0]) if isinstance(name, tuple) else transport is not None

    @property
    def has_certificate(self) -> bool:
        """Whether the client showed a certificate, and it was verified."""
        transport = self._web.transport
        return transport is not None and bool(transport.get_extra_info("peercert"))

    def headers(self, name: str) -> list[str]:
        """Every value given for a header."""
        return list(self._web.headers.getall(name, ()))

    def query(self) -> dict[str, str]:
        """The parameters, which are in the query string only."""
        try:
            return parse_query(self.raw_query)
        except QueryError as error:
            _LOG.error("failed to parse request params - %s", printable(str(error)))
            raise HttpError(400, "INVALID_REQUEST") from None

    def check_expectation(self) -> None:
        """A client may expect to be told to go on, and nothing else."""
        if self._web.headers.get("Expect", _CAN_CONTINUE).lower() != _CAN_CONTINUE:
            raise HttpError(417, "EXPECTATION_FAILED")

    def check_length(self, bytes_max: int, *, too_big: str) -> None:
        """Refuse a body whose announced length is over the limit."""
        if (self._web.content_length or 0) > bytes_max:
            raise HttpError(413, too_big)

    async def body(self, bytes_max: int, *, too_big: str) -> bytearray:
        """The whole body; 413 with the code `too_big` if it is over the limit."""
        self.check_length(bytes_max, too_big=too_big)
        self._invite_body()
        body = bytearray()
        self._limits.set(self._web.protocol, BODY_S + bytes_max / BODY_BYTES_PER_S)
        try:
            while chunk := await self._web.content.readany():
                body += chunk
                if len(body) > bytes_max:
                    raise HttpError(413, too_big)
        except (web.RequestPayloadError, ConnectionError, RuntimeError) as error:
            # RuntimeError is aiohttp's for a connection that closed before the wait began.
            _LOG.error("failed to read request body from %s - %s", self.peer, error)
            raise HttpError(500, "INTERNAL_ERROR") from None
        finally:
            self._limits.clear(self._web.protocol)
        return body

    async def skip_body(self) -> bool:
        """Read a small body that nobody wanted; whether nothing remains of it."""
        content = self._web.content
        length = self._web.content_length
        small = (
            length is not None and length <= SKIP_BYTES_MAX and "Expect" not in self._web.headers
        )
        if small and not content.is_eof():
            with suppress(HttpError):
                await self.body(SKIP_BYTES_MAX, too_big="")
        return content.is_eof()

    def _invite_body(self) -> None:
        """Some clients (curl, over a size) wait for a word before they send the body."""
        if "Expect" in self._web.headers and self._web.transport is not None:
            self._web.transport.write(_CONTINUE)


Handler = Callable[[Request], Awaitable[Reply]]
Instant = Callable[[str], bytes]
"""The JSON of a success, given the query string; HttpError or QueryError if it is none."""


class Access(Enum):
    """What an endpoint lets its client do; who may is the daemon's affair."""

    OPEN = auto()  # see figures
    READ_LOG = auto()  # see messages
    MUTATE = auto()  # change something, or keep the daemon busy


Gate = Callable[[Request, Access], None]
"""Raises HttpError if a request may not have that access."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    handler: Handler
    quiet: bool = False  # requests are not logged
    access: Access | None = None  # none said: GET is open, any other method changes something
    instant: Instant | None = None  # what the handler does, where nobody is to be waited for

    def access_by(self, method: str) -> Access:
        if self.access is not None:
            return self.access
        return Access.OPEN if method == "GET" else Access.MUTATE


class HttpServer:
    """A protocol factory: call it for each connection of a listener; `close` ends them all."""

    def __init__(
        self,
        routes: Routes[Endpoint],
        *,
        refusal: Callable[[], Reply] | None = None,
        gate: Gate | None = None,
    ) -> None:
        """`refusal`, if given, answers everything. Without a `gate` anybody may do anything."""
        self._routes = routes
        self._gate = gate
        self._refusal = refusal
        self.replies: Counter[int] = Counter()  # sent, by status
        self._limits = TimeLimits()
        errors = logging.getLogger(f"{__name__}.errors")
        if not errors.filters:
            errors.addFilter(_shorten)
        self._web = web.Server(self._serve, request_factory=begin_request)
        self._how = {
            "logger": errors,
            "access_log": None,
            "keepalive_timeout": KEEPALIVE_S,
            "lingering_time": LINGER_S,
            "auto_decompress": False,
        }
        self._instants = routes.targets("GET", lambda endpoint: endpoint.instant)
        at_once = bool(self._instants) and gate is None and refusal is None
        self._shortcuts = Shortcuts(self._answer_at_once, self._connection) if at_once else None
        self._date = DateHeader()
        self._log_soon = LogSoon(_LOG)

    def __call__(self) -> asyncio.Protocol:
        return self._connection() if self._shortcuts is None else self._shortcuts()

    def _connection(self) -> asyncio.Protocol:
        return HalfOpenHandler(self._web, loop=asyncio.get_running_loop(), **self._how)

    @property
    def dropped_count(self) -> int:
        """Clients that took too long."""
        return self._limits.dropped_count

    async def close(self) -> None:
        """Let requests under way finish, for a while, then close all connections."""
        self._log_soon.flush()
        if self._shortcuts is not None:
            self._shortcuts.close()
        self._web.pre_shutdown()  # ends the idle ones, which `shutdown` would wait for
        await self._web.shutdown(STOP_S)
        self._limits.close()

    async def _serve(self, web_request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._reply(web_request)
        finally:
            if isinstance(web_request.protocol, HalfOpenHandler):
                web_request.protocol.end()

    async def _reply(self, web_request: web.BaseRequest) -> web.StreamResponse:
        started_ns = time.monotonic_ns()
        request = Request(web_request, self._limits)
        if self._refusal is not None:
            return await self._send(web_request, request, self._refusal())
        reply, quiet = await self._answer(request)
        if not quiet:
            elapsed = format_duration(time.monotonic_ns() - started_ns)
            shown = printable(request.target)
            _LOG.info(
                "%d %s %s (%s) %s", reply.status, request.method, shown, request.peer, elapsed
            )
        return await self._send(web_request, request, reply)

    def _answer_at_once(self, target: str, peer: str) -> bytes | None:
        """The reply to a GET, if it needs no waiting and is a success."""
        started_ns = time.monotonic_ns()
        path, _, query = target.partition("?")
        instant = self._instants.get(path)
        if instant is None:
            return None
        try:
            body = instant(query)
        except (HttpError, QueryError):
            return None  # said by the handler
        self.replies[200] += 1
        if self._log_soon.enabled:
            elapsed = format_duration(time.monotonic_ns() - started_ns)
            self._log_soon.add(f"200 GET {target} ({peer}) {elapsed}")
        return _JSON_HEAD % (len(body), self._date.now()) + body

    async def _answer(self, request: Request) -> tuple[Reply, bool]:
        """The reply, and whether the log is to be spared it."""
        quiet = False
        try:
            request.check_expectation()
            found = self._routes.resolve(request.method, unescape(request.path))
            if not isinstance(found, Found):
                return _unfound(request, found), False
            if self._gate is not None:
                self._gate(request, found.target.access_by(request.method))
            quiet = found.target.quiet
            request.variable = found.variable
            return await found.target.handler(request), quiet
        except HttpError as error:
            return error_reply(error.status, error.code, error.headers, error.details), quiet
        except QueryError:
            return error_reply(400, "INVALID_REQUEST"), quiet
        except Exception:
            _LOG.exception("panic in HTTP handler - %s %s", request.method, printable(request.path))
            return error_reply(500, "INTERNAL_ERROR"), False

    async def _send(
        self, web_request: web.BaseRequest, request: Request, reply: Reply
    ) -> web.StreamResponse:
        self.replies[reply.status] += 1
        headers = {"Server": SERVER, **reply.headers}
        stream = reply.stream
        if stream is None:
            response: web.StreamResponse = web.Response(
                status=reply.status, body=reply.body, headers=headers
            )
        else:
            response = stream_response(web_request, stream, reply.status, headers)
            if stream.length_bytes is None and isinstance(web_request.protocol, HalfOpenHandler):
                web_request.protocol.begin_endless()
        length_bytes = stream.length_bytes or 0 if stream is not None else 0
        try:
            if not await request.skip_body():
                response.force_close()  # or the rest of the body would be taken for a request
            self._limits.set(web_request.protocol, SEND_S + length_bytes / BODY_BYTES_PER_S)
            await response.prepare(web_request)
            if stream is not None:
                allow = partial(self._limits.set, web_request.protocol)
                await stream.send(web_request, response, allow)
            await response.write_eof()
        except ConnectionError:
            _abort(web_request)  # nobody is there any more
        except OSError as error:
            # What was announced cannot be sent: the client must not take the next reply for it.
            _LOG.error("HTTP: failed to send %s - %s", printable(request.target), error)
            _abort(web_request)
        finally:
            self._limits.clear(web_request.protocol)
            if stream is not None:
                stream.close()
        return response


def _abort(web_request: web.BaseRequest) -> None:
    if web_request.transport is not None:
        web_request.transport.abort()


def _unfound(request: Request, found: Redirect | Allowed | None) -> Reply:
    if found is None:
        return error_reply(404, "NOT_FOUND")
    if isinstance(found, Redirect):
        location = quote(found.path, errors="surrogateescape")
        if request.raw_query:
            location += "?" + printable(request.raw_query)
        status = 301 if request.method == "GET" else 307
        return Reply(status=status, headers={"Location": location})
    allow = {"Allow": ", ".join(found.methods)}
    if request.method == OPTIONS:
        return Reply(headers=allow)
    refused = error_reply(405, "METHOD_NOT_ALLOWED")
    return Reply(status=405, body=refused.body, headers={**refused.headers, **allow})


def _peer(transport: asyncio.BaseTransport | None) -> str:
    return "" if transport is None else join_address(transport.get_extra_info("peername"))


def _origin_form(target: str) -> str:
    """Path and query of a request target; proxies are sent whole URLs."""
    if target.startswith("/"):
        return target
    try:
        parts = urlsplit(target)
    except ValueError:
        return target
    return (parts.path or "/") + ("?" + parts.query if parts.query else "")


def printable(text: str) -> str:
    """`text` fit for a log line or a header: what is not plain ASCII is escaped."""
    if text.isascii() and text.isprintable():
        return text
    return quote(text, safe=punctuation, errors="surrogateescape")


def _shorten(record: logging.LogRecord) -> bool:
    """aiohttp logs what strangers send wrong as an error with a traceback: one line will do."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.msg = f"HTTP: {record.getMessage()} - {printable(error.message)}"
        record.args = None
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True
