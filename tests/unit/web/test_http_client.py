"""Asking others, with limits; and who asks nobody does not pay for what asks."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from pumpline.core.text.durations import NS_PER_S
from pumpline.web.http_client import Asker, NoAnswer
from tests.kit.uncovered import uncovered_environment


@pytest.mark.parametrize("server", ["pumpline.nsqd.server", "pumpline.nsqlookupd.server"])
def test_a_daemon_is_imported_without_what_it_may_never_need(server: str) -> None:
    program = f"import sys, {server}; print(*sorted(sys.modules))"
    command = [sys.executable, "-c", program]
    modules = subprocess.check_output(command, text=True, env=uncovered_environment())
    tops = {name.partition(".")[0] for name in modules.split()}
    assert tops & {"aiohttp", "yarl", "email", "rich", "tomllib", "difflib"} == set()


# -- asking ----------------------------------------------------------------------------------------

NO_LIMIT_NS = 3600 * NS_PER_S


class Peer:
    """A server that answers every request with the same bytes, and notes what it was sent."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.heads: list[bytes] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(self.answer)
        writer.close()


@asynccontextmanager
async def asking(answer: bytes, **options: Any) -> AsyncIterator[tuple[Peer, Asker, str]]:
    peer = Peer(answer)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    limits = {
        "connect_timeout_ns": NO_LIMIT_NS,
        "timeout_ns": NO_LIMIT_NS,
        "requests_max": 4,
        "answer_bytes_max": 100,
    }
    asker = Asker(**{**limits, **options})
    try:
        port = server.sockets[0].getsockname()[1]
        yield peer, asker, f"http://127.0.0.1:{port}/x?a=%2F"
    finally:
        await asker.close()
        server.close()


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"


async def test_what_is_asked_is_sent_as_it_is() -> None:
    async with asking(OK) as (peer, asker, url):
        assert await asker.ask(url, b"{}") == (200, b"OK")
    (head,) = peer.heads
    assert head.startswith(b"POST /x?a=%2F HTTP/1.1\r\n")
    assert b"Content-Type: application/json\r\n" in head


async def test_an_answer_that_is_too_long_is_none() -> None:
    long = b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n" + b"x" * 101
    async with asking(long) as (_, asker, url):
        with pytest.raises(NoAnswer, match="too long"):
            await asker.ask(url)


@pytest.mark.parametrize(
    "answer", [b"no HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"]
)
async def test_what_is_no_answer(answer: bytes) -> None:
    async with asking(answer) as (_, asker, url):
        with pytest.raises(NoAnswer):
            await asker.ask(url)


async def test_a_refused_connection_is_told_in_the_systems_words() -> None:
    async with asking(OK) as (_, asker, _):
        with pytest.raises(NoAnswer, match=r"^127\.0\.0\.1:1: connection refused$"):
            await asker.ask("http://127.0.0.1:1/")
