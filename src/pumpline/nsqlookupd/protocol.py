"""Protocol V1, by which nsqds register: bytes in, events out. Pure.

    connection := "  V1" command*
    command    := line "\n" [body]       only IDENTIFY has a body
    line       := verb (" " parameter)*  white space at both ends is ignored
    body       := u32 size · JSON        (big-endian)
    reply      := u32 size · data        OK, JSON, or an error's code and text

| line                           | event        |
|--------------------------------|--------------|
| `PING`                         | `Ping`       |
| `IDENTIFY`, once               | `Identify`   |
| `REGISTER <topic> [channel]`   | `Register`   |
| `UNREGISTER <topic> [channel]` | `Unregister` |

Everything else raises `ProtocolError`, and so does a line or body over its limit; each error ends
the connection. However the bytes are cut into pieces, the events are the same.
"""

import json
import re
from typing import NamedTuple

from pumpline.core.protocol.errors import (
    E_BAD_BODY,
    E_BAD_CHANNEL,
    E_BAD_PROTOCOL,
    E_BAD_TOPIC,
    E_INVALID,
    ProtocolError,
)
from pumpline.core.protocol.frames import MAGIC_V1
from pumpline.core.text.names import is_valid_name
from pumpline.nsqlookupd.registry import NodeIdentity

SIZE_BYTES = 4
LINE_BYTES_MAX = 4096
BODY_BYTES_MAX = 1024 * 1024
OK = b"OK"

_INT64_LIMIT = 1 << 63
_GO_SPACES = (
    "\t\n\v\f\r \u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
)
# A fast path for the usual lines of nsqds; `_on_line` handles every other line.
_NAME = rb"([.a-zA-Z0-9_-]{1,54}(?:#ephemeral)?)"
_PLAIN = re.compile(rb"(UN)?REGISTER %b(?: %b)?\n" % (_NAME, _NAME))
_SURROGATE = re.compile("[\ud800-\udfff]")


class Ping(NamedTuple):
    verb: str = "PING"


class Identify(NamedTuple):
    identity: NodeIdentity
    verb: str = "IDENTIFY"


class Register(NamedTuple):
    topic: str
    channel: str  # or empty
    verb: str = "REGISTER"


class Unregister(NamedTuple):
    topic: str
    channel: str  # or empty, for the topic and all its channels
    verb: str = "UNREGISTER"


Event = Ping | Identify | Register | Unregister


class V1Reader:
    """Feed it what comes, then ask for events until there is none."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0  # everything before this position was read
        self._seen_magic = False
        self._identified = False
        self._in_body = False

    def feed(self, data: bytes) -> None:
        del self._buffer[: self._at]
        self._at = 0
        self._buffer += data

    def next_event(self) -> Event | None:
        """None if more bytes are needed; ProtocolError ends it."""
        if not self._seen_magic and not self._read_magic():
            return None
        if self._in_body:
            return self._read_body()
        if self._identified and (plain := _PLAIN.match(self._buffer, self._at)):
            self._at = plain.end()
            kind = Unregister if plain[1] else Register
            return kind(plain[2].decode(), plain[3].decode() if plain[3] else "")
        line = self._read_line()
        return None if line is None else self._on_line(line)

    def end(self) -> None:
        """No more bytes will come: ProtocolError if a body was not complete."""
        if self._in_body:
            sized = len(self._buffer) - self._at >= SIZE_BYTES
            what = "body" if sized else "body size"
            raise ProtocolError(E_BAD_BODY, f"IDENTIFY failed to read {what}")

    def _read_magic(self) -> bool:
        if len(self._buffer) < len(MAGIC_V1):
            return False
        if not self._buffer.startswith(MAGIC_V1):
            raise ProtocolError(E_BAD_PROTOCOL)
        self._at = len(MAGIC_V1)
        self._seen_magic = True
        return True

    def _read_line(self) -> str | None:
        end = self._buffer.find(b"\n", self._at, self._at + LINE_BYTES_MAX)
        if end < 0:
            if len(self._buffer) - self._at >= LINE_BYTES_MAX:
                raise ProtocolError(E_INVALID, f"line too long > {LINE_BYTES_MAX}")
            return None
        line = self._buffer[self._at : end].decode("utf-8", "surrogateescape")
        self._at = end + 1
        return line.strip(_GO_SPACES)

    def _on_line(self, line: str) -> Event | None:
        verb, *parameters = line.split(" ")
        if verb == "PING":
            return Ping()
        if verb == "IDENTIFY":
            if self._identified:
                raise ProtocolError(E_INVALID, "cannot IDENTIFY again")
            self._in_body = True
            return self._read_body()
        if verb in ("REGISTER", "UNREGISTER"):
            if not self._identified:
                raise ProtocolError(E_INVALID, "client must IDENTIFY")
            names = _names(verb, parameters)
            return Register(*names) if verb == "REGISTER" else Unregister(*names)
        raise ProtocolError(E_INVALID, f"invalid command {verb}")

    def _read_body(self) -> Identify | None:
        start = self._at + SIZE_BYTES
        if len(self._buffer) < start:
            return None
        size = int.from_bytes(self._buffer[self._at : start], signed=True)
        if size < 0:
            raise ProtocolError(E_BAD_BODY, f"IDENTIFY invalid body size {size}")
        if size > BODY_BYTES_MAX:
            raise ProtocolError(E_BAD_BODY, f"IDENTIFY body too big {size} > {BODY_BYTES_MAX}")
        if len(self._buffer) < start + size:
            return None
        body = bytes(self._buffer[start : start + size])
        self._at = start + size
        self._in_body = False
        self._identified = True
        return Identify(decode_identity(body))


def decode_identity(body: bytes) -> NodeIdentity:
    """The body of IDENTIFY, read as Go reads JSON: keys in any case, null means absent."""
    try:
        decoded = json.loads(body.decode("utf-8", "replace"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise _undecodable() from None
    if decoded is not None and not isinstance(decoded, dict):
        raise _undecodable()
    values = {key.lower(): value for key, value in (decoded or {}).items() if value is not None}
    _text(values, "remote_address")  # not used, but NSQ refuses it if it is not a string
    identity = NodeIdentity(
        hostname=_text(values, "hostname"),
        broadcast_address=_text(values, "broadcast_address"),
        tcp_port=_integer(values, "tcp_port"),
        http_port=_integer(values, "http_port"),
        version=_text(values, "version"),
        topology_zone=_text(values, "topology_zone"),
        topology_region=_text(values, "topology_region"),
    )
    required = (
        identity.broadcast_address,
        identity.tcp_port,
        identity.http_port,
        identity.version,
    )
    if not all(required):
        raise ProtocolError(E_BAD_BODY, "IDENTIFY missing fields")
    return identity


def reply(data: bytes) -> bytes:
    return len(data).to_bytes(SIZE_BYTES) + data


def _names(verb: str, parameters: list[str]) -> tuple[str, str]:
    if not parameters:
        raise ProtocolError(E_INVALID, f"{verb} insufficient number of params")
    topic = parameters[0]
    channel = parameters[1] if len(parameters) > 1 else ""
    if not is_valid_name(topic):
        raise ProtocolError(E_BAD_TOPIC, f"{verb} topic name '{topic}' is not valid")
    if channel and not is_valid_name(channel):
        raise ProtocolError(E_BAD_CHANNEL, f"{verb} channel name '{channel}' is not valid")
    return topic, channel


def _text(values: dict[str, object], key: str) -> str:
    value = values.get(key, "")
    if not isinstance(value, str):
        raise _undecodable()
    return _SURROGATE.sub("\ufffd", value)


def _integer(values: dict[str, object], key: str) -> int:
    value = values.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _undecodable()
    if not -_INT64_LIMIT <= value < _INT64_LIMIT:
        raise _undecodable()
    return value


def _refuse(constant: str) -> None:
    """Python's parser accepts NaN and Infinity, which are not JSON."""
    raise ValueError(constant)


def _undecodable() -> ProtocolError:
    return ProtocolError(E_BAD_BODY, "IDENTIFY failed to decode JSON body")
