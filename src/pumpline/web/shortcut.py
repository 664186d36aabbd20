"""HTTP requests that can be answered at once are, without the machinery for the others.

A connection begins as a `Shortcut`. While its requests are plain (a GET without a body, in one
piece, with headers that change nothing) and there is an answer at once, they are answered where
they come in. At the first other one the connection goes to the real protocol, for good, with the
bytes that were not read. What is answered is the same; /lookup costs a fifth.

Knows requests by their looks only; what to answer, if anything, is the caller's affair.
"""

import asyncio
import re
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import cast

from pumpline.core.addresses import join_address

REQUESTS_MAX = 100  # answered in one go; further ones take the long way,
REPLIES_BYTES_MAX = 256 * 1024  # and so do those after so many bytes
IDLE_S = 120.0  # after which a connection is closed, within twice the time

# Possessive (`*+`): what is not plain must be found out in one pass, however long it is.
_PLAIN = re.compile(
    rb"GET (/[!-~]*+) HTTP/1\.1\r\n"
    rb"(?:(?:Host|User-Agent|Accept|Accept-Encoding|Accept-Language|Authorization"
    rb"|Connection(?=: *+keep-alive\r)): *+[ -~]*+\r\n)*+"
    rb"\r\n",
    re.IGNORECASE,
)

Answer = Callable[[str, str], bytes | None]
"""The whole reply to a request, given its target and who asks; None: not at once."""


class Shortcuts:
    """A protocol factory, for a listener; `close` ends the connections that are still short."""

    def __init__(self, answer: Answer, long_way: Callable[[], asyncio.Protocol]) -> None:
        self.answer = answer
        self.long_way = long_way
        self.connections: set[Shortcut] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self) -> "Shortcut":
        if self._timer is None:
            self._sweep()
        return Shortcut(self)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self.connections):
            connection.transport.close()

    def _sweep(self) -> None:
        """Nobody stays who has not been heard of since the last time, or does not take replies."""
        for connection in list(self.connections):
            if not connection.heard:
                connection.transport.abort()
            connection.heard = False
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(IDLE_S, self._sweep)


class Shortcut(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, shortcuts: Shortcuts) -> None:
        self.heard = True
        self._shortcuts = shortcuts
        self._peer = ""
        self._full = False  # the other side does not take what is sent

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        self._peer = join_address(transport.get_extra_info("peername"))
        self._shortcuts.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self.heard = True
        replies: list[bytes] = []
        at = size = 0
        while at < len(data) and len(replies) < REQUESTS_MAX and size < REPLIES_BYTES_MAX:
            plain = _PLAIN.match(data, at)
            reply = self._shortcuts.answer(plain[1].decode(), self._peer) if plain else None
            if plain is None or reply is None:
                break
            replies.append(reply)
            size += len(reply)
            at = plain.end()
        if replies:
            self.transport.write(b"".join(replies))
        if at < len(data):
            self._take_long_way(data[at:])

    def pause_writing(self) -> None:
        self._full = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._full = False
        self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._shortcuts.connections.discard(self)

    def _take_long_way(self, unread: bytes) -> None:
        self._shortcuts.connections.discard(self)
        if self.transport.is_closing():
            return
        protocol = self._shortcuts.long_way()
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        if self._full:
            protocol.pause_writing()
            self.transport.resume_reading()
        protocol.data_received(unread)


class DateHeader:
    """The value of the Date header, made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._text = b""

    def now(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._text = formatdate(second, usegmt=True).encode()
        return self._text
