"""Splits what a client receives into frames, a chunk at a time.

`Incoming.receive` takes a chunk and returns the messages and other frames that are complete now.
The layout is in `core.protocol.frames`. A frame that spans several chunks is joined when its last
byte has arrived, so a large frame is copied only once.
"""

from struct import Struct

from pumpline.core.messages.frame import MESSAGE, MESSAGE_OVERHEAD_BYTES
from pumpline.core.protocol.frames import OK, RESPONSE

Message = tuple[int, int, bytes, bytes]
"""Publish time in nanoseconds, attempts, id, body."""

Frame = tuple[int, bytes]
"""Type and data of a frame that is no message."""

FRAME_BYTES_MAX = 64 << 20

_HEAD = Struct(">II")
_MESSAGE = Struct(">IIqH16s")
_OK = (RESPONSE, b"OK")
_MESSAGE_SIZE_MIN = MESSAGE_OVERHEAD_BYTES - 4


class FrameError(Exception):
    """The input is not a stream of frames."""


class Incoming:
    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._kept: list[bytes] = []  # pieces of an incomplete frame
        self._kept_bytes = 0
        self._need = 0  # bytes that must be there before the next attempt to split

    def receive(self, data: bytes) -> tuple[list[Message], list[Frame]]:
        """The messages, then the other frames, that end in this chunk; FrameError."""
        if self._kept_bytes:
            self._kept.append(data)
            self._kept_bytes += len(data)
            if self._kept_bytes < self._need:
                return [], []
            data = b"".join(self._kept)
            self._kept.clear()
            self._kept_bytes = 0
        messages: list[Message] = []
        frames: list[Frame] = []
        used = self._split(data, messages, frames)
        if used < len(data):
            self._kept.append(data[used:])
            self._kept_bytes = len(data) - used
        return messages, frames

    def _split(self, data: bytes, messages: list[Message], frames: list[Frame]) -> int:
        """Take complete frames; return where the first incomplete one begins."""
        unpack_message = _MESSAGE.unpack_from
        append = messages.append
        bytes_max = self._frame_bytes_max
        pos = 0
        end = len(data)
        while True:
            while data.startswith(OK, pos):  # as when many publishes are answered at once
                frames.append(_OK)
                pos += len(OK)
            while end - pos >= MESSAGE_OVERHEAD_BYTES:
                size, kind, timestamp_ns, attempts, message_id = unpack_message(data, pos)
                after = pos + 4 + size
                if kind != MESSAGE or after > end or size < _MESSAGE_SIZE_MIN:
                    break
                append((timestamp_ns, attempts, message_id, data[pos + 34 : after]))
                pos = after
            if end - pos < _HEAD.size:
                self._need = _HEAD.size
                return pos
            size, kind = _HEAD.unpack_from(data, pos)
            _check(size, kind, bytes_max)
            after = pos + 4 + size
            if after > end:
                self._need = 4 + size
                return pos
            frames.append((kind, data[pos + 8 : after]))
            pos = after


def _check(size: int, kind: int, bytes_max: int) -> None:
    if kind > MESSAGE:
        raise FrameError(f"a frame of unknown type {kind}")
    if size < (_MESSAGE_SIZE_MIN if kind == MESSAGE else 4):
        raise FrameError(f"a frame of type {kind} and only {size} bytes")
    if size > bytes_max:
        raise FrameError(f"a frame of {size} bytes, over the limit of {bytes_max}")
