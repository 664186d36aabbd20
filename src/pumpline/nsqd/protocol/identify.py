"""IDENTIFY: what a client may ask for, and what it is told.

`parse` checks a body against the broker's limits and gives the `ClientOptions` of the connection;
`response` is the JSON that a client gets that negotiates features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from pumpline import NSQ_VERSION
from pumpline.core.protocol.errors import E_BAD_BODY, E_IDENTIFY_FAILED, ProtocolError
from pumpline.nsqd.options import Options

HEARTBEAT_DEFAULT_MS = 30_000
OUTPUT_BUFFER_DEFAULT_BYTES = 16_384
DEFLATE_LEVEL_DEFAULT = 6

_NS_PER_MS = 1_000_000
_HEARTBEAT_MIN_MS = 1000
_OUTPUT_BUFFER_MIN_BYTES = 64
_MSG_TIMEOUT_MIN_MS = 1000
_SAMPLE_RATE_MAX = 99
_INT64 = range(-(1 << 63), 1 << 63)
_INT32 = range(-(1 << 31), 1 << 31)

_TEXTS = ("client_id", "hostname", "user_agent", "topology_region", "topology_zone")
_FLAGS = ("feature_negotiation", "tls_v1", "deflate", "snappy", "publish_tokens")
_NUMBERS = {
    "heartbeat_interval": _INT64,
    "output_buffer_size": _INT64,
    "output_buffer_timeout": _INT64,
    "deflate_level": _INT64,
    "sample_rate": _INT32,
    "msg_timeout": _INT64,
}


@dataclass(slots=True, kw_only=True)
class ClientOptions:
    """What one connection asked for, or the defaults."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    topology_region: str = ""
    topology_zone: str = ""
    feature_negotiation: bool = False
    heartbeat_ms: int = HEARTBEAT_DEFAULT_MS  # -1: none
    output_buffer_bytes: int = OUTPUT_BUFFER_DEFAULT_BYTES
    output_buffer_timeout_ms: int = 250
    sample_rate: int = 0
    msg_timeout_ms: int = 60_000
    tls_v1: bool = False  # from here on: as granted
    deflate: bool = False
    deflate_level: int = DEFLATE_LEVEL_DEFAULT
    snappy: bool = False
    publish_tokens: bool = False

    @property
    def upgrades(self) -> bool:
        return self.tls_v1 or self.snappy or self.deflate


def default_client_options(options: Options, peer: str) -> ClientOptions:
    """Before IDENTIFY."""
    return ClientOptions(
        client_id=peer,
        hostname=peer,
        output_buffer_timeout_ms=options.output_buffer_timeout_ns // _NS_PER_MS,
        msg_timeout_ms=options.msg_timeout_ns // _NS_PER_MS,
    )


def parse(body: bytes, options: Options) -> ClientOptions:
    """What an IDENTIFY body asks for, within the limits; ProtocolError if it cannot be granted."""
    asked = _decode(body)
    client = ClientOptions(
        client_id=asked["client_id"],
        hostname=asked["hostname"],
        user_agent=asked["user_agent"],
        topology_region=asked["topology_region"],
        topology_zone=asked["topology_zone"],
        feature_negotiation=asked["feature_negotiation"],
    )
    client.heartbeat_ms = _in_range(
        asked["heartbeat_interval"],
        "heartbeat interval",
        default=HEARTBEAT_DEFAULT_MS,
        low=_HEARTBEAT_MIN_MS,
        high=options.max_heartbeat_interval_ns // _NS_PER_MS,
        off=-1,
    )
    _set_output(client, asked, options)
    if not 0 <= asked["sample_rate"] <= _SAMPLE_RATE_MAX:
        raise _invalid("sample rate", asked["sample_rate"])
    client.sample_rate = asked["sample_rate"]
    client.msg_timeout_ms = _in_range(
        asked["msg_timeout"],
        "msg timeout",
        default=options.msg_timeout_ns // _NS_PER_MS,
        low=_MSG_TIMEOUT_MIN_MS,
        high=options.max_msg_timeout_ns // _NS_PER_MS,
    )
    client.deflate_level = min(DEFLATE_LEVEL_DEFAULT, options.max_deflate_level)
    if client.feature_negotiation:
        _set_upgrades(client, asked, options)
    return client


def response(client: ClientOptions, options: Options) -> bytes:
    told = {
        "max_rdy_count": options.max_rdy_count,
        "version": NSQ_VERSION,
        "max_msg_timeout": options.max_msg_timeout_ns // _NS_PER_MS,
        "msg_timeout": client.msg_timeout_ms,
        "tls_v1": client.tls_v1,
        "deflate": client.deflate,
        "deflate_level": client.deflate_level,
        "max_deflate_level": options.max_deflate_level,
        "snappy": client.snappy,
        "sample_rate": client.sample_rate,
        "auth_required": bool(options.auth_http_address),
        "output_buffer_size": client.output_buffer_bytes,
        "output_buffer_timeout": client.output_buffer_timeout_ms,
        "topology_region": options.topology_region,
        "topology_zone": options.topology_zone,
    }
    if client.publish_tokens:  # a client that does not ask gets what NSQ's nsqd answers
        told["publish_tokens"] = True
    return msgspec.json.encode(told)


def _set_output(client: ClientOptions, asked: dict[str, Any], options: Options) -> None:
    client.output_buffer_timeout_ms = _in_range(
        asked["output_buffer_timeout"],
        "output buffer timeout",
        default=options.output_buffer_timeout_ns // _NS_PER_MS,
        low=options.min_output_buffer_timeout_ns // _NS_PER_MS,
        high=options.max_output_buffer_timeout_ns // _NS_PER_MS,
        off=0,
    )
    client.output_buffer_bytes = _in_range(
        asked["output_buffer_size"],
        "output buffer size",
        default=OUTPUT_BUFFER_DEFAULT_BYTES,
        low=_OUTPUT_BUFFER_MIN_BYTES,
        high=options.max_output_buffer_size,
        off=1,
    )
    if asked["output_buffer_size"] == -1:
        client.output_buffer_timeout_ms = 0


def _set_upgrades(client: ClientOptions, asked: dict[str, Any], options: Options) -> None:
    client.tls_v1 = asked["tls_v1"] and bool(options.tls_cert or options.tls_key)
    client.snappy = asked["snappy"] and options.snappy
    client.deflate = asked["deflate"] and options.deflate
    client.publish_tokens = asked["publish_tokens"] and options.max_publish_tokens > 0
    if client.snappy and client.deflate:
        raise ProtocolError(E_IDENTIFY_FAILED, "cannot enable both deflate and snappy compression")
    if client.deflate and asked["deflate_level"] > 0:
        client.deflate_level = min(asked["deflate_level"], options.max_deflate_level)


def _in_range(
    value: int, what: str, *, default: int, low: int, high: int, off: int | None = None
) -> int:
    """0 is the default, -1 turns the feature off where that is possible."""
    if value == 0:
        return default
    if value == -1 and off is not None:
        return off
    if not low <= value <= high:
        raise _invalid(what, value)
    return value


def _invalid(what: str, value: int) -> ProtocolError:
    return ProtocolError(E_BAD_BODY, f"IDENTIFY {what} ({value}) is invalid")


def _decode(body: bytes) -> dict[str, Any]:
    """All fields, absent ones with Go's zero value; keys match whatever their case."""
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _undecodable() from None
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise _undecodable()
    given = {key.lower(): value for key, value in raw.items() if value is not None}
    fields: dict[str, Any] = {}
    for names, zero, fits in _KINDS:
        for name in names:
            value = given.get(name, zero)
            if not fits(name, value):
                raise _undecodable()
            fields[name] = value
    return fields


def _undecodable() -> ProtocolError:
    return ProtocolError(E_BAD_BODY, "IDENTIFY failed to decode JSON body")


def _is_number(name: str, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in _NUMBERS[name]


_Fits = Callable[[str, object], bool]
_KINDS: tuple[tuple[tuple[str, ...], object, _Fits], ...] = (
    (_TEXTS, "", lambda _, value: isinstance(value, str)),
    (_FLAGS, False, lambda _, value: isinstance(value, bool)),
    (tuple(_NUMBERS), 0, _is_number),
)
