"""Large bodies arrive whole in rooms that are lent, and take the long way where there is none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pumpline.web import body_buffer
from pumpline.web.body_buffer import Rooms
from pumpline.web.replies import OK, Reply
from pumpline.web.routes import Routes
from pumpline.web.server import Endpoint, HttpServer, Request
from pumpline.web.shortcut import Shortcut, TakeLarge
from pumpline.web.time_limits import Patience
from tests.kit.serving import Talk
from tests.kit.serving import serving as served

SHORT_S = 0.05
BODY_BYTES_MAX = 8 << 20
LARGE = bytes(range(256)) * 8192  # 2 MiB, which no socket takes in one piece

came: list[tuple[str, bytes]] = []  # which way, and what


class Soon:
    """An answer that is there after the turn of the loop."""

    def __init__(self) -> None:
        self.done = False

    def wait(self, connection: Shortcut) -> None:
        asyncio.get_running_loop().call_soon(self._settle, connection)

    def reply(self) -> Reply:
        return OK

    def _settle(self, connection: Shortcut) -> None:
        self.done = True
        connection.flush()


class Held(Soon):
    """One that is there when the test says so."""

    def wait(self, connection: Shortcut) -> None:
        self.connection = connection

    def release(self) -> None:
        self._settle(self.connection)


held: list[Held] = []


def hold(body: bytes) -> Held:
    held.append(Held())
    return held[-1]


def choose(raw_query: str, body_bytes: int) -> TakeLarge | None:
    if raw_query == "held":
        return TakeLarge(hold, refuse)
    return TakeLarge(take, refuse if raw_query == "refused" else take_room)


def take(body: bytes) -> Soon:
    came.append(("whole", body))
    return Soon()


def take_room(room: bytearray, size_bytes: int) -> Soon:
    came.append(("room", bytes(room[:size_bytes])))
    return Soon()


def refuse(room: bytearray, size_bytes: int) -> None:
    return None


async def handle(request: Request) -> Reply:
    came.append(("long way", bytes(await request.body(BODY_BYTES_MAX, too_big="TOO_BIG"))))
    return OK


@pytest.fixture(autouse=True)
def forget() -> None:
    came.clear()
    held.clear()


@asynccontextmanager
async def serving(patience: Patience | None = None) -> AsyncIterator[Talk]:
    routes = Routes({("POST", "/put"): Endpoint(handle, short=choose)})
    async with served(HttpServer(routes, patience=patience)) as talk:
        yield talk


def post(body: bytes, query: str = "") -> bytes:
    head = f"POST /put?{query} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def replies(reader: asyncio.StreamReader, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Content-Length: 2\r\n" in head
        found.append(head.split(b" ")[1] + b" " + await reader.readexactly(2))
    return found


async def test_a_large_body_arrives_whole() -> None:
    async with serving() as talk:
        reader, _ = await talk(post(LARGE))
        assert await replies(reader, 1) == [b"200 OK"]
    assert came == [("room", LARGE)]


@pytest.mark.parametrize("cut", [0, 1, -1, 1000])
async def test_a_body_may_come_after_its_head(cut: int) -> None:
    whole = post(LARGE)
    at = len(whole) - len(LARGE) + (cut if cut >= 0 else len(LARGE) + cut)
    async with serving() as talk:
        reader, writer = await talk(whole[:at])
        await writer.drain()
        await asyncio.sleep(SHORT_S)  # so that it comes apart; if it does not, all the better
        writer.write(whole[at:])
        assert await replies(reader, 1) == [b"200 OK"]
    assert came == [("room", LARGE)]


async def test_requests_behind_a_large_body_are_answered_in_order() -> None:
    bodies = [b"first", LARGE, b"small", LARGE[::-1], b"last"]
    async with serving() as talk:
        reader, _ = await talk(b"".join(map(post, bodies)))
        assert await replies(reader, 5) == [b"200 OK"] * 5
    assert [body for _, body in came] == bodies
    assert "long way" not in dict(came)


async def test_what_is_refused_takes_the_long_way_as_it_was() -> None:
    async with serving() as talk:
        reader, _ = await talk(post(LARGE, "refused") + post(b"next"))
        assert await replies(reader, 2) == [b"200 OK"] * 2
    assert came == [("long way", LARGE), ("long way", b"next")]


async def test_a_body_without_room_takes_the_long_way() -> None:
    body = bytes(body_buffer.ROOM_BYTES_MAX + 1)
    async with serving() as talk:
        reader, _ = await talk(post(body))
        assert await replies(reader, 1) == [b"200 OK"]
    assert came == [("long way", body)]


async def test_rooms_are_given_back_by_clients_that_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_buffer, "LENT_BYTES_MAX", len(LARGE))  # one at a time
    async with serving() as talk:
        for _ in range(5):
            reader, writer = await talk(post(LARGE)[:-1])
            await writer.drain()
            writer.write_eof()
            assert await reader.read() == b""
        reader, _ = await talk(post(LARGE))
        assert await replies(reader, 1) == [b"200 OK"]
    assert came == [("room", LARGE)]


async def test_who_closes_in_the_middle_gets_the_answers_to_what_was_whole() -> None:
    async with serving() as talk:
        reader, writer = await talk(post(b"whole", "held") + post(LARGE)[:-1])
        await writer.drain()
        writer.write_eof()
        while not held:
            await asyncio.sleep(0)
        connection = held[0].connection
        while not connection._ending and not connection.transport.is_closing():
            await asyncio.sleep(0)
        held[0].release()
        assert await replies(reader, 1) == [b"200 OK"]
        assert await reader.read() == b""
    assert not came


async def test_a_client_that_stops_in_the_middle_is_disconnected() -> None:
    async with serving(Patience(keepalive_s=SHORT_S)) as talk:
        reader, _ = await talk(post(LARGE)[:-1])
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)
    assert not came


async def test_closing_the_server_ends_a_body_on_its_way() -> None:
    async with serving() as talk:
        reader, writer = await talk(post(LARGE)[:-1])
        await writer.drain()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await reader.readexactly(1)
    assert not came


def test_rooms_are_lent_again_and_never_beyond_their_limits() -> None:
    rooms = Rooms()
    first = rooms.lend(1_000_000)
    assert first is not None and len(first) >= 1_000_000
    rooms.give_back(first)
    assert rooms.lend(900_000) is first
    assert rooms.lend(body_buffer.ROOM_BYTES_MAX + 1) is None
    lent = [first]
    while (room := rooms.lend(1_000_000)) is not None:
        lent.append(room)
    assert len({id(room) for room in lent}) == body_buffer.LENT_BYTES_MAX // len(first)
    for room in lent:
        rooms.give_back(room)
    again = rooms.lend(1_000_000)
    assert any(again is room for room in lent)


def test_rooms_that_nobody_uses_are_forgotten() -> None:
    rooms = Rooms()
    first = rooms.lend(1000)
    assert first is not None
    rooms.give_back(first)
    rooms.forget()
    assert rooms.lend(1000) is not first
