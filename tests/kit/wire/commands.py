"""The bytes of each command a client may send, well formed or on purpose not.

Knows the layout of commands and bodies only. Opens no socket and checks nothing: a test that
needs a malformed command passes malformed arguments.
"""

import json
import struct
from collections.abc import Sequence

MAGIC = b"  V2"


def u32(value: int) -> bytes:
    """A 4-byte big-endian size; negative values give the two's complement."""
    return struct.pack(">i", value)


def sized(body: bytes) -> bytes:
    return u32(len(body)) + body


def identify(fields: object) -> bytes:
    """IDENTIFY with `fields` as its JSON body; bytes are sent as they are."""
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return b"IDENTIFY\n" + sized(body)


def auth(secret: bytes) -> bytes:
    return b"AUTH\n" + sized(secret)


def sub(topic: str, channel: str) -> bytes:
    return f"SUB {topic} {channel}\n".encode()


def pub(topic: str, body: bytes) -> bytes:
    return f"PUB {topic}\n".encode() + sized(body)


def dpub(topic: str, delay_ms: int, body: bytes) -> bytes:
    return f"DPUB {topic} {delay_ms}\n".encode() + sized(body)


def mpub_body(bodies: Sequence[bytes]) -> bytes:
    return u32(len(bodies)) + b"".join(sized(body) for body in bodies)


def mpub(topic: str, bodies: Sequence[bytes]) -> bytes:
    return f"MPUB {topic}\n".encode() + sized(mpub_body(bodies))


def rdy(count: int) -> bytes:
    return b"RDY %d\n" % count


def fin(message_id: str) -> bytes:
    return f"FIN {message_id}\n".encode()


def req(message_id: str, delay_ms: int) -> bytes:
    return f"REQ {message_id} {delay_ms}\n".encode()


def touch(message_id: str) -> bytes:
    return f"TOUCH {message_id}\n".encode()
