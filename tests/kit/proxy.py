"""A TCP proxy on loopback that breaks connections in the ways networks do.

| call          | what the client sees                                                            |
|---------------|---------------------------------------------------------------------------------|
| `cut()`       | a reset, in the middle of whatever was going on                                 |
| `stall()`     | nothing: bytes stay where they are, in one direction or both, until `resume()`  |
| `half_open()` | nothing, ever: the server's side is gone, and the client is not told            |
| `refuse()`    | new connections are reset, until `accept()`                                     |
| `make_rough()`| small pieces, each a little late: connections overtake each other               |

Runs in the loop of the test. Knows nothing of what is said.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Self

CHUNK_BYTES = 1 << 16
ROUGH_DELAY_S = 0.003  # the longest for one piece
UP, DOWN = "up", "down"  # to the server, to the client
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Proxy:
    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.accepted = 0  # connections, ever
        self.bytes_up = 0  # forwarded
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._refusing = False
        self._dice: random.Random | None = None  # of a rough network
        self._open = {UP: asyncio.Event(), DOWN: asyncio.Event()}
        self._changed = asyncio.Condition()
        self.resume()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """Those that are up now."""
        return len(self._links)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        self.resume()
        await self.until(lambda: not self._links)

    def cut(self) -> None:
        for link in list(self._links):
            link.cut()

    def stall(self, direction: str | None = None) -> None:
        for each in (UP, DOWN) if direction is None else (direction,):
            self._open[each].clear()

    def resume(self) -> None:
        for event in self._open.values():
            event.set()

    def half_open(self) -> None:
        for link in list(self._links):
            link.lose_server()

    def refuse(self) -> None:
        self._refusing = True

    def accept(self) -> None:
        self._refusing = False

    def make_rough(self, dice: random.Random) -> None:
        self._dice = dice

    def heal(self) -> None:
        """Back to a network that does nothing but forward."""
        self.resume()
        self.accept()
        self._dice = None

    async def connected(self, count: int) -> None:
        """Wait until so many connections are up."""
        await self.until(lambda: len(self._links) == count)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it is true; looked at whenever a connection comes, goes or forwards."""
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(condition)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            _reset(writer)
            return
        try:
            server = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            _reset(writer)
            return
        link = _Link((reader, writer), server)
        self.accepted += 1
        self._links.add(link)
        await self._tell()
        try:
            await link.run(self._forward)
        finally:
            self._links.discard(link)
            await self._tell()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str
    ) -> None:
        while data := await reader.read(CHUNK_BYTES):
            for piece in self._pieces(data):
                await self._open[direction].wait()
                writer.write(piece)
                await writer.drain()
                if self._dice is not None:
                    await asyncio.sleep(self._dice.random() * ROUGH_DELAY_S)
            if direction == UP:
                self.bytes_up += len(data)
            await self._tell()

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        if self._dice is None:
            yield data
            return
        while data:
            size = self._dice.choice([1, 3, 50, 500, CHUNK_BYTES])
            yield data[:size]
            data = data[size:]

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    def __init__(self, client: _Stream, server: _Stream) -> None:
        self._client = client
        self._server = server
        self._tasks: list[asyncio.Task[None]] = []
        self._lost = False
        self._cut = asyncio.Event()

    async def run(self, forward: Callable[..., object]) -> None:
        up = asyncio.ensure_future(forward(self._client[0], self._server[1], UP))  # type: ignore[arg-type]
        down = asyncio.ensure_future(forward(self._server[0], self._client[1], DOWN))  # type: ignore[arg-type]
        cut = asyncio.ensure_future(self._cut.wait())
        self._tasks = [up, down]
        await asyncio.wait([up, down, cut], return_when=asyncio.FIRST_COMPLETED)
        if self._lost:
            await self._cut.wait()
        for task in (up, down, cut):
            task.cancel()
        await asyncio.gather(up, down, cut, return_exceptions=True)
        for _, writer in (self._client, self._server):
            if self._cut.is_set():
                _reset(writer)
            else:
                writer.close()

    def cut(self) -> None:
        self._cut.set()

    def lose_server(self) -> None:
        self._lost = True
        for task in self._tasks:
            task.cancel()
        _reset(self._server[1])


def _reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    if raw is not None:
        with suppress(OSError, ValueError):  # uvloop: its descriptor is -1 once it is closed
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
