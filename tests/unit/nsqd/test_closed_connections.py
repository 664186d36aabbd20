"""A connection that is closed leaves nothing behind, whatever it was doing: its memory is free at
once, without a collection."""

import asyncio
import ssl
import zlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from pumpline.core.protocol.layers import Tls
from pumpline.nsqd.protocol.connection import Connection
from pumpline.nsqd.protocol.heartbeat import Heartbeat
from pumpline.nsqd.protocol.identify import ClientOptions
from pumpline.nsqd.protocol.outbox import Outbox
from pumpline.nsqd.protocol.parser import Protocol
from pumpline.nsqd.protocol.upgrade import Upgraded
from pumpline.nsqd.queue.consumer import ChannelConsumer
from pumpline.web.bodies import ChunkedBody, SizedBody
from pumpline.web.connection import HttpConnection
from pumpline.web.event_stream import EventStream
from pumpline.web.exchange import Exchange
from pumpline.web.request_reader import RequestReader
from tests.kit.auth_server import AuthorityServer, grant
from tests.kit.certificates import Authority, client_context
from tests.kit.fuzz.inprocess import InProcess
from tests.kit.leftovers import Leftovers
from tests.kit.wire.commands import MAGIC, auth, fin, identify, mpub, pub, rdy, sub

TCP = (Connection, Outbox, Protocol, Heartbeat, ClientOptions, Upgraded, ChannelConsumer)
HTTP = (HttpConnection, RequestReader, Exchange, SizedBody, ChunkedBody, EventStream)
TIMES = 3
READ_BYTES_MAX = 100_000

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="module", params=LOOPS.values(), ids=LOOPS)
def nsqd(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InProcess]:
    identity = Authority(tmp_path_factory.mktemp("certificates")).issue("nsqd")
    flags = [*identity.flags(), "--https-address=127.0.0.1:0"]
    data_path = tmp_path_factory.mktemp("data")
    with InProcess(data_path, flags, loop_factory=request.param) as started:
        yield started


async def connected(port: int, *pieces: bytes, tls: ssl.SSLContext | None = None) -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    for piece in pieces:
        writer.write(piece)
    return reader, writer


async def ended(streams: Streams, how: str) -> None:
    """The client goes, in one of three ways."""
    _, writer = streams
    if how == "half closed" and writer.can_write_eof():
        writer.write_eof()
        await asyncio.sleep(0)
    if how == "aborted":
        writer.transport.abort()
    writer.close()


LONG_IDENTIFY = identify({"user_agent": "x" * 5_000_000})
NEGOTIATED = {"feature_negotiation": True}
COMMANDS = {
    "no word": [],
    "no protocol": [b"GET / HTTP/1.1\r\n\r\n"],
    "no command": [MAGIC, b"NONSENSE\n"],
    "an MPUB cut off": [MAGIC, mpub("t", [bytes(500_000)] * 10)[:-1]],
    "MPUBs cut off after one": [MAGIC, mpub("t", [b"x"]), mpub("t", [bytes(500_000)] * 10)[:-1]],
    "a long IDENTIFY": [MAGIC, LONG_IDENTIFY],
    "a long IDENTIFY cut off": [MAGIC, LONG_IDENTIFY[:-1]],
    "publishing": [MAGIC, pub("t", b"x") * 1000],
    "subscribed": [MAGIC, sub("t", "ch"), rdy(100), pub("t", b"x") * 10],
    "refused": [MAGIC, sub("t", "ch"), fin("barrier-barrier-") * 10],
    "deflate": [
        MAGIC,
        identify({**NEGOTIATED, "deflate": True}),
        zlib.compress(pub("t", b"x") * 1000, wbits=-15),
    ],
    "snappy, and no such": [MAGIC, identify({**NEGOTIATED, "snappy": True}), b"no snappy" * 10],
    "TLS, and no such": [MAGIC, identify({**NEGOTIATED, "tls_v1": True}), b"no TLS" * 10],
    "TLS cut off": [MAGIC, identify({**NEGOTIATED, "tls_v1": True}), b"\x16\x03\x01\x02\x00\x01"],
}
UNANSWERED = ("no word", "an MPUB cut off", "a long IDENTIFY cut off")
ENDS = ["closed", "half closed", "aborted"]


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("name", COMMANDS)
def test_client(nsqd: InProcess, name: str, how: str) -> None:
    async def come_and_go() -> None:
        for _ in range(TIMES):
            streams = await connected(nsqd.ports.tcp, *COMMANDS[name])
            if name not in UNANSWERED:
                await streams[0].read(READ_BYTES_MAX)
            await ended(streams, how)

    with Leftovers(*TCP) as leftovers:
        nsqd.run(come_and_go())
        nsqd.run(leftovers.none_left())
    assert len(nsqd.broker.connections) == 0


def post(path: str, length: str, body: bytes) -> bytes:
    return f"POST {path}?topic=t HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode() + body


REQUESTS = {
    "no word": b"",
    "half a head": b"GET /ping HTTP/1.1\r\nX: " + b"x" * 60_000,
    "no request": b"NONSENSE\r\n\r\n",
    "a question": b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "several": b"GET /stats?format=json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20,
    "a publish": post("/pub", "Content-Length: 1", b"x"),
    "a body cut off": post("/mpub", "Content-Length: 5000000", bytes(4_999_999)),
    "chunks cut off": post("/mpub", "Transfer-Encoding: chunked", b"400000\r\n" + bytes(4_000_000)),
    "lines": post("/mpub", "Content-Length: 100000", b"x\n" * 50_000),
    "a tail": b"GET /log/tail?topic=t HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a page": b"GET /log/peek?topic=t&from=0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
}
ANSWERED = ("no request", "a question", "several", "a publish", "lines", "a tail", "a page")


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("is_tls", [False, True], ids=["HTTP", "HTTPS"])
@pytest.mark.parametrize("name", REQUESTS)
def test_http_client(nsqd: InProcess, name: str, is_tls: bool, how: str) -> None:
    port = nsqd.ports.https if is_tls else nsqd.ports.http
    tls = client_context() if is_tls else None

    async def come_and_go() -> None:
        for _ in range(TIMES):
            streams = await connected(port, REQUESTS[name], tls=tls)
            if name in ANSWERED:
                await streams[0].read(READ_BYTES_MAX)
            await ended(streams, how)

    nsqd.broker.topics.ensure("t")
    with Leftovers(*HTTP) as leftovers:
        nsqd.run(come_and_go())
        nsqd.run(leftovers.none_left())


def test_client_that_the_auth_server_keeps_waiting(tmp_path: Path) -> None:
    with AuthorityServer(lambda _: grant()) as authority:
        flags = [f"--auth-http-address={authority.address}"]
        with InProcess(tmp_path, flags) as nsqd, Leftovers(*TCP) as leftovers:

            async def come_and_go(wait: Callable[[Streams], Awaitable[object]]) -> None:
                streams = await connected(nsqd.ports.tcp, MAGIC, auth(b"secret"))
                await wait(streams)
                await ended(streams, "closed")

            nsqd.run(come_and_go(lambda streams: streams[0].readexactly(4)))
            nsqd.run(come_and_go(lambda _: asyncio.sleep(0)))
            nsqd.run(leftovers.none_left())


def test_tls_client_whose_bytes_are_damaged(nsqd: InProcess) -> None:
    """The failure is found while there is something to give, and raised later."""

    async def come_and_go() -> None:
        greeting = [MAGIC, identify({**NEGOTIATED, "tls_v1": True})]
        reader, writer = await connected(nsqd.ports.tcp, *greeting)
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        tls = Tls(client_context(), server_name="127.0.0.1")
        tls.shake_hands()
        while not tls.established:
            writer.write(tls.take())
            tls.receive(await reader.read(READ_BYTES_MAX))
            tls.shake_hands()
        tls.write(pub("t", b"x"))
        writer.write(tls.take() + b"\x17\x03\x03\x00\x20" + bytes(32))
        while await reader.read(READ_BYTES_MAX):
            pass
        writer.close()

    with Leftovers(*TCP) as leftovers:
        nsqd.run(come_and_go())
        nsqd.run(leftovers.none_left())
