"""Commands of protocol V2, client to server, as bytes.

A command is a line, `VERB param ...`, ended by a newline; IDENTIFY, AUTH and the publishing ones
have a body after it: its size in four bytes, big-endian, then its bytes. The body of an MPUB is
the number of messages, then the size and the bytes of each. A publish token is the last parameter
of a publishing command; only an nsqd that has granted `publish_tokens` in IDENTIFY understands it.
"""

from struct import Struct

from pumpline.core.messages.kernels import mpub_command
from pumpline.core.protocol.frames import MAGIC_V2

MPUB_OVERHEAD_BYTES = 4  # of a body, for the count
MPUB_MESSAGE_OVERHEAD_BYTES = 4  # for the size of each message

SIZE = Struct(">i")  # sizes and counts as NSQ reads them: signed

NOP = b"NOP\n"
CLS = b"CLS\n"

__all__ = [
    "CLS",
    "MAGIC_V2",
    "MPUB_MESSAGE_OVERHEAD_BYTES",
    "MPUB_OVERHEAD_BYTES",
    "NOP",
    "SIZE",
    "auth",
    "dpub",
    "fin",
    "identify",
    "mpub",
    "mpub_count_max",
    "pub",
    "rdy",
    "req",
    "sub",
    "touch",
]

_SIZE = Struct(">I")


def identify(body: bytes) -> bytes:
    return b"IDENTIFY\n%b%b" % (_SIZE.pack(len(body)), body)


def auth(secret: bytes) -> bytes:
    return b"AUTH\n%b%b" % (_SIZE.pack(len(secret)), secret)


def sub(topic: str, channel: str) -> bytes:
    return f"SUB {topic} {channel}\n".encode()


def pub(topic: str, body: bytes, *, token: str = "") -> bytes:
    return b"PUB %b%b\n%b%b" % (topic.encode(), _parameter(token), _SIZE.pack(len(body)), body)


def dpub(topic: str, defer_ms: int, body: bytes, *, token: str = "") -> bytes:
    line = b"DPUB %b %d%b\n" % (topic.encode(), defer_ms, _parameter(token))
    return b"%b%b%b" % (line, _SIZE.pack(len(body)), body)


def mpub(topic: str, bodies: list[bytes], *, token: str = "") -> bytes:
    return mpub_command(b"MPUB %b%b\n" % (topic.encode(), _parameter(token)), bodies)


def mpub_body(bodies: list[bytes]) -> bytes:
    """What follows the size of an MPUB; `/mpub?binary=true` takes it."""
    return mpub_command(b"", bodies)[SIZE.size :]


def mpub_count_max(body_bytes: int) -> int:
    """The largest number of messages that a body of `body_bytes` can hold: one byte in each."""
    return (body_bytes - MPUB_OVERHEAD_BYTES) // (MPUB_MESSAGE_OVERHEAD_BYTES + 1)


def _parameter(token: str) -> bytes:
    return b" " + token.encode() if token else b""


def rdy(count: int) -> bytes:
    return b"RDY %d\n" % count


def fin(message_id: bytes) -> bytes:
    return b"FIN %b\n" % message_id


def req(message_id: bytes, delay_ms: int) -> bytes:
    return b"REQ %b %d\n" % (message_id, delay_ms)


def touch(message_id: bytes) -> bytes:
    return b"TOUCH %b\n" % message_id
