"""Frames of protocol V2, server to client.

| bytes | meaning                                            |
|-------|----------------------------------------------------|
| 0-3   | size of what follows, big-endian                   |
| 4-7   | type: 0 response, 1 error, 2 message               |
| 8-    | data                                               |

The data of a message frame is described in `core.messages.frame`.
"""

from collections.abc import Iterator
from struct import Struct

RESPONSE = 0
ERROR = 1

MAGIC_V1 = b"  V1"  # between nsqd and nsqlookupd
MAGIC_V2 = b"  V2"

SIZE_BYTES = 4

_HEAD = Struct(">II")


def encode_frame(kind: int, data: bytes) -> bytes:
    return _HEAD.pack(4 + len(data), kind) + data


def split_frames(frames: bytes) -> Iterator[bytes]:
    """One by one; they must be whole."""
    at = 0
    while at < len(frames):
        end = at + SIZE_BYTES + int.from_bytes(frames[at : at + SIZE_BYTES], "big")
        yield frames[at:end]
        at = end


OK = encode_frame(RESPONSE, b"OK")
HEARTBEAT = encode_frame(RESPONSE, b"_heartbeat_")
CLOSE_WAIT = encode_frame(RESPONSE, b"CLOSE_WAIT")
