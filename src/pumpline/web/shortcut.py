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

HEAD_BYTES_MAX = 4096  # of a plain request
REQUESTS_MAX = 100  # answered in one go; further ones take the long way,
REPLIES_BYTES_MAX = 256 * 1024  # and so do those after so many bytes
IDLE_S = 120.0  # after which a connection is closed, within twice the time

_HEAD_END = b"\r\n\r\n"
_LINE = re.compile(rb"GET (/[!-~]*+) HTTP/1\.1")
_HEADER = re.compile(rb"([A-Za-z-]++): *+([ -~]*+)")
_HARMLESS = frozenset(
    (
        b"accept",
        b"accept-encoding",
        b"accept-language",
        b"authorization",
        b"connection",
        b"host",
        b"user-agent",
    )
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
        self._headers = b""  # of the last request, known to be harmless
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
            end = data.find(_HEAD_END, at, at + HEAD_BYTES_MAX)
            target = self._target(data[at:end]) if end >= 0 else None
            reply = self._shortcuts.answer(target, self._peer) if target else None
            if reply is None:
                break
            replies.append(reply)
            size += len(reply)
            at = end + len(_HEAD_END)
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

    def _target(self, head: bytes) -> str | None:
        """What a plain request is for; None if it is not plain."""
        line, _, headers = head.partition(b"\r\n")
        plain = _LINE.fullmatch(line)
        if plain is None:
            return None
        if headers != self._headers:  # most clients send the same again and again
            if not are_harmless(headers):
                return None
            self._headers = headers
        return plain[1].decode()

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


def are_harmless(headers: bytes) -> bool:
    """Whether they are those of an ordinary request that asks for nothing in particular."""
    seen = set()
    for line in headers.split(b"\r\n"):
        header = _HEADER.fullmatch(line)
        name = header[1].lower() if header else b""
        if header is None or name in seen or name not in _HARMLESS:
            return False
        if name == b"connection" and header[2].lower() != b"keep-alive":
            return False
        if name == b"host" and (not header[2] or b" " in header[2]):
            return False
        seen.add(name)
    return b"host" in seen
