"""What goes to an nsqd as one command and is answered as one: a PUB, a DPUB or an MPUB.

The publish queue fills a publication, sends it once or several times, and settles it once: all who
wait for one of its messages get the same result. Until then it remembers whether any of it may have
reached an nsqd, and the last failure. Knows no connection.

With a publish token, an nsqd stores it once, however often it is sent there. Only that nsqd knows
the token: once the nsqd may have it, the publication is sent to no other (`only_to`).
"""

import asyncio

from pumpline.client.errors import (
    NotSentError,
    PublishError,
    RefusedError,
    ServerError,
    UnconfirmedError,
)
from pumpline.core.protocol import commands

MESSAGE_COST_BYTES = 200  # memory of a message besides its body, roughly

Waiter = asyncio.Future[None]


def cost_bytes(bodies: list[bytes]) -> int:
    return sum(map(len, bodies)) + MESSAGE_COST_BYTES * len(bodies)


class Publication:
    __slots__ = (
        "bodies",
        "cost_bytes",
        "deadline_s",
        "defer_ms",
        "failure",
        "only_to",
        "sent_s",
        "sent_to",
        "size_bytes",
        "token",
        "topic",
        "unconfirmed",
        "under_way",
        "waiters",
    )

    def __init__(self, topic: str, deadline_s: float, defer_ms: int | None = None) -> None:
        self.topic = topic
        self.deadline_s = deadline_s
        self.defer_ms = defer_ms
        self.bodies: list[bytes] = []
        self.waiters: list[Waiter] = []  # one a message, or one for all
        self.cost_bytes = 0
        self.size_bytes = commands.MPUB_OVERHEAD_BYTES  # of the MPUB's body; `add` counts on
        self.token = ""  # if it has one
        self.only_to = ""  # the address of the nsqd that it has to be sent to, if it does
        self.sent_to = ""  # where it was sent the last time
        self.sent_s = 0.0  # the last time
        self.under_way = False  # sent, and not answered yet
        self.unconfirmed = False  # it may have been published already
        self.failure: Exception | None = None

    def add(self, body: bytes) -> None:
        self.bodies.append(body)
        self.size_bytes += commands.MPUB_MESSAGE_OVERHEAD_BYTES + len(body)
        self.cost_bytes += MESSAGE_COST_BYTES + len(body)

    def command(self) -> bytes:
        if self.defer_ms is not None:
            return commands.dpub(self.topic, self.defer_ms, self.bodies[0], token=self.token)
        if len(self.bodies) == 1:
            return commands.pub(self.topic, self.bodies[0], token=self.token)
        return commands.mpub(self.topic, self.bodies, token=self.token)

    @property
    def is_fixed(self) -> bool:
        """Whether its messages must stay as they are: an nsqd may have them under its token."""
        return bool(self.token) and self.unconfirmed

    def drop_cancelled(self) -> int:
        """Remove messages whose publish was cancelled before sending; return their cost."""
        for waiter in self.waiters:
            if waiter.done():
                break
        else:
            return 0
        cost_before = self.cost_bytes
        if len(self.waiters) == len(self.bodies):
            pairs = list(zip(self.bodies, self.waiters, strict=True))
            self.bodies = [body for body, waiter in pairs if not waiter.done()]
            self.waiters = [waiter for waiter in self.waiters if not waiter.done()]
        else:  # one waiter for all of it
            self.bodies = []
            self.waiters = []
        self.cost_bytes = cost_bytes(self.bodies)
        return cost_before - self.cost_bytes

    def split(self) -> "list[Publication]":
        """One publication for each message, so that nsqd refuses only the bad one. The smallest
        first: nsqd ends the connection at one that is too big."""
        pairs = sorted(zip(self.bodies, self.waiters, strict=True), key=lambda pair: len(pair[0]))
        return [self._alone(body, waiter) for body, waiter in pairs]

    def take_larger_than(self, bytes_max: int) -> "list[Publication]":
        """Remove messages that are too big, and return each alone; all of it if one waits for all
        of it."""
        if max(map(len, self.bodies)) <= bytes_max:
            return []
        if len(self.waiters) != len(self.bodies):
            return [self]
        pairs = list(zip(self.bodies, self.waiters, strict=True))
        large = [self._alone(body, waiter) for body, waiter in pairs if len(body) > bytes_max]
        self.bodies = [body for body, _ in pairs if len(body) <= bytes_max]
        self.waiters = [waiter for body, waiter in pairs if len(body) <= bytes_max]
        self.cost_bytes = cost_bytes(self.bodies)
        return large

    def _alone(self, body: bytes, waiter: Waiter) -> "Publication":
        publication = Publication(self.topic, self.deadline_s, self.defer_ms)
        publication.add(body)
        publication.waiters.append(waiter)
        publication.unconfirmed = self.unconfirmed
        return publication

    def confirm(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def fail(self) -> None:
        """Raise what is known in everyone who waits."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(self._error())

    def _error(self) -> PublishError:
        cause = self.failure
        error: PublishError
        if self.unconfirmed:
            error = UnconfirmedError(f"sent, and not answered: {cause}")
        elif isinstance(cause, ServerError):
            error = RefusedError(cause)
        else:
            error = NotSentError(f"not sent: {cause or 'no nsqd is connected'}")
        error.__cause__ = cause
        return error
