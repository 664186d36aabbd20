"""Requests answered at once are answered as the others are, and lead to the others when need be."""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from pumpline.web import shortcut
from pumpline.web.http import Endpoint, HttpError, HttpServer, Reply, Request, json_reply
from pumpline.web.query import parse_query
from pumpline.web.routes import Routes

PATIENCE_S = 10.0
SHORT_S = 0.05
LARGE_BYTES = 20_000_000  # no socket buffer takes that

Talk = Callable[[bytes], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]

asked: list[str] = []  # which way the answers came


def find(raw_query: str) -> bytes:
    asked.append("at once")
    return answer(raw_query)


def answer(raw_query: str) -> bytes:
    word = parse_query(raw_query).get("word", "")
    if not word:
        raise HttpError(404, "NO_WORD")
    return msgspec.json.encode({"word": "x" * LARGE_BYTES if word == "large" else word})


async def handle(request: Request) -> Reply:
    asked.append("long way")
    request.query()
    return json_reply(msgspec.Raw(answer(request.raw_query)))


ROUTES = Routes(
    {("GET", "/find"): Endpoint(handle, instant=find), ("POST", "/find"): Endpoint(handle)}
)
LONG_ROUTES = Routes({("GET", "/find"): Endpoint(handle), ("POST", "/find"): Endpoint(handle)})


@pytest.fixture(autouse=True)
def forget() -> None:
    asked.clear()


@asynccontextmanager
async def serving(routes: Routes[Endpoint] = ROUTES) -> AsyncIterator[Talk]:
    server = HttpServer(routes)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    writers: list[asyncio.StreamWriter] = []

    async def talk(data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LARGE_BYTES)
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


def get(word: str, *headers: str, target: str = "/find?word={}") -> bytes:
    lines = [f"GET {target.format(word)} HTTP/1.1", "Host: h", *headers]
    return "\r\n".join((*lines, "", "")).encode()


async def read_reply(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, *lines = head.strip().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    body = await reader.readexactly(int(headers["Content-Length"]))
    return int(status.split()[1]), headers, body


async def test_both_ways_answer_alike() -> None:
    async with serving() as talk:
        reader, _ = await talk(get("a"))
        at_once = await read_reply(reader)
        reader, _ = await talk(get("a", "X-Other: 1"))
        long_way = await read_reply(reader)
    assert asked == ["at once", "long way"]
    assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", at_once[1].pop("Date"))
    assert long_way[1].pop("Date")
    assert at_once == long_way


@pytest.mark.parametrize(
    "header",
    [
        "user-agent: Go-http-client/1.1",
        "Accept: application/vnd.nsq; version=1.0",
        "Accept-Encoding: gzip",
        "Authorization: Bearer secret",
        "Connection: keep-alive",
        "Connection: Keep-Alive",
    ],
)
async def test_headers_that_change_nothing(header: str) -> None:
    async with serving() as talk:
        reader, _ = await talk(get("a", header))
        assert (await read_reply(reader))[2] == b'{"word":"a"}'
    assert asked == ["at once"]


@pytest.mark.parametrize(
    "request_bytes",
    [
        get("a", "Connection: close"),
        get("a", "Expect: 100-continue"),
        get("a", "Content-Length: 0"),
        get("a", "Upgrade: h2c"),
        get("a", "Accept: \tx"),
        get("a").replace(b"Host: h\r\n", b"Host:\r\n"),
        get("a").replace(b"HTTP/1.1", b"HTTP/1.0"),
        get("a").replace(b"GET", b"POST"),
        get("a", target="http://h/find?word={}"),
        get("a", target="/f%69nd?word={}"),
    ],
)
async def test_anything_unusual_takes_the_long_way(request_bytes: bytes) -> None:
    async with serving() as talk:
        reader, _ = await talk(request_bytes)
        assert (await read_reply(reader))[2] == b'{"word":"a"}'
    assert asked == ["long way"]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [("?word=", 404, b"NO_WORD"), ("", 404, b"NO_WORD"), ("?word=%zz", 400, b"INVALID_REQUEST")],
)
async def test_errors_are_said_by_the_long_way(query: str, status: int, code: bytes) -> None:
    async with serving() as talk:
        reader, _ = await talk(get("", target=f"/find{query}"))
        found, _, body = await read_reply(reader)
    assert (found, body) == (status, b'{"message":"%b"}' % code)
    assert asked == ["at once", "long way"]


@pytest.mark.parametrize("filling", [" ", "x", "Host: h\r\n", "Accept", ": "])
async def test_what_is_not_plain_is_found_out_in_one_pass(filling: str) -> None:
    """Were it looked at again from every byte, this would not end."""
    async with serving() as talk:
        _, writer = await talk(f"GET /find HTTP/1.1\r\nHost: {filling * 60_000}\0".encode())
        await writer.drain()
        reader, _ = await talk(get("a"))
        assert (await read_reply(reader))[0] == 200


async def test_requests_in_a_row_are_answered_in_order_and_the_long_way_is_for_good() -> None:
    async with serving() as talk:
        rows = [get("a"), get("b"), get("c", "X-Other: 1"), get("d")]
        reader, writer = await talk(b"".join(rows))
        bodies = [(await read_reply(reader))[2] for _ in rows]
        assert bodies == [b'{"word":"%c"}' % letter for letter in b"abcd"]
        assert asked == ["at once", "at once", "long way", "long way"]
        writer.write(get("e"))
        assert (await read_reply(reader))[2] == b'{"word":"e"}'
        assert asked[4:] == ["long way"]


@pytest.mark.parametrize("size", [1, 7, 30])
async def test_requests_in_pieces(size: int) -> None:
    async with serving() as talk:
        reader, writer = await talk(b"")
        row = get("a") + get("b")
        for at in range(0, len(row), size):
            writer.write(row[at : at + size])
            await writer.drain()
            await asyncio.sleep(0)
        assert [(await read_reply(reader))[2] for _ in range(2)] == [
            b'{"word":"a"}',
            b'{"word":"b"}',
        ]


async def test_no_more_than_the_limit_are_answered_in_one_go() -> None:
    async with serving() as talk:
        count = shortcut.REQUESTS_MAX + 5
        reader, _ = await talk(get("a") * count)
        for _ in range(count):
            assert (await read_reply(reader))[0] == 200
    assert asked.count("at once") == shortcut.REQUESTS_MAX


async def test_a_client_that_does_not_read_gets_no_second_answer() -> None:
    async with serving() as talk:
        reader, _ = await talk(get("large") * 10)
        for count in range(1, 4):
            assert len((await read_reply(reader))[2]) > LARGE_BYTES
            assert len(asked) <= count + 2  # one is made ahead, and one waits to be sent
        assert asked[:2] == ["at once", "long way"]


async def test_a_client_that_takes_nothing_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shortcut, "IDLE_S", SHORT_S)
    async with serving() as talk:
        _, writer = await talk(get("large"))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        while not asked:
            await asyncio.sleep(0)
        with pytest.raises(ConnectionError):
            while True:
                writer.write(get("a"))
                await writer.drain()
                await asyncio.sleep(SHORT_S)


async def test_an_idle_client_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcut, "IDLE_S", SHORT_S)
    async with serving() as talk:
        reader, _ = await talk(get("a"))
        await read_reply(reader)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)


async def test_closing_the_server_closes_them() -> None:
    async with serving() as talk:
        reader, _ = await talk(get("a"))
        await read_reply(reader)
    assert await reader.read() == b""


async def test_a_client_that_has_said_all_gets_its_answer() -> None:
    async with serving() as talk:
        reader, writer = await talk(get("a"))
        writer.write_eof()
        assert (await read_reply(reader))[2] == b'{"word":"a"}'


def mutated(seed: int) -> bytes:
    """A request as a client might send it, with a few bytes of it changed."""
    draw = random.Random(seed)
    headers = [b"Host: h", b"Accept: a/b", b"User-Agent: x", b"connection: keep-alive", b"Accept:"]
    lines = [
        b"GET /find?word=a%20b&word=%7e+c HTTP/1.1",
        *draw.choices(headers, k=draw.randint(1, 4)),
    ]
    request = bytearray(b"\r\n".join((*lines, b"", b"")))
    for _ in range(draw.randint(0, 3)):
        at = draw.randrange(len(request) - 4)
        request[at : at + draw.randint(0, 1)] = draw.choice(
            [
                b"",
                b" ",
                b"%",
                b"&",
                b";",
                b"=",
                b"\t",
                b"?",
                b"/",
                b"#",
                b"a",
                b"\xff",
                b"\r\n",
                b":",
            ]
        )
    return bytes(request)


async def test_whatever_is_taken_for_plain_is_answered_by_the_long_way_alike() -> None:
    plain = {each for seed in range(6000) if (each := mutated(seed)) and is_plain(each)}
    assert len(plain) > 300
    async with serving() as talk, serving(LONG_ROUTES) as talk_long:
        for request in sorted(plain):
            both = []
            for connect in (talk, talk_long):
                reader, _ = await connect(request + get("last", "Connection: close"))
                both.append(re.sub(rb"\r\nDate: [^\r]*", b"", await reader.read()))
            assert both[0] == both[1], request
    assert asked.count("at once") > 100


def is_plain(request: bytes) -> bool:
    head, end, rest = request.partition(b"\r\n\r\n")
    return bool(end and not rest) and shortcut.are_harmless(head.partition(b"\r\n")[2])
