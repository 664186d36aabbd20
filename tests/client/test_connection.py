"""A connection to a real nsqd: opened in every way, and ended in every way."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pumpline.client.connection.connection import WATER_MARK_BYTES, NsqdConnection
from pumpline.client.errors import (
    ConnectError,
    ConnectionClosedError,
    PumplineError,
    ServerError,
    StalledError,
)
from pumpline.client.settings import Settings
from pumpline.core.protocol import commands
from pumpline.core.protocol.frames import HEARTBEAT, OK, RESPONSE, encode_frame
from pumpline.core.protocol.layers import Deflate, Snappy
from tests.kit.client.owner import CHANNEL, Owner, publish_and_consume
from tests.kit.daemons import Nsqd
from tests.kit.proxy import DOWN, Proxy


@pytest.fixture
async def connection(nsqd: Nsqd, owner: Owner) -> AsyncIterator[NsqdConnection]:
    opened = await owner.open(nsqd.tcp_address)
    yield opened
    await opened.close()


async def test_publish_consume_and_finish(
    connection: NsqdConnection, owner: Owner, nsqd: Nsqd, topic: str
) -> None:
    await publish_and_consume(connection, owner, topic)
    stats = nsqd.channel_stats(topic, CHANNEL)
    assert (stats["depth"], stats["in_flight_count"]) == (0, 0)


async def test_what_was_negotiated_is_known(nsqd: Nsqd, owner: Owner) -> None:
    opened = await owner.open(nsqd.tcp_address, Settings(msg_timeout_s=7.5, sample_rate=40))
    assert opened.negotiated.max_rdy_count == 2500
    assert opened.negotiated.msg_timeout_ms == 7500
    assert opened.negotiated.sample_rate == 40
    assert opened.negotiated.version == "1.3.0"
    await opened.close()


async def test_nsqd_knows_who_we_are(nsqd: Nsqd, owner: Owner, topic: str) -> None:
    settings = Settings(client_id="me", hostname="my.host", user_agent="agent/7")
    opened = await owner.open(nsqd.tcp_address, settings)
    await opened.request(commands.sub(topic, CHANNEL))
    (client,) = nsqd.channel_stats(topic, CHANNEL)["clients"]
    assert client["client_id"] == "me"
    assert client["hostname"] == "my.host"
    assert client["user_agent"] == "agent/7"
    await opened.close()


async def test_answers_are_matched_in_order(connection: NsqdConnection, topic: str) -> None:
    answers = [connection.request(commands.pub(topic, b"m%d" % n)) for n in range(100)]
    bad = connection.request(commands.pub("not@topic", b"m"))
    assert await asyncio.gather(*answers) == [b"OK"] * 100
    with pytest.raises(ServerError) as caught:
        await bad
    assert caught.value.code == "E_BAD_TOPIC"


async def test_an_answer_nobody_waits_for_is_still_counted(
    connection: NsqdConnection, topic: str
) -> None:
    given_up = connection.request(commands.pub(topic, b"m"))
    given_up.cancel()
    assert await connection.request(commands.sub(topic, CHANNEL)) == b"OK"
    assert await connection.request(commands.CLS) == b"CLOSE_WAIT"


async def test_a_soft_error_is_told_and_survived(
    connection: NsqdConnection, owner: Owner, topic: str
) -> None:
    await connection.request(commands.sub(topic, CHANNEL))
    connection.write(commands.fin(b"0" * 16))
    (error,) = await owner.complained()
    assert (error.code, error.fatal) == ("E_FIN_FAILED", False)
    assert await connection.request(commands.CLS) == b"CLOSE_WAIT"


async def test_a_fatal_error_ends_the_connection_and_is_the_reason(
    connection: NsqdConnection, owner: Owner, topic: str
) -> None:
    refused = connection.request(commands.pub("bad@topic", b"m"))
    behind = connection.request(commands.pub(topic, b"m"))
    with pytest.raises(ServerError, match="E_BAD_TOPIC"):
        await refused
    with pytest.raises(ConnectionClosedError, match="E_BAD_TOPIC"):
        await behind
    await owner.closed.wait()
    (reason,) = owner.reasons
    assert isinstance(reason, ServerError)
    assert connection.is_closed


async def test_one_write_for_all_commands_of_a_turn(nsqd: Nsqd, owner: Owner, topic: str) -> None:
    connection = await owner.open(nsqd.tcp_address)
    transport = _Recording(connection._transport)
    connection._transport = transport  # type: ignore[assignment]
    answers = [connection.request(commands.pub(topic, b"m")) for _ in range(30)]
    await asyncio.gather(*answers)
    assert transport.writes == 1
    await connection.close()


class _Recording:
    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.writes = 0

    def write(self, data: bytes) -> None:
        self.writes += 1
        self._transport.write(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


async def test_closing_sends_what_was_written(nsqd: Nsqd, owner: Owner, topic: str) -> None:
    connection = await owner.open(nsqd.tcp_address)
    await connection.request(commands.sub(topic, CHANNEL))
    await connection.request(commands.pub(topic, b"m"))
    connection.write(commands.rdy(1))
    ((_, _, message_id, _),) = await owner.received(1)
    connection.write(commands.fin(message_id))
    await connection.close()
    assert owner.reasons == [None]
    stats = nsqd.channel_stats(topic, CHANNEL)
    assert (stats["depth"], stats["in_flight_count"], stats["timeout_count"]) == (0, 0, 0)


async def test_a_closed_connection_takes_no_requests(
    connection: NsqdConnection, topic: str
) -> None:
    await connection.close()
    connection.write(commands.NOP)
    with pytest.raises(ConnectionClosedError) as caught:
        await connection.request(commands.pub(topic, b"m"))
    assert not caught.value.sent
    with pytest.raises(ConnectionClosedError):
        await connection.drain()


# -- what the network does ----------------------------------------------------------------------


async def test_a_cut_connection_fails_what_is_open(proxy: Proxy, owner: Owner, topic: str) -> None:
    connection = await owner.open(proxy.address)
    proxy.stall()
    sent = connection.request(commands.pub(topic, b"m"))
    await asyncio.sleep(0)  # written
    await asyncio.sleep(0)
    proxy.cut()
    with pytest.raises(ConnectionClosedError) as caught:
        await sent
    assert caught.value.sent
    with pytest.raises(ConnectionClosedError) as caught:
        await connection.request(commands.pub(topic, b"m"))
    assert not caught.value.sent
    await owner.closed.wait()
    assert isinstance(owner.reasons[0], ConnectionClosedError)


async def test_what_never_left_is_known_not_to_be_sent(
    proxy: Proxy, owner: Owner, topic: str
) -> None:
    connection = await owner.open(proxy.address)
    answer = connection.request(commands.pub(topic, b"m"))
    connection.abort(None)  # before the loop could write it
    with pytest.raises(ConnectionClosedError) as caught:
        await answer
    assert not caught.value.sent


@pytest.mark.parametrize("how", ["stalled", "half open"])
@pytest.mark.slow
async def test_a_silent_server_is_dropped(proxy: Proxy, owner: Owner, topic: str, how: str) -> None:
    settings = Settings(heartbeat_interval_s=1.0, read_timeout_s=1.0)
    connection = await owner.open(proxy.address, settings)
    if how == "stalled":
        proxy.stall(DOWN)
    else:
        proxy.half_open()
    with pytest.raises(StalledError):
        await connection.request(commands.pub(topic, b"m"))
    await owner.closed.wait()
    assert isinstance(owner.reasons[0], StalledError)


@pytest.mark.slow
async def test_heartbeats_keep_an_idle_connection(proxy: Proxy, owner: Owner, topic: str) -> None:
    settings = Settings(heartbeat_interval_s=1.0, read_timeout_s=2.0)
    connection = await owner.open(proxy.address, settings)
    opened_bytes = proxy.bytes_up
    # nsqd drops a client that does not answer within two intervals, and we drop a silent nsqd.
    await proxy.until(lambda: proxy.bytes_up == opened_bytes + 3 * len(commands.NOP))
    assert await connection.request(commands.pub(topic, b"m")) == b"OK"
    await connection.close()


async def test_a_server_that_takes_nothing_is_waited_for_and_then_dropped(
    proxy: Proxy, owner: Owner, topic: str
) -> None:
    connection = await owner.open(proxy.address, Settings(write_timeout_s=0.2))
    proxy.stall()
    with pytest.raises(ConnectionClosedError):
        while True:
            await connection.drain()
            connection.request(commands.pub(topic, b"x" * (WATER_MARK_BYTES // 2)))
            await asyncio.sleep(0)
    assert isinstance(connection.reason, StalledError)


async def test_a_slow_server_is_only_waited_for(proxy: Proxy, owner: Owner, topic: str) -> None:
    connection = await owner.open(proxy.address)
    proxy.stall()
    answers = []
    while connection.is_writable:
        answers.append(connection.request(commands.pub(topic, b"x" * (WATER_MARK_BYTES // 2))))
        await asyncio.sleep(0)
    proxy.resume()
    await connection.drain()
    assert set(await asyncio.gather(*answers)) == {b"OK"}
    await connection.close()


async def test_reading_can_be_paused(connection: NsqdConnection, owner: Owner, topic: str) -> None:
    await connection.request(commands.sub(topic, CHANNEL))
    await connection.request(commands.pub(topic, b"m"))
    connection.pause_reading()
    connection.write(commands.rdy(1))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await owner.received(1)
    connection.resume_reading()
    assert len(await owner.received(1)) == 1


# -- opening ------------------------------------------------------------------------------------


async def test_nobody_there(owner: Owner, own_nsqd: Nsqd) -> None:
    own_nsqd.stop()
    with pytest.raises(ConnectError, match=own_nsqd.tcp_address):
        await owner.open(own_nsqd.tcp_address)
    assert owner.reasons == []


async def test_a_server_that_says_nothing(proxy: Proxy, owner: Owner) -> None:
    proxy.stall()
    with pytest.raises(ConnectError, match="within"):
        await owner.open(proxy.address, Settings(connect_timeout_s=0.2))
    proxy.resume()
    await proxy.connected(0)


@pytest.mark.parametrize(
    "answer",
    [
        b"\0\0\0\7\0\0\0\0{x}",
        b"\0\0\0\5\0\0\0\2x",
        encode_frame(RESPONSE, b'{"max_rdy_count":"many"}'),
        encode_frame(RESPONSE, b'{"version":' + b"[" * 100_000),
        encode_frame(RESPONSE, b'{"version":"\xff"}'),
    ],
    ids=["no json", "message", "wrong type", "too deep", "no text"],
)
async def test_something_else_than_an_nsqd(owner: Owner, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        writer.close()  # from Python 3.12.1 on, the server waits for it

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectError, match="not the answer of an nsqd"):
            await owner.open(f"127.0.0.1:{port}")


@pytest.mark.parametrize("layer", ["", "snappy", "deflate"])
@pytest.mark.parametrize("seed", range(10))
async def test_whatever_a_server_sends_ends_in_a_reason(
    owner: Owner, seed: int, layer: str
) -> None:
    chance = random.Random(seed)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        granted = json.dumps({layer: True} if layer else {}).encode()
        writer.write(encode_frame(RESPONSE, granted))
        pack = {"": bytes, "snappy": Snappy().pack, "deflate": Deflate(6).pack}[layer]
        if layer:
            writer.write(pack(OK))
        # Whole frames, then something else: under the layer, or instead of it.
        writer.write(pack(OK * chance.randrange(3) + HEARTBEAT))
        rubbish = chance.randbytes(chance.choice([1, 8, 50, 70_000]))
        writer.write(pack(rubbish) if chance.random() < 0.5 else rubbish)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        settings = Settings(snappy=layer == "snappy", deflate=layer == "deflate")
        connection = await owner.open(f"127.0.0.1:{port}", settings)
        async with asyncio.timeout(60):
            await owner.closed.wait()
    assert connection.is_closed
    assert isinstance(connection.reason, PumplineError)


@pytest.mark.parametrize("address", ["", "localhost", "host:port", "host:0", "host:99999"])
async def test_an_address_that_is_none(owner: Owner, address: str) -> None:
    with pytest.raises(ValueError, match=r"address|port"):
        await owner.open(address)


async def test_a_unix_socket(tmp_path: Path, owner: Owner, topic: str, nsqd: Nsqd) -> None:
    path = tmp_path / "socket"

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", nsqd.tcp_port)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 16):
                target.write(data)
            target.close()

        await asyncio.gather(copy(reader, up_writer), copy(up_reader, writer))

    async with await asyncio.start_unix_server(relay, path):
        connection = await owner.open(str(path))
        await publish_and_consume(connection, owner, topic)
        await connection.close()
