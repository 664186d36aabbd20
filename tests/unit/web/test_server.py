"""The HTTP server on its own, over real sockets: clients that are slow, and handlers that fail."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pumpline.web.connection import HttpConnection
from pumpline.web.endpoint import BodyLimit, Endpoint
from pumpline.web.replies import OK, HttpError, Reply
from pumpline.web.request import Request
from pumpline.web.routes import Routes
from pumpline.web.server import HttpServer
from pumpline.web.time_limits import Patience
from tests.kit.serving import PATIENCE_S, serving

SHORT_S = 0.05
BEGUN_S = 0.5  # in which a request is begun, also on a busy machine
SOME_BYTES = 30_000  # less than a transport keeps before it has others wait
LARGE_BYTES = 50_000_000  # no socket buffer takes that


def ping(request: Request) -> Reply:
    return OK


def echo(request: Request) -> Reply:
    return Reply(body=request.body)


def large(request: Request) -> Reply:
    return Reply(body=bytes(LARGE_BYTES))


async def some(request: Request) -> Reply:
    return Reply(body=bytes(SOME_BYTES))


async def broken(request: Request) -> Reply:
    raise RuntimeError("so it goes")


async def refused(request: Request) -> Reply:
    raise HttpError(418, "TEAPOT")


LIMIT = BodyLimit(1000, "TOO_BIG")

ROUTES = Routes(
    {
        ("GET", "/ping"): Endpoint(ping),
        ("POST", "/echo"): Endpoint(echo, body=LIMIT),
        ("GET", "/large"): Endpoint(large),
        ("GET", "/some"): Endpoint(some),
        ("GET", "/broken"): Endpoint(broken),
        ("GET", "/refused"): Endpoint(refused),
    }
)


def server(**patience: float) -> HttpServer:
    return HttpServer(ROUTES, patience=Patience(**patience))


@asynccontextmanager
async def log_line(text: str) -> AsyncIterator[asyncio.Event]:
    """An event that is set when a line with `text` is logged."""
    logged = asyncio.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text in record.getMessage():
                logged.set()

    listener = Listener()
    logger = logging.getLogger("pumpline.web")
    logger.addHandler(listener)
    try:
        yield logged
    finally:
        logger.removeHandler(listener)


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_a_head_that_does_not_come_ends_the_connection() -> None:
    async with serving(server(keepalive_s=SHORT_S)) as talk:
        for start in (b"", b"GET /ping HTTP/1.1\r\nHost: x\r\n"):
            reader, _ = await talk(start)
            assert await until_closed(reader) == b""


async def test_an_idle_connection_is_closed() -> None:
    async with serving(server(keepalive_s=BEGUN_S)) as talk:
        reader, _ = await talk(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await until_closed(reader)).endswith(b"\r\n\r\nOK")


async def test_a_body_that_does_not_come_ends_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hasty = server(body_s=SHORT_S, body_bytes_per_s=1e9, sweep_s=SHORT_S)
    async with serving(hasty) as talk:
        reader, _ = await talk(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
        assert await until_closed(reader) == b""
        assert "takes too long, dropped" in caplog.text


async def test_a_client_that_does_not_read_is_dropped() -> None:
    hasty = server(send_s=SHORT_S, sweep_s=SHORT_S, body_bytes_per_s=1e12)
    async with serving(hasty) as talk, log_line("takes too long, dropped") as dropped:
        reader, writer = await talk(b"")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await dropped.wait()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await until_closed(reader)) < LARGE_BYTES


async def test_a_client_has_more_time_for_a_larger_reply() -> None:
    """It reads only when another, of a request that is given as long but for that, is dropped."""
    hasty = server(send_s=SHORT_S, body_s=SHORT_S, sweep_s=SHORT_S, body_bytes_per_s=1e6)
    async with serving(hasty) as talk, log_line("takes too long, dropped") as dropped:
        reader, writer = await talk(b"")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        last = b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        writer.write(last)
        await asyncio.sleep(SHORT_S)
        await talk(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
        await dropped.wait()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await until_closed(reader)) > LARGE_BYTES


async def test_a_client_that_does_not_take_the_rest_of_a_reply_is_dropped() -> None:
    """Of which so little is left that nobody waits for it, on a connection that is closing."""
    hasty = server(send_s=5 * SHORT_S, sweep_s=SHORT_S, body_bytes_per_s=1e12)
    async with serving(hasty) as talk, log_line("takes too long, dropped") as dropped:
        _, writer = await talk(b"")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        while not any(map(unsent_bytes, hasty._shared.connections)):
            count = hasty.replies[200]
            writer.write(b"GET /some HTTP/1.1\r\nHost: x\r\n\r\n")
            while hasty.replies[200] == count:
                await asyncio.sleep(0)
            await asyncio.sleep(0)  # for it to be written
        await dropped.wait()
        while hasty.connection_count:
            await asyncio.sleep(0)


def unsent_bytes(connection: HttpConnection) -> int:
    return connection._transport.get_write_buffer_size()


async def test_a_client_that_leaves_in_the_middle_of_a_body_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(server()) as talk, log_line("failed to read request body") as logged:
        _, writer = await talk(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
        await asyncio.sleep(BEGUN_S)
        writer.transport.abort()
        await logged.wait()
    assert caplog.text.count("failed to read request body from 127.0.0.1:") == 1


async def test_a_failing_handler_is_an_internal_error_and_a_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(server()) as talk:
        once = b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n"
        last = b"GET /refused HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        reader, _ = await talk(once + last)
        answers = await until_closed(reader)
    assert answers.startswith(b"HTTP/1.1 500 ")
    assert b'{"message":"INTERNAL_ERROR"}HTTP/1.1 418 ' in answers
    assert answers.endswith(b'{"message":"TEAPOT"}')
    assert "panic in HTTP handler - GET /broken" in caplog.text
    assert "so it goes" in caplog.text


async def test_a_large_body_that_is_refused_ends_the_connection_after_the_reply() -> None:
    async with serving(server()) as talk:
        head = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
        reader, writer = await talk(head + b"x" * 500)
        assert b" 413 " in await reader.readline()
        writer.write(b"x" * 99_500)
        rest = await until_closed(reader)
    assert b"Connection: close\r\n" in rest
    assert rest.endswith(b'{"message":"TOO_BIG"}')


@pytest.mark.parametrize(
    "start", [b"POST /echo HTTP/1.1", b"GET /ping HTTP/1.1", b"PUT / HTTP/1.1"]
)
async def test_a_small_body_that_is_not_wanted_does_no_harm(start: bytes) -> None:
    async with serving(server()) as talk:
        reader, writer = await talk(start + b"\r\nHost: x\r\nContent-Length: 1001\r\n\r\n")
        await asyncio.sleep(0)
        last = b"GET /refused HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        writer.write(b"x" * 1001 + last)
        answers = await until_closed(reader)
    assert answers.count(b"HTTP/1.1 ") == 2
    assert answers.endswith(b'{"message":"TEAPOT"}')


CHUNKED = b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("bad", [b"x\r\n", b"-1\r\n", b"4\r\nfour, or more\r\n"])
async def test_a_body_that_turns_out_malformed_is_answered_at_once(
    bad: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()
    endpoint = Endpoint(echo, body=LIMIT, check=lambda _: begun.set())
    async with serving(HttpServer(Routes({("POST", "/read"): endpoint}))) as talk:
        reader, writer = await talk(b"POST /read" + CHUNKED + b"4\r\ngood\r\n")
        await begun.wait()
        writer.write(bad)
        answer = await until_closed(reader)
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert answer.count(b"HTTP/") == 1
    assert "failed to read request body" in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_malformed_body_of_a_request_that_waits_is_answered_when_it_is_its_turn() -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> Reply:
        asked.set()
        await go.wait()
        return OK

    routes = Routes(
        {("GET", "/slow"): Endpoint(slow), ("POST", "/echo"): Endpoint(echo, body=LIMIT)}
    )
    async with serving(HttpServer(routes)) as talk:
        reader, writer = await talk(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await asked.wait()
        writer.write(b"POST /echo" + CHUNKED + b"4\r\ngood\r\n")
        await asyncio.sleep(SHORT_S)  # so that the rest comes on its own
        writer.write(b"x\r\n")
        await asyncio.sleep(SHORT_S)
        go.set()
        answers = await until_closed(reader)
    assert [part[:3] for part in answers.split(b"HTTP/1.1 ")] == [b"", b"200", b"500"]


async def test_a_malformed_body_that_nobody_wants_costs_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(server(linger_s=SHORT_S)) as talk:
        reader, writer = await talk(b"POST /nowhere" + CHUNKED + b"4\r\ngood\r\n")
        writer.write(b"x\r\n")
        assert b" 404 " in await reader.readline()
        await until_closed(reader)
    assert "Traceback" not in caplog.text


async def test_little_is_said_of_much_that_is_no_http(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(server()) as talk:
        head = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        reader, _ = await talk(head + b"1\r\n" + b"x" * 50_000)
        answer = await until_closed(reader)
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert len(answer) < 1000
    assert max(len(record.getMessage()) for record in caplog.records) < 1000


async def test_what_is_no_http_is_counted_among_the_replies() -> None:
    counting = server()
    async with serving(counting) as talk:
        reader, _ = await talk(b"GET /ping HTTP/1.1\r\nHost x\r\n\r\n")
        await until_closed(reader)
    assert counting.replies == {400: 1}


async def test_what_is_no_http_costs_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(server()) as talk:
        reader, _ = await talk(b"GET /ping HTTP/1.1\r\nHost x\r\n\r\n")
        assert b" 400 " in await reader.readline()
        await until_closed(reader)
    (record,) = (each for each in caplog.records if each.name.startswith("pumpline.web"))
    assert record.levelno == logging.WARNING
    assert record.exc_info is None
    assert "\n" not in record.getMessage()


async def test_closing_waits_for_a_request_and_then_ends_it() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(request: Request) -> Reply:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return OK

    async with serving(HttpServer(Routes({("GET", "/"): Endpoint(endless)}))) as talk:
        reader, _ = await talk(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await started.wait()
    async with asyncio.timeout(PATIENCE_S):
        await cancelled.wait()
        assert await until_closed(reader) == b""


@pytest.mark.parametrize("count", [1, 4, 300_000, 2_000_000])
@pytest.mark.parametrize("before", [b"", b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_zero_bytes_are_no_request(
    count: int, before: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(server()) as talk:
        reader, _ = await talk(before + bytes(count))
        reply = await until_closed(reader)
    assert reply.count(b"HTTP/1.1 200 ") == bool(before)
    assert reply.count(b"HTTP/1.1 4") == 1
    assert "panic" not in caplog.text
