"""Plain requests are answered as the others are, and lead to the others when need be."""

import asyncio
import gc
import random
import re
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest
from serving import Talk
from serving import serving as served

from pumpline.web import shortcut
from pumpline.web.http import Endpoint, HttpServer, Request
from pumpline.web.patience import Patience
from pumpline.web.query import parse_query
from pumpline.web.replies import OK, HttpError, Reply, json_reply
from pumpline.web.routes import Routes
from pumpline.web.shortcut import Shortcut, Take

SHORT_S = 0.05
LARGE_BYTES = 20_000_000  # no socket buffer takes that
BODY_BYTES_MAX = 1000
LAST = b"GET /find?word=last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"

asked: list[str] = []  # which way the answers came
kept: list[bytes] = []  # bodies that were put


class Promise:
    """An answer that comes when the test says so."""

    def __init__(self) -> None:
        self.done = False
        self.error = ""
        self._waiting: list[Shortcut] = []

    def wait(self, connection: Shortcut) -> None:
        assert not self.done
        self._waiting.append(connection)

    def reply(self) -> Reply:
        if self.error:
            raise HttpError(503, self.error)
        return OK

    def settle(self, error: str = "") -> None:
        self.done, self.error = True, error
        for connection in self._waiting:
            connection.flush()


promises: list[Promise] = []  # to those who put something, the last one for those to come


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


def short_put(raw_query: str, body_bytes: int) -> Take | None:
    return put if not raw_query and 0 < body_bytes <= BODY_BYTES_MAX else None


def put(body: bytes) -> Promise:
    asked.append("later")
    kept.append(body)
    if not promises:
        promises.append(Promise())
        asyncio.get_running_loop().call_soon(promises[0].settle)
        return promises.pop()
    return promises[-1]


async def handle_put(request: Request) -> Reply:
    asked.append("long way")
    body = bytes(await request.body(BODY_BYTES_MAX, too_big="TOO_BIG"))
    if not body:
        raise HttpError(400, "EMPTY")
    kept.append(body)
    return OK


ROUTES = Routes(
    {
        ("GET", "/find"): Endpoint(handle, instant=find),
        ("POST", "/find"): Endpoint(handle),
        ("POST", "/put"): Endpoint(handle_put, short=short_put),
    }
)
LONG_ROUTES = Routes(
    {
        ("GET", "/find"): Endpoint(handle),
        ("POST", "/find"): Endpoint(handle),
        ("POST", "/put"): Endpoint(handle_put),
    }
)


@pytest.fixture(autouse=True)
def forget() -> None:
    for memory in (asked, kept, promises):
        memory.clear()


@asynccontextmanager
async def serving(
    routes: Routes[Endpoint] = ROUTES, patience: Patience | None = None
) -> AsyncIterator[Talk]:
    server = HttpServer(routes, patience=patience)
    async with served(server, read_bytes_max=LARGE_BYTES) as talk:
        yield talk


def get(word: str, *headers: str, target: str = "/find?word={}") -> bytes:
    lines = [f"GET {target.format(word)} HTTP/1.1", "Host: h", *headers]
    return "\r\n".join((*lines, "", "")).encode()


def post(body: bytes, *headers: str, target: str = "/put") -> bytes:
    lines = [f"POST {target} HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join((*lines, "", "")).encode() + body


async def until(count: int) -> None:
    """So many requests were seen."""
    while len(asked) < count:
        await asyncio.sleep(0)


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
        reader, _ = await talk(get("a", "TE: trailers"))
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
        rows = [get("a"), get("b"), get("c", "TE: trailers"), get("d")]
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
        count = shortcut.DUE_MAX + 5
        reader, _ = await talk(get("a") * count)
        for _ in range(count):
            assert (await read_reply(reader))[0] == 200
    assert asked.count("at once") == shortcut.DUE_MAX


async def test_a_client_that_does_not_read_gets_no_second_answer() -> None:
    async with serving() as talk:
        reader, _ = await talk(get("large") * 10)
        for count in range(1, 4):
            assert len((await read_reply(reader))[2]) > LARGE_BYTES
            assert len(asked) <= count + 2  # one is made ahead, and one waits to be sent
        assert asked[:2] == ["at once", "long way"]


async def test_a_client_that_takes_nothing_is_disconnected() -> None:
    async with serving(patience=Patience(keepalive_s=SHORT_S)) as talk:
        _, writer = await talk(get("large"))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(1)
        with pytest.raises(ConnectionError):
            while True:
                writer.write(get("a"))
                await writer.drain()
                await asyncio.sleep(SHORT_S)


async def test_an_idle_client_is_disconnected() -> None:
    async with serving(patience=Patience(keepalive_s=SHORT_S)) as talk:
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


async def test_answers_that_come_later_keep_their_order() -> None:
    promises.append(Promise())
    async with serving() as talk:
        reader, _ = await talk(post(b"1") + get("a") + post(b"2") + get("b"))
        await until(4)
        first, *_ = promises
        promises.append(Promise())
        first.settle()
        replies = [(await read_reply(reader))[2] for _ in range(4)]
    assert replies == [b"OK", b'{"word":"a"}', b"OK", b'{"word":"b"}']
    assert asked == ["later", "at once", "later", "at once"]
    assert kept == [b"1", b"2"]


async def test_nothing_is_sent_before_its_time() -> None:
    promises.append(Promise())
    async with serving() as talk:
        reader, _ = await talk(post(b"1") * 3 + get("a"))
        await until(4)
        receiving = asyncio.ensure_future(reader.read(1))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not receiving.done()
        promises[0].settle()
        assert await receiving == b"H"


async def test_a_failure_is_told_to_all_it_concerns_as_the_long_way_would() -> None:
    promises.append(Promise())
    async with serving() as talk:
        reader, _ = await talk(post(b"1") * 2)
        await until(2)
        promises[0].settle("FULL")
        for _ in range(2):
            status, headers, body = await read_reply(reader)
            assert (status, body) == (503, b'{"message":"FULL"}')
            assert headers["Content-Type"] == "application/json; charset=utf-8"


async def test_replies_are_counted_by_status() -> None:
    promises.append(Promise())
    server = HttpServer(ROUTES)
    async with served(server) as talk:
        reader, _ = await talk(post(b"1") * 2 + get("a"))
        await until(3)
        promises[0].settle("FULL")
        for _ in range(3):
            await read_reply(reader)
    assert server.replies == {503: 2, 200: 1}


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (post(b"x", "Expect: nothing"), 417),
        (post(b""), 400),
        (post(b"x" * (BODY_BYTES_MAX + 1)), 413),
        (post(b"x", target="/put?a=b"), 200),
        (post(b"x", target="/other"), 404),
        (post(b"x").replace(b"Host", b"H\0st"), 400),
    ],
)
async def test_the_long_way_waits_until_what_came_before_is_answered(
    request_bytes: bytes, status: int
) -> None:
    promises.append(Promise())
    async with serving() as talk:
        reader, _ = await talk(post(b"1") + request_bytes)
        await until(1)
        promises[0].settle()
        assert (await read_reply(reader))[0] == 200
        assert b" %d " % status in await reader.readline()
    assert asked[0] == "later"
    assert "later" not in asked[1:]


async def test_no_more_than_the_limit_are_waited_for() -> None:
    async with serving() as talk:
        unanswered = []
        _, writer = await talk(b"")
        for number in range(shortcut.DUE_MAX + 5):
            unanswered.append(Promise())
            promises[:] = unanswered[-1:]
            writer.write(post(b"x"))
            if number < shortcut.DUE_MAX:
                await until(number + 1)
        reader, _ = await talk(get("a"))
        await read_reply(reader)  # whoever could be served was
        assert asked.count("later") == shortcut.DUE_MAX
        for promise in unanswered[: shortcut.DUE_MAX]:
            promise.settle()
        await until(shortcut.DUE_MAX + 1 + 5)
    assert asked.count("long way") == 5


@pytest.mark.parametrize("rest", [b"", post(b"2", "TE: trailers"), post(b"2")[:-1]])
async def test_a_client_that_has_said_all_gets_what_is_due(rest: bytes) -> None:
    """And the connection ends, though it may have begun to say more."""
    promises.append(Promise())
    async with serving() as talk:
        reader, writer = await talk(post(b"1") + rest)
        writer.write_eof()
        await until(1)
        for _ in range(5):
            await asyncio.sleep(0)
        promises[0].settle()
        answers = await reader.read()
    expected = 2 if rest.endswith(b"2") else 1
    assert answers.count(b"HTTP/1.1 200 OK") == expected


async def test_a_client_that_leaves_is_not_waited_for() -> None:
    promises.append(Promise())
    server = HttpServer(ROUTES)
    async with served(server) as talk:
        _, writer = await talk(post(b"1"))
        await until(1)
        writer.transport.abort()
        reader, _ = await talk(get("a"))
        await read_reply(reader)
        promises[0].settle()
        reader, _ = await talk(get("a"))
        assert (await read_reply(reader))[0] == 200


async def test_a_client_found_gone_when_it_is_answered_does_not_take_the_long_way() -> None:
    failures: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    promises.append(Promise())
    async with serving() as talk:
        _, writer = await talk(post(b"1") + post(b"2", "TE: trailers"))
        await until(1)
        client = writer.get_extra_info("socket")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()  # with a reset, which the server does not see: it reads no more
        await writer.wait_closed()
        promises[0].settle()
        reader, _ = await talk(get("a"))
        await read_reply(reader)
    gc.collect()  # of tasks whose failure nobody has seen
    assert failures == []
    assert kept == [b"1"]


async def test_a_stopping_server_sends_what_is_due() -> None:
    promises.append(Promise())
    async with serving() as talk:
        reader, _ = await talk(post(b"1") + post(b"2", "TE: trailers"))
        await until(1)
        asyncio.get_running_loop().call_later(SHORT_S, promises[0].settle)
    assert (await reader.read()).endswith(b"OK")
    assert kept == [b"1"]


async def test_a_stopping_server_does_not_wait_for_ever() -> None:
    promises.append(Promise())
    async with serving(patience=Patience(stop_s=SHORT_S)) as talk:
        reader, _ = await talk(post(b"1"))
        await until(1)
    with suppress(ConnectionError):
        assert await reader.read() == b""


@pytest.mark.parametrize(
    "head",
    [
        b"POST /put HTTP/1.0\r\nHost: h\r\nContent-Length: 1",
        b"POST /put HTTP/1.1\r\nContent-Length: 1",
        b"POST /put HTTP/1.1\r\nHost: h",
        b"POST /put HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1",
        b"POST /put HTTP/1.1\r\nHost: h\r\nContent-Length: +1",
        b"POST /put HTTP/1.1\r\nHost: h\r\nContent-Length: 1_0",
        b"POST /put HTTP/1.1\r\nHost: h\r\nContent-Length: 1, 1",
        b"POST /put HTTP/1.1\r\nHost: h\r\nContent-Length:",
        b"POST /put HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999",
        b"POST /put HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
        b"POST /put HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nExpect: 100-continue",
        b"POST /put HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Encoding: gzip",
        b"POST /put HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nConnection: close",
        b"POST /put HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nUpgrade: h2c",
        b"POST /put HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n folded: x",
        b"POST /put HTTP/1.1\r\nHost: h\r\nContent-Length : 1",
        b"POST /put HTTP/1.1\r\nHost: h\r\nX: a\nContent-Length: 1",
        b"POST /put HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nX-A: \x00",
        b"PUT /put HTTP/1.1\r\nHost: h\r\nContent-Length: 1",
        b"POST  /put HTTP/1.1\r\nHost: h\r\nContent-Length: 1",
        b"POST /put\xc3\xa4 HTTP/1.1\r\nHost: h\r\nContent-Length: 1",
        b"GET /find HTTP/1.1\r\nHost: h\r\nContent-Length: 0",
        b"GET /find HTTP/1.1",
        b"",
    ],
)
async def test_a_head_that_is_not_plain_takes_the_long_way(head: bytes) -> None:
    async with serving() as talk:
        reader, writer = await talk(head + b"\r\n\r\nx")
        writer.write_eof()
        await reader.read()
    assert set(asked) <= {"long way"}


async def test_a_plain_head_in_many_spellings() -> None:
    head = (
        b"POST /put HTTP/1.1\r\nhost: 127.0.0.1:4151\r\nuser-agent: curl/8\r\naccept: */*\r\n"
        b"X-Request-Id: 7\r\ntraceparent: 00-1-2-01\r\nCONTENT-LENGTH:  1\r\n"
        b"content-type: text/plain\r\nconnection: Keep-Alive\r\n\r\n"
    )
    async with serving() as talk:
        reader, _ = await talk(head + b"x")
        assert (await read_reply(reader))[2] == b"OK"
    assert asked == ["later"]


def mutated(seed: int, line: bytes, always: tuple[bytes, ...]) -> bytes:
    """A request as a client might send it, with a few bytes of its head changed."""
    draw = random.Random(seed)
    headers = [b"Accept: a/b", b"User-Agent: x", b"connection: keep-alive", b"X-Some:", b"Host: h"]
    lines = [line, b"Host: h", *always, *draw.sample(headers, k=draw.randint(0, 3))]
    request = bytearray(b"\r\n".join((*lines, b"", b"")))
    pieces = (b"", b" ", b"%", b"&", b";", b"=", b"\t", b"?", b"/", b"#", b"a", b"0", b"9", b"+")
    for _ in range(draw.randint(0, 3)):
        at = draw.randrange(4, len(request) - 4)
        piece = draw.choice((*pieces, b"\xff", b"\r\n", b":"))
        request[at : at + draw.randint(0, 1)] = piece
    return bytes(request)


@pytest.mark.parametrize(
    ("line", "always", "way"),
    [
        (b"GET /find?word=a%20b&word=%7e+c HTTP/1.1", (), "at once"),
        (b"POST /put HTTP/1.1", (b"Content-Length: 12",), "later"),
    ],
)
async def test_whatever_is_taken_for_plain_is_answered_by_the_long_way_alike(
    line: bytes, always: tuple[bytes, ...], way: str
) -> None:
    some = {mutated(seed, line, always) for seed in range(6000)}
    plain = sorted(filter(is_plain, some))
    assert len(plain) > 150
    async with serving() as talk, serving(LONG_ROUTES) as talk_long:
        for head in plain:
            both = []
            length = re.search(rb"Content-Length: *(\d+)", head)
            body = b"x" * min(int(length[1]), 2 * BODY_BYTES_MAX) if length else b""
            for connect in (talk, talk_long):
                kept.clear()
                reader, writer = await connect(head + body + LAST)
                writer.write_eof()  # there may be less of a body than the head says
                answers = re.sub(rb"\r\nDate: [^\r]*", b"", await reader.read())
                both.append((answers, list(kept)))
            assert both[0] == both[1], head
    assert asked.count(way) > 100


def is_plain(request: bytes) -> bool:
    """Whether its headers are; its first line may be anything."""
    head, end, rest = request.partition(b"\r\n\r\n")
    headers = head.partition(b"\r\n")[2]
    return bool(end) and not rest and shortcut.told_bytes(headers) is not None
