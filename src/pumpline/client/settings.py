"""The settings of clients: of each connection, and of the work of a consumer.

One object serves producers and consumers. A producer ignores those of consumers. Knows no socket.
"""

import math
import socket
import ssl
from dataclasses import dataclass, field

from pumpline import __version__
from pumpline.core.protocol.incoming import FRAME_BYTES_MAX

HEARTBEATS_OFF_S = -1.0
BACKOFF_MULTIPLIER_S = 1.0
BACKOFF_MAX_S = 120.0
REDISTRIBUTE_INTERVAL_S = 0.05
POLL_INTERVAL_S = 60.0
POLL_JITTER = 0.3  # of the interval
POLL_TIMEOUT_S = 10.0

_NUMBERS = (
    "connect_timeout_s",
    "heartbeat_interval_s",
    "read_timeout_s",
    "write_timeout_s",
    "msg_timeout_s",
    "sample_rate",
    "output_buffer_size",
    "output_buffer_timeout_s",
    "deflate_level",
    "frame_bytes_max",
    "requeue_delay_s",
    "requeue_delay_max_s",
    "backoff_multiplier_s",
    "backoff_max_s",
    "redistribute_interval_s",
    "poll_interval_s",
    "poll_jitter",
    "poll_timeout_s",
    "stop_timeout_s",
)
_NOT_NEGATIVE = (
    "requeue_delay_s",
    "requeue_delay_max_s",
    "backoff_multiplier_s",
    "backoff_max_s",
    "stop_timeout_s",
)
_POSITIVE = ("redistribute_interval_s", "poll_interval_s", "poll_timeout_s")


def _hostname() -> str:
    return socket.gethostname()


def _short_hostname() -> str:
    return socket.gethostname().partition(".")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """For a producer, a consumer, or both. Most programs need few of them. Durations are in
    seconds. Those from `requeue_delay_s` on are for consumers; a producer ignores them."""

    client_id: str = field(default_factory=_short_hostname)
    """Shown in nsqd's /stats; by default the host name up to its first dot."""
    hostname: str = field(default_factory=_hostname)
    """Shown in nsqd's /stats; by default the host name."""
    user_agent: str = f"pumpline/{__version__}"
    """Shown in nsqd's /stats."""
    connect_timeout_s: float = 5.0
    """For all of it: socket, IDENTIFY, TLS, AUTH."""
    heartbeat_interval_s: float = 30.0
    """How often nsqd sends a heartbeat; -1 for never, which consumers may not ask for."""
    read_timeout_s: float = 60.0
    """We close a connection on which nsqd sends nothing for so long."""
    write_timeout_s: float = 30.0
    """We close a connection on which nsqd takes none of our output for so long."""
    msg_timeout_s: float = 0.0
    """How long a message may be in flight; 0 for the server's default."""
    sample_rate: int = 0
    """Per cent of the messages to be delivered; 0 for all."""
    output_buffer_size: int = 0
    """Bytes of messages the server collects before it sends; 0 for its default."""
    output_buffer_timeout_s: float = 0.0
    """How long it may collect them; 0 for its default, -1 for no limit."""
    tls: bool | ssl.SSLContext = False
    """True verifies nsqd by the system's authorities; a context is used as it is."""
    tls_server_name: str = ""
    """The name the server's certificate must have; the host of the address if empty."""
    snappy: bool = False
    """Compress with snappy, if nsqd offers it; needs the package cramjam."""
    deflate: bool = False
    """Compress with deflate, if nsqd offers it."""
    deflate_level: int = 6
    """From 1, the fastest, to 9, the smallest."""
    auth_secret: str | bytes = field(default=b"", repr=False)
    """For nsqds that require AUTH."""
    topology_region: str = ""
    """Where this client is, for an nsqd that prefers consumers near by."""
    topology_zone: str = ""
    """Where this client is, for an nsqd that prefers consumers near by."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    """A larger frame ends the connection, so an nsqd cannot fill our memory."""

    requeue_delay_s: float = 90.0
    """The delay of a requeue that names none is this times the attempts."""
    requeue_delay_max_s: float = 900.0
    """The longest delay of such a requeue."""
    backoff_multiplier_s: float = BACKOFF_MULTIPLIER_S
    """The first wait is twice this; each further failure doubles it."""
    backoff_max_s: float = BACKOFF_MAX_S
    """The longest wait; 0 turns backoff off."""
    backoff_jitter: bool = False
    """Wait for a random part of the time, so that many consumers do not try at once."""
    redistribute_interval_s: float = REDISTRIBUTE_INTERVAL_S
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
        self._check_types()
        self._check_connection()
        self._check_consumer()

    def _check_types(self) -> None:
        for name in _NUMBERS:
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise TypeError(f"{name} is a number, not {type(value).__name__}")
        tls: object = self.tls
        if not isinstance(tls, bool | ssl.SSLContext):
            kind = type(tls).__name__
            raise TypeError(f"tls is True, False or an ssl.SSLContext, not {kind}")
        secret: object = self.auth_secret
        if not isinstance(secret, str | bytes):
            raise TypeError(f"auth_secret is text or bytes, not {type(secret).__name__}")

    def _check_connection(self) -> None:
        if self.snappy and self.deflate:
            raise ValueError("snappy and deflate cannot both be asked for")
        if not 0 <= self.sample_rate <= 99:
            raise ValueError(f"sample_rate {self.sample_rate} is not in 0-99")
        if not 1 <= self.deflate_level <= 9:
            raise ValueError(f"deflate_level {self.deflate_level} is not in 1-9")
        if self.heartbeat_interval_s > self.read_timeout_s:
            raise ValueError("heartbeat_interval_s must not be more than read_timeout_s")
        if not self.heartbeat_interval_s > 0 and self.heartbeat_interval_s != HEARTBEATS_OFF_S:
            raise ValueError("heartbeat_interval_s must be positive, or -1 for none")
        for name in ("connect_timeout_s", "read_timeout_s", "write_timeout_s", "frame_bytes_max"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive")
        if not self.msg_timeout_s >= 0:
            raise ValueError("msg_timeout_s must not be negative")
        for name in ("heartbeat_interval_s", "msg_timeout_s", "output_buffer_timeout_s"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be a number that a server can be told")

    def _check_consumer(self) -> None:
        for name in _NOT_NEGATIVE:
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number of seconds, and not negative")
        for name in _POSITIVE:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a positive number of seconds")
        if not 0 <= self.poll_jitter <= 1:
            raise ValueError("poll_jitter is not in 0-1")
