"""A consumer on a bad network, with several nsqds, and with nsqlookupds: nothing is lost."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pumpline.client import Consumer, Message, Settings
from pumpline.core.messages.frame import encode_message
from pumpline.core.protocol.frames import OK
from tests.kit.client.consuming import CHANNEL, finish_all, left, numbered, publish, take, until
from tests.kit.daemons import Nsqd, Nsqlookupd
from tests.kit.proxy import DOWN, Proxy

WATCHFUL = Settings(heartbeat_interval_s=1.0, read_timeout_s=1.2)
ATTENTIVE = Settings(poll_interval_s=0.1)


@pytest.fixture(scope="module")
def three_nsqds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Nsqd]]:
    with contextlib.ExitStack() as stack:
        directory = tmp_path_factory.mktemp("three")
        yield [stack.enter_context(Nsqd(directory / f"data{n}")) for n in range(3)]


@pytest.fixture
def two_lookupds(tmp_path: Path) -> Iterator[list[Nsqlookupd]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Nsqlookupd(tmp_path / f"lookupd{n}")) for n in range(2)]


def addresses(nsqds: list[Nsqd]) -> list[str]:
    return [nsqd.tcp_address for nsqd in nsqds]


async def test_a_cut_connection_is_made_again_and_nothing_is_lost(
    tmp_path: Path, topic: str
) -> None:
    with Nsqd(tmp_path / "data", ["--msg-timeout=1s"]) as nsqd:
        publish(nsqd, topic, numbered(2000))
        seen = Counter[bytes]()
        async with Proxy(nsqd.tcp_port) as proxy:
            consumer = Consumer(topic, CHANNEL, nsqd=proxy.address, max_in_flight=100)

            async def handle(message: Message) -> None:
                seen[message.body] += 1
                if seen.total() in (300, 900):
                    proxy.cut()

            running = asyncio.create_task(consumer.run(handle))
            await until(lambda: left(nsqd, topic) == 0)
            await consumer.stop()
            await running
        assert sorted(seen) == sorted(numbered(2000))
        assert consumer.counters.connects == 3
        assert seen.total() - 2000 <= 2 * 100


async def test_messages_of_a_lost_connection_are_not_shown_any_more(
    proxy: Proxy, nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, numbered(10))
    async with Consumer(topic, CHANNEL, nsqd=proxy.address, max_in_flight=10) as consumer:
        [message] = await take(consumer, 1)
        await until(lambda: consumer.in_flight == 10)
        proxy.refuse()
        proxy.cut()
        await until(lambda: not consumer.connections)
        assert message.is_over
        assert not message.finish()
        assert consumer.in_flight == 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await take(consumer, 1)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["stalled", "half open"])
async def test_a_silent_connection_is_given_up_and_made_again(
    nsqd: Nsqd, topic: str, trouble: str
) -> None:
    async with (
        Proxy(nsqd.tcp_port) as proxy,
        Consumer(topic, CHANNEL, nsqd=proxy.address, settings=WATCHFUL) as consumer,
    ):
        await until(lambda: consumer.connections)
        if trouble == "stalled":
            proxy.stall(DOWN)
        else:
            proxy.half_open()
        publish(nsqd, topic, [b"m"])
        await until(lambda: not consumer.connections)
        proxy.resume()
        nsqd.http("POST", f"/channel/empty?topic={topic}&channel={CHANNEL}")
        publish(nsqd, topic, [b"n"])
        assert await finish_all(consumer, 1) == [b"n"]


async def test_an_nsqd_that_sends_far_more_than_it_may_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    flood = encode_message(timestamp_ns=1, attempts=1, message_id=7, body=b"m") * 2000

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"IDENTIFY\n")
            await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            writer.write(OK)
            await reader.readuntil(b"SUB t ch\n")
            writer.write(OK)
            await reader.readuntil(b"RDY 10\n")
            writer.write(flood)
            await reader.read()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Consumer("t", CHANNEL, nsqd=f"127.0.0.1:{port}", max_in_flight=10) as consumer:
            await until(lambda: "messages, and was allowed 10" in caplog.text)
            assert consumer.in_flight == 0


async def test_an_nsqd_that_is_killed_is_found_again(own_nsqd: Nsqd, topic: str) -> None:
    async with Consumer(topic, CHANNEL, nsqd=own_nsqd.tcp_address) as consumer:
        await until(lambda: consumer.connections)
        own_nsqd.kill()
        await until(lambda: not consumer.connections)
        own_nsqd.restart()
        publish(own_nsqd, topic, [b"m"])
        assert await finish_all(consumer, 1) == [b"m"]


async def test_an_nsqd_that_is_not_there_yet_keeps_nobody_waiting(
    nsqd: Nsqd, topic: str, unused_tcp_port: int
) -> None:
    publish(nsqd, topic, [b"m"])
    missing = f"127.0.0.1:{unused_tcp_port}"
    async with Consumer(topic, CHANNEL, nsqd=[missing, nsqd.tcp_address]) as consumer:
        assert await finish_all(consumer, 1) == [b"m"]
        assert consumer.connections == [nsqd.tcp_address]


async def test_one_busy_nsqd_of_three_gets_the_whole_of_max_in_flight(
    three_nsqds: list[Nsqd], topic: str
) -> None:
    busy, *quiet = three_nsqds
    publish(busy, topic, numbered(200))
    for nsqd in quiet:
        publish(nsqd, topic, [])
    async with Consumer(topic, CHANNEL, nsqd=addresses(three_nsqds), max_in_flight=0) as consumer:
        await until(lambda: len(consumer.connections) == 3)
        consumer.max_in_flight = 30
        # All but one for each of the others, so that they can say that they have something.
        await until(lambda: consumer.in_flight == 28)
        for nsqd in quiet:
            publish(nsqd, topic, numbered(100, "late"))
        await until(lambda: consumer.in_flight == 30)
        held = await take(consumer, 30)
        for message in held:
            message.finish()
        await finish_all(consumer, 400 - 30)
    assert [left(nsqd, topic) for nsqd in three_nsqds] == [0, 0, 0]


async def test_uneven_nsqds_are_all_drained_and_the_limit_holds(
    three_nsqds: list[Nsqd], topic: str
) -> None:
    for nsqd, count in zip(three_nsqds, (1500, 150, 15), strict=True):
        publish(nsqd, topic, numbered(count, str(count)))
    in_hand: list[int] = []
    settings = Settings(redistribute_interval_s=0.01)
    consumer = Consumer(
        topic, CHANNEL, nsqd=addresses(three_nsqds), max_in_flight=20, settings=settings
    )

    async def handle(message: Message) -> None:
        in_hand.append(consumer.in_flight)
        await asyncio.sleep(0)
        if len(in_hand) == 1665:
            consumer.stop_soon()

    async with asyncio.timeout(60):
        await consumer.run(handle, concurrency=20)
    assert [left(nsqd, topic) for nsqd in three_nsqds] == [0, 0, 0]
    # RDY that is lowered does not call back what is under way already.
    assert max(in_hand) <= 2 * 20


async def test_more_nsqds_than_max_in_flight_are_served_in_turn(
    three_nsqds: list[Nsqd], topic: str
) -> None:
    for number, nsqd in enumerate(three_nsqds):
        publish(nsqd, topic, numbered(20, str(number)))
    settings = Settings(redistribute_interval_s=0.005)
    async with Consumer(
        topic, CHANNEL, nsqd=addresses(three_nsqds), max_in_flight=1, settings=settings
    ) as consumer:
        bodies = await finish_all(consumer, 60)
    assert len(set(bodies)) == 60


async def test_lookupds_name_the_nsqds(
    tmp_path: Path, two_lookupds: list[Nsqlookupd], topic: str
) -> None:
    """Each nsqd is known to one nsqlookupd only, and the topic is made after the start."""
    lookupds = [lookupd.http_address for lookupd in two_lookupds]
    with contextlib.ExitStack() as stack:
        nsqds = [
            stack.enter_context(Nsqd(tmp_path / f"data{n}", registering(lookupd)))
            for n, lookupd in enumerate(two_lookupds)
        ]
        async with Consumer(topic, CHANNEL, lookupd=lookupds, settings=ATTENTIVE) as consumer:
            for number, nsqd in enumerate(nsqds):
                publish(nsqd, topic, numbered(10, str(number)))
            bodies = await finish_all(consumer, 20)
            assert sorted(bodies) == sorted(numbered(10, "0") + numbered(10, "1"))
            assert sorted(consumer.connections) == sorted(addresses(nsqds))


async def test_an_nsqd_no_lookupd_names_any_more_is_left(
    tmp_path: Path, two_lookupds: list[Nsqlookupd], topic: str
) -> None:
    lookupd = two_lookupds[0]
    with (
        Nsqd(tmp_path / "data0", registering(lookupd)) as leaving,
        Nsqd(tmp_path / "data1", registering(lookupd)) as staying,
    ):
        for nsqd in (leaving, staying):
            publish(nsqd, topic, [b"m"])
        async with Consumer(
            topic, CHANNEL, lookupd=lookupd.http_address, settings=ATTENTIVE
        ) as consumer:
            await finish_all(consumer, 2)
            node = leaving.http_address
            assert lookupd.http("POST", f"/topic/tombstone?topic={topic}&node={node}")[0] == 200
            await until(lambda: consumer.connections == [staying.tcp_address])
            await until(lambda: leaving.channel_stats(topic, CHANNEL)["client_count"] == 0)
            publish(staying, topic, [b"n"])
            assert await finish_all(consumer, 1) == [b"n"]


async def test_a_stop_waits_for_messages_of_an_nsqd_that_is_being_left(
    tmp_path: Path, two_lookupds: list[Nsqlookupd], topic: str
) -> None:
    lookupd = two_lookupds[0]
    with Nsqd(tmp_path / "data", registering(lookupd)) as nsqd:
        publish(nsqd, topic, [b"m"])
        consumer = Consumer(topic, CHANNEL, lookupd=lookupd.http_address, settings=ATTENTIVE)
        consumer.start()
        [message] = await take(consumer, 1)
        tombstone = f"/topic/tombstone?topic={topic}&node={nsqd.http_address}"
        assert lookupd.http("POST", tombstone)[0] == 200
        await until(lambda: not consumer.connections)
        stopping = asyncio.create_task(consumer.stop())
        while not consumer._inbox.is_over:
            await asyncio.sleep(0)
        assert message.finish()
        await stopping
        assert left(nsqd, topic) == 0


async def test_the_loss_of_every_lookupd_leaves_connections_as_they_are(
    tmp_path: Path, two_lookupds: list[Nsqlookupd], topic: str
) -> None:
    lookupd = two_lookupds[0]
    with Nsqd(tmp_path / "data", registering(lookupd)) as nsqd:
        publish(nsqd, topic, [b"m"])
        settings = Settings(poll_interval_s=0.01)
        async with Consumer(
            topic, CHANNEL, lookupd=lookupd.http_address, settings=settings
        ) as consumer:
            await finish_all(consumer, 1)
            lookupd.kill()
            discovery = consumer._discovery
            assert discovery is not None
            polls = discovery.polls
            await until(lambda: discovery.polls >= polls + 4)
            publish(nsqd, topic, [b"n"])
            assert await finish_all(consumer, 1) == [b"n"]
            assert consumer.counters.connects == 1


def registering(lookupd: Nsqlookupd) -> list[str]:
    return [f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1"]
