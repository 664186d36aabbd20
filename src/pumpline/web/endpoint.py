"""What a route leads to: a handler, and what the server must know before it calls it.

A handler gets a whole `Request`. It raises `HttpError`, or returns one of three things:

| returned    | the reply is sent                                         | for                 |
|-------------|-----------------------------------------------------------|---------------------|
| `Reply`     | at once, with no task and no coroutine                    | what need not wait  |
| `Settling`  | when it is settled, still without a task                  | publishes in a tick |
| a coroutine | when a task has run it; nothing behind it on its          | all else            |
|             | connection is begun meanwhile. It gives one of the others |                     |
"""

from collections.abc import Callable, Coroutine
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pumpline.web.replies import Reply
from pumpline.web.request import Request

if TYPE_CHECKING:  # a connection waits for replies
    from pumpline.web.connection import HttpConnection


class Settling:
    """A reply that is still to come, maybe to several requests."""

    __slots__ = ("_waiting", "reply")

    def __init__(self) -> None:
        self.reply: Reply | None = None  # until it is settled
        self._waiting: list[HttpConnection] = []

    def wait(self, waiting: "HttpConnection") -> None:
        """Have `flush` called once there is a reply, which there is not yet."""
        self._waiting.append(waiting)

    def settle(self, reply: Reply) -> list["HttpConnection"]:
        """That is the reply; returns whom to `flush`."""
        self.reply = reply
        waiting, self._waiting = self._waiting, []
        return waiting


Work = Coroutine[Any, Any, Reply] | Coroutine[Any, Any, Reply | Settling]
Answer = Reply | Settling | Work
Handler = Callable[[Request], Answer]


class Access(Enum):
    """What an endpoint lets its client do; who may is the daemon's affair."""

    OPEN = auto()  # see figures
    READ_LOG = auto()  # see messages
    MUTATE = auto()  # change something, or keep the daemon busy


class AccessGrant:
    """A request may have the access it asked for, and so may others with the same head on its
    connection, until the grant is revoked."""

    __slots__ = ("revoked",)

    def __init__(self, *, revoked: bool = False) -> None:
        self.revoked = revoked


RequestGate = Callable[[Request, Access], AccessGrant]
"""Raises HttpError if a request may not have that access."""


class BodyLimit(NamedTuple):
    """Of an endpoint that wants a body."""

    bytes_max: int
    too_big: str  # the code of the 413


class Endpoint(msgspec.Struct, frozen=True):
    handler: Handler
    quiet: bool = False  # requests are not logged
    access: Access | None = None  # none said: GET is open, any other method changes something
    body: BodyLimit | None = None  # none: a body is read over, if it is short
    check: Callable[[Request], object] | None = None
    """Called before the body is there; HttpError refuses the request without it."""
    bind: Callable[[Request], Handler] | None = None
    """Gives the handler of all requests with the head of this one, for what is to be found out once
    in a connection's life. The first of them is whole, and may have its access."""

    def access_by(self, method: str) -> Access:
        if self.access is not None:
            return self.access
        return Access.OPEN if method == "GET" else Access.MUTATE
