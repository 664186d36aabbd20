"""Input that the kernel received and nobody has read when a connection is lost.

When a write to a connection fails, the event loop gives up the transport without reading from it
again. What the peer had sent before is still in our receive buffer: Linux keeps it after a reset,
and the file descriptor is open until `connection_lost` returns.

| reader | what may be in the buffer                                                              |
|--------|----------------------------------------------------------------------------------------|
| nsqd   | commands of a client that closed with unread messages in its own receive buffer, which |
|        | resets the connection                                                                  |
| client | the error with which nsqd refused a publish before it closed the connection            |
"""

import asyncio
import os
from contextlib import suppress

UNREAD_BYTES_MAX = 64 << 20  # receive buffers are smaller: Linux has 6 MiB (tcp_rmem)
_PIECE_BYTES = 256 * 1024


def read_unread(transport: asyncio.BaseTransport) -> memoryview:
    """Call it within `connection_lost`, of a connection to which nothing more can come."""
    unread = bytearray()
    socket = transport.get_extra_info("socket")
    if socket is not None:
        fd = socket.fileno()
        with suppress(OSError):  # the reset itself comes after the last byte
            while len(unread) < UNREAD_BYTES_MAX and (piece := os.read(fd, _PIECE_BYTES)):
                unread += piece
    return memoryview(unread)
