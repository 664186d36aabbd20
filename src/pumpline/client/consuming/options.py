"""The finer points of a consumer, with defaults that suit most."""

import ssl
from dataclasses import dataclass
from math import inf

from pumpline.client.consuming.backoff import MULTIPLIER_S, WAIT_MAX_S
from pumpline.client.consuming.rdy import INTERVAL_S
from pumpline.client.discovery import POLL_INTERVAL_S, POLL_JITTER, POLL_TIMEOUT_S

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
    """Durations are in seconds."""

    requeue_delay_s: float = 90.0
    """Times the attempts, when a requeue names no delay."""
    requeue_delay_max_s: float = 900.0
    backoff_multiplier_s: float = MULTIPLIER_S
    """The first wait is twice this; each further failure doubles it."""
    backoff_max_s: float = WAIT_MAX_S
    """0 for no backing off."""
    backoff_jitter: bool = False
    """Wait a random part of what the formula says."""
    redistribute_interval_s: float = INTERVAL_S
    """How often RDY moves from quiet connections to busy ones."""
    poll_interval_s: float = POLL_INTERVAL_S
    """How often nsqlookupds are asked."""
    poll_jitter: float = POLL_JITTER
    """The part of the interval that is random."""
    poll_timeout_s: float = POLL_TIMEOUT_S
    reconnect_if_named: bool = False
    """Connect again to an nsqd that was discovered only when nsqlookupds name it still. Subscribing
    makes a topic that is not there, so one that was deleted would come back."""
    lookupd_tls: ssl.SSLContext | None = None
    """For nsqlookupds named by https URLs; None verifies by the system's authorities."""
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
