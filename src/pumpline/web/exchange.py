"""A request and the answer to it, in line on a connection; and what all connections share.

Knows no transports.
"""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from pumpline.web.bodies import BodyBuffers, SizedBody
from pumpline.web.endpoint import Answer, Settling
from pumpline.web.head import Head
from pumpline.web.replies import Reply, ReplyEncoder, error_reply
from pumpline.web.request import NO_BODY, HttpClient, Request
from pumpline.web.site import RequestPlan, Site
from pumpline.web.time_limits import Patience
from pumpline.web.unsent import UnsentReplies

RECEIVE_BYTES = 256 << 10  # read from a socket at once
SKIP_BYTES_MAX = 64 << 10  # of a body nobody wants, read so that the connection can go on

NO_PLAN = RequestPlan(
    Head("GET", "/", {}, keep_alive=False), None, quiet=True
)  # of what is no request

C = TypeVar("C")


class Shared(Generic[C]):
    """What all connections of a server, of type C, have in common."""

    def __init__(self, site: Site, patience: Patience) -> None:
        self.site = site
        self.patience = patience
        self.encoder = ReplyEncoder()
        self.buffers = BodyBuffers()
        self.unsent = UnsentReplies()
        self.received = bytearray(RECEIVE_BYTES)  # what one of them has read; nothing stays there
        self.received_view = memoryview(self.received)
        self.connections: set[C] = set()
        self.nobody = asyncio.Event()  # is connected
        self.nobody.set()
        self.tasks: set[asyncio.Task[None]] = set()

    def join(self, connection: C) -> None:
        self.connections.add(connection)
        self.nobody.clear()

    def leave(self, connection: C) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self.nobody.set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task


class Exchange(Request):
    __slots__ = ("answer", "close", "plan", "sized_body", "started_ns", "unread")

    def __init__(self, plan: RequestPlan, client: HttpClient) -> None:
        # Not by Request's __init__: a call more would be 2 % of what a small publish costs.
        self.head = plan.head
        self.client = client
        self.variable = plan.variable
        self.buffer = NO_BODY
        self.start = self.end = 0
        self.plan = plan
        self.answer: Answer | None = None  # known before the body if the request is refused
        self.sized_body: SizedBody | None = None  # has the buffer that the request's body is in
        self.close = not plan.head.keep_alive  # the last of its connection
        self.unread = False  # the client may still be sending, and nobody reads it
        self.started_ns = time.monotonic_ns()

    @property
    def body_bytes_max(self) -> int:
        """Of a longer body nothing is read."""
        limit = self.plan.body_limit
        return SKIP_BYTES_MAX if limit is None or self.answer is not None else limit.bytes_max

    def body_is_too_big(self) -> None:
        """Answer so, if the endpoint wants a body at all."""
        limit = self.plan.body_limit
        if self.answer is None and limit is not None:
            self.answer = error_reply(413, limit.too_big)

    def cut_off(self) -> "Exchange":
        """Without the rest of what the client sends: there cannot be another request."""
        self.close = self.unread = True
        return self

    def release(self) -> None:
        """The body is not used any more."""
        if self.sized_body is not None:
            self.sized_body.release()

    def discard(self) -> None:
        """It will not be answered."""
        self.release()
        # A coroutine refers to the exchange, and since Python 3.12 one that never ran keeps it.
        answer, self.answer = self.answer, None
        if isinstance(answer, Reply):
            if answer.stream is not None:
                answer.stream.close()
        elif answer is not None and not isinstance(answer, Settling):
            answer.close()

    def encode(self, reply: Reply, encoder: ReplyEncoder) -> bytes:
        """The reply, or the head of one whose body is a stream. An ordinary one, on a connection
        that stays, is the encoder's alone."""
        head = self.head
        length = len(reply.body) if reply.stream is None else reply.stream.length_bytes
        lines = []
        if length is not None:
            lines.append(f"Content-Length: {length}")
        elif self.sends_chunks(reply):
            lines.append("Transfer-Encoding: chunked")
        else:
            self.close = True
        if self.close and head.version == "1.1":
            lines.append("Connection: close")
        elif not self.close and head.version == "1.0":
            lines.append("Connection: keep-alive")
        start = encoder.head(reply, *lines, version=head.version)
        return start if head.method == "HEAD" else start + reply.body

    def sends_chunks(self, reply: Reply) -> bool:
        """Whether the body is sent in chunks, as nobody knows its length."""
        stream = reply.stream
        return stream is not None and stream.length_bytes is None and self.head.version != "1.0"
