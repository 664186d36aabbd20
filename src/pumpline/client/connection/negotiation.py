"""IDENTIFY: what a client asks of nsqd, and what nsqd granted.

`identify_body` makes the request of the client's settings; `Negotiated` is read from the answer,
where nsqd's values are in milliseconds. Neither knows a socket.
"""

import json
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pumpline.client.settings import Settings
from pumpline.core.protocol.verification import verifying_context

MAX_RDY_COUNT_DEFAULT = 2500
GRANTED_MAX = 1 << 53  # of a number in the answer; in milliseconds 285,000 years

_COUNTED_ON = ("max_rdy_count", "max_msg_timeout_ms", "msg_timeout_ms", "max_msg_size")


def identify_body(settings: Settings) -> bytes:
    asked: dict[str, Any] = {
        "client_id": settings.client_id,
        "hostname": settings.hostname,
        "user_agent": settings.user_agent,
        "short_id": settings.client_id,
        "long_id": settings.hostname,
        "feature_negotiation": True,
        "heartbeat_interval": _ms(settings.heartbeat_interval_s),
        "output_buffer_size": settings.output_buffer_size,
        "output_buffer_timeout": _ms(settings.output_buffer_timeout_s),
        "tls_v1": settings.tls is not False,
        "snappy": settings.snappy,
        "deflate": settings.deflate,
        "deflate_level": settings.deflate_level,
        "sample_rate": settings.sample_rate,
        "msg_timeout": _ms(settings.msg_timeout_s),
        "publish_tokens": True,  # an nsqd that does not know them ignores it
    }
    if settings.topology_region or settings.topology_zone:  # not every nsqd knows them
        asked["topology_region"] = settings.topology_region
        asked["topology_zone"] = settings.topology_zone
    return json.dumps(asked).encode()


def auth_secret(settings: Settings) -> bytes:
    secret = settings.auth_secret
    return secret.encode() if isinstance(secret, str) else secret


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    if isinstance(settings.tls, ssl.SSLContext):
        return settings.tls
    return verifying_context() if settings.tls else None


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
