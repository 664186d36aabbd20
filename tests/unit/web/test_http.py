"""The HTTP server on its own, over real sockets: clients that are slow, and handlers that fail."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from pumpline.web import http
from pumpline.web.http import OK, Endpoint, HttpError, HttpServer, Reply, Request
from pumpline.web.routes import Routes

SHORT_S = 0.05
PATIENCE_S = 10.0
LARGE_BYTES = 50_000_000  # no socket buffer takes that

Talk = Callable[[bytes], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def ping(request: Request) -> Reply:
    return OK


async def echo(request: Request) -> Reply:
    return Reply(body=bytes(await request.body(1000, too_big="TOO_BIG")))


async def large(request: Request) -> Reply:
    return Reply(body=bytes(LARGE_BYTES))


async def broken(request: Request) -> Reply:
    raise RuntimeError("so it goes")


async def refused(request: Request) -> Reply:
    raise HttpError(418, "TEAPOT")


ROUTES = Routes(
    {
        ("GET", "/ping"): Endpoint(ping),
        ("POST", "/echo"): Endpoint(echo),
        ("GET", "/large"): Endpoint(large),
        ("GET", "/broken"): Endpoint(broken),
        ("GET", "/refused"): Endpoint(refused),
    }
)


@asynccontextmanager
async def serving(routes: Routes[Endpoint] = ROUTES) -> AsyncIterator[Talk]:
    """Gives a function that connects and sends."""
    server = HttpServer(routes)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    writers: list[asyncio.StreamWriter] = []

    async def talk(data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
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


@asynccontextmanager
async def log_line(text: str) -> AsyncIterator[asyncio.Event]:
    """An event that is set when a line with `text` is logged."""
    logged = asyncio.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text in record.getMessage():
                logged.set()

    listener = Listener()
    logger = logging.getLogger(http.__name__)
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


async def test_a_head_that_does_not_come_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "KEEPALIVE_S", SHORT_S)
    async with serving() as talk:
        for start in (b"", b"GET /ping HTTP/1.1\r\nHost: x\r\n"):
            reader, _ = await talk(start)
            assert await until_closed(reader) == b""


async def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "KEEPALIVE_S", SHORT_S)
    async with serving() as talk:
        reader, _ = await talk(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await until_closed(reader)).endswith(b"\r\n\r\nOK")


async def test_a_body_that_does_not_come_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for limit in ("BODY_S", "SWEEP_S"):
        monkeypatch.setattr(http, limit, SHORT_S)
    monkeypatch.setattr(http, "BODY_BYTES_PER_S", 1e9)
    async with serving() as talk:
        reader, _ = await talk(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
        assert await until_closed(reader) == b""
        assert "takes too long, dropped" in caplog.text


async def test_a_client_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("SEND_S", "SWEEP_S"):
        monkeypatch.setattr(http, limit, SHORT_S)
    async with serving() as talk, log_line("takes too long, dropped") as dropped:
        reader, writer = await talk(b"")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await dropped.wait()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await until_closed(reader)) < LARGE_BYTES


async def test_a_failing_handler_is_an_internal_error_and_a_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as talk:
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
    async with serving() as talk:
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
    async with serving() as talk:
        reader, writer = await talk(start + b"\r\nHost: x\r\nContent-Length: 1001\r\n\r\n")
        await asyncio.sleep(0)
        last = b"GET /refused HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        writer.write(b"x" * 1001 + last)
        answers = await until_closed(reader)
    assert answers.count(b"HTTP/1.1 ") == 2
    assert answers.endswith(b'{"message":"TEAPOT"}')


async def test_what_is_no_http_costs_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as talk:
        reader, _ = await talk(b"GET /ping HTTP/1.1\r\nHost x\r\n\r\n")
        assert b" 400 " in await reader.readline()
        await until_closed(reader)
    (record,) = (each for each in caplog.records if each.name.startswith(http.__name__))
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

    async with serving(Routes({("GET", "/"): Endpoint(endless)})) as talk:
        reader, _ = await talk(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await started.wait()
    async with asyncio.timeout(PATIENCE_S):
        await cancelled.wait()
        assert await until_closed(reader) == b""
