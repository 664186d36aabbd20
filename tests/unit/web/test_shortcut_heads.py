"""Which heads are plain; and whatever is taken for plain is answered alike the long way."""

import random
import re

import pytest

from pumpline.web import shortcut
from tests.kit.web.short_site import (
    BODY_BYTES_MAX,
    LAST,
    LONG_ROUTES,
    asked,
    forget,
    kept,
    read_reply,
    serving,
)


@pytest.fixture(autouse=True)
def forgetful() -> None:
    forget()


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
    some = {mutated(seed, line, always) for seed in range(2500)}
    plain = sorted(filter(is_plain, some))
    assert len(plain) > 60
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
    assert asked.count(way) > 40


def is_plain(request: bytes) -> bool:
    """Whether its headers are; its first line may be anything."""
    head, end, rest = request.partition(b"\r\n\r\n")
    headers = head.partition(b"\r\n")[2]
    return bool(end) and not rest and shortcut.told_bytes(headers) is not None
