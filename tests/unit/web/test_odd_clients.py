"""Clients as somebody would write them who knows RFC 9112 and nothing of this server.

Each is served by both event loops, in one piece and byte by byte.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from tests.kit.serving import Talk, serving
from tests.kit.web.site import BODY_BYTES_MAX, TestSite, chunked, get, post, read_reply

CLOSE = "Connection: close"
LAST = get("last", CLOSE)
LAST_BODY = b'{"word":"last"}'


class Client:
    def __init__(self, site: TestSite, talk: Talk) -> None:
        self.site = site
        self.talk = talk

    async def send(
        self, data: bytes, *, size: int = 1 << 30, end: bool = False
    ) -> asyncio.StreamReader:
        """In pieces of `size` bytes; `end` closes that side afterwards."""
        reader, writer = await self.talk(b"")
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(data), size):
            writer.write(data[at : at + size])
            await asyncio.sleep(0)
        if end:
            writer.write_eof()
        return reader

    async def answers(
        self, data: bytes, *, size: int = 1 << 30, end: bool = False
    ) -> list[tuple[int, bytes]]:
        """Statuses and bodies of all replies, until the server closes."""
        reader = await self.send(data, size=size, end=end)
        found = []
        while not reader.at_eof():
            try:
                status, _, body = await read_reply(reader)
            except asyncio.IncompleteReadError as error:
                assert error.partial == b""
                break
            if status != 100:
                found.append((status, body))
        return found


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    site = TestSite()
    site.go.set()
    async with serving(site.server, read_bytes_max=1 << 25) as talk:
        yield Client(site, talk)


OK = (200, b"OK")
END = (200, LAST_BODY)
NO_ROUTE = (404, b'{"message":"NOT_FOUND"}')

ROWS = {
    "mixed pipeline": (
        get("a")
        + post(b"1")
        + get("", target="/slow")
        + post(b"2" * 70_000, target="/task")
        + LAST,
        [(200, b'{"word":"a"}'), OK, (200, b"slow"), (200, b"70000"), END],
    ),
    "chunked with extensions and trailers": (
        chunked(b"abc", b"\r\n\r\n", b"x" * 1000, trailer=b"T: v\r\nU: w\r\n") + LAST,
        [OK, END],
    ),
    "chunked to a task": (chunked(b"abc", target="/task") + LAST, [(200, b"3"), END]),
    "chunked, empty": (chunked() + LAST, [OK, END]),
    "chunked, nobody wants it": (chunked(b"abc", target="/nowhere") + LAST, [NO_ROUTE, END]),
    "close in mid pipeline": (get("last", CLOSE) + post(b"lost") + get("b"), [END]),
    "HTTP/1.0": (get("last").replace(b"1.1", b"1.0") + get("b"), [END]),
    "HTTP/1.0 keep-alive": (
        get("a", "Connection: keep-alive").replace(b"1.1", b"1.0") + LAST,
        [(200, b'{"word":"a"}'), END],
    ),
    "upgrade to h2c, declined": (
        get("a", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMA")
        + post(b"x", "Connection: Upgrade", "Upgrade: websocket")
        + LAST,
        [(200, b'{"word":"a"}'), OK, END],
    ),
    "whole URL as target": (
        get("a", target="http://other:80/find?word={}") + LAST,
        [(200, b'{"word":"a"}'), END],
    ),
    "OPTIONS *": (b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n" + LAST, [(200, b""), END]),
    "empty lines before requests": (
        b"\r\n" + get("a") + b"\r\n\r\n" + LAST,
        [(200, b'{"word":"a"}'), END],
    ),
    "lengths said twice": (post(b"abc", "Content-Length: 3") + LAST, [OK, END]),
    "body of a GET": (
        get("a", "Content-Length: 3") + b"abc" + LAST,
        [(200, b'{"word":"a"}'), END],
    ),
    "Expect, body at once": (post(b"abc", "Expect: 100-continue", CLOSE), [OK]),
    "many headers": (
        get("a", *(f"X-{number}: {number}" for number in range(2000))) + LAST,
        [(200, b'{"word":"a"}'), END],
    ),
    "escaped path": (get("a", target="/f%69nd?word={}") + LAST, [(200, b'{"word":"a"}'), END]),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("size", [1, 1 << 30], ids=["bytewise", "whole"])
@pytest.mark.parametrize("end", [False, True], ids=["", "half-closed"])
async def test_odd_clients_are_answered(client: Client, name: str, size: int, end: bool) -> None:
    data, expected = ROWS[name]
    if len(expected) == 1:
        size = len(data)  # a client that goes on to send would be told so by a reset
    size = max(size, len(data) // 5000)
    assert await client.answers(data, size=size, end=end) == expected


async def test_half_closing_at_any_byte_answers_what_was_whole(client: Client) -> None:
    row = [get("a"), post(b"12345"), chunked(b"abc"), get("", target="/slow")]
    whole = b"".join(row)
    ends = [sum(map(len, row[: count + 1])) for count in range(len(row))]
    for at in range(len(whole) + 1):
        answers = await client.answers(whole[:at], end=True)
        assert len(answers) == sum(end <= at for end in ends), whole[:at]
        assert all(status == 200 for status, _ in answers)
    while client.site.server.connection_count:
        await asyncio.sleep(0)


async def test_head_has_the_length_and_no_body(client: Client) -> None:
    reader = await client.send(b"HEAD /find?word=a HTTP/1.1\r\nHost: h\r\n\r\n" + LAST)
    assert b" 405 " in (head := await reader.readuntil(b"\r\n\r\n"))
    assert b"Content-Length: 32\r\n" in head
    assert (await read_reply(reader))[2] == LAST_BODY


async def test_http_1_0_is_answered_in_its_version(client: Client) -> None:
    keep = get("a", "Connection: keep-alive").replace(b"1.1", b"1.0")
    reader = await client.send(keep + get("b").replace(b"1.1", b"1.0"))
    first = await reader.readuntil(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.0 200 OK\r\n") and b"Connection: keep-alive\r\n" in first
    assert b"HTTP/1.0 200 OK\r\n" in await reader.read()


async def test_a_client_that_waits_to_go_on_is_told_to_after_the_replies_before(
    client: Client,
) -> None:
    promise = client.site.hold()
    head = post(b"abc", "Expect: 100-continue")[:-3]
    reader, writer = await client.talk(post(b"1") + head)
    await client.site.until(1)
    waiting = asyncio.create_task(reader.readexactly(1))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    client.site.promise = None
    promise.keep()
    await waiting
    assert (await read_reply(reader))[2] == b"OK"
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"abc")
    assert (await read_reply(reader))[2] == b"OK"
    assert client.site.kept == [b"1", b"abc"]


@pytest.mark.parametrize(
    "headers",
    [("Expect: 100-continue", "Content-Length: 10"), ("Expect: something", "Content-Length: 10")],
)
async def test_a_client_that_waits_to_go_on_and_is_refused_is_not_told_to(
    client: Client, headers: tuple[str, ...]
) -> None:
    target = "/checked" if "100" in headers[0] else "/put"
    lines = "\r\n".join((f"POST {target} HTTP/1.1", "Host: h", *headers, "", ""))
    reader = await client.send(lines.encode())
    status, found, _ = await read_reply(reader)
    assert status in (400, 417)
    assert found["Connection"] == "close"
    assert await reader.read() == b""


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (get("a", "X: " + "x" * 65_000), 200),
        (get("a", "X: " + "x" * 66_000), 431),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000, 431),
        (b"GET /" + b"x" * 70_000, 431),
        (post(b"x", "Content-Length: 2"), 400),
        (post(b"x").replace(b"Content-Length: 1", b"Transfer-Encoding: gzip"), 501),
        (chunked(b"x").replace(b"1.1", b"1.0"), 400),
        (get("a").replace(b"1.1", b"0.9"), 505),
        (get("a").replace(b"1.1", b"2.0"), 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (get("a").replace(b"\r\n", b"\n"), 400),
        (get("a", "X: y", " folded: z"), 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
)
@pytest.mark.parametrize("before", [b"", post(b"before")])
async def test_what_is_no_request_ends_the_connection_with_a_word(
    client: Client, data: bytes, status: int, before: bytes
) -> None:
    reader = await client.send(before + data + get("never answered"))
    if before:
        assert (await read_reply(reader))[2] == b"OK"
    found, headers, body = await read_reply(reader)
    assert found == status
    if status != 200:
        assert headers["Connection"] == "close"
        assert body.startswith(b"%d " % status)
        assert await reader.read() == b""


@pytest.mark.parametrize("target", ["/put", "/task"])
async def test_a_reset_in_mid_body_harms_nobody(client: Client, target: str) -> None:
    _, writer = await client.talk(post(bytes(BODY_BYTES_MAX), target=target)[:100_000])
    await writer.drain()
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    assert await client.answers(post(b"x") + LAST) == [OK, END]
    while client.site.server.connection_count:
        await asyncio.sleep(0)
    assert client.site.kept == [b"x"]


async def test_a_slow_reader_gets_all_of_it(client: Client) -> None:
    reader, writer = await client.talk(get("large") + get("a") * 3000 + LAST)
    writer.transport.pause_reading()
    await asyncio.sleep(0.05)
    writer.transport.resume_reading()
    assert len((await read_reply(reader))[2]) > 1_000_000
    for _ in range(3000):
        assert (await read_reply(reader))[2] == b'{"word":"a"}'
    assert (await read_reply(reader))[2] == LAST_BODY


async def test_a_client_that_waits_to_go_on_and_sends_no_chunks_may_send_more(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ("POST /put HTTP/1.1", "Host: h", "Expect: 100-continue", "Transfer-Encoding: chunked")
    reader, writer = await client.talk("\r\n".join((*lines, "", "no chunk\r\n")).encode())
    assert (await read_reply(reader))[0] == 500
    assert await reader.read() == b""  # the server has closed its side,
    writer.write(b"and more")  # and reads this over
    await writer.drain()
    other = await client.send(get("a"))
    await read_reply(other)
    assert "Fatal error" not in caplog.text
