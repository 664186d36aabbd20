"""Who a connection is opened for in a test: keeps what it says, and sends it to and fro."""

import asyncio

from pumpline.client.connection.connection import NsqdConnection
from pumpline.client.errors import ServerError
from pumpline.client.settings import Settings
from pumpline.core.protocol import commands
from pumpline.core.protocol.incoming import Message

CHANNEL = "ch"


class Owner:
    """Keeps what a connection says."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.errors: list[ServerError] = []
        self.reasons: list[Exception | None] = []
        self.closed = asyncio.Event()
        self._news = asyncio.Event()

    async def open(self, address: str, settings: Settings | None = None) -> NsqdConnection:
        return await NsqdConnection.open(
            address,
            settings or Settings(),
            on_messages=self._on_messages,
            on_error=self._on_error,
            on_close=self._on_close,
        )

    def _on_messages(self, connection: NsqdConnection, batch: list[Message]) -> None:
        self.messages += batch
        self._news.set()

    def _on_error(self, connection: NsqdConnection, error: ServerError) -> None:
        self.errors.append(error)
        self._news.set()

    def _on_close(self, connection: NsqdConnection, reason: Exception | None) -> None:
        self.reasons.append(reason)
        self.closed.set()

    async def received(self, count: int) -> list[Message]:
        async with asyncio.timeout(60):
            while len(self.messages) < count:
                self._news.clear()
                await self._news.wait()
        return self.messages

    async def complained(self) -> list[ServerError]:
        async with asyncio.timeout(60):
            while not self.errors:
                self._news.clear()
                await self._news.wait()
        return self.errors


async def publish_and_consume(connection: NsqdConnection, owner: Owner, topic: str) -> None:
    """A round trip through all that is between us and nsqd."""
    bodies = [b"%d:" % number + b"x" * 3000 * (number % 3) for number in range(50)]
    assert await connection.request(commands.sub(topic, CHANNEL)) == b"OK"
    assert await connection.request(commands.mpub(topic, bodies)) == b"OK"
    connection.write(commands.rdy(100))
    messages = await owner.received(len(bodies))
    assert [body for _, _, _, body in messages] == bodies
    connection.write(*(commands.fin(each[2]) for each in messages))
    assert await connection.request(commands.CLS) == b"CLOSE_WAIT"
    assert owner.errors == []
