"""An unfinished PUB with a large body: what is left of it is received where it will stay.

The socket fills the buffer behind what has come so far, so that no byte is copied again. There is
room for a message frame's head before the body, so that the log can write the frame from here, too.
"""

from pumpline.core.messages.frame import MESSAGE_OVERHEAD_BYTES
from pumpline.core.messages.kernels import unfilled

COMMAND_AT = MESSAGE_OVERHEAD_BYTES  # where the command begins: its body is at that or later
BODY_BYTES_MIN = 64 * 1024  # to copy what is smaller costs less than a buffer of its own
BODY_BYTES_MAX = 16 << 20  # a larger buffer grows with what comes: a size is only a promise


def is_large(size_bytes: int) -> bool:
    """Whether a command of that size gets a buffer of its own."""
    return BODY_BYTES_MIN <= size_bytes <= BODY_BYTES_MAX


class BodyBuffer:
    __slots__ = ("_filled", "_view", "buf")

    def __init__(self, begun: memoryview, size_bytes: int) -> None:
        """`begun` is what came of a command of that size."""
        self.buf = unfilled(COMMAND_AT + size_bytes)
        self._view = memoryview(self.buf)
        self._filled = COMMAND_AT + len(begun)
        self._view[COMMAND_AT : self._filled] = begun

    @property
    def rest(self) -> memoryview:
        """Where to receive what is left."""
        return self._view[self._filled :]

    def received(self, count: int) -> bool:
        """`count` bytes came; returns whether the command is whole."""
        self._filled += count
        return self._filled == len(self.buf)

    def so_far(self) -> bytearray:
        """What came of the command."""
        return self.buf[COMMAND_AT : self._filled]
