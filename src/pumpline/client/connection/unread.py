"""Answers that the kernel has received and nobody has read when a connection is lost.

nsqd answers a refused publish with an error, and closes the connection. If more is written to it
then, the write fails, and the event loop gives up the transport without reading from it again. The
error is still in our receive buffer: Linux keeps it after a reset, and the file descriptor is open
until `connection_lost` returns.
"""

import asyncio
import os
from contextlib import suppress

UNREAD_BYTES_MAX = 1 << 20  # answers are short
_PIECE_BYTES = 64 * 1024


def read_unread(transport: asyncio.BaseTransport) -> bytes:
    """Call it within `connection_lost`."""
    pieces: list[bytes] = []
    socket = transport.get_extra_info("socket")
    if socket is not None:
        with suppress(OSError):  # the reset itself comes after the last byte
            for _ in range(UNREAD_BYTES_MAX // _PIECE_BYTES):
                pieces.append(os.read(socket.fileno(), _PIECE_BYTES))
                if not pieces[-1]:
                    break
    return b"".join(pieces)
