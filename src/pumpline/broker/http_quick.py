"""The short way of `POST /pub`: an HTTP connection as long as it only publishes small messages.

Publishers that keep a connection open send the same head again and again. A request whose head is
plain (`plain_publish`) and that comes in one piece with its body is answered here, all replies of a
tick in one write, when the messages are in the log. At anything else the connection goes over to
the HTTP server for good, which knows all the rest: other routes, other headers, bodies in pieces,
and every error. A message costs a quarter this way of what it costs there.

Used only where everybody may publish: no tokens, no certificates, no TLS.
"""

import asyncio
import re
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from pumpline.broker.http_publish import publish_failure
from pumpline.web.http import KEEPALIVE_S, OK, SERVER, HttpServer, Reply, error_reply

if TYPE_CHECKING:
    from pumpline.broker.broker import Broker
    from pumpline.broker.ticket import Ticket
    from pumpline.broker.topic import Topic

HEAD_BYTES_MAX = 2048
HEAD_END = b"\r\n\r\n"

_REQUEST_LINE = re.compile(rb"POST /pub\?topic=([.a-zA-Z0-9_-]{1,64}) HTTP/1\.1")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")
_LENGTH = re.compile(rb"[0-9]{1,10}")
_OTHERS_AFFAIR = frozenset((b"expect", b"transfer-encoding", b"upgrade", b"te", b"trailer"))


class QuickHttp:
    """A protocol factory, in front of the one of the HTTP server."""

    def __init__(self, broker: "Broker", http: HttpServer) -> None:
        self.broker = broker
        self.http = http
        self.connections: set[QuickConnection] = set()
        self._reply = b""
        self._reply_s = 0  # when the reply in hand was dated

    def __call__(self) -> asyncio.Protocol:
        return QuickConnection(self)

    def ok(self, count: int) -> bytes:
        """So many replies that say OK."""
        now_s = self.broker.services.tick.wall_ns // 1_000_000_000
        if now_s != self._reply_s:
            self._reply_s = now_s
            self._reply = encoded(OK, now_s)
        self.http.replies[OK.status] += count
        return self._reply * count

    def refusal(self, topic: "Topic", reason: str) -> bytes:
        error = publish_failure(topic, reason)
        reply = error_reply(error.status, error.code, error.headers, error.details)
        self.http.replies[reply.status] += 1
        return encoded(reply, self.broker.services.tick.wall_ns // 1_000_000_000)

    def close(self) -> None:
        for connection in list(self.connections):
            connection.close()


class QuickConnection(asyncio.Protocol):
    def __init__(self, front: QuickHttp) -> None:
        self._front = front
        self._broker = front.broker
        self._tick = front.broker.services.tick
        self._transport: asyncio.Transport
        self._head = b""  # the last one, and what it says
        self._topic: Topic | None = None
        self._length = 0
        self._replies: list[tuple[Topic, Ticket, int]] = []
        self._rest: bytes | None = None  # for the HTTP server, when all replies are sent
        self._ending = False
        self._full = False  # the client does not take its replies
        self._waits = False  # for a ticket
        self._heard = False  # since the timer was set
        self._timer: asyncio.TimerHandle | None = None

    # -- the socket ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._front.connections.add(self)
        self._set_timer()

    def data_received(self, data: bytes) -> None:
        self._heard = True
        at = 0
        while at < len(data):
            after = self._publish(data, at)
            if after == at:
                self._rest = data[at:]
                self._transport.pause_reading()
                break
            at = after
        if self._rest is not None and not self._replies:
            self._hand_over()

    def eof_received(self) -> bool:
        """The client says no more; what is due to it is still sent."""
        self._ending = True
        return bool(self._replies)

    def connection_lost(self, exc: Exception | None) -> None:
        self._replies.clear()
        self._gone()

    def pause_writing(self) -> None:
        """It does not take its replies: so none are made."""
        self._full = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._full = False
        if self._rest is None:
            self._transport.resume_reading()

    def close(self) -> None:
        """Nothing more is read; what is due is sent."""
        self._ending = True
        self._transport.pause_reading()
        if not self._replies:
            self._transport.close()

    # -- publishing ---------------------------------------------------------------------------

    def _publish(self, data: bytes, at: int) -> int:
        """Put the message of the request at `at` in its topic; returns where the request ends, or
        `at` if it is none for us."""
        head_end = data.find(HEAD_END, at, at + HEAD_BYTES_MAX)
        if head_end < 0 or self._broker.draining.active:
            return at
        head = data[at:head_end]
        if head != self._head and not self._learn(head):
            return at
        body_at = head_end + len(HEAD_END)
        after = body_at + self._length
        topic = self._topic
        if topic is None or topic.exiting or after > len(data):
            return at
        topic.put(data[body_at:after])
        ticket = topic.ticket()
        if self._replies and self._replies[-1][1] is ticket:
            count = self._replies[-1][2]
            self._replies[-1] = (topic, ticket, count + 1)
        else:
            self._replies.append((topic, ticket, 1))
            self._tick.write(self)
        return after

    def _learn(self, head: bytes) -> bool:
        """Note what a head says, if it is one for us."""
        self._head = b""
        found = plain_publish(head)
        if found is None or not 0 < found[1] <= self._broker.options.max_msg_size:
            return False
        try:
            self._topic = self._broker.topic(found[0])
        except OSError:
            return False
        self._head, self._length = head, found[1]
        return True

    # -- replies ------------------------------------------------------------------------------

    def flush(self) -> None:
        """The connection's part of a tick."""
        output = []
        settled = 0
        for topic, ticket, count in self._replies:
            if not ticket.done:
                self._wait_for(ticket)
                break
            if ticket.error is None:
                output.append(self._front.ok(count))
            else:
                output.append(self._front.refusal(topic, ticket.error) * count)
            settled += 1
        del self._replies[:settled]
        if self._transport.is_closing():
            return
        if output:
            self._transport.write(b"".join(output))
        if self._replies:
            return
        if self._rest is not None:
            self._hand_over()
        elif self._ending:
            self._transport.close()

    def _wait_for(self, ticket: "Ticket") -> None:
        if not self._waits:
            self._waits = True
            ticket.wait(self._ticket_done)

    def _ticket_done(self) -> None:
        self._waits = False
        self._tick.write(self)

    # -- the end ------------------------------------------------------------------------------

    def _hand_over(self) -> None:
        """Let the HTTP server go on from here."""
        rest, self._rest = self._rest or b"", None
        self._gone()
        handler = self._front.http()
        self._transport.set_protocol(handler)
        handler.connection_made(self._transport)
        if self._full:
            handler.pause_writing()
        self._transport.resume_reading()
        handler.data_received(rest)
        if self._ending:
            handler.eof_received()

    def _gone(self) -> None:
        self._front.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        self._heard = False
        self._timer = self._broker.loop.call_later(KEEPALIVE_S, self._on_timer)

    def _on_timer(self) -> None:
        if self._heard:
            self._set_timer()
        else:
            self._transport.abort()


def plain_publish(head: bytes) -> tuple[str, int] | None:
    """The topic and the length of the body, if the head of a request has nothing unusual."""
    line, *headers = head.split(b"\r\n")
    request = _REQUEST_LINE.fullmatch(line)
    if request is None:
        return None
    length = -1
    for header in headers:
        parts = _HEADER.fullmatch(header)
        if parts is None:
            return None
        name, value = parts[1].lower(), parts[2]
        if name in _OTHERS_AFFAIR:
            return None
        if name == b"connection" and value.lower() != b"keep-alive":
            return None
        if name == b"content-length":
            if length >= 0 or not _LENGTH.fullmatch(value):
                return None
            length = int(value)
    return (request[1].decode(), length) if length >= 0 else None


def encoded(reply: Reply, now_s: int) -> bytes:
    """A reply as the HTTP server would send it."""
    headers = {
        "Server": SERVER,
        **reply.headers,
        "Content-Length": str(len(reply.body)),
        "Date": formatdate(now_s, usegmt=True),
    }
    lines = [f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + HEAD_END + reply.body
