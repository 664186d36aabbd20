"""A connection of aiohttp's server, where what a client sends ends before it does.

`printf ... | nc` closes its side before it has the answer, and still wants it. aiohttp takes the
end of what a client sends for the end of the client; here a connection whose requests are complete
stays until they are answered. A client that is gone for good is noticed when an answer cannot be
sent to it; an answer that takes long is told when the client says no more. Not for TLS, which has
no half of a connection.

A body that turns out malformed ends as well: aiohttp alone would let whoever reads it wait for the
rest.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage

from pumpline.web.replies import SERVER

COMPLAINT_CHARS_MAX = 200  # of what is said of a request that is no HTTP


class HalfOpenHandler(web.RequestHandler):
    """Uses aiohttp's private `_messages`: requests, or what is wrong with what came instead, that
    wait behind the one being answered."""

    def __init__(self, server: web.Server, *, replies: Counter[int], **how: Any) -> None:
        """`replies` counts those that are made here, by status."""
        super().__init__(server, **how)
        self._replies = replies
        self._body: StreamReader | None = None  # of the request being answered
        self._on_left: Callable[[], None] | None = None  # of an answer that takes long
        self._endless = False  # it goes on as long as the client does
        self._half_closed = False

    def begin(self, body: StreamReader) -> None:
        self._body = body

    def begin_long(self, on_left: Callable[[], None]) -> None:
        """The answer takes a while: `on_left` is called if the client closes its side, or has."""
        self._on_left = on_left
        if self._half_closed or self.transport is None:
            on_left()

    def begin_endless(self, on_left: Callable[[], None]) -> None:
        """The answer goes on as long as the client does: one that closes its side is gone."""
        self._endless = True
        self.begin_long(on_left)
        if self._half_closed and self.transport is not None:
            self.transport.close()

    def end(self) -> None:
        """The answer was given; was it the last?"""
        body, self._body = self._body, None
        self._on_left = None
        self._endless = False
        if body is not None and body.exception() is not None:
            self.force_close()  # nobody knows where the next request would begin
        elif self._half_closed and not self._messages:
            self.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages and not isinstance(self._messages[-1][0], RawRequestMessage):
            for body in self._bodies():
                if not body.is_eof() and body.exception() is None:
                    body.set_exception(web.RequestPayloadError("malformed"))

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether to keep the connection open for answers."""
        if self._on_left is not None:
            self._on_left()
        if self.transport is None or self._endless:
            return False
        if self.transport.get_extra_info("sslcontext") is not None:
            return False
        bodies = self._bodies()
        self._half_closed = bool(bodies) and all(body.is_eof() for body in bodies)
        return self._half_closed

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self._on_left is not None:
            self._on_left()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what is no HTTP; aiohttp alone would send all of it back."""
        if message is not None:
            message = complaint(message)
        response = super().handle_error(request, status, exc, message)
        response.headers["Server"] = SERVER
        self._replies[status] += 1
        return response

    def _bodies(self) -> list[StreamReader]:
        """Of all requests that are not answered yet; only the last can be incomplete."""
        bodies = [body for _, body in self._messages]
        return bodies if self._body is None else [self._body, *bodies]


def complaint(message: str) -> str:
    """What is wrong, from aiohttp's words for it, which go on with what was received."""
    return message.partition("\n")[0].rstrip(":")[:COMPLAINT_CHARS_MAX]


def connection_of(request: web.BaseRequest) -> HalfOpenHandler:
    connection = request.protocol
    assert isinstance(connection, HalfOpenHandler), "there are no others"
    return connection


def begin_request(
    message: RawRequestMessage,
    body: StreamReader,
    connection: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: "asyncio.Task[None]",
) -> web.BaseRequest:
    """What aiohttp makes of a request, before anything else happens with it."""
    loop = asyncio.get_running_loop()
    request = web.BaseRequest(message, body, connection, writer, task, loop)
    connection_of(request).begin(body)
    return request
