"""A message as nsqd sends it, and as the log keeps it: a frame of protocol V2, of the kind message.

| bytes | meaning                                            |
|-------|----------------------------------------------------|
| 0-3   | size of what follows, big-endian                   |
| 4-7   | 2: this is a message                               |
| 8-15  | publish time, nanoseconds since 1970, big-endian   |
| 16-17 | attempts: 1 on the first delivery; they wrap        |
| 18-33 | id, 16 lower-case hexadecimal digits               |
| 34-   | body                                               |

The other kinds of frames are in `core.protocol.frames`.
"""

from struct import Struct

MESSAGE = 2  # the kind of frame
MESSAGE_OVERHEAD_BYTES = 34  # of a whole message frame, without the body
ID_AT = 18
ID_BYTES = 16

_HEAD = Struct(">IIqH")


def encode_message(*, timestamp_ns: int, attempts: int, message_id: int, body: bytes) -> bytes:
    head = _HEAD.pack(30 + len(body), MESSAGE, timestamp_ns, attempts)
    return b"%b%016x%b" % (head, message_id, body)


def frame_in_place(
    buf: bytearray, pos: int, end: int, *, timestamp_ns: int, message_id: int
) -> memoryview:
    """The message frame whose body is buf[pos:end]: its head takes the place of what is before."""
    at = pos - MESSAGE_OVERHEAD_BYTES
    if at < 0:
        raise ValueError("no room for the head of a message frame")
    _HEAD.pack_into(buf, at, 30 + end - pos, MESSAGE, timestamp_ns, 1)
    buf[at + ID_AT : pos] = b"%016x" % message_id
    return memoryview(buf)[at:end]
