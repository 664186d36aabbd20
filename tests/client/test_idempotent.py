"""Publishes that may be sent twice and are stored once: tokens of the producer and of its users."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from pumpline import sync
from pumpline.client import (
    ConnectError,
    NotSentError,
    Outgoing,
    Producer,
    PublishError,
    RefusedError,
    UnconfirmedError,
)
from pumpline.client.around import CallNext
from pumpline.testing import LocalNsqd
from tests.kit.client.chaos import trouble
from tests.kit.client.consuming import until
from tests.kit.client.scripted import Client, scripted
from tests.kit.daemons import Nsqd, wait_until
from tests.kit.proxy import DOWN, Proxy

KILLS = 6
PUBLISHERS = 8
TROUBLES = 25


def stored_in(nsqd: Nsqd, topic: str) -> list[bytes]:
    """All that the topic has ever had, which is behind a channel that nobody consumes."""
    stats = nsqd.channel_stats(topic, "all")
    bodies = []
    with nsqd.connect() as client:
        client.sub(topic, "all")
        client.rdy(2500)
        for _ in range(stats["depth"] + stats["deferred_count"]):
            message = client.read_message()
            client.fin(message.id)
            bodies.append(message.body)
    return bodies


def create(nsqd: Nsqd, topic: str) -> None:
    nsqd.http("POST", f"/topic/create?topic={topic}")
    nsqd.http("POST", f"/channel/create?topic={topic}&channel=all")


def count_in(nsqd: Nsqd, topic: str) -> int:
    return sum(each["message_count"] for each in nsqd.stats(topic)["topics"] or ())


@asynccontextmanager
async def answer_lost(
    nsqd: Nsqd, proxy: Proxy, topic: str, count: int, *, comes_back: bool = True
) -> AsyncIterator[None]:
    """The connection is cut when nsqd has stored `count` messages, before its answer came."""
    proxy.stall(DOWN)
    yield
    await asyncio.to_thread(wait_until, lambda: count_in(nsqd, topic) == count)
    proxy.refuse()
    proxy.cut()
    await proxy.connected(0)
    proxy.resume()
    if comes_back:
        proxy.accept()


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_lost_answer_leads_to_a_repeat_that_is_stored_once(
    nsqd: Nsqd, proxy: Proxy, topic: str, idempotent: bool
) -> None:
    """Without tokens the same history stores each of them twice."""
    create(nsqd, topic)
    factor = 1 if idempotent else 2
    async with Producer(proxy.address, idempotent=idempotent) as producer:
        async with answer_lost(nsqd, proxy, topic, 1):
            one = asyncio.create_task(producer.publish(topic, b"one"))
        await one
        async with answer_lost(nsqd, proxy, topic, factor + 3):
            many = asyncio.create_task(producer.publish_many(topic, [b"a", b"b", b"c"]))
        await many
        async with answer_lost(nsqd, proxy, topic, 4 * factor + 2):
            both = [asyncio.create_task(producer.publish(topic, body)) for body in (b"x", b"y")]
        await asyncio.gather(*both)
        async with answer_lost(nsqd, proxy, topic, 6 * factor + 1):
            later = asyncio.create_task(producer.publish(topic, b"later", defer=0.01))
        await later
        assert producer.retried == 4
    expected = [b"one", b"a", b"b", b"c", b"x", b"y", b"later"] * factor
    assert sorted(stored_in(nsqd, topic)) == sorted(expected)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--sync-every=1",)], ids=["", "group-commit"])
async def test_kills_of_nsqd_store_each_message_exactly_once(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """`kill -9` in a loop while numbered messages are published, alone, together and in batches."""
    dice = random.Random(7)
    confirmed: list[bytes] = []
    is_over = False

    async def work(producer: Producer, name: int) -> None:
        for number in count():
            if is_over:
                return
            size = dice.choice([1, 1, 1, 20])
            bodies = [b"%d-%d-%d" % (name, number, part) for part in range(size)]
            if size == 1:
                await producer.publish("t", bodies[0])
            else:
                await producer.publish_many("t", bodies)
            confirmed.extend(bodies)

    nsqd = Nsqd(tmp_path / "data", ["--max-bytes-per-file=50000", *flags])
    with nsqd:
        create(nsqd, "t")
        tcp_port, http_port = nsqd.tcp_port, nsqd.http_port
        async with Producer(nsqd.tcp_address, idempotent=True, timeout_s=300) as producer:
            workers = [asyncio.create_task(work(producer, n)) for n in range(PUBLISHERS)]
            for _ in range(KILLS):
                before = len(confirmed)
                await until(lambda before=before: len(confirmed) > before)  # type: ignore[misc]
                await asyncio.sleep(dice.uniform(0, 0.2))  # the moment of the kill is to be any
                await asyncio.to_thread(nsqd.kill)
                await asyncio.to_thread(nsqd.start, tcp_port=tcp_port, http_port=http_port)
            is_over = True
            await asyncio.gather(*workers)
            assert producer.retried
        stored = stored_in(nsqd, "t")
    assert len(confirmed) > KILLS
    assert sorted(stored) == sorted(confirmed)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [True, False], ids=["spread", "first"])
async def test_two_nsqds_behind_a_bad_network_store_each_message_once(
    tmp_path: Path, topic: str, spread: bool
) -> None:
    dice = random.Random(f"{spread}")
    confirmed: list[bytes] = []
    doubtful: set[bytes] = set()
    is_over = False

    async def work(producer: Producer, name: int) -> None:
        for number in count():
            if is_over:
                return
            body = b"%d-%d" % (name, number)
            try:
                await producer.publish(topic, body)
                confirmed.append(body)
            except UnconfirmedError:
                doubtful.add(body)
            except NotSentError:
                pass

    async with AsyncExitStack() as stack:
        nsqds = [stack.enter_context(Nsqd(tmp_path / f"data{n}")) for n in range(2)]
        for nsqd in nsqds:
            create(nsqd, topic)
        proxies = [await stack.enter_async_context(Proxy(nsqd.tcp_port)) for nsqd in nsqds]
        async with Producer(
            [proxy.address for proxy in proxies],
            spread=spread,
            idempotent=True,
            timeout_s=20,
            confirm_timeout_s=0.2,
        ) as producer:
            workers = [asyncio.create_task(work(producer, n)) for n in range(10)]
            for _ in range(TROUBLES):
                await trouble(proxies, dice, stall_s=0.3)
            for proxy in proxies:
                proxy.heal()
            is_over = True
            await asyncio.gather(*workers)
        stored = [body for nsqd in nsqds for body in stored_in(nsqd, topic)]
    assert confirmed
    assert len(stored) == len(set(stored))
    assert set(confirmed) <= set(stored) <= set(confirmed) | doubtful


async def test_what_one_nsqd_may_have_goes_to_no_other(tmp_path: Path, topic: str) -> None:
    with Nsqd(tmp_path / "a") as first, Nsqd(tmp_path / "b") as second:
        create(first, topic)
        create(second, topic)
        async with Proxy(first.tcp_port) as proxy:
            addresses = [proxy.address, second.tcp_address]
            async with Producer(addresses, idempotent=True, timeout_s=60) as producer:
                await until(lambda: len(producer.connected) == 2)
                async with answer_lost(first, proxy, topic, 1, comes_back=False):
                    doubtful = asyncio.create_task(producer.publish(topic, b"doubtful"))
                await until(lambda: producer.connected == [second.tcp_address])
                await producer.publish(topic, b"plain")
                assert not doubtful.done()
                proxy.accept()
                await doubtful
        assert stored_in(first, topic) == [b"doubtful"]
        assert stored_in(second, topic) == [b"plain"]


async def test_unconfirmed_is_still_said_when_its_nsqd_does_not_come_back(
    own_nsqd: Nsqd, topic: str
) -> None:
    create(own_nsqd, topic)
    async with Proxy(own_nsqd.tcp_port) as proxy:
        addresses = [proxy.address]
        async with Producer(addresses, idempotent=True, timeout_s=2) as producer:
            async with answer_lost(own_nsqd, proxy, topic, 1, comes_back=False):
                doubtful = asyncio.create_task(producer.publish(topic, b"x"))
            with pytest.raises(UnconfirmedError):
                await doubtful


# -- tokens of users ------------------------------------------------------------------------------


async def test_a_token_stores_a_message_once_whoever_publishes_it(nsqd: Nsqd, topic: str) -> None:
    create(nsqd, topic)
    for _ in range(2):
        async with Producer(nsqd.tcp_address) as producer:
            await asyncio.gather(
                *(producer.publish(topic, b"17", token="order:17") for _ in range(5))
            )
            await producer.publish_json(topic, {"n": 18}, token="order:18")
            await producer.publish_many(topic, [b"19", b"20"], token="orders:19-20")
            await producer.publish_many(topic, iter([b"21"]), token="order:21")
            await producer.publish_many(topic, [], token="order:none")
            await producer.publish(topic, b"22", token="order:22", defer=0.01)
    nsqd.http("POST", f"/pub?topic={topic}&token=order:17", b"17")
    expected = [b"17", b'{"n":18}', b"19", b"20", b"21", b"22"]
    assert sorted(stored_in(nsqd, topic)) == sorted(expected)


def test_without_asyncio(nsqd: Nsqd, topic: str) -> None:
    create(nsqd, topic)
    for _ in range(2):
        with sync.Producer(nsqd.tcp_address) as producer:
            producer.publish(topic, b"1", token="1")
            producer.publish_json(topic, 2, token="2")
            producer.publish_many(topic, (b"%d" % n for n in (3, 4)), token="3-4")
    with sync.Producer(nsqd.tcp_address, idempotent=True) as producer:
        producer.publish(topic, b"5")
        producer.publish_many(topic, [b"6", b"7"])
        with pytest.raises(ValueError, match="must fit into one MPUB"):
            producer.publish_many(topic, (bytes(100_000) for _ in count()), token="endless")
    assert sorted(stored_in(nsqd, topic)) == [b"%d" % n for n in range(1, 8)]


def test_a_forked_process_makes_tokens_of_its_own(nsqd: Nsqd, topic: str) -> None:
    create(nsqd, topic)
    with sync.Producer(nsqd.tcp_address, idempotent=True) as producer:
        producer.publish(topic, b"before")
        child = os.fork()
        if not child:
            try:
                for number in range(5):
                    producer.publish(topic, b"child %d" % number)
                os._exit(0)
            finally:
                os._exit(1)
        for number in range(5):
            producer.publish(topic, b"parent %d" % number)
        assert os.waitpid(child, 0)[1] == 0
    assert len(set(stored_in(nsqd, topic))) == 11


async def test_the_token_decides_which_of_several_nsqds_stores_it(
    tmp_path: Path, topic: str
) -> None:
    """In every process, whatever is up: a message with a token is not stored on two nsqds."""
    tokens = [f"token-{number}" for number in range(40)]
    with Nsqd(tmp_path / "a") as first, Nsqd(tmp_path / "b") as second:
        create(first, topic)
        create(second, topic)
        addresses = [first.tcp_address, second.tcp_address]
        for listed in (addresses, addresses[::-1]):
            async with Producer(listed, spread=True) as producer:
                for token in tokens:
                    await producer.publish(topic, token.encode(), token=token)
        port, http_port = second.tcp_port, second.http_port
        await asyncio.to_thread(second.kill)
        async with Producer(addresses, timeout_s=0.5) as producer:
            outcomes = await asyncio.gather(
                *(producer.publish(topic, token.encode(), token=token) for token in tokens),
                return_exceptions=True,
            )
        second.start(tcp_port=port, http_port=http_port)
        on_first, on_second = stored_in(first, topic), stored_in(second, topic)
    assert on_first
    assert on_second
    assert sorted(on_first + on_second) == sorted(token.encode() for token in tokens)
    failed = [t for t, o in zip(tokens, outcomes, strict=True) if isinstance(o, NotSentError)]
    assert sorted(token.encode() for token in failed) == sorted(on_second)


async def test_middleware_sees_and_sets_tokens(nsqd: Nsqd, topic: str) -> None:
    create(nsqd, topic)
    seen: list[str | None] = []

    async def around(outgoing: Outgoing, call_next: CallNext[Outgoing]) -> None:
        seen.append(outgoing.token)
        await call_next(Outgoing(outgoing.topic, outgoing.bodies, token="always-the-same"))

    async with Producer(nsqd.tcp_address, middleware=[around]) as producer:
        await producer.publish(topic, b"1", token="mine")
        await producer.publish_many(topic, [b"2", b"3"])
    assert seen == ["mine", None]
    assert stored_in(nsqd, topic) == [b"1"]


# -- mistakes and limits --------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "a b", "x" * 65, "ä", "a\n", "a/b"])
async def test_a_text_that_is_no_token(nsqd: Nsqd, topic: str, token: str) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        with pytest.raises(ValueError, match="is no publish token: it has 1 to 64 characters"):
            await producer.publish(topic, b"x", token=token)
        with pytest.raises(ValueError, match="is no publish token"):
            await producer.publish_many(topic, [b"x"], token=token)
    assert not count_in(nsqd, topic)


async def test_a_token_of_a_wrong_type(nsqd: Nsqd, topic: str) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        for token in (b"bytes", 17, ["a"]):
            with pytest.raises(TypeError, match="a publish token is text, not"):
                await producer.publish(topic, b"x", token=token)  # type: ignore[arg-type]


async def test_many_with_one_token_must_fit_into_one_mpub(nsqd: Nsqd, topic: str) -> None:
    async with Producer(nsqd.tcp_address, body_bytes_max=1000) as producer:
        await producer.publish_many(topic, [b"x" * 96] * 9, token="fits")
        with pytest.raises(ValueError, match="one MPUB of 1000 bytes"):
            await producer.publish_many(topic, [b"x" * 96] * 10, token="does-not")
        with pytest.raises(ValueError, match="one MPUB of 1000 bytes"):
            await producer.publish_many(topic, (b"" for _ in count()), token="endless")
        with pytest.raises(TypeError, match="a message is bytes, not int"):
            await producer.publish_many(topic, count(), token="numbers")  # type: ignore[arg-type]
    assert count_in(nsqd, topic) == 9


async def test_more_messages_than_a_batch_has_may_have_one_token(nsqd: Nsqd, topic: str) -> None:
    create(nsqd, topic)
    bodies = [b"%d" % number for number in range(5000)]
    async with Producer(nsqd.tcp_address) as producer:
        for _ in range(2):
            await producer.publish_many(topic, bodies, token="all")
    assert stored_in(nsqd, topic) == bodies


def test_idempotent_without_repeats_is_a_contradiction() -> None:
    with pytest.raises(ValueError, match="retry_unconfirmed cannot be off"):
        Producer("127.0.0.1:4150", idempotent=True, retry_unconfirmed=False)


async def test_an_nsqd_without_tokens_is_refused(topic: str) -> None:
    async def take(client: Client) -> None:
        await client.gone()

    async with scripted(take) as address:
        with pytest.raises(ConnectError, match="nsqd knows no publish tokens: it is NSQ's, or"):
            await Producer(address, idempotent=True).start()
        async with Producer(address) as producer:
            with pytest.raises(NotSentError, match="nsqd knows no publish tokens"):
                await producer.publish(topic, b"x", token="a")
            with pytest.raises(NotSentError, match="nsqd knows no publish tokens"):
                await producer.publish_many(topic, [b"x", b"y"], token="a")


async def test_one_message_that_is_too_big_costs_the_others_nothing(
    tmp_path: Path, topic: str
) -> None:
    with Nsqd(tmp_path / "data", ["--max-msg-size=1000"]) as small:
        create(small, topic)
        async with Producer(small.tcp_address, idempotent=True) as producer:
            bodies = [b"1", b"x" * 2000, b"2", b"3"]
            for _ in range(2):
                outcomes = await asyncio.gather(
                    *(producer.publish(topic, body) for body in bodies), return_exceptions=True
                )
                assert [type(each) for each in outcomes] == [
                    type(None),
                    RefusedError,
                    type(None),
                    type(None),
                ]
        assert sorted(stored_in(small, topic)) == [b"1", b"1", b"2", b"2", b"3", b"3"]


async def test_publishes_that_were_given_up_do_not_stay_in_memory() -> None:
    """While nsqd is down for long, and the application goes on."""
    with LocalNsqd() as nsqd:
        address = nsqd.tcp_address
    addresses = [address, "127.0.0.1:1"]
    async with Producer(addresses, lazy=True, timeout_s=0.05) as producer:
        for number in range(5):
            for token in (None, f"token-{number}"):
                with pytest.raises(PublishError):
                    await producer.publish_many("t", [b"x", b"y"], token=token)
        queue = producer._queue
        assert not queue._queue
        assert not any(queue._only_to.values())
