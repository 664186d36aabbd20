"""Frames of protocol V2, server to client.

| bytes | meaning                                            |
|-------|----------------------------------------------------|
| 0-3   | size of what follows, big-endian                   |
| 4-7   | type: 0 response, 1 error, 2 message               |
| 8-    | data                                               |

A message frame's data:

| bytes | meaning                                            |
|-------|----------------------------------------------------|
| 0-7   | publish time, nanoseconds since 1970, big-endian   |
| 8-9   | attempts: 1 on the first delivery                  |
| 10-25 | id, 16 lower-case hexadecimal digits               |
| 26-   | body                                               |
"""

from struct import Struct

RESPONSE = 0
ERROR = 1
MESSAGE = 2

MAGIC_V1 = b"  V1"  # between nsqd and nsqlookupd
MAGIC_V2 = b"  V2"
MESSAGE_OVERHEAD_BYTES = 34  # of a whole message frame, without the body
ATTEMPTS_AT = 16  # of the attempts field in a whole message frame
ATTEMPTS_MASK = 0xFFFF  # attempts wrap, as in NSQ
ID_BYTES = 16

_HEAD = Struct(">II")
_MESSAGE_HEAD = Struct(">IIqH")
_ATTEMPTS = Struct(">H")


def encode_frame(kind: int, data: bytes) -> bytes:
    return _HEAD.pack(4 + len(data), kind) + data


def encode_message(*, timestamp_ns: int, attempts: int, message_id: int, body: bytes) -> bytes:
    head = _MESSAGE_HEAD.pack(30 + len(body), MESSAGE, timestamp_ns, attempts)
    return b"%b%016x%b" % (head, message_id, body)


def patch_attempts(frame: bytearray, attempts: int) -> None:
    _ATTEMPTS.pack_into(frame, ATTEMPTS_AT, attempts & ATTEMPTS_MASK)


OK = encode_frame(RESPONSE, b"OK")
HEARTBEAT = encode_frame(RESPONSE, b"_heartbeat_")
CLOSE_WAIT = encode_frame(RESPONSE, b"CLOSE_WAIT")
