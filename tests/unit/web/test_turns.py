"""Clients that send much at once: they are served in turns, and nobody else waits for all of it."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from pumpline.web.connection import LARGE_READ_BYTES, TURN_NS
from pumpline.web.endpoint import BodyLimit, Endpoint
from pumpline.web.replies import OK, Reply
from pumpline.web.request import Request
from pumpline.web.routes import Routes
from pumpline.web.server import HttpServer
from tests.kit.serving import Talk, serving
from tests.kit.web.site import read_reply

SLOW_REQUESTS = 20
GET = b"GET /slow HTTP/1.1\r\n\r\n"
CHUNKED = b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY_BYTES = 30_000


class Turns:
    """A server, and how many requests were answered in one turn of the event loop."""

    talk: Talk

    def __init__(self) -> None:
        self.most = self._count = 0
        routes = {
            ("GET", "/slow"): Endpoint(self.slow),
            ("POST", "/echo"): Endpoint(self.echo, body=BodyLimit(BODY_BYTES, "TOO_BIG")),
        }
        self.server = HttpServer(Routes(routes))

    def slow(self, request: Request) -> Reply:
        """Keeps the event loop for half a turn."""
        if not self._count:
            asyncio.get_running_loop().call_soon(self._on_turn)
        self._count += 1
        self.most = max(self.most, self._count)
        time.sleep(TURN_NS / 2e9)
        return OK

    def echo(self, request: Request) -> Reply:
        return Reply(body=request.body)

    def _on_turn(self) -> None:
        self._count = 0


@pytest.fixture
async def turns() -> AsyncIterator[Turns]:
    made = Turns()
    async with serving(made.server) as made.talk:
        yield made


async def test_requests_sent_at_once_are_answered_in_turns(turns: Turns) -> None:
    reader, _ = await turns.talk(GET * SLOW_REQUESTS)
    for _ in range(SLOW_REQUESTS):
        assert (await read_reply(reader))[0] == 200
    assert turns.most <= 4


async def test_requests_sent_at_once_by_a_client_that_closes_its_side_are_all_answered(
    turns: Turns,
) -> None:
    reader, writer = await turns.talk(GET * SLOW_REQUESTS)
    writer.write_eof()
    assert (await reader.read()).count(b"200 OK") == SLOW_REQUESTS


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("byte", [b"x", b"\r\n\r\n"])
async def test_a_body_in_tiny_chunks_arrives_whole(turns: Turns, closes: bool, byte: bytes) -> None:
    count = BODY_BYTES // len(byte)
    chunk = b"%x\r\n%b\r\n" % (len(byte), byte)
    reader, writer = await turns.talk(CHUNKED + chunk * count + b"0\r\n\r\n" + GET)
    if closes:
        writer.write_eof()
    status, _, body = await read_reply(reader)
    assert (status, body) == (200, byte * count)
    assert (await read_reply(reader))[0] == 200


@pytest.mark.parametrize("closes", [True, False])
async def test_tiny_chunks_without_an_end_are_no_request(turns: Turns, closes: bool) -> None:
    reader, writer = await turns.talk(CHUNKED + b"1\r\nx\r\n" * (BODY_BYTES - 1))
    if closes:
        writer.write_eof()
    else:
        writer.write(b"x\r\n")
    reply = await reader.read()
    assert reply == b"" if closes else reply.startswith(b"HTTP/1.1 500 ")


async def test_after_a_large_read_the_others_get_their_turn(turns: Turns) -> None:
    """Each head is a turn's work, and more of them are in the socket than are read at once."""
    head = b"GET /slow HTTP/1.1\r\nX: %b\r\n\r\n" % (b"x" * LARGE_READ_BYTES)
    reader, _ = await turns.talk(head * SLOW_REQUESTS)
    for _ in range(SLOW_REQUESTS):
        assert (await read_reply(reader))[0] == 200
    assert turns.most <= 4
