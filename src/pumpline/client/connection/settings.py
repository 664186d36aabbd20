"""What a client asks of a connection, and what the server granted.

`Settings` become the body of IDENTIFY; `Negotiated` is read from the answer, where the server's
values are in milliseconds. Neither knows a socket.
"""

import json
import math
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pumpline import __version__
from pumpline.core.protocol.incoming import FRAME_BYTES_MAX
from pumpline.core.protocol.verification import verifying_context

HEARTBEATS_OFF_S = -1.0
MAX_RDY_COUNT_DEFAULT = 2500
GRANTED_MAX = 1 << 53  # of a number in the answer; in milliseconds 285,000 years

_COUNTED_ON = ("max_rdy_count", "max_msg_timeout_ms", "msg_timeout_ms", "max_msg_size")
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
)


def _hostname() -> str:
    return socket.gethostname()


def _short_hostname() -> str:
    return socket.gethostname().partition(".")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """For every connection of a producer or a consumer. Durations are in seconds."""

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

    def __post_init__(self) -> None:
        self._check_types()
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

    def identify_body(self) -> bytes:
        asked: dict[str, Any] = {
            "client_id": self.client_id,
            "hostname": self.hostname,
            "user_agent": self.user_agent,
            "short_id": self.client_id,
            "long_id": self.hostname,
            "feature_negotiation": True,
            "heartbeat_interval": _ms(self.heartbeat_interval_s),
            "output_buffer_size": self.output_buffer_size,
            "output_buffer_timeout": _ms(self.output_buffer_timeout_s),
            "tls_v1": self.tls is not False,
            "snappy": self.snappy,
            "deflate": self.deflate,
            "deflate_level": self.deflate_level,
            "sample_rate": self.sample_rate,
            "msg_timeout": _ms(self.msg_timeout_s),
            "publish_tokens": True,  # an nsqd that does not know them ignores it
        }
        if self.topology_region or self.topology_zone:  # not every nsqd knows them
            asked["topology_region"] = self.topology_region
            asked["topology_zone"] = self.topology_zone
        return json.dumps(asked).encode()

    def secret(self) -> bytes:
        return self.auth_secret.encode() if isinstance(self.auth_secret, str) else self.auth_secret

    def tls_context(self) -> ssl.SSLContext | None:
        if isinstance(self.tls, ssl.SSLContext):
            return self.tls
        return verifying_context() if self.tls else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Negotiated:
    """The answer to IDENTIFY; a field the server does not tell has NSQ's default."""

    max_rdy_count: int = MAX_RDY_COUNT_DEFAULT
    version: str = ""
    max_msg_timeout_ms: int = 900_000
    msg_timeout_ms: int = 60_000
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 6
    max_deflate_level: int = 6
    snappy: bool = False
    sample_rate: int = 0
    auth_required: bool = False
    output_buffer_size: int = 16_384
    output_buffer_timeout_ms: int = 250
    max_msg_size: int = 0
    """0: the server does not tell. NSQ's nsqd does not."""
    publish_tokens: bool = False
    """Whether publishes may have tokens."""

    @classmethod
    def parse(cls, data: bytes) -> "Negotiated":
        """ValueError if it is not what an nsqd says."""
        if data == b"OK":
            return cls()  # a server that does not negotiate
        told = _json_object(data)
        known: dict[str, Any] = {}
        for name, default in _DEFAULTS.items():
            value = told.get(name.removesuffix("_ms"))
            if value is None:
                continue
            if type(value) is not type(default):
                raise ValueError(f"{name} {value!r} is no {type(default).__name__}")
            if name in _COUNTED_ON and not 0 <= value <= GRANTED_MAX:
                raise ValueError(f"{name} {str(value)[:32]} makes no sense")
            known[name] = value
        return cls(**known)


_DEFAULTS: dict[str, Any] = {
    name: getattr(Negotiated(), name) for name in Negotiated.__dataclass_fields__
}


def _json_object(data: bytes) -> dict[str, Any]:
    told: object = None
    with suppress(ValueError, RecursionError):  # no JSON, or too deep
        told = json.loads(data)
    if not isinstance(told, dict):
        raise ValueError(f"IDENTIFY was answered with {data[:32]!r}")
    return told


def _ms(seconds: float) -> int:
    """-1 stays: it means off."""
    return -1 if seconds < 0 else round(seconds * 1000)
