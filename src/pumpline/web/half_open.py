"""HTTP clients that close their side before they have the answer, and still want it.

`printf ... | nc` is one. aiohttp takes the end of what a client sends for the end of the client;
here a connection whose requests are complete stays until they are answered. A client that is gone
for good is noticed when an answer cannot be sent to it. Not for TLS, which has no half of a
connection.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage


class HalfOpenHandler(web.RequestHandler):
    """A connection of aiohttp's server, which keeps its private `_messages` for requests that wait
    behind the one being answered."""

    def __init__(self, server: web.Server, **how: Any) -> None:
        super().__init__(server, **how)
        self._body: StreamReader | None = None  # of the request being answered
        self._on_lost: Callable[[], None] | None = None  # of an answer that has no end
        self._half_closed = False

    def begin(self, body: StreamReader) -> None:
        self._body = body

    def begin_endless(self, on_lost: Callable[[], None]) -> None:
        """The answer goes on as long as the client does: one that closes its side is gone."""
        self._on_lost = on_lost

    def end(self) -> None:
        """The answer was given; was it the last?"""
        self._body = None
        self._on_lost = None
        if self._half_closed and not self._messages:
            self.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether to keep the connection open for answers."""
        if self.transport is None or self._on_lost is not None:
            return False
        if self.transport.get_extra_info("sslcontext") is not None:
            return False
        bodies = [body for _, body in self._messages]
        if self._body is not None:
            bodies.append(self._body)
        self._half_closed = bool(bodies) and all(body.is_eof() for body in bodies)
        return self._half_closed

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self._on_lost is not None:
            self._on_lost()


def begin_request(
    message: RawRequestMessage,
    body: StreamReader,
    connection: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: "asyncio.Task[None]",
) -> web.BaseRequest:
    """What aiohttp makes of a request, before anything else happens with it."""
    if isinstance(connection, HalfOpenHandler):
        connection.begin(body)
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, body, connection, writer, task, loop)
