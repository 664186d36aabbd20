"""An nsqd that follows a script: for what a real one never does, and for doing it at one moment."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable

from pumpline.core.protocol.frames import RESPONSE, encode_frame


class Client:
    """Whoever has connected, past IDENTIFY."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def greet(self, granted: dict[str, object]) -> None:
        assert await self._reader.readexactly(4) == b"  V2"
        await self.command()
        self.send(encode_frame(RESPONSE, json.dumps(granted).encode()))

    async def command(self) -> bytes:
        """The next one's line; what it publishes, or identifies itself with, is skipped."""
        line = (await self._reader.readuntil(b"\n"))[:-1]
        if line.split(b" ")[0] in (b"IDENTIFY", b"PUB", b"MPUB", b"DPUB"):
            await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(4)))
        return line

    def send(self, *frames: bytes) -> None:
        self._writer.write(b"".join(frames))

    async def gone(self) -> None:
        """Until it has left."""
        while await self._reader.read(1 << 16):
            pass


Script = Callable[[Client], Awaitable[None]]


@contextlib.asynccontextmanager
async def scripted(script: Script, granted: dict[str, object] | None = None) -> AsyncIterator[str]:
    """The address of one that greets every client, and does as the script says."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Client(reader, writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await client.greet(granted or {})
            await script(client)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
