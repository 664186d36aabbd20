"""A connection that is lost while input waits in the socket: every command of it counts.

The client closes with replies unread, so that its kernel resets the connection. nsqd shares the
event loop with the test, and reads nothing before its next write has failed.
"""

import asyncio
import socket
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import uvloop

from pumpline.nsqd.protocol.connection import Connection
from pumpline.nsqd.protocol.outbox import Outbox
from pumpline.nsqd.protocol.parser import Protocol
from pumpline.nsqd.queue.consumer import ChannelConsumer
from tests.kit.auth_server import Answer, Asked, AuthorityServer, grant
from tests.kit.fuzz.inprocess import InProcess
from tests.kit.leftovers import Leftovers
from tests.kit.serving import PATIENCE_S
from tests.kit.sockets import accepted_end, unread_bytes, unsent_bytes
from tests.kit.wire.commands import MAGIC, auth, fin, identify, pub, rdy, req, sub
from tests.kit.wire.session import MESSAGE_HEADER

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
PAUSE_S = 0.001
TOPIC, CHANNEL = "t", "ch"


@pytest.fixture(params=LOOPS.values(), ids=LOOPS)
def nsqd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InProcess]:
    with InProcess(tmp_path, loop_factory=request.param) as started:
        yield started


class Client:
    """A blocking socket whose replies nobody reads, except for `frame`."""

    def __init__(self, nsqd: InProcess) -> None:
        self._nsqd = nsqd
        self._socket = socket.create_connection(("127.0.0.1", nsqd.ports.tcp))
        self._socket.setblocking(False)
        self.send(MAGIC)

    def send(self, *commands: bytes) -> None:
        """All of it fits into nsqd's receive buffer."""
        data = b"".join(commands)
        assert self._socket.send(data) == len(data)
        assert unsent_bytes(self._socket) == 0

    async def frame(self) -> bytes:
        loop = asyncio.get_running_loop()
        size = b""
        while len(size) < 4:
            size += await loop.sock_recv(self._socket, 4 - len(size))
        data = b""
        while len(data) < int.from_bytes(size):
            data += await loop.sock_recv(self._socket, int.from_bytes(size) - len(data))
        return data[4:]

    async def has_unread(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    assert self._socket.recv(1, socket.MSG_PEEK)
                    return
                except BlockingIOError:
                    await asyncio.sleep(PAUSE_S)

    async def is_read(self) -> None:
        """nsqd has read all that was sent."""
        with closing(accepted_end(self._socket)) as other:
            async with asyncio.timeout(PATIENCE_S):
                while unread_bytes(other):
                    await asyncio.sleep(PAUSE_S)

    def reset(self) -> None:
        """Close with something unread; nsqd learns of it by writing, before it reads again."""
        assert self._socket.recv(1, socket.MSG_PEEK)
        self._socket.close()
        (connection,) = self._nsqd.broker.connections
        connection.beat()
        connection.outbox.flush()

    async def is_gone(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self._nsqd.broker.connections):
                await asyncio.sleep(PAUSE_S)


def stored(nsqd: InProcess) -> int:
    return int(nsqd.broker.topics.ensure(TOPIC).log.end)


def message_id(frame: bytes) -> str:
    return bytes(MESSAGE_HEADER.unpack_from(frame)[2]).decode()


def test_fins_and_reqs(nsqd: InProcess) -> None:
    async def scenario() -> None:
        client = Client(nsqd)
        client.send(pub(TOPIC, b"x") * 10, sub(TOPIC, CHANNEL), rdy(10))
        frames = [await client.frame() for _ in range(16)]  # OKs, and five messages
        ids = [message_id(frame) for frame in frames[11:]]
        await client.has_unread()
        client.send(*map(fin, ids[:4]), req(ids[4], 60_000))
        client.reset()
        await client.is_gone()

    with Leftovers(Connection, Outbox, Protocol, ChannelConsumer) as leftovers:
        nsqd.run(scenario())
        nsqd.run(leftovers.none_left())
    channel = nsqd.broker.topics.ensure(TOPIC).ensure_channel(CHANNEL)
    assert channel.depth == 5
    assert channel.delivery.deferred_count == 1
    assert channel.in_flight_count == 0


def test_publishes(nsqd: InProcess) -> None:
    async def scenario() -> None:
        client = Client(nsqd)
        client.send(pub(TOPIC, b"x"))
        await client.has_unread()
        client.send(pub(TOPIC, b"x") * 1000, pub(TOPIC, b"cut off")[:-1])
        client.reset()
        await client.is_gone()

    nsqd.run(scenario())
    assert stored(nsqd) == 1001


def test_publish_with_a_large_body_of_which_nsqd_has_read_a_part(nsqd: InProcess) -> None:
    message = pub(TOPIC, bytes(80_000))

    async def scenario() -> None:
        client = Client(nsqd)
        client.send(pub(TOPIC, b"x"))
        await client.has_unread()
        client.send(message[:50_000])
        await client.is_read()
        client.send(message[50_000:], pub(TOPIC, b"x"))
        client.reset()
        await client.is_gone()

    nsqd.run(scenario())
    assert stored(nsqd) == 3


def test_a_few_bytes_that_unpack_to_many_commands(nsqd: InProcess) -> None:
    """They take many turns."""
    packer = zlib.compressobj(wbits=-15)
    commands = pub(TOPIC, b"x") + b"NOP\n" * 1_000_000 + pub(TOPIC, b"x")
    packed = packer.compress(commands) + packer.flush(zlib.Z_SYNC_FLUSH)

    async def scenario() -> None:
        client = Client(nsqd)
        client.send(identify({"feature_negotiation": True, "deflate": True}))
        await client.frame()
        await client.has_unread()  # the OK of the upgrade
        client.send(packed)
        client.reset()
        await client.is_gone()

    nsqd.run(scenario())
    assert stored(nsqd) == 2


@pytest.mark.parametrize("loop_factory", LOOPS.values(), ids=LOOPS)
def test_publishes_that_wait_for_the_auth_server(
    tmp_path: Path, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    asked: list[Any] = []

    def answer(question: Asked) -> Answer:
        asked.append(question)
        return grant()

    with (
        AuthorityServer(answer) as server,
        InProcess(
            tmp_path, [f"--auth-http-address={server.address}"], loop_factory=loop_factory
        ) as nsqd,
    ):

        async def scenario() -> None:
            client = Client(nsqd)
            client.send(identify({}))
            await client.has_unread()
            client.send(auth(b"secret"), pub(TOPIC, b"x") * 2)
            client.reset()
            await client.is_gone()

        nsqd.run(scenario())
        assert len(asked) == 1
        assert stored(nsqd) == 2


def test_nothing_is_delivered_to_a_client_that_is_lost(nsqd: InProcess) -> None:
    """The attempts of a message tell how often somebody could have had it."""

    async def scenario() -> int:
        client = Client(nsqd)
        client.send(pub(TOPIC, b"x"))
        await client.has_unread()
        client.send(sub(TOPIC, CHANNEL), rdy(10))
        client.reset()
        await client.is_gone()
        heir = Client(nsqd)
        heir.send(sub(TOPIC, CHANNEL), rdy(1))
        await heir.frame()
        return int(MESSAGE_HEADER.unpack_from(await heir.frame())[1])

    assert nsqd.run(scenario()) == 1


def test_nsqd_ends_before_all_is_carried_out(tmp_path: Path) -> None:
    with InProcess(tmp_path) as nsqd:

        async def scenario() -> None:
            client = Client(nsqd)
            client.send(pub(TOPIC, b"x"))
            await client.has_unread()
            client.send(b"NOP\n" * 10_000)
            client.reset()

        nsqd.run(scenario())
