"""Replies that clients do not take: together they are bounded, and those who have waited longest
are dropped first."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from pumpline.web import exchange
from pumpline.web.endpoint import Endpoint
from pumpline.web.replies import Reply
from pumpline.web.request import Request
from pumpline.web.routes import Routes
from pumpline.web.server import HttpServer
from pumpline.web.unsent import UnsentReplies
from tests.kit.serving import Streams, Talk, serving

REPLY_BYTES = 20_000_000  # no socket buffer takes that
BOUND_BYTES = 3 * REPLY_BYTES
GET = b"GET /large HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


class LargeReplies:
    connect: Talk

    def __init__(self) -> None:
        self.server = HttpServer(Routes({("GET", "/large"): Endpoint(self.large)}))

    def large(self, request: Request) -> Reply:
        return Reply(body=bytes(REPLY_BYTES))

    async def ask(self) -> Streams:
        """Returns when the reply has begun to come."""
        reader, writer = await self.connect(GET)
        assert (await reader.readexactly(15)) == b"HTTP/1.1 200 OK"
        return reader, writer


@pytest.fixture
async def large(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LargeReplies]:
    monkeypatch.setattr(exchange, "UnsentReplies", lambda: UnsentReplies(BOUND_BYTES))
    replies = LargeReplies()
    async with serving(replies.server) as replies.connect:
        yield replies


async def received_bytes(reader: asyncio.StreamReader) -> int:
    total = 0
    try:
        while data := await reader.read(1 << 20):
            total += len(data)
    except ConnectionResetError:
        pass
    return total


async def test_those_who_have_waited_longest_are_dropped(
    large: LargeReplies, caplog: pytest.LogCaptureFixture
) -> None:
    clients = [await large.ask() for _ in range(8)]
    received = [await received_bytes(reader) for reader, _ in clients]
    assert [count > REPLY_BYTES for count in received] == [False] * 5 + [True] * 3
    assert large.server.dropped_count == 5
    assert caplog.text.count("bytes unread, and all clients more than") == 5


async def test_clients_that_read_are_not_dropped(large: LargeReplies) -> None:
    for _ in range(8):
        reader, _ = await large.ask()
        assert await received_bytes(reader) > REPLY_BYTES
    assert large.server.dropped_count == 0


async def test_clients_that_went_away_do_not_count(large: LargeReplies) -> None:
    for _ in range(8):
        _, writer = await large.ask()
        writer.transport.abort()
        while large.server.connection_count:
            await asyncio.sleep(0)
    assert large.server.dropped_count == 0


def test_one_reply_may_be_larger_than_the_bound() -> None:
    class Client:
        address = "a"
        aborted = 0

        def abort(self) -> None:
            self.aborted += 1

    unsent = UnsentReplies(100)
    first, second = Client(), Client()
    unsent.note(first, 1000)
    assert (first.aborted, unsent.dropped_count) == (0, 0)
    unsent.note(second, 1)
    assert (first.aborted, second.aborted, unsent.dropped_count) == (1, 0, 1)
