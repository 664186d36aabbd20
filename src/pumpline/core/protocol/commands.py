"""Commands of protocol V2, client to server, as bytes.

A command is a line, `VERB param ...`, ended by a newline; IDENTIFY, AUTH and the publishing ones
have a body after it: its size in four bytes, big-endian, then its bytes. The body of an MPUB is
the number of messages, then the size and the bytes of each.
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


def pub(topic: str, body: bytes) -> bytes:
    return b"PUB %b\n%b%b" % (topic.encode(), _SIZE.pack(len(body)), body)


def dpub(topic: str, defer_ms: int, body: bytes) -> bytes:
    return b"DPUB %b %d\n%b%b" % (topic.encode(), defer_ms, _SIZE.pack(len(body)), body)


def mpub(topic: str, bodies: list[bytes]) -> bytes:
    return mpub_command(b"MPUB %b\n" % topic.encode(), bodies)


def mpub_body(bodies: list[bytes]) -> bytes:
    """What follows the size of an MPUB; `/mpub?binary=true` takes it."""
    return mpub_command(b"", bodies)[SIZE.size :]


def mpub_count_max(body_bytes: int) -> int:
    """The largest number of messages that a body of `body_bytes` can hold: one byte in each."""
    return (body_bytes - MPUB_OVERHEAD_BYTES) // (MPUB_MESSAGE_OVERHEAD_BYTES + 1)


def rdy(count: int) -> bytes:
    return b"RDY %d\n" % count


def fin(message_id: bytes) -> bytes:
    return b"FIN %b\n" % message_id


def req(message_id: bytes, delay_ms: int) -> bytes:
    return b"REQ %b %d\n" % (message_id, delay_ms)


def touch(message_id: bytes) -> bytes:
    return b"TOUCH %b\n" % message_id
