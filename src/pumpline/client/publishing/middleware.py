"""Functions around a publish: each calls the next one, and sees what that raises.

    async def around(outgoing, call_next):
        await call_next(outgoing)  # or replace(outgoing, ...)

Knows no producer.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from pumpline.client.delay import Delay
from pumpline.client.publishing.bodies import Body


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What one call of `publish` or `publish_many` publishes."""

    topic: str
    """Where it goes."""
    bodies: Iterable[Body]
    """A tuple of one, or the argument of `publish_many`."""
    defer: Delay | None = None
    """The delay of a deferred message, in seconds or as a timedelta."""
    token: str | None = None
    """The publish token that the caller gave; None if it gave none."""


CallNext = Callable[[Outgoing], Awaitable[None]]
Around = Callable[[Outgoing, CallNext], Awaitable[object]]


def wrapped(publish: CallNext, middleware: Sequence[Around]) -> CallNext:
    """The publish with the functions around it, the first one outermost."""
    for around in reversed(middleware):
        publish = _step(around, publish)
    return publish


def _step(around: Around, call_next: CallNext) -> CallNext:
    async def call(outgoing: Outgoing) -> None:
        await around(outgoing, call_next)

    return call
