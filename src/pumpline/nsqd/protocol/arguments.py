"""What the verbs of protocol V2 share: the states of a connection, and reading numbers, names and
bodies out of commands."""

from pumpline.core.protocol.commands import SIZE
from pumpline.core.protocol.errors import E_BAD_MESSAGE, ProtocolError

STATE_INIT = 0  # the numbers are shown in /stats
STATE_SUBSCRIBED = 3
STATE_CLOSING = 4

_UINT64 = 1 << 64


class Incomplete(Exception):
    """A command goes on after the bytes at hand; it cannot be done before `end` of them came."""

    def __init__(self, end: int, what: str = "", *, is_body: bool = False) -> None:
        super().__init__(end)
        self.end = end
        self.what = what  # the error that is due if the client closes now
        self.is_body = is_body  # what is missing is a message's body: the command ends at `end`


class Suspended(Exception):
    """The commands that follow must wait until the connection calls `feed` again."""

    def __init__(self, after: int | None = None) -> None:
        super().__init__(after)
        self.after = after  # the command; None if it is to be tried again
        self.used = 0  # bytes done with


def number(raw: bytes) -> int | None:
    """A run of digits, as an unsigned 64-bit number that wraps; empty is 0; None if it is not."""
    if raw and not (raw.isdigit() and raw.isascii()):
        return None
    return int(raw[-64:] or b"0") % _UINT64  # 10^64 is a multiple of 2^64; int() takes 4300


def text(raw: bytes) -> str:
    """Bytes a client sent, for use in a name or an error text; nothing is lost."""
    return raw.decode("utf-8", "surrogateescape")


def message_body(buf: bytearray, pos: int, end: int, verb: str, size_max: int) -> tuple[int, int]:
    """Where the body of PUB or DPUB begins and ends."""
    if end - pos < SIZE.size:
        raise Incomplete(
            pos + SIZE.size, f"{E_BAD_MESSAGE} {verb} failed to read message body size"
        )
    size = SIZE.unpack_from(buf, pos)[0]
    if size <= 0:
        raise ProtocolError(E_BAD_MESSAGE, f"{verb} invalid message body size {size}")
    if size > size_max:
        raise ProtocolError(E_BAD_MESSAGE, f"{verb} message too big {size} > {size_max}")
    after = pos + SIZE.size + size
    if after > end:
        what = f"{E_BAD_MESSAGE} {verb} failed to read message body"
        raise Incomplete(after, what, is_body=True)
    return pos + SIZE.size, after
