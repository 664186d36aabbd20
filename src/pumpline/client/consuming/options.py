"""The finer points of a consumer, with defaults that suit most."""

import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, TypedDict

from pumpline.client.connection.settings import Settings
from pumpline.client.consuming.backoff import MULTIPLIER_S, WAIT_MAX_S
from pumpline.client.consuming.codec import Decode
from pumpline.client.consuming.message import Message
from pumpline.client.consuming.middleware import Around
from pumpline.client.consuming.rdy import INTERVAL_S
from pumpline.client.discovery import POLL_INTERVAL_S, POLL_JITTER, POLL_TIMEOUT_S

DEAD_LETTER: Literal["dead-letter"] = "dead-letter"
DROP: Literal["drop"] = "drop"
OnGivingUp = Callable[[Message], Awaitable[object] | object]
GivingUp = Literal["dead-letter", "drop"] | OnGivingUp

_NOT_NEGATIVE = (
    "requeue_delay_s",
    "requeue_delay_max_s",
    "backoff_multiplier_s",
    "backoff_max_s",
    "stop_timeout_s",
)
_POSITIVE = ("redistribute_interval_s", "poll_interval_s", "poll_timeout_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerOptions:
    """Settings of a consumer that most programs leave alone. Durations are in seconds."""

    requeue_delay_s: float = 90.0
    """The delay of a requeue that names none is this times the attempts."""
    requeue_delay_max_s: float = 900.0
    """The longest delay of such a requeue."""
    backoff_multiplier_s: float = MULTIPLIER_S
    """The first wait is twice this; each further failure doubles it."""
    backoff_max_s: float = WAIT_MAX_S
    """The longest wait; 0 turns backoff off."""
    backoff_jitter: bool = False
    """Wait for a random part of the time, so that many consumers do not try at once."""
    redistribute_interval_s: float = INTERVAL_S
    """How often RDY moves from quiet connections to busy ones."""
    poll_interval_s: float = POLL_INTERVAL_S
    """How often nsqlookupds are asked."""
    poll_jitter: float = POLL_JITTER
    """The part of the interval that is random."""
    poll_timeout_s: float = POLL_TIMEOUT_S
    """How long an nsqlookupd may take to answer."""
    reconnect_if_named: bool = False
    """Connect again to a discovered nsqd only if nsqlookupds still name it. To subscribe creates a
    topic, so a topic that was deleted would come back."""
    lookupd_tls: ssl.SSLContext | None = None
    """For nsqlookupds with https URLs; None verifies by the system's authorities."""
    stop_timeout_s: float = 30.0
    """How long a stop waits for messages in hand to be answered."""

    def __post_init__(self) -> None:
        for name in _NOT_NEGATIVE:
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name} must be a number of seconds, and not negative")
        for name in _POSITIVE:
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"{name} must be a positive number of seconds")
        if not 0 <= self.poll_jitter <= 1:
            raise ValueError("poll_jitter is not in 0-1")

    def requeue_delay_of(self, attempts: int) -> float:
        return min(self.requeue_delay_s * attempts, self.requeue_delay_max_s)


class ConsumerArguments(TypedDict, total=False):
    """The options of `Consumer`, for those who pass them on to it."""

    max_in_flight: int
    max_attempts: int
    giving_up: GivingUp
    auto_touch: bool
    type: Any
    codec: Decode | None
    middleware: Iterable[Around]
    settings: Settings | None
    options: ConsumerOptions | None
