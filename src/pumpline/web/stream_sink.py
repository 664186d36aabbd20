"""The way of a stream to its client: what is left of a reply after its head.

Touches the transport of a connection, which decides itself when it is full.
"""

import asyncio
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pumpline.web.connection import HttpConnection

DRAIN_S_MAX = 0.05  # between looks at whether a socket has taken all

_LAST_CHUNK = b"0\r\n\r\n"


class StreamSink:
    """Sends the body of a reply piece by piece; the head was sent before."""

    def __init__(
        self, connection: "HttpConnection", transport: asyncio.Transport, *, in_chunks: bool
    ) -> None:
        self.heartbeat_s = connection.patience.heartbeat_s  # without output, before a sign of life
        self._connection = connection
        self._transport = transport
        self._in_chunks = in_chunks

    def put(self, data: bytes) -> None:
        """Send it without waiting; ConnectionError when the client is gone."""
        self.check()
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._in_chunks else data)

    async def room(self, within_s: float | None = None) -> bool:
        """Wait until the client has taken most of what was sent. False if it has not within that
        time; ConnectionError when it is gone."""
        try:
            async with asyncio.timeout(within_s):
                await self._connection.room()
        except TimeoutError:
            return False
        self.check()
        return True

    async def write(self, data: bytes) -> None:
        """`put`, then wait for `room`."""
        self.put(data)
        await self.room()

    async def drain(self) -> None:
        """Wait until all that was written is in the socket."""
        delay_s = 0.0
        while self._transport.get_write_buffer_size():
            await asyncio.sleep(delay_s)
            self.check()
            delay_s = min(delay_s + 0.001, DRAIN_S_MAX)

    def socket_fd(self) -> int | None:
        """To send past the connection, after `drain`; None if that cannot be, as with TLS."""
        connection = self._transport.get_extra_info("socket")
        is_tls = self._transport.get_extra_info("sslcontext") is not None
        return None if connection is None or is_tls else connection.fileno()

    def check(self) -> None:
        """ConnectionError if the client is gone."""
        if self._transport.is_closing():
            raise ConnectionResetError("client is gone")

    def expect(self, length_bytes: int) -> None:
        """From now on the client has its time to take that many bytes."""
        self._connection.expect_taken(length_bytes)

    def rest(self) -> None:
        """Nothing is sent for a while."""
        self._connection.expect_taken(self._transport.get_write_buffer_size() or inf)

    def end(self) -> None:
        """All was written."""
        if self._in_chunks:
            self._transport.write(_LAST_CHUNK)
