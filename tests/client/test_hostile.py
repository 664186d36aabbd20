"""nsqds and nsqlookupds that do what none should: the client says so, and goes on with the rest."""

import asyncio
import json

import pytest

from pumpline.client import Consumer, Message, Producer, RefusedError, UnconfirmedError
from pumpline.core.messages.frame import encode_message
from pumpline.core.protocol.frames import ERROR, OK, RESPONSE, encode_frame
from tests.client.test_discovery import answering, with_length
from tests.kit.client.consuming import CHANNEL, finish_all, publish, until
from tests.kit.client.scripted import Client, scripted
from tests.kit.daemons import Nsqd

MESSAGE = encode_message(timestamp_ns=1, attempts=1, message_id=7, body=b"m")


async def subscribe(client: Client) -> None:
    assert (await client.command()).startswith(b"SUB ")
    client.send(OK)


async def accept(client: Client) -> None:
    await subscribe(client)
    await client.gone()


@pytest.mark.parametrize(
    "granted",
    [{"msg_timeout": 10**400}, {"max_msg_timeout": 10**400}, {"msg_timeout": -5}],
    ids=["long", "longest", "negative"],
)
async def test_an_nsqd_that_grants_nonsense_does_not_stop_the_others(
    nsqd: Nsqd, topic: str, granted: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        scripted(accept, granted) as odd,
        Consumer(topic, CHANNEL, nsqd=[odd, nsqd.tcp_address]) as consumer,
    ):
        await until(lambda: "makes no sense" in caplog.text)
        publish(nsqd, topic, [b"m"])
        assert await finish_all(consumer, 1) == [b"m"]
        assert consumer.connections == [nsqd.tcp_address]


async def test_messages_nobody_asked_for_are_not_shown(
    topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    pushed = 0

    async def push(client: Client) -> None:
        nonlocal pushed
        pushed += 1
        client.send(MESSAGE)
        await accept(client)

    async with scripted(push) as odd, Consumer(topic, CHANNEL, nsqd=odd) as consumer:
        await until(lambda: "before it was asked for any" in caplog.text)
        await until(lambda: pushed >= 2)
        assert (consumer.counters.received, consumer.in_flight) == (0, 0)


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "."])
async def test_a_host_that_can_be_none_does_not_stop_the_others(
    nsqd: Nsqd, topic: str, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    named = [{"broadcast_address": name, "tcp_port": nsqd.tcp_port} for name in (host, "127.0.0.1")]
    answer = with_length(json.dumps({"producers": named}).encode())
    async with (
        answering(answer) as (lookupd, _),
        Consumer(topic, CHANNEL, lookupd=lookupd) as consumer,
    ):
        await until(lambda: f"{host}:{nsqd.tcp_port}: " in caplog.text)
        publish(nsqd, topic, [b"m"])
        assert await finish_all(consumer, 1) == [b"m"]


async def test_a_lookupd_that_can_be_none_does_not_stop_the_others(
    nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Consumer(topic, CHANNEL, lookupd="a..b:4161", nsqd=nsqd.tcp_address) as consumer:
        await until(lambda: "not the name of a host" in caplog.text)
        publish(nsqd, topic, [b"m"])
        assert await finish_all(consumer, 1) == [b"m"]


async def test_a_silent_lookupd_does_not_keep_the_others_nsqds_waiting(
    nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, [b"m"])
    named = {"broadcast_address": "127.0.0.1", "tcp_port": nsqd.tcp_port}
    answer = with_length(json.dumps({"producers": [named]}).encode())
    async with (
        answering(answer) as (good, _),
        answering(b"", close=False) as (silent, _),
        Consumer(topic, CHANNEL, lookupd=[silent, good]) as consumer,
    ):
        assert await finish_all(consumer, 1) == [b"m"]
        discovery = consumer._discovery
        assert discovery is not None
        assert discovery.polls == 0  # the first is not over yet


async def test_an_answer_that_is_not_ok_confirms_nothing() -> None:
    async def mumble(client: Client) -> None:
        await client.command()
        client.send(encode_frame(RESPONSE, b"CLOSE_WAIT"))
        await client.gone()

    async with scripted(mumble) as odd, Producer(odd, retry_unconfirmed=False) as producer:
        with pytest.raises(UnconfirmedError, match="CLOSE_WAIT"):
            await producer.publish("t", b"m")
        assert producer.published == 0


async def test_answers_nobody_waits_for_confirm_nothing() -> None:
    has_read = asyncio.Event()

    async def talk(client: Client) -> None:
        client.send(OK * 5 + encode_frame(RESPONSE, b"_heartbeat_"))
        assert await client.command() == b"NOP"  # the producer has read them
        has_read.set()
        await client.command()
        client.send(encode_frame(ERROR, b"E_BAD_TOPIC no"))
        await client.gone()

    async with scripted(talk) as odd, Producer(odd) as producer:
        await has_read.wait()
        with pytest.raises(RefusedError):
            await producer.publish("t", b"m")


async def test_an_nsqd_that_never_answers_cls_is_left_all_the_same(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pumpline.client.consuming.subscription.CLS_TIMEOUT_S", 0.05)
    async with scripted(accept) as deaf:
        consumer = Consumer(topic, CHANNEL, nsqd=deaf)
        consumer.start()
        await until(lambda: consumer.connections)
        async with asyncio.timeout(60):
            await consumer.stop()


async def test_messages_that_come_while_it_stops_are_put_back(topic: str) -> None:
    said: list[bytes] = []
    ended = asyncio.Event()

    async def deliver_late(client: Client) -> None:
        await subscribe(client)
        while (command := await client.command()) != b"CLS":
            assert command.startswith(b"RDY ")
        client.send(MESSAGE, encode_frame(RESPONSE, b"CLOSE_WAIT"))
        said.append(await client.command())
        ended.set()
        await client.gone()

    async with scripted(deliver_late) as late:
        consumer = Consumer(topic, CHANNEL, nsqd=late)
        consumer.start()
        await until(lambda: consumer.connections)
        await consumer.stop()
        await ended.wait()
    assert said == [b"REQ 0000000000000007 0"]
    assert consumer.counters.requeued == 1


async def test_nsqd_is_asked_for_no_more_before_anything_is_put_back(topic: str) -> None:
    """Or what is put back would come here again."""
    said: list[bytes] = []

    async def deliver(client: Client) -> None:
        await subscribe(client)
        await client.command()  # RDY
        client.send(MESSAGE)
        while len(said) < 2:
            said.append(await client.command())
        client.send(encode_frame(RESPONSE, b"CLOSE_WAIT"))
        await client.gone()

    async with scripted(deliver) as busy:
        consumer = Consumer(topic, CHANNEL, nsqd=busy)
        consumer.start()
        await until(lambda: consumer.in_flight == 1)
        await consumer.stop()
    assert said == [b"CLS", b"REQ 0000000000000007 0"]


async def test_an_answer_never_goes_to_another_connection(topic: str) -> None:
    """A message of the first connection is finished after the second one is up."""
    said: list[bytes] = []
    number = 0

    async def cut_the_first(client: Client) -> None:
        nonlocal number
        number += 1
        await subscribe(client)
        await client.command()  # RDY
        if number == 1:
            client.send(MESSAGE)
            return
        said.append(await client.command())
        client.send(encode_frame(RESPONSE, b"CLOSE_WAIT"))
        await client.gone()

    held: list[Message] = []
    async with scripted(cut_the_first) as twice:
        consumer = Consumer(topic, CHANNEL, nsqd=twice)

        async def hold(message: Message) -> None:
            held.append(message)
            await until(lambda: consumer.counters.connects == 2)

        running = asyncio.create_task(consumer.run(hold))
        await until(lambda: consumer.counters.connects == 2)
        await consumer.stop()
        await running
    assert held[0].is_over
    assert said == [b"CLS"]
