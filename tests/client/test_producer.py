"""A producer and real nsqds: what is confirmed is there, and what fails says what is known."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from pumpline.client import (
    ConnectError,
    NotSentError,
    Producer,
    RefusedError,
    Settings,
    UnconfirmedError,
)
from pumpline.client.publishing.bodies import TAKEN_AT_ONCE
from pumpline.core.protocol.frames import ERROR, OK, encode_frame
from tests.kit.client.consuming import CHANNEL, drain, until
from tests.kit.client.scripted import Client, scripted
from tests.kit.daemons import Nsqd
from tests.kit.proxy import DOWN, Proxy


def topic_stats(nsqd: Nsqd, topic: str) -> dict[str, int]:
    (stats,) = nsqd.stats(topic)["topics"]
    return dict(stats)


async def connected(producer: Producer, count: int) -> None:
    async with asyncio.timeout(60):
        while len(producer.connected) != count:
            await asyncio.sleep(0.001)


@pytest.fixture
async def producer(nsqd: Nsqd) -> AsyncIterator[Producer]:
    async with Producer(nsqd.tcp_address) as running:
        yield running


async def test_publish(producer: Producer, nsqd: Nsqd, topic: str) -> None:
    await producer.publish(topic, b"one")
    await producer.publish(topic, bytearray(b"two"))
    await producer.publish(topic, memoryview(b"three"))
    assert drain(nsqd, topic, 3) == Counter([b"one", b"two", b"three"])
    assert producer.published == 3


async def test_concurrent_publishes(producer: Producer, nsqd: Nsqd, topic: str) -> None:
    bodies = [b"%d" % number for number in range(5000)]
    await asyncio.gather(*(producer.publish(topic, body) for body in bodies))
    assert drain(nsqd, topic, 5000) == Counter(bodies)


async def test_publish_many(producer: Producer, nsqd: Nsqd, topic: str) -> None:
    bodies = [b"%d" % number for number in range(10_001)]
    await producer.publish_many(topic, iter(bodies))
    assert drain(nsqd, topic, 10_001) == Counter(bodies)


async def test_publish_many_of_none(producer: Producer) -> None:
    await producer.publish_many("nothing", [])
    assert producer.published == 0


async def test_publish_many_keeps_within_the_limits(tmp_path: Path, topic: str) -> None:
    bodies = [b"x" * size for size in (1, 400, 400, 300, 1, 500, 500, 7)]
    with Nsqd(tmp_path / "data", ["--max-body-size=1000", "--max-msg-size=500"]) as small:
        async with Producer(small.tcp_address, body_bytes_max=1000) as producer:
            await producer.publish_many(topic, bodies)
        assert drain(small, topic, len(bodies)) == Counter(bodies)


async def test_a_deferred_message(producer: Producer, nsqd: Nsqd, topic: str) -> None:
    nsqd.http("POST", f"/topic/create?topic={topic}")
    nsqd.http("POST", f"/channel/create?topic={topic}&channel={CHANNEL}")
    await producer.publish(topic, b"later", defer=60)
    await producer.publish(topic, b"later", defer=timedelta(minutes=1))
    assert nsqd.channel_stats(topic, CHANNEL)["deferred_count"] == 2


@pytest.mark.parametrize("batching", [True, False])
async def test_concurrent_publishes_share_a_command(
    proxy: Proxy, topic: str, batching: bool
) -> None:
    async with Producer(proxy.address, batching=batching) as producer:
        before = proxy.bytes_up
        await asyncio.gather(*(producer.publish(topic, b"x" * 100) for _ in range(100)))
        line = len(f"MPUB {topic}\n") if batching else 100 * len(f"PUB {topic}\n")
        count_bytes = 8 if batching else 0
        assert proxy.bytes_up - before == line + count_bytes + 100 * 104


async def test_a_batch_may_wait_for_more(proxy: Proxy, topic: str) -> None:
    async with Producer(proxy.address, batch_delay_s=1.0) as producer:
        before = proxy.bytes_up
        first = asyncio.create_task(producer.publish(topic, b"1"))
        await asyncio.sleep(0.001)
        assert proxy.bytes_up == before
        await producer.publish(topic, b"2")
        assert first.done()
        assert proxy.bytes_up - before == len(f"MPUB {topic}\n") + 8 + 2 * 5


@pytest.mark.parametrize(
    ("topic", "body", "error"),
    [
        ("bad topic", b"m", ValueError),
        ("", b"m", ValueError),
        ("t", b"", ValueError),
        ("t", b"x" * ((1 << 20) + 1), ValueError),
        ("t", "text", TypeError),
        ("t", 5, TypeError),
    ],
)
async def test_what_can_be_no_message_is_not_sent(
    producer: Producer, topic: str, body: bytes, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await producer.publish(topic, body)
    with pytest.raises(error):
        await producer.publish_many(topic, [body])
    with pytest.raises(error):
        await producer.publish_many(topic, [b"fine", body] if topic == "t" else [body])


@pytest.mark.parametrize("defer", [-1, float("inf"), float("nan"), timedelta(seconds=-1)])
async def test_a_delay_that_is_none(producer: Producer, defer: float | timedelta) -> None:
    with pytest.raises(ValueError, match="delayed"):
        await producer.publish("t", b"m", defer=defer)


@pytest.mark.parametrize(
    "words",
    [
        {"timeout_s": 0},
        {"confirm_timeout_s": -1},
        {"batch_delay_s": -1},
        {"message_bytes_max": 0},
        {"body_bytes_max": 0},
        {"pending_bytes_max": 0},
    ],
    ids=str,
)
def test_options_nothing_could_be_published_with_are_refused(words: dict[str, float]) -> None:
    [name] = words
    with pytest.raises(ValueError, match=name):
        Producer("127.0.0.1:4150", **words)  # type: ignore[arg-type]


# -- refusals -----------------------------------------------------------------------------------


async def test_a_refusal_says_why(nsqd: Nsqd, topic: str) -> None:
    async with Producer(nsqd.tcp_address, message_bytes_max=2 << 20) as producer:
        with pytest.raises(RefusedError) as caught:
            await producer.publish(topic, b"x" * (3 << 19))
        assert caught.value.code == "E_BAD_MESSAGE"
        await producer.publish(topic, b"fine")


async def test_one_bad_message_does_not_take_its_batch_with_it(nsqd: Nsqd, topic: str) -> None:
    bodies = [b"a", b"b", b"x" * (3 << 19), b"c"]
    async with Producer(nsqd.tcp_address, message_bytes_max=2 << 20) as producer:
        outcomes = await asyncio.gather(
            *(producer.publish(topic, body) for body in bodies), return_exceptions=True
        )
    assert isinstance(outcomes[2], RefusedError)
    assert outcomes[:2] + outcomes[3:] == [None] * 3
    received = drain(nsqd, topic, topic_stats(nsqd, topic)["message_count"])
    assert set(received) == {b"a", b"b", b"c"}


async def test_what_came_behind_a_refused_message_was_not_published_and_is_sent_again(
    nsqd: Nsqd, topic: str
) -> None:
    bodies = [b"x" * (3 << 19), b"a", b"b"]
    async with Producer(
        nsqd.tcp_address, message_bytes_max=2 << 20, batching=False, retry_unconfirmed=False
    ) as producer:
        outcomes = await asyncio.gather(
            *(producer.publish(topic, body) for body in bodies), return_exceptions=True
        )
    assert isinstance(outcomes[0], RefusedError)
    assert outcomes[1:] == [None, None]
    assert drain(nsqd, topic, 2) == Counter([b"a", b"b"])


async def test_messages_of_a_refused_batch_have_no_more_time_than_others() -> None:
    refused = False
    ended = []

    async def refuse_once(client: Client) -> None:
        nonlocal refused
        if not refused:
            assert (await client.command()).split()[0] == b"MPUB"
            assert (await client.command()).split()[0] == b"PUB"  # is pending by now
            refused = True
            client.send(encode_frame(ERROR, b"E_BAD_MESSAGE MPUB invalid message"))
        await client.gone()

    async def publish(topic: str, name: str) -> None:
        with pytest.raises((NotSentError, UnconfirmedError)):
            await producer.publish(topic, b"m")
        ended.append(name)

    async with scripted(refuse_once) as silent, Producer(silent, timeout_s=0.5) as producer:
        await asyncio.gather(publish("a", "first"), publish("a", "second"), publish("b", "later"))
    assert ended == ["first", "second", "later"]


# -- what the network does ----------------------------------------------------------------------


async def test_a_start_that_failed_can_be_tried_again(own_nsqd: Nsqd, topic: str) -> None:
    own_nsqd.stop()
    producer = Producer(own_nsqd.tcp_address)
    with pytest.raises(ConnectError):
        await producer.start()
    own_nsqd.restart()
    async with producer:
        await producer.publish(topic, b"m")
    assert drain(own_nsqd, topic, 1) == Counter([b"m"])


async def test_an_nsqd_that_is_slow_to_confirm_is_only_waited_for() -> None:
    async def confirm_slowly(client: Client) -> None:
        while True:
            await client.command()
            await asyncio.sleep(0.25)
            client.send(OK)

    async with scripted(confirm_slowly) as slow:
        async with Producer(slow, batching=False, confirm_timeout_s=1.5) as producer:
            await asyncio.gather(*(producer.publish("t", b"m") for _ in range(8)))
        assert (producer.published, producer.retried) == (8, 0)


async def test_nobody_there() -> None:
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1: "):
        async with Producer("127.0.0.1:1"):
            pass


async def test_one_of_two_is_enough(nsqd: Nsqd, topic: str) -> None:
    async with Producer(["127.0.0.1:1", nsqd.tcp_address]) as producer:
        await producer.publish(topic, b"m")
    assert drain(nsqd, topic, 1) == Counter([b"m"])


async def test_no_address_and_a_wrong_one() -> None:
    with pytest.raises(ValueError, match="address"):
        Producer([])
    with pytest.raises(ValueError, match="address"):
        Producer("localhost")


async def test_after_a_cut_it_reconnects(proxy: Proxy, nsqd: Nsqd, topic: str) -> None:
    async with Producer(proxy.address) as producer:
        await producer.publish(topic, b"before")
        proxy.cut()
        await producer.publish(topic, b"after")
    assert proxy.accepted == 2
    assert set(drain(nsqd, topic, topic_stats(nsqd, topic)["message_count"])) == {
        b"before",
        b"after",
    }


async def test_a_restarted_nsqd_is_found_again(own_nsqd: Nsqd, topic: str) -> None:
    async with Producer(own_nsqd.tcp_address) as producer:
        await producer.publish(topic, b"before")
        await asyncio.to_thread(own_nsqd.stop)
        waiting = asyncio.create_task(producer.publish(topic, b"meanwhile"))
        await asyncio.to_thread(own_nsqd.restart)
        await waiting
    assert drain(own_nsqd, topic, 2) == Counter([b"before", b"meanwhile"])


async def test_nothing_confirmed_is_lost_and_nothing_fails_while_connections_are_cut(
    proxy: Proxy, nsqd: Nsqd, topic: str
) -> None:
    bodies = [b"%d" % number for number in range(600)]
    async with Producer(proxy.address) as producer:
        for start in range(0, len(bodies), 100):
            some = bodies[start : start + 100]
            publishing = asyncio.gather(*(producer.publish(topic, body) for body in some))
            sent = proxy.bytes_up
            await proxy.until(lambda sent=sent: proxy.bytes_up > sent)  # type: ignore[misc]
            proxy.cut()
            await publishing
    received = drain(nsqd, topic, topic_stats(nsqd, topic)["message_count"])
    assert set(received) == set(bodies)


async def test_failover(nsqd: Nsqd, own_nsqd: Nsqd, topic: str) -> None:
    async with Proxy(own_nsqd.tcp_port) as first:
        async with Producer([first.address, nsqd.tcp_address]) as producer:
            await connected(producer, 2)
            await producer.publish(topic, b"to the first")
            first.refuse()
            first.cut()
            await connected(producer, 1)
            await producer.publish(topic, b"to the second")
        assert set(drain(own_nsqd, topic, 1)) == {b"to the first"}
        assert set(drain(nsqd, topic, 1)) == {b"to the second"}


async def test_a_half_open_nsqd_is_given_up_for_another(
    nsqd: Nsqd, own_nsqd: Nsqd, topic: str
) -> None:
    async with Proxy(own_nsqd.tcp_port) as first:
        addresses = [first.address, nsqd.tcp_address]
        async with Producer(addresses, confirm_timeout_s=0.2) as producer:
            await connected(producer, 2)
            first.refuse()
            first.half_open()
            await producer.publish(topic, b"m")
        assert producer.retried == 1
    assert drain(nsqd, topic, 1) == Counter([b"m"])


async def test_spread_uses_all(nsqd: Nsqd, own_nsqd: Nsqd, topic: str) -> None:
    addresses = [nsqd.tcp_address, own_nsqd.tcp_address]
    async with Producer(addresses, spread=True) as producer:
        await connected(producer, 2)
        for _ in range(10):
            await producer.publish(topic, b"m")
    assert drain(nsqd, topic, 5) == drain(own_nsqd, topic, 5)


async def test_what_was_never_sent_is_known_not_to_be(proxy: Proxy, topic: str) -> None:
    async with Producer(proxy.address, timeout_s=1.0) as producer:
        proxy.refuse()
        proxy.cut()
        await connected(producer, 0)
        with pytest.raises(NotSentError):
            await producer.publish(topic, b"m")


async def test_what_was_sent_and_not_answered_is_unconfirmed(
    proxy: Proxy, nsqd: Nsqd, topic: str
) -> None:
    async with Producer(proxy.address, retry_unconfirmed=False) as producer:
        proxy.stall(DOWN)
        publishing = asyncio.create_task(producer.publish(topic, b"m"))
        sent = proxy.bytes_up
        await proxy.until(lambda: proxy.bytes_up > sent)
        proxy.cut()
        with pytest.raises(UnconfirmedError):
            await publishing
        assert producer.retried == 0
    assert drain(nsqd, topic, 1) == Counter([b"m"])  # it was published


async def test_what_is_unconfirmed_stays_so_when_time_is_up(proxy: Proxy, topic: str) -> None:
    async with Producer(proxy.address, timeout_s=1.0) as producer:
        proxy.stall(DOWN)
        publishing = asyncio.create_task(producer.publish(topic, b"m"))
        sent = proxy.bytes_up
        await proxy.until(lambda: proxy.bytes_up > sent)
        proxy.refuse()
        proxy.cut()
        with pytest.raises(UnconfirmedError):
            await publishing


async def test_publish_many_says_how_much_is_confirmed(proxy: Proxy, topic: str) -> None:
    def bodies() -> list[bytes]:
        return [b"x"] * 4000

    async with Producer(proxy.address, timeout_s=1.0) as producer:
        await producer.publish_many(topic, bodies())
        proxy.refuse()
        proxy.cut()
        with pytest.raises((NotSentError, UnconfirmedError)) as caught:
            await producer.publish_many(topic, bodies())
        assert caught.value.confirmed == 0


async def test_publishes_wait_when_there_is_no_room(proxy: Proxy, nsqd: Nsqd, topic: str) -> None:
    async with Producer(proxy.address, pending_bytes_max=50_000) as producer:
        proxy.stall()
        publishing = asyncio.gather(*(producer.publish(topic, b"x" * 800) for _ in range(200)))
        await until(lambda: producer.waits >= 150)
        assert producer.waits == 150
        proxy.resume()
        await publishing
    assert drain(nsqd, topic, 200) == Counter({b"x" * 800: 200})


async def test_publish_many_takes_no_more_than_there_is_room_for(proxy: Proxy, topic: str) -> None:
    taken = 0

    def bodies() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield b"x" * 500_000

    async with Producer(proxy.address, pending_bytes_max=1 << 20, timeout_s=1.0) as producer:
        proxy.stall()
        with pytest.raises((NotSentError, UnconfirmedError)):
            await producer.publish_many(topic, bodies())
        proxy.resume()
    assert taken <= 2 * TAKEN_AT_ONCE


async def test_waiting_for_room_ends_in_time(proxy: Proxy, topic: str) -> None:
    async with Producer(proxy.address, pending_bytes_max=500, timeout_s=1.0) as producer:
        proxy.stall()
        # One has the room. Another may get it when that one ends, just before it would give up.
        outcomes = await asyncio.gather(
            *(producer.publish(topic, b"x" * 500) for _ in range(10)), return_exceptions=True
        )
        assert {type(each) for each in outcomes} == {UnconfirmedError, NotSentError}


async def test_a_cancelled_publish_is_not_sent_later(proxy: Proxy, nsqd: Nsqd, topic: str) -> None:
    async with Producer(proxy.address) as producer:
        proxy.refuse()
        proxy.cut()
        await connected(producer, 0)
        cancelled = asyncio.create_task(producer.publish(topic, b"cancelled"))
        kept = asyncio.create_task(producer.publish(topic, b"kept"))
        await asyncio.sleep(0)
        cancelled.cancel()
        proxy.accept()
        await kept
    assert drain(nsqd, topic, 1) == Counter([b"kept"])


async def test_closing_waits_for_what_is_pending(nsqd: Nsqd, topic: str) -> None:
    producer = Producer(nsqd.tcp_address)
    await producer.start()
    publishing = asyncio.create_task(producer.publish(topic, b"m"))
    await asyncio.sleep(0)
    await producer.close()
    await publishing
    assert drain(nsqd, topic, 1) == Counter([b"m"])


async def test_closing_does_not_wait_for_those_who_go_on_publishing(nsqd: Nsqd, topic: str) -> None:
    producer = Producer(nsqd.tcp_address, pending_bytes_max=1000)  # so that some wait for room
    confirmed = 0

    async def go_on() -> None:
        nonlocal confirmed
        while True:
            await producer.publish(topic, b"x" * 100)
            confirmed += 1

    await producer.start()
    publishing = asyncio.gather(*(go_on() for _ in range(20)), return_exceptions=True)
    while confirmed < 100:
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await producer.close()
        outcomes = await publishing
    assert {str(each) for each in outcomes} == {"not sent: the producer is closed"}
    assert topic_stats(nsqd, topic)["message_count"] == confirmed == producer.published


async def test_a_producer_that_is_not_open_says_so(nsqd: Nsqd) -> None:
    producer = Producer(nsqd.tcp_address)
    with pytest.raises(RuntimeError, match="not started"):
        await producer.publish("t", b"m")
    async with producer:
        pass
    with pytest.raises(NotSentError, match="closed"):
        await producer.publish("t", b"m")
    await producer.close()


@pytest.mark.parametrize("compression", ["snappy", "deflate"])
async def test_compressed(nsqd: Nsqd, topic: str, compression: str) -> None:
    settings = Settings(snappy=compression == "snappy", deflate=compression == "deflate")
    bodies = [b"%d" % number * 100 for number in range(500)]
    async with Producer(nsqd.tcp_address, settings=settings) as producer:
        await producer.publish_many(topic, bodies)
    assert drain(nsqd, topic, 500) == Counter(bodies)
