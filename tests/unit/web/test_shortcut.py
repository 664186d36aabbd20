"""Plain requests are answered as the others are, and lead to the others when need be."""

import asyncio
import gc
import re
import socket
import struct
from contextlib import suppress

import pytest

from pumpline.web import shortcut
from pumpline.web.server import HttpServer
from pumpline.web.time_limits import Patience
from tests.kit.serving import serving as served
from tests.kit.web.short_site import (
    BODY_BYTES_MAX,
    LARGE_BYTES,
    ROUTES,
    Promise,
    asked,
    forget,
    get,
    kept,
    post,
    promises,
    read_reply,
    serving,
    until,
)

SHORT_S = 0.05


@pytest.fixture(autouse=True)
def forgetful() -> None:
    forget()


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
