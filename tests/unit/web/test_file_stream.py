"""Files as replies, over real sockets: whole, to slow clients too, and closed whatever happens."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from pumpline.web import file_stream
from pumpline.web.endpoint import Endpoint
from pumpline.web.file_stream import FileStream
from pumpline.web.replies import OK, Reply, stream_reply
from pumpline.web.request import Request
from pumpline.web.routes import Routes
from pumpline.web.server import HttpServer
from pumpline.web.time_limits import Patience
from pumpline.web.turn_queue import TurnQueue
from tests.kit.serving import Talk, serving

TURNS = 3
LARGE_BYTES = 50_000_000  # no socket buffer takes that
SPANS = [(0, 1000), (5000, 1), (100_000, 200_000)]
GET = b"GET /file HTTP/1.1\r\nHost: x\r\n\r\n"
GET_AND_CLOSE = b"GET /file HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class Place:
    """A server of one file, and what became of the streams it sent."""

    connect: Talk

    def __init__(self, path: Path, patience: Patience) -> None:
        self.path = path
        self.spans = SPANS
        self.turns = TurnQueue(TURNS)
        self.server = HttpServer(
            Routes({("GET", "/file"): Endpoint(self.file), ("GET", "/ping"): Endpoint(self.ping)}),
            patience=patience,
        )

    async def ping(self, request: Request) -> Reply:
        return OK

    async def file(self, request: Request) -> Reply:
        await self.turns.acquire()
        fd = os.open(self.path, os.O_RDONLY)
        spans = [(fd, position, length, str(self.path)) for position, length in self.spans]
        return stream_reply(FileStream(spans, self.turns), {})

    def open_here(self) -> int:
        """Descriptors of the file that are open."""
        links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
        return sum(os.path.realpath(link) == str(self.path) for link in links)

    async def nothing_is_open(self) -> None:
        while self.open_here():
            await asyncio.sleep(0.005)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with opened(Place(tmp_path / "file", Patience())) as place:
        yield place


@pytest.fixture
async def hasty(tmp_path: Path) -> AsyncIterator[Place]:
    patience = Patience(send_s=0.05, body_bytes_per_s=1e12, sweep_s=0.05, stop_s=0.05)
    async with opened(Place(tmp_path / "file", patience)) as place:
        yield place


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[Place]:
    place.path.write_bytes(os.urandom(1 << 20))
    os.truncate(place.path, (1 << 20) + LARGE_BYTES)  # sparse: nothing more is written
    async with serving(place.server) as place.connect:
        yield place
    await asyncio.get_running_loop().shutdown_default_executor()
    assert place.open_here() == 0
    for _ in range(TURNS):
        await place.turns.acquire()  # all turns were given back


def expected(place: Place) -> bytes:
    with place.path.open("rb") as file:
        return b"".join(os.pread(file.fileno(), length, at) for at, length in place.spans)


def body_of(answer: bytes) -> bytes:
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(body) in head
    return body


async def test_spans_follow_on_each_other(place: Place) -> None:
    reader, _ = await place.connect(GET_AND_CLOSE)
    assert body_of(await reader.read()) == expected(place)
    await place.nothing_is_open()


async def test_a_connection_goes_on_after_a_file(place: Place) -> None:
    last = b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    reader, _ = await place.connect(GET + GET + last)
    answers = await reader.read()
    assert answers.count(expected(place) + b"HTTP/1.1 200 OK") == 2
    assert answers.endswith(b"\r\n\r\nOK")


async def test_nothing_is_a_reply_too(place: Place) -> None:
    place.spans = [(0, 0)]
    reader, _ = await place.connect(GET_AND_CLOSE)
    assert body_of(await reader.read()) == b""


async def test_slow_clients_hold_no_thread(place: Place) -> None:
    place.spans = [(0, LARGE_BYTES)]
    threads = (os.cpu_count() or 1) + 4  # of the default executor, at most
    slow = [await place.connect(GET_AND_CLOSE) for _ in range(threads + 2)]
    for reader, _ in slow:
        await reader.readuntil(b"\r\n\r\n")  # and no more for now
    place.spans = SPANS
    reader, _ = await place.connect(GET_AND_CLOSE)
    assert body_of(await reader.read()) == expected(place)
    for reader, _ in slow:
        assert len(await reader.read()) == LARGE_BYTES


async def test_clients_that_do_not_read_do_not_keep_others_from_reading(place: Place) -> None:
    place.spans = [(0, LARGE_BYTES)]
    stalled = [await place.connect(GET_AND_CLOSE) for _ in range(3 * TURNS)]
    for reader, _ in stalled:
        await reader.readuntil(b"\r\n\r\n")  # each had a turn, and none waits for another to read
    assert place.open_here() <= TURNS
    whole = expected(place)
    for reader, _ in stalled:
        assert await reader.read() == whole


async def test_a_deleted_file_is_sent_to_its_end_while_nobody_waits(place: Place) -> None:
    place.spans = [(0, LARGE_BYTES)]
    sent = expected(place)
    reader, _ = await place.connect(GET_AND_CLOSE)
    await reader.readuntil(b"\r\n\r\n")
    place.path.unlink()
    assert await reader.read() == sent


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_file_that_is_gone_when_its_turn_comes_ends_the_connection(
    place: Place, caplog: pytest.LogCaptureFixture, is_replaced: bool
) -> None:
    place.spans = [(0, LARGE_BYTES)]
    stalled = [await place.connect(GET_AND_CLOSE) for _ in range(TURNS + 1)]
    for reader, _ in stalled:
        await reader.readuntil(b"\r\n\r\n")
    place.path.unlink()
    if is_replaced:
        place.path.write_bytes(bytes(LARGE_BYTES))
    received_bytes = []
    for reader, _ in stalled:
        received_bytes.append(0)
        with suppress(ConnectionResetError):
            while data := await reader.read(1 << 20):
                received_bytes[-1] += len(data)
    cut_off = sum(count < LARGE_BYTES for count in received_bytes)
    assert 1 <= cut_off == caplog.text.count("failed to send /file")


async def test_a_client_that_goes_away_leaves_nothing_open(place: Place) -> None:
    place.spans = [(0, LARGE_BYTES)]
    reader, writer = await place.connect(GET)
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()
    await place.nothing_is_open()


async def test_a_client_that_does_not_read_is_dropped(
    hasty: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_stream, "WAIT_S", 0.01)
    hasty.spans = [(0, LARGE_BYTES)]
    reader, writer = await hasty.connect(b"")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(GET)
    while not hasty.server.dropped_count:
        await asyncio.sleep(0.005)
    await hasty.nothing_is_open()
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    with suppress(ConnectionResetError):
        assert len(await reader.read()) < LARGE_BYTES


async def test_a_stopping_server_ends_what_it_sends(hasty: Place) -> None:
    hasty.spans = [(0, LARGE_BYTES)]
    reader, _ = await hasty.connect(GET)
    await reader.readuntil(b"\r\n\r\n")
    await hasty.server.close()
    await hasty.nothing_is_open()


async def test_a_file_that_got_shorter_ends_the_connection(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    size_bytes = place.path.stat().st_size
    place.spans = [(size_bytes - 1000, 2000)]
    reader, _ = await place.connect(GET + GET)
    with suppress(ConnectionResetError):
        answer = await reader.read()
        assert answer.count(b"HTTP/1.1") <= 1
        assert len(answer) < 2000
    assert "failed to send /file" in caplog.text
