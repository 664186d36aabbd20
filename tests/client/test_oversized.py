"""Messages that nsqd finds too big: they are refused, and those beside them lose no time."""

import asyncio
from pathlib import Path

import pytest

from pumpline.client import Producer, RefusedError
from pumpline.core.protocol.frames import ERROR, RESPONSE, encode_frame
from tests.kit.client.consuming import left, publish, until
from tests.kit.client.scripted import Client, scripted
from tests.kit.daemons import Nsqd
from tests.kit.proxy import Proxy

GOOD, BIG = b"g" * 10, b"b" * 2000
LIMIT = 1000


async def outcomes(producer: Producer, topic: str, bodies: list[bytes]) -> list[object]:
    async with asyncio.timeout(60):
        each = (producer.publish(topic, body) for body in bodies)
        return await asyncio.gather(*each, return_exceptions=True)


async def test_nsqds_limit_is_learnt_once_and_good_messages_go_on(
    tmp_path: Path, topic: str
) -> None:
    with Nsqd(tmp_path / "data", [f"--max-msg-size={LIMIT}"]) as nsqd:
        publish(nsqd, topic, [])
        async with Proxy(nsqd.tcp_port) as proxy, Producer(proxy.address) as producer:
            for _ in range(5):
                got = await outcomes(producer, topic, [GOOD, BIG] * 10)
                assert got[::2] == [None] * 10
                for error in got[1::2]:
                    assert isinstance(error, RefusedError)
                    assert error.code == "E_BAD_MESSAGE"
                    assert "2000 > 1000" in str(error)
            assert proxy.accepted == 2, "only the first refusal costs a connection"
        assert left(nsqd, topic) == 50


async def test_an_nsqd_that_tells_its_limit_is_never_sent_more(topic: str) -> None:
    lines: list[bytes] = []

    async def confirm(client: Client) -> None:
        while True:
            lines.append(await client.command())
            client.send(encode_frame(RESPONSE, b"OK"))

    async with (
        scripted(confirm, {"max_msg_size": LIMIT}) as address,
        Producer(address) as producer,
    ):
        got = await outcomes(producer, topic, [GOOD, BIG, GOOD])
        assert [type(each) for each in got] == [type(None), RefusedError, type(None)]
        with pytest.raises(RefusedError, match="2000 > 1000"):
            await producer.publish(topic, BIG)
        with pytest.raises(RefusedError):
            await producer.publish(topic, BIG, defer=1)
        with pytest.raises(RefusedError):
            await producer.publish_many(topic, [GOOD, BIG])
    assert len(lines) == 1


async def test_without_a_number_the_large_ones_are_sent_last(topic: str) -> None:
    """So that the small ones are confirmed before a large one ends the connection."""
    seen: list[int] = []

    async def refuse(client: Client) -> None:
        while True:
            line = await client.command()
            if line.startswith(b"MPUB") or len(seen) >= 3:
                client.send(encode_frame(ERROR, b"E_BAD_MESSAGE too much"))
                return
            seen.append(1)
            client.send(encode_frame(RESPONSE, b"OK"))

    async with scripted(refuse) as address, Producer(address) as producer:
        got = await outcomes(producer, topic, [BIG, GOOD, GOOD, BIG, GOOD])
        assert [type(each) for each in got] == [
            RefusedError,
            type(None),
            type(None),
            RefusedError,
            type(None),
        ]


async def test_a_restart_may_bring_another_limit(tmp_path: Path, topic: str) -> None:
    with Nsqd(tmp_path / "data", [f"--max-msg-size={LIMIT}"]) as nsqd:
        async with Producer(nsqd.tcp_address) as producer:
            with pytest.raises(RefusedError):
                await producer.publish(topic, BIG)
            await until(lambda: producer.connected)
            nsqd.stop()
            nsqd.flags = []
            nsqd.start()
            await until(lambda: not producer.connected)
            await until(lambda: producer.connected)
            await producer.publish(topic, BIG)
