"""An HTTP server of ours in the test's own loop, and connections to it.

Knows sockets and `HttpServer`, not what is served.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from pumpline.web.server import HttpServer

PATIENCE_S = 60.0
READ_BYTES_MAX = 64 * 1024

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Talk = Callable[[bytes], Awaitable[Streams]]
"""Connects, and sends this."""


@asynccontextmanager
async def serving(
    server: HttpServer, *, read_bytes_max: int = READ_BYTES_MAX
) -> AsyncIterator[Talk]:
    """Listens, for PATIENCE_S at most; in the end nobody is connected any more."""
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    writers: list[asyncio.StreamWriter] = []

    async def talk(data: bytes) -> Streams:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=read_bytes_max)
        writers.append(writer)
        writer.write(data)
        return reader, writer

    try:
        async with asyncio.timeout(PATIENCE_S):
            yield talk
    finally:
        listener.close()
        await server.close()
        for writer in writers:
            writer.transport.abort()
