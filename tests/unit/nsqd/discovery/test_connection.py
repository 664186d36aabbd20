"""How long nsqd waits for an nsqlookupd, over a real socket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from pumpline.nsqd.discovery import connection
from pumpline.nsqd.discovery.connection import Link
from pumpline.nsqd.discovery.session import Identity, Session
from tests.kit.v1_recording import OK, identity

NSQD = Identity(
    broadcast_address="127.0.0.1", hostname="host", http_port=4151, tcp_port=4150, version="1.3.0"
)
INTRODUCTION = identity(tcp_port=4160, http_port=4161, hostname="host")
NEVER_S = 3600.0
PATIENCE_S = 60.0

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def linked(serve: Serve, *, ping_s: float = NEVER_S) -> AsyncIterator[Link]:
    """A link to an nsqlookupd that does as `serve` says."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()

    loop = asyncio.get_running_loop()
    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        link = Link(
            f"127.0.0.1:{port}",
            NSQD,
            lambda: Session((), {}.get, reply_bytes_max=1000),
            ping_s=ping_s,
            identified=lambda: None,
        )
        async with asyncio.timeout(PATIENCE_S):
            await loop.create_connection(lambda: link, "127.0.0.1", port)
            yield link
            link.close()


async def read_identify(reader: asyncio.StreamReader) -> None:
    await reader.readuntil(b"IDENTIFY\n")
    await reader.readexactly(int.from_bytes(await reader.readexactly(4)))


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(4096):
        pass


async def introduce_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_identify(reader)
    writer.write(INTRODUCTION)
    await say_nothing(reader, writer)


@pytest.fixture
def reply_s(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(connection, "REPLY_S", 0.3)
    return connection.REPLY_S


async def test_one_that_never_introduces_itself_is_given_up(reply_s: float) -> None:
    async with linked(say_nothing) as link:
        assert await link.ended == "no answer for 0.3 s"


async def test_one_that_answers_no_more_is_given_up(reply_s: float) -> None:
    async with linked(introduce_only, ping_s=reply_s / 5) as link:
        assert await link.ended == "no answer for 0.3 s"
        assert link.about is not None


async def test_one_that_has_nothing_to_answer_is_not(reply_s: float) -> None:
    async with linked(introduce_only) as link:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(link.ended), 1.5 * reply_s)
        assert link.about is not None


async def test_one_that_answers_every_ping_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REPLY_S", 5.0)
    pings = asyncio.Semaphore(0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_identify(reader)
        writer.write(INTRODUCTION)
        while await reader.readuntil(b"\n") == b"PING\n":
            writer.write(OK)
            pings.release()

    async with linked(answer, ping_s=0.01) as link:
        for _ in range(20):
            await pings.acquire()
        assert not link.ended.done()
