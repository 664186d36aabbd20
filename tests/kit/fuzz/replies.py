"""What nsqd may answer on its TCP port, and nothing else.

Knows the framing of replies and the table of error codes. A fatal error ends a connection, so no
reply may follow it; messages may, which were on their way already.
"""

import json
from typing import NamedTuple

from pumpline.core.protocol import errors

RESPONSE, ERROR, MESSAGE = 0, 1, 2
HEARTBEAT = b"_heartbeat_"
RESPONSES = frozenset({b"OK", b"CLOSE_WAIT", HEARTBEAT})
CODES = frozenset(value for name, value in vars(errors).items() if name.startswith("E_"))
MESSAGE_BYTES_MIN = 26


class Frame(NamedTuple):
    type: int
    data: bytes

    @property
    def code(self) -> str:
        """Of an error."""
        return self.data.split(b" ", 1)[0].decode("ascii", "replace")

    @property
    def message_id(self) -> bytes:
        return self.data[10:26]


def whole_frames(data: bytes) -> tuple[list[Frame], bytes]:
    """The frames in `data`, and what is left at its end."""
    frames = []
    at = 0
    while len(data) - at >= 8:
        size = int.from_bytes(data[at : at + 4])
        assert 4 <= size < 1 << 24, f"a frame of {size} bytes"
        if len(data) - at - 4 < size:
            break
        kind = int.from_bytes(data[at + 4 : at + 8])
        frames.append(Frame(kind, data[at + 8 : at + 4 + size]))
        at += 4 + size
    return frames, data[at:]


def check(frames: list[Frame]) -> None:
    """Every frame is one that is documented, and none comes after the end."""
    ended: Frame | None = None
    for frame in frames:
        if frame.type == MESSAGE:
            assert len(frame.data) >= MESSAGE_BYTES_MIN, frame
            continue
        assert ended is None, f"{frame} after {ended}"
        if frame.type == ERROR:
            assert frame.code in CODES, frame
            if frame.code not in errors.SOFT_CODES:
                ended = frame
        else:
            assert frame.type == RESPONSE, frame
            if frame.data not in RESPONSES:
                assert "max_rdy_count" in json.loads(frame.data), frame


def answers(frames: list[Frame]) -> list[Frame]:
    """The replies to commands alone."""
    return [f for f in frames if f.type != MESSAGE and f != (RESPONSE, HEARTBEAT)]
