"""Clients that close their side and wait for the answer get it, and no connection is left over."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from pumpline.web.endpoint import BodyLimit, Endpoint
from pumpline.web.replies import OK, Reply
from pumpline.web.request import Request
from pumpline.web.routes import Routes
from pumpline.web.server import HttpServer
from tests.kit.serving import Talk, serving

GET = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"


class Site:
    """A server with an endpoint that answers when told to."""

    talk: Talk

    def __init__(self) -> None:
        self.asked = asyncio.Semaphore(0)
        self.go = asyncio.Event()
        self.finished = 0
        routes = {
            ("GET", "/slow"): Endpoint(self.slow),
            ("POST", "/echo"): Endpoint(self.echo, body=BodyLimit(1000, "TOO_BIG")),
        }
        self.server = HttpServer(Routes(routes))

    async def slow(self, request: Request) -> Reply:
        self.asked.release()
        await self.go.wait()
        self.finished += 1
        return OK

    def echo(self, request: Request) -> Reply:
        return Reply(body=request.body)

    @property
    def connections(self) -> int:
        return self.server.connection_count


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    async with serving(made.server) as made.talk:
        yield made


async def send_and_close(site: Site, *pieces: bytes) -> asyncio.StreamReader:
    """Sends the pieces, one by one, and closes that side."""
    reader, writer = await site.talk(b"")
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0)
    writer.write_eof()
    return reader


async def answers(reader: asyncio.StreamReader) -> list[bytes]:
    """The bodies of all answers, once the connection is closed."""
    data = await reader.read()
    return [part.partition(b"\r\n\r\n")[2] for part in data.split(b"HTTP/1.1 ")[1:]]


async def until_gone(site: Site) -> None:
    while site.connections:
        await asyncio.sleep(0.001)


async def test_answer_comes_though_the_client_has_closed_its_side(site: Site) -> None:
    reader = await send_and_close(site, GET)
    await site.asked.acquire()
    await asyncio.sleep(0.05)  # for the end to be seen while the request is under way
    site.go.set()
    assert await answers(reader) == [b"OK"]
    await until_gone(site)


async def test_all_pipelined_requests_are_answered(site: Site) -> None:
    site.go.set()
    reader = await send_and_close(site, GET + POST + b"12345" + GET, GET)
    assert await answers(reader) == [b"OK", b"12345", b"OK", b"OK"]
    await until_gone(site)


@pytest.mark.parametrize(
    "pieces",
    [(b"",), (b"GET /sl",), (POST,), (POST, b"123")],
    ids=["nothing", "head", "no body", "half a body"],
)
async def test_request_that_will_never_be_complete_is_dropped(
    site: Site, pieces: tuple[bytes, ...]
) -> None:
    reader = await send_and_close(site, *pieces)
    assert [body for body in await answers(reader) if body == b"OK"] == []
    await until_gone(site)


async def test_idle_connection_is_closed_at_once(site: Site) -> None:
    site.go.set()
    reader = await send_and_close(site, POST + b"12345")
    assert await answers(reader) == [b"12345"]
    await until_gone(site)


async def test_a_client_that_is_gone_does_not_end_what_it_began(site: Site) -> None:
    """What it asked for may change something, and is not left half done."""
    _, writer = await site.talk(GET)
    await site.asked.acquire()
    client = writer.get_extra_info("socket")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()  # with a reset
    await until_gone(site)
    assert not site.finished
    site.go.set()
    while not site.finished:
        await asyncio.sleep(0)
