"""The short way of HTTP: plain requests are answered without the machinery for the others.

A connection begins as a `Shortcut`. A request is plain if it is in one piece with its body, is a
GET without one or a POST of a known length, and has only headers that change nothing. Where large
bodies are expected they may come in pieces (`web.filling`). While its
requests are plain and there is somebody to take them, they are answered in order where they come
in. At the first other one the connection goes to the real protocol for good, with the bytes that
were not read: that one knows all the rest, other routes and headers, bodies in pieces, and every
error. What is answered is the same; a small request costs a fifth.

Knows requests by their looks only; what to answer, and whether at once or a little later, is the
affair of those who answer. Not for TLS, where a client cannot close its half of a connection.
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, cast

from pumpline.core.text.addresses import join_address
from pumpline.web.body_buffer import Filling, Rooms
from pumpline.web.replies import Reply
from pumpline.web.time_limits import Patience

HEAD_BYTES_MAX = 4096  # of a plain request
DUE_MAX = 100  # answers made or waited for in one go; further requests take the long way,
MADE_BYTES_MAX = 256 * 1024  # and so do those after so many bytes of answers
NONE_TOLD = -1  # in place of the length of a body

_HEAD_END = b"\r\n\r\n"
_HEAD_END_BYTES = len(_HEAD_END)
_LINE = re.compile(rb"(GET|POST) (/[!-~]*+) HTTP/1\.1")
_HEADER = re.compile(rb"([A-Za-z0-9-]++): *+([ -~]*+)")
_LENGTH = re.compile(rb"[0-9]{1,10}")
_HARMLESS = frozenset(
    (
        b"accept",
        b"accept-encoding",
        b"accept-language",
        b"authorization",
        b"connection",
        b"content-length",
        b"content-type",
        b"host",
        b"traceparent",
        b"tracestate",
        b"user-agent",
    )
)
_HARMLESS_START = b"x-"


class Later(Protocol):
    """An answer that is still to come, maybe to several requests."""

    done: bool

    def wait(self, connection: "Shortcut") -> None:
        """Have `flush` of the connection called soon after it is done, which it is not yet."""

    def reply(self) -> Reply:
        """HttpError instead, if that is what came of it."""


Take = Callable[[bytes], bytes | Later | None]
"""Answers a request, given its body, at once or later; None: it is for the long way."""

Get = Callable[[str, str], Take | None]
"""What answers GETs of a target, from the client at an address; None: the long way."""


@dataclass(frozen=True, slots=True)
class TakeLarge:
    """Answers a request whose body may be large, and come in pieces."""

    take: Take  # if it does not
    take_room: Callable[[bytearray, int], Later | None]
    """Given a buffer and the size of the body at its beginning, until it returns."""


Post = Callable[[str, int], Take | TakeLarge | None]
"""What answers POSTs to a target, with a body of so many bytes; None: the long way."""


class Shortcuts:
    """A protocol factory, for a listener; `close` ends the connections that are still short."""

    def __init__(
        self,
        *,
        get: Get,
        post: Post,
        encode: Callable[[Later, int], bytes],
        long_way: Callable[[], asyncio.Protocol],
        patience: Patience,
    ) -> None:
        """`encode` makes so many replies of what is done."""
        self._patience = patience
        self.get = get
        self.post = post
        self.encode = encode
        self.long_way = long_way
        self.rooms = Rooms()
        self.connections: set[Shortcut] = set()
        self._empty = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self) -> "Shortcut":
        if self._timer is None:
            self._sweep()
        return Shortcut(self)

    async def close(self) -> None:
        """Let answers that are due be sent, for a while."""
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self.connections):
            connection.close()
        if self.connections:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience.stop_s):
                    await self._empty.wait()
        for connection in list(self.connections):
            connection.transport.abort()

    def came(self, connection: "Shortcut") -> None:
        self.connections.add(connection)
        self._empty.clear()

    def went(self, connection: "Shortcut") -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    def _sweep(self) -> None:
        """Nobody stays who has not been heard of since the last time, or does not take replies: a
        silent client is gone within twice its time."""
        for connection in list(self.connections):
            if not connection.heard:
                connection.transport.abort()
            connection.heard = False
        self.rooms.forget()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._patience.keepalive_s, self._sweep)


class Shortcut(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, shortcuts: Shortcuts) -> None:
        self.heard = True
        self._shortcuts = shortcuts
        self._peer = ""
        # Most clients send the same head, or at least the same headers, again and again.
        self._head = b""  # of the last request, and what it means:
        self._body_bytes = 0
        self._take: Take | None = None
        self._take_room: Callable[[bytearray, int], Later | None] | None = None
        self._headers = b""  # of the last request, and
        self._told_bytes: int | None = None  # what they tell
        # Answers that cannot be sent yet, or are behind such, each to so many requests.
        self._due: list[tuple[bytes | Later, int]] = []
        self._rest = b""  # for the long way, when all answers are sent
        self._ending = False  # nothing more is to be read
        self._full = False  # the other side does not take what is sent
        self._filling: Filling | None = None  # has the connection meanwhile

    # -- the socket ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        self._peer = join_address(transport.get_extra_info("peername"))
        self._shortcuts.came(self)

    def data_received(self, data: bytes) -> None:
        self.heard = True
        made: list[bytes] = []  # what can be sent at the end of this, without more ado
        due = self._due
        made_bytes = at = body_at = 0
        end = len(data)
        large = False  # what the body at `body_at` may be, of which there is only a part
        while at < end and len(due) + len(made) < DUE_MAX and made_bytes < MADE_BYTES_MAX:
            head_end = data.find(_HEAD_END, at, at + HEAD_BYTES_MAX)
            if head_end < 0:
                break
            head = data[at:head_end]
            if head != self._head:
                self._learn(head)
            body_at = head_end + _HEAD_END_BYTES
            after = body_at + self._body_bytes
            if self._take is None or after > end:
                large = self._take_room is not None
                break
            answer = self._take(data[body_at:after])
            if answer is None:
                break
            at = after
            if due and due[-1][0] is answer:
                due[-1] = (answer, due[-1][1] + 1)
            elif due or not isinstance(answer, bytes):
                self._expect(answer)
            else:
                made.append(answer)
                made_bytes += len(answer)
        if made:
            self.transport.write(b"".join(made))
        if at < end and not (large and self._begin_filling(data, body_at)):
            self._rest = data[at:]
            self.transport.pause_reading()
            self.flush()

    def eof_received(self) -> bool:
        """The client says no more; what is due to it is still sent."""
        self._ending = True
        return bool(self._due)

    def pause_writing(self) -> None:
        self._full = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._full = False
        if not self._rest and not self._ending:
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._filling is not None:
            self._end_filling(self._filling)
        self._due.clear()
        self._shortcuts.went(self)

    def close(self) -> None:
        """Nothing more is read; what is due is sent."""
        self._ending = True
        self._rest = b""
        self.transport.pause_reading()
        if not self._due:
            self.transport.close()

    def _learn(self, head: bytes) -> None:
        """Note what a head says, and who answers requests that have it."""
        self._head, self._take, self._take_room = head, None, None
        line, _, headers = head.partition(b"\r\n")
        request = _LINE.fullmatch(line)
        if headers != self._headers:
            self._headers, self._told_bytes = headers, told_bytes(headers)
        if request is None or self._told_bytes is None:
            return
        method, target = request.groups()
        if method == b"POST" and self._told_bytes >= 0:
            self._body_bytes = self._told_bytes
            found = self._shortcuts.post(target.decode(), self._body_bytes)
            if isinstance(found, TakeLarge):
                self._take, self._take_room = found.take, found.take_room
            else:
                self._take = found
        elif method == b"GET" and self._told_bytes == NONE_TOLD:
            self._body_bytes = 0
            self._take = self._shortcuts.get(target.decode(), self._peer)

    # -- large bodies -------------------------------------------------------------------------

    def _begin_filling(self, data: bytes, body_at: int) -> bool:
        """Whether there is room for the body that begins there, and it goes on there."""
        many = len(self._due) >= DUE_MAX
        room = None if many else self._shortcuts.rooms.lend(self._body_bytes)
        if room is None:
            return False
        begin = memoryview(data)[body_at:]
        self._filling = Filling(self, room, self._body_bytes, begin)
        self._hand_over(self._filling)
        return True

    def filled(self) -> None:
        """The body that was being received is there."""
        filling = self._filling
        assert filling is not None and self._take_room is not None
        self.heard = True
        self.transport.pause_reading()
        self.transport.set_protocol(self)
        answer = self._take_room(filling.room, filling.size_bytes)
        if answer is None:
            body = bytes(memoryview(filling.room)[: filling.size_bytes])
            self._rest = self._head + _HEAD_END + body
        else:
            self._expect(answer)
        self._end_filling(filling)
        if self._rest:
            self.flush()
        elif not self._ending and not self._full:
            self.transport.resume_reading()

    def _end_filling(self, filling: Filling) -> None:
        self._filling = None
        self._shortcuts.rooms.give_back(filling.room)

    def _hand_over(self, protocol: asyncio.BaseProtocol) -> None:
        """uvloop reads as it began to until it is told to begin again."""
        self.transport.pause_reading()
        self.transport.set_protocol(protocol)
        self.transport.resume_reading()

    # -- answers ------------------------------------------------------------------------------

    def _expect(self, answer: bytes | Later) -> None:
        self._due.append((answer, 1))
        if not isinstance(answer, bytes):
            answer.wait(self)

    def flush(self) -> None:
        """Send the answers that are there, in order. When no more are to come, do what is to be
        done then."""
        output = []
        for answer, count in self._due:
            if isinstance(answer, bytes):
                output.append(answer * count)
            elif answer.done:
                output.append(self._shortcuts.encode(answer, count))
            else:
                break
        del self._due[: len(output)]
        if output and not self.transport.is_closing():
            self.transport.write(b"".join(output))
        if self._due or self.transport.is_closing():  # writing may have shown that nobody is there
            return
        if self._rest:
            self._take_long_way()
        elif self._ending:
            self.transport.close()

    def _take_long_way(self) -> None:
        rest, self._rest = self._rest, b""
        self._shortcuts.went(self)
        protocol = self._shortcuts.long_way()
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        if self._full:
            protocol.pause_writing()
        self.transport.resume_reading()
        protocol.data_received(rest)


def told_bytes(headers: bytes) -> int | None:
    """The length of the body that headers tell, or NONE_TOLD. None if they are not those of an
    ordinary request that asks for nothing in particular."""
    length = NONE_TOLD
    seen = set()
    for line in headers.split(b"\r\n"):
        header = _HEADER.fullmatch(line)
        if header is None:
            return None
        name, value = header[1].lower(), header[2]
        if name in seen or not (name in _HARMLESS or name.startswith(_HARMLESS_START)):
            return None
        if name == b"connection" and value.lower() != b"keep-alive":
            return None
        if name == b"host" and (not value or b" " in value):
            return None
        if name == b"content-length":
            if not _LENGTH.fullmatch(value):
                return None
            length = int(value)
        seen.add(name)
    return length if b"host" in seen else None
