"""Commands of protocol V2, client to server, as bytes.

A command is a line, `VERB param ...`, ended by a newline; IDENTIFY, AUTH and the publishing ones
have a body after it: its size in four bytes, big-endian, then its bytes. The body of an MPUB is
the number of messages, then the size and the bytes of each.
"""

from collections.abc import Sequence
from struct import Struct

from pumpline.core.frames import MAGIC_V2

MPUB_OVERHEAD_BYTES = 4  # of a body, for the count
MPUB_MESSAGE_OVERHEAD_BYTES = 4  # for the size of each message

NOP = b"NOP\n"
CLS = b"CLS\n"

__all__ = [
    "CLS",
    "MAGIC_V2",
    "MPUB_MESSAGE_OVERHEAD_BYTES",
    "MPUB_OVERHEAD_BYTES",
    "NOP",
    "auth",
    "dpub",
    "fin",
    "identify",
    "mpub",
    "pub",
    "rdy",
    "req",
    "sub",
    "touch",
]

_SIZE = Struct(">I")
_MPUB_HEAD = Struct(">II")  # size of the body, count


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


def mpub(topic: str, bodies: Sequence[bytes]) -> bytes:
    count = len(bodies)
    sizes = list(map(len, bodies))
    # Each size before its body: one pass of C for the sizes, one for the join.
    packed = Struct(f">{count}I").pack(*sizes)
    pieces: list[bytes] = [b""] * (2 * count)
    pieces[0::2] = [packed[at : at + 4] for at in range(0, 4 * count, 4)]
    pieces[1::2] = bodies
    size = MPUB_OVERHEAD_BYTES + count * MPUB_MESSAGE_OVERHEAD_BYTES + sum(sizes)
    return b"".join((b"MPUB %b\n" % topic.encode(), _MPUB_HEAD.pack(size, count), *pieces))


def rdy(count: int) -> bytes:
    return b"RDY %d\n" % count


def fin(message_id: bytes) -> bytes:
    return b"FIN %b\n" % message_id


def req(message_id: bytes, delay_ms: int) -> bytes:
    return b"REQ %b %d\n" % (message_id, delay_ms)


def touch(message_id: bytes) -> bytes:
    return b"TOUCH %b\n" % message_id
