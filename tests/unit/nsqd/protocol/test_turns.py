"""A client with many commands waits for the others after a while, and loses none of its own."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import uvloop

from pumpline.core.protocol.layers import Compression, Deflate, EndOfStream, Layers, Snappy, Tls
from pumpline.nsqd.protocol import turns as turns_module
from pumpline.nsqd.protocol.turns import TURN_COMMANDS, Turns
from tests.kit.certificates import Authority, client_context
from tests.kit.fuzz.inprocess import InProcess
from tests.kit.wire.commands import MAGIC, dpub, identify, mpub, pub

OK = b"\0\0\0\6\0\0\0\0OK"
RUN = 60_000  # messages; a bufferful has half of them
TURNS_MAX = 12  # of a client, while another is answered
NEGOTIATED = {"feature_negotiation": True}


class Line:
    """Turns without an event loop: `next` is an iteration of one."""

    def __init__(self) -> None:
        self.turns = Turns(self._call_soon)
        self.called: list[Callable[[], None]] = []

    def _call_soon(self, callback: Callable[[], None]) -> None:
        self.called.append(callback)

    def next(self) -> None:
        (callback,) = self.called
        self.called.clear()
        callback()


class Waiting:
    def __init__(self, line: Line, seen: list[str], name: str, turns: int) -> None:
        self._line, self._seen, self._name, self._left = line, seen, name, turns
        line.turns.wait(self)

    def take_turn(self) -> None:
        self._seen.append(self._name)
        self._left -= 1
        if self._left:
            self._line.turns.wait(self)


def test_turns_go_round() -> None:
    line = Line()
    seen: list[str] = []
    for name, turns in [("a", 3), ("b", 1), ("c", 2)]:
        Waiting(line, seen, name, turns)
    while line.called:
        line.next()
    assert seen == ["a", "b", "c", "a", "c", "a"]


LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="module", params=LOOPS.values(), ids=LOOPS)
def nsqd(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InProcess]:
    identity = Authority(tmp_path_factory.mktemp("certificates")).issue("nsqd")
    data_path = tmp_path_factory.mktemp("data")
    with InProcess(data_path, identity.flags(), loop_factory=request.param) as started:
        yield started


class Client:
    """Speaks through layers, as IDENTIFY switched them on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.layers: Layers | None = None

    async def upgrade(self, feature: str) -> None:
        self.writer.write(identify({**NEGOTIATED, feature: True}))
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        await self.reader.readexactly(size)
        makers: dict[str, Callable[[], Compression]] = {
            "deflate": lambda: Deflate(6),
            "snappy": Snappy,
        }
        compression = makers[feature]() if feature in makers else None
        tls = None if compression else Tls(client_context(), server_name="127.0.0.1")
        layers = Layers(tls=tls, compression=compression)
        layers.shake_hands()
        while not layers.open:
            self.writer.write(layers.take())
            layers.receive(await self.reader.read(1 << 16))
            layers.shake_hands()
        self.writer.write(layers.take())
        self.layers = layers
        await self.receive(OK)

    def send(self, data: bytes) -> None:
        if self.layers is not None:
            self.layers.write([data])
            data = self.layers.take()
        self.writer.write(data)

    async def receive(self, expected: bytes) -> None:
        """Exactly that."""
        received = b""
        while len(received) < len(expected):
            if self.layers is None:
                received += await self.reader.read(1 << 16)
            else:
                self.layers.receive(await self.reader.read(1 << 16))
                with suppress(EndOfStream):  # the last frame is here, then
                    while piece := self.layers.read(1 << 16):
                        received += piece
        assert received == expected


async def connected(nsqd: InProcess) -> Client:
    client = Client(*await asyncio.open_connection("127.0.0.1", nsqd.ports.tcp))
    client.writer.write(MAGIC)
    return client


def published(nsqd: InProcess, *topics: str) -> int:
    return sum(nsqd.broker.topics.ensure(topic).message_count for topic in topics)


@pytest.mark.parametrize("feature", ["", "deflate", "snappy", "tls_v1"])
def test_client_with_many_commands_lets_another_one_in(nsqd: InProcess, feature: str) -> None:
    topics = [f"long-{feature}-{number}" for number in range(2)]

    async def both() -> int:
        busy, quick = await connected(nsqd), await connected(nsqd)
        quick.send(pub("quick", b"x"))
        await quick.receive(OK)
        if feature:
            await busy.upgrade(feature)
        # Two verbs in turn: no run of commands that are done with at once.
        busy.send((pub(topics[0], b"x") + dpub(topics[1], 0, b"x")) * (RUN // 2))
        while not published(nsqd, *topics):
            await asyncio.sleep(0)
        quick.send(pub("quick", b"x"))
        before = published(nsqd, *topics)
        await quick.receive(OK)
        meanwhile = published(nsqd, *topics) - before
        await busy.receive(OK * RUN)
        busy.writer.close()
        quick.writer.close()
        return meanwhile

    meanwhile = nsqd.run(both())
    assert published(nsqd, *topics) == RUN
    assert meanwhile <= TURNS_MAX * TURN_COMMANDS


def test_large_mpubs_of_many_are_not_carried_out_all_at_once(
    nsqd: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An MPUB is one command, however many messages it has: of 200,000, it takes 10 ms."""
    monkeypatch.setattr(turns_module, "ROUND_S", 0.0)
    messages, clients = 60_000, 12  # 300 kB each, more than is read at once

    async def all_of_them() -> int:
        busy = [await connected(nsqd) for _ in range(clients)]
        for client in busy:
            client.send(mpub("large", [b"x"] * messages))
        longest = before = published(nsqd, "large")
        while before < messages * clients:
            await asyncio.sleep(0)
            now = published(nsqd, "large")
            longest, before = max(longest, now - before), now
        for client in busy:
            await client.receive(OK)
            client.writer.close()
        return longest

    assert nsqd.run(all_of_them()) <= 2 * messages  # a turn may be before the tick and one after


@pytest.mark.parametrize("feature", ["", "deflate", "snappy", "tls_v1"])
@pytest.mark.parametrize(
    ("last", "answer"),
    [(b"", b""), (b"z\n", b"\0\0\0\x1f\0\0\0\1E_INVALID invalid command z")],
    ids=["the end", "an error"],
)
def test_commands_of_many_turns_keep_their_order(
    nsqd: InProcess, feature: str, last: bytes, answer: bytes
) -> None:
    """What the client says last is heard last, and its end after that."""

    async def talk() -> None:
        client = await connected(nsqd)
        if feature:
            await client.upgrade(feature)
        run = b"NOP\n" * 5000
        client.send(run + pub("t", b"x") + run + pub("t", b"y") + run + last)
        client.writer.write_eof()
        await client.receive(OK * 2 + answer)
        client.writer.close()

    nsqd.run(talk())


@pytest.mark.parametrize("feature", ["", "deflate"])
def test_client_that_goes_in_the_middle_of_its_turns(nsqd: InProcess, feature: str) -> None:
    async def come_and_go() -> None:
        client = await connected(nsqd)
        if feature:
            await client.upgrade(feature)
        client.send(b"NOP\n" * (200 * TURN_COMMANDS))
        await asyncio.sleep(0)
        client.writer.transport.abort()
        while len(nsqd.broker.connections):
            await asyncio.sleep(0.01)

    nsqd.run(come_and_go())


def test_snappy_stream_of_empty_chunks_is_ended(nsqd: InProcess) -> None:
    """Nothing comes of them, and each takes its time."""

    async def talk() -> None:
        client = await connected(nsqd)
        await client.upgrade("snappy")
        client.writer.write(b"\xff\x06\x00\x00sNaPpY" + b"\x80\0\0\0" * 100_000)
        with suppress(ConnectionResetError):
            assert await client.reader.read() == b""

    nsqd.run(talk())
