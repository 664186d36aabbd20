"""What middleware of a producer sees of a publish. Knows no producer."""

from collections.abc import Iterable
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
