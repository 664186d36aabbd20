"""Requests from bytes: what a client sends, cut into whole requests with their bodies.

| phase   | what comes is                        | until                                         |
|---------|--------------------------------------|-----------------------------------------------|
| HEAD    | the head of a request                | it is whole; a request without a body is, too |
| BODY    | read straight into the body's buffer | the body has the length that was announced    |
| CHUNKED | decoded into the body's buffer       | the last chunk                                |

A head that repeats the bytes of the one before it, as those of a publisher do, is not read again.
A request may be refused before its body is there (`Site.check`): then the body is read over if it
is short, and if not, the request is the last of its connection.

Sans-IO: bytes in, exchanges out. Must not know transports, or how requests are answered.
"""

import logging
from collections.abc import Callable
from enum import Enum, auto
from http import HTTPStatus

from pumpline.web.bodies import BodyBuffers, ChunkedBody, SizedBody
from pumpline.web.exchange import NO_PLAN, Exchange
from pumpline.web.head import CHUNKED, HEAD_END, BadRequest, HeadCheck
from pumpline.web.replies import bad_request_reply, error_reply
from pumpline.web.request import HttpClient
from pumpline.web.site import Site

HEAD_BYTES_MAX = 64 << 10

_CRLF = b"\r\n"
_NO_HEAD = bytes(1 << 20)  # no data is as long, so that none begins with it

_LOG = logging.getLogger(__name__)


class ReaderPhase(Enum):
    HEAD = auto()
    BODY = auto()
    CHUNKED = auto()


_HEAD, _BODY, _CHUNKED = ReaderPhase  # see `connection`: faster than on the class


class RequestReader:
    def __init__(
        self,
        site: Site,
        buffers: BodyBuffers,
        client: HttpClient,
        *,
        on_body: Callable[[Exchange], None],
    ) -> None:
        """`on_body` is called when a body is to come that is not there yet."""
        self._site = site
        self._buffers = buffers
        self._client = client
        self._on_body = on_body
        self._phase = _HEAD
        self._head_bytes = _NO_HEAD  # the last head, and
        self._plan = NO_PLAN  # what becomes of requests with it
        self._head_check: HeadCheck | None = None  # of a head that is not whole
        self._exchange: Exchange  # whose body is on its way, as one of these:
        self.sized_body: SizedBody | None = None  # the socket is to be read into its `free`
        self._chunked: ChunkedBody | None = None

    @property
    def is_in_body(self) -> bool:
        return self._phase is not _HEAD

    @property
    def is_in_chunks(self) -> bool:
        return self._phase is _CHUNKED

    def filled(self, count: int) -> Exchange | None:
        """So many bytes were read into `free`; the request if it is whole."""
        body = self.sized_body
        assert body is not None
        body.filled(count)
        return self._whole(body.buffer, body.size_bytes) if body.is_whole else None

    def read(self, data: bytearray, at: int, end: int) -> tuple[int, Exchange | None]:
        """The next request that ends in data[at:end], and the position after it. None: more must
        come, and what is before the position need not be given again. In chunks there may be more
        to do at once: then the position is not the end."""
        if self._phase is _CHUNKED:
            return self._read_chunks(data, at, end)
        if not data.startswith(self._head_bytes, at, end):
            while data.startswith(_CRLF, at, end):
                at += len(_CRLF)
            try:
                if not self._read_head(data, at, end):
                    return at, None
            except BadRequest as error:
                return end, self._refused(error)
        self._head_check = None
        plan = self._plan
        exchange = Exchange(plan, self._client)
        if plan.clearance.revoked:
            exchange.answer = self._site.check(plan, exchange)
        at += len(self._head_bytes)
        body_bytes = plan.head.body_bytes
        if not body_bytes:
            return at, exchange
        after = at + body_bytes
        is_wanted = plan.takes_body and exchange.answer is None
        is_there = after <= end and body_bytes != CHUNKED
        if not is_there or (not is_wanted and body_bytes > exchange.body_bytes_max):
            return self._begin_body(exchange, data, at, end)
        exchange.buffer, exchange.start, exchange.end = data, at, after
        return after, exchange

    def stop(self) -> None:
        """Nothing more will come. A request of which a part is missing is none."""
        if self.is_in_body:
            self._fail("unexpected EOF")

    # -- heads --------------------------------------------------------------------------------

    def _read_head(self, data: bytearray, at: int, end: int) -> bool:
        """Whether there is a whole head, of which `_plan` is made."""
        head_end = data.find(HEAD_END, at, end)
        if (end if head_end < 0 else head_end) - at > HEAD_BYTES_MAX:
            reason = f"more than {HEAD_BYTES_MAX} bytes"
            raise BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, reason)
        if head_end < 0:
            self._head_check = self._head_check or HeadCheck()
            self._head_check.feed(data[at:end])
            return False
        raw = bytes(memoryview(data)[at : head_end + len(HEAD_END)])
        self._plan = self._site.plan_of(raw)
        self._head_bytes = raw
        return True

    def _refused(self, error: BadRequest) -> Exchange:
        """In place of a request. Nobody knows where the next would begin."""
        _LOG.warning("HTTP: refused a request from %s - %s", self._client.address, error.reason)
        exchange = Exchange(NO_PLAN, self._client)
        exchange.answer = bad_request_reply(error.status, error.reason)
        return exchange.cut_off()

    # -- bodies -------------------------------------------------------------------------------

    def _begin_body(
        self, exchange: Exchange, data: bytearray, at: int, end: int
    ) -> tuple[int, Exchange | None]:
        """Of a request whose body is not all there, or not wanted."""
        head = exchange.head
        is_refused = exchange.answer is not None
        if head.body_bytes > exchange.body_bytes_max or (is_refused and head.expectation):
            return end, exchange.cut_off()
        self._exchange = exchange
        self._on_body(exchange)
        if head.body_bytes == CHUNKED:
            self._phase = _CHUNKED
            self._chunked = ChunkedBody(exchange.body_bytes_max)
            return self._read_chunks(data, at, end)
        self._phase = _BODY
        self.sized_body = SizedBody(self._buffers, head.body_bytes)
        self.sized_body.fill(memoryview(data)[at:end])
        return end, None

    def _read_chunks(self, data: bytearray, at: int, end: int) -> tuple[int, Exchange | None]:
        body, exchange = self._chunked, self._exchange
        assert body is not None
        try:
            after = at + body.feed(bytes(memoryview(data)[at:end]))
        except ValueError as error:
            self._fail(str(error))
            exchange.answer = exchange.answer or error_reply(500, "INTERNAL_ERROR")
            return end, exchange.cut_off()
        if body.is_too_long:
            self._end_body()
            exchange.body_is_too_big()
            return end, exchange.cut_off()
        return after, self._whole(body.buffer, len(body.buffer)) if body.is_whole else None

    def _whole(self, buffer: bytearray, size_bytes: int) -> Exchange:
        """The request, with its body."""
        exchange = self._exchange
        exchange.set_body(buffer, 0, size_bytes)
        exchange.sized_body = self.sized_body
        self._end_body()
        return exchange

    def _end_body(self) -> None:
        self._phase = _HEAD
        self.sized_body = self._chunked = None
        del self._exchange  # its body may be large

    def _fail(self, reason: str) -> None:
        _LOG.error("failed to read request body from %s - %s", self._client.address, reason)
        if self.sized_body is not None:
            self.sized_body.release()
        self._end_body()
