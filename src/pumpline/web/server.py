"""HTTP as NSQ's daemons speak it, over aiohttp's low-level server.

A handler gets a `Request` and returns a `Reply` or raises `HttpError`; anything else it raises is
a 500 and a log line. Everything a client sends or fails to send is bounded: heads by aiohttp,
bodies while they are read, and all waiting by `Patience`.

Knows nothing of topics, channels or what the routes are for.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from string import punctuation
from urllib.parse import quote, urlsplit

from aiohttp import web
from aiohttp.http import HttpProcessingError

from pumpline.core.text.addresses import is_loopback, join_address
from pumpline.core.text.durations import format_duration
from pumpline.web.batched_log import LogSoon
from pumpline.web.half_open import HalfOpenHandler, begin_request, complaint, connection_of
from pumpline.web.query import QueryError, parse_query, unescape
from pumpline.web.replies import SERVER, Encoder, HttpError, Reply, error_reply
from pumpline.web.routes import OPTIONS, Allowed, Found, Redirect, Routes
from pumpline.web.shortcut import Later, Shortcuts, Take, TakeLarge
from pumpline.web.streams import EventStream, stream_response
from pumpline.web.time_limits import Allowance, Patience, TimeLimits

SKIP_BYTES_MAX = 64 * 1024  # of a body nobody wants, read so that the connection can go on
_CAN_CONTINUE = "100-continue"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_LOG = logging.getLogger(__name__)


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
        return join_address(self._web.protocol.peername)  # known even when it is gone

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
        patience = self._limits.patience
        transport = self._web.transport
        self._limits.set(transport, patience.body_s + bytes_max / patience.body_bytes_per_s)
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
            self._limits.clear(transport)
        return body

    async def sleep(self, seconds: float) -> None:
        """Wait, but not for a client that does not: it ends when the client closes its side."""
        left = asyncio.Event()
        connection_of(self._web).begin_long(left.set)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await left.wait()

    async def skip_body(self) -> bool:
        """Read a small body that nobody wanted; whether nothing remains of it."""
        content = self._web.content
        length = self._web.content_length
        small = (
            length is not None and length <= SKIP_BYTES_MAX and "Expect" not in self._web.headers
        )
        if small and not content.is_eof() and content.exception() is None:
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
Short = Callable[[str, int], Take | TakeLarge | None]
"""What takes requests with this query string and bodies of so many bytes; None: the handler."""


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
    # What the handler does, for plain requests (see `web.shortcut`) where everybody may do all:
    instant: Instant | None = None  # of a GET that need not wait for anything
    short: Short | None = None

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
        tls: bool = False,
        patience: Patience | None = None,
    ) -> None:
        """`refusal`, if given, answers everything. Without a `gate` anybody may do anything. `tls`:
        whether the listener's connections are encrypted, which the short way is not for."""
        patience = patience or Patience()
        self._patience = patience
        self._routes = routes
        self._gate = gate
        self._refusal = refusal
        self.replies: Counter[int] = Counter()  # sent, by status
        self._limits = TimeLimits(patience)
        errors = logging.getLogger(f"{__name__}.errors")
        if not errors.filters:
            errors.addFilter(_shorten)
        self._web = web.Server(self._serve, request_factory=begin_request)
        self._how = {
            "logger": errors,
            "access_log": None,
            "keepalive_timeout": patience.keepalive_s,
            "lingering_time": patience.linger_s,
            "auto_decompress": False,
        }
        self._instants = routes.targets("GET", lambda endpoint: endpoint.instant)
        self._shorts = routes.targets("POST", lambda endpoint: endpoint.short)
        self._shortcuts: Shortcuts | None = None
        if (self._instants or self._shorts) and not (gate or refusal or tls):
            self._shortcuts = Shortcuts(
                get=self._short_get,
                post=self._short_post,
                encode=self._encode_later,
                long_way=self._connection,
                patience=patience,
            )
        self._encoder = Encoder()
        self._log_soon = LogSoon(_LOG)

    def __call__(self) -> asyncio.Protocol:
        return self._connection() if self._shortcuts is None else self._shortcuts()

    def _connection(self) -> asyncio.Protocol:
        return HalfOpenHandler(
            self._web, replies=self.replies, loop=asyncio.get_running_loop(), **self._how
        )

    @property
    def dropped_count(self) -> int:
        """Clients that took too long."""
        return self._limits.dropped_count

    async def close(self) -> None:
        """Let requests under way finish, for a while, then close all connections."""
        self._log_soon.flush()
        if self._shortcuts is not None:
            await self._shortcuts.close()
        self._web.pre_shutdown()  # ends the idle ones, which `shutdown` would wait for
        await self._web.shutdown(self._patience.stop_s)
        self._limits.close()

    async def _serve(self, web_request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._reply(web_request)
        finally:
            connection_of(web_request).end()

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

    def _short_get(self, target: str, peer: str) -> Take | None:
        path, _, query = target.partition("?")
        instant = self._instants.get(path)
        return None if instant is None else partial(self._at_once, instant, query, target, peer)

    def _short_post(self, target: str, body_bytes: int) -> Take | TakeLarge | None:
        path, _, query = target.partition("?")
        short = self._shorts.get(path)
        return None if short is None else short(query, body_bytes)

    def _at_once(
        self, instant: Instant, query: str, target: str, peer: str, _: bytes
    ) -> bytes | None:
        """The reply to a GET, if it is a success."""
        started_ns = time.monotonic_ns()
        try:
            body = instant(query)
        except Exception:
            return None  # whatever is wrong with it, the handler finds it too, and says so
        self.replies[200] += 1
        if self._log_soon.enabled:
            elapsed = format_duration(time.monotonic_ns() - started_ns)
            self._log_soon.add(f"200 GET {target} ({peer}) {elapsed}")
        return self._encoder.encode_json(body)

    def _encode_later(self, later: Later, count: int) -> bytes:
        try:
            reply = later.reply()
        except HttpError as error:
            reply = error.reply()
        self.replies[reply.status] += count
        return self._encoder.encode(reply) * count

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
            return error.reply(), quiet
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
            if isinstance(stream, EventStream):
                connection_of(web_request).begin_endless(stream.wake)
        allowance = Allowance(self._limits, web_request.transport)
        try:
            if not await request.skip_body():
                response.force_close()  # or the rest of the body would be taken for a request
            allowance.give(len(reply.body) if stream is None else stream.length_bytes or 0)
            await response.prepare(web_request)
            if stream is not None:
                await stream.send(web_request, response, allowance)
            await response.write_eof()
        except ConnectionError:
            _abort(web_request)  # nobody is there any more
        except OSError as error:
            # What was announced cannot be sent: the client must not take the next reply for it.
            _LOG.error("HTTP: failed to send %s - %s", printable(request.target), error)
            _abort(web_request)
        finally:
            allowance.end()
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
    return error_reply(405, "METHOD_NOT_ALLOWED", headers=allow)


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
        record.msg = f"HTTP: {record.getMessage()} - {printable(complaint(error.message))}"
        record.args = None
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True
