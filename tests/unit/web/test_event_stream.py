"""Events as a reply, over real sockets: at once, with signs of life, and not to nobody."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from pumpline.web.endpoint import Endpoint
from pumpline.web.event_stream import SIGN_OF_LIFE, EventStream
from pumpline.web.replies import OK, Reply, stream_reply
from pumpline.web.request import Request
from pumpline.web.routes import Routes
from pumpline.web.server import HttpServer
from pumpline.web.time_limits import Patience
from tests.kit.serving import Talk, serving

GET = b"GET /events HTTP/1.0\r\nHost: x\r\n\r\n"
SLOW = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"
LONG_S = 1000.0  # no test waits for that
SHORT_S = 0.02
BEGINNING = b"retry: 1000\n\n"
LARGE = bytes(1 << 20)


class Source:
    """Events as a test gives them, to one client."""

    talk: Talk

    def __init__(self, patience: Patience) -> None:
        routes = {("GET", "/events"): Endpoint(self.get), ("GET", "/slow"): Endpoint(self.slow)}
        self.server = HttpServer(Routes(routes), patience=patience)
        self.asked, self.go = asyncio.Event(), asyncio.Event()  # of a request to /slow
        self.stream: EventStream
        self.closed = asyncio.Event()
        self.asked_count = 0
        self._pieces: list[bytes] = []
        self._ended = False

    async def get(self, request: Request) -> Reply:
        self.stream = EventStream(self._events(), on_close=lambda _: self.closed.set())
        return stream_reply(self.stream, {})

    async def slow(self, request: Request) -> Reply:
        self.asked.set()
        await self.go.wait()
        return OK

    def give(self, *pieces: bytes) -> None:
        self._pieces += pieces
        self.stream.wake()

    def end(self) -> None:
        self._ended = True
        self.stream.wake()

    async def _events(self) -> AsyncIterator[bytes]:
        while not self._ended:
            self.asked_count += 1
            yield self._pieces.pop(0) if self._pieces else b""

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self.talk(GET)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.0 200 OK")
        assert await reader.readexactly(len(BEGINNING)) == BEGINNING
        return reader, writer


@pytest.fixture
async def source() -> AsyncIterator[Source]:
    made = Source(Patience(heartbeat_s=LONG_S, stop_s=SHORT_S))
    async with serving(made.server) as made.talk:
        yield made
    assert made.closed.is_set()


@pytest.fixture
async def hasty() -> AsyncIterator[Source]:
    made = Source(
        Patience(heartbeat_s=SHORT_S, send_s=SHORT_S, sweep_s=SHORT_S, body_bytes_per_s=1e12)
    )
    async with serving(made.server) as made.talk:
        yield made
    assert made.closed.is_set()


async def test_news_are_sent_when_they_are_announced(source: Source) -> None:
    reader, _ = await source.connect()
    for piece in (b"data: 1\n\n", b"data: 2\n\n"):
        source.give(piece)
        assert await reader.readexactly(len(piece)) == piece
    source.end()
    assert await reader.read() == b""


async def test_nobody_looks_for_news_that_were_not_announced(source: Source) -> None:
    reader, _ = await source.connect()
    source.give(b"1")
    await reader.readexactly(1)
    asked_count = source.asked_count
    for _ in range(100):
        await asyncio.sleep(0)
    assert source.asked_count - asked_count <= 1  # to learn that there are no more


async def test_news_announced_while_others_are_sent_are_not_missed(source: Source) -> None:
    reader, _ = await source.connect()
    source.give(b"1", b"2", b"3")
    source.give(b"4")
    assert await reader.readexactly(4) == b"1234"


async def test_signs_of_life_while_there_is_nothing(hasty: Source) -> None:
    reader, _ = await hasty.connect()
    assert await reader.readexactly(2 * len(SIGN_OF_LIFE)) == 2 * SIGN_OF_LIFE
    hasty.end()


async def test_a_client_that_reads_is_not_dropped_however_long_there_is_nothing(
    hasty: Source,
) -> None:
    """Each sign of life is given its time, which is shorter than all of them take together."""
    reader, _ = await hasty.connect()
    signs = 10 * SIGN_OF_LIFE
    assert await reader.readexactly(len(signs)) == signs
    assert hasty.server.dropped_count == 0
    hasty.end()


async def test_a_client_that_does_not_read_is_dropped(hasty: Source) -> None:
    _, writer = await hasty.connect()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    hasty.give(*[LARGE] * 50)
    await hasty.closed.wait()
    assert hasty.server.dropped_count == 1


async def test_a_client_that_leaves_is_noticed_at_once(source: Source) -> None:
    for leave in ("write_eof", "close"):
        source.closed.clear()
        _, writer = await source.connect()
        getattr(writer, leave)()
        await source.closed.wait()
    assert source.server.dropped_count == 0


async def test_a_client_that_has_left_before_it_is_served_is_noticed_at_once(
    source: Source,
) -> None:
    """It closes its side while a request before is under way; it is answered, and that is all."""
    reader, writer = await source.talk(SLOW + GET)
    await source.asked.wait()
    writer.write_eof()
    await asyncio.sleep(SHORT_S)  # for the end to be seen
    source.go.set()
    assert (await reader.read()).endswith(b"\r\n\r\nOK")
    await source.closed.wait()
