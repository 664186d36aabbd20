"""Handlers slower than nsqd's message timeout: every message is handled once, none is given up.

A handler waits here until the messages in hand were touched three times, which takes longer than
the message timeout. Without touching it would wait in vain.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pumpline import sync
from pumpline.client import Batch, Consumer, Message, TopicGroup
from pumpline.client.consuming import leases
from pumpline.client.consuming.subscription import Counters
from tests.kit.client.consuming import CHANNEL, finish_all, left, numbered, publish, until
from tests.kit.daemons import Nsqd, wait_until
from tests.kit.proxy import Proxy

TOUCHES = 3  # half a message timeout lies between two of them
MESSAGES = 3

Handled = list[tuple[bytes, int]]
"""Bodies and attempts."""


@pytest.fixture(scope="module")
def hasty_nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """Takes messages back after a second, which is more than a busy machine stalls a test."""
    with Nsqd(tmp_path_factory.mktemp("slow") / "data", ["--msg-timeout=1s"]) as running:
        yield running


@pytest.fixture(params=["1s", "2s"])
def impatient_nsqd(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Nsqd]:
    """Allows a message two seconds, however often it is touched; or cannot be touched at all."""
    flags = [f"--msg-timeout={request.param}", "--max-msg-timeout=2s"]
    with Nsqd(tmp_path / "data", flags) as running:
        yield running


def touched_often(counters: Counters, in_hand: int) -> Callable[[], bool]:
    """Whether so many messages were each touched TOUCHES times from now on."""
    enough = counters.touched + TOUCHES * in_hand
    return lambda: counters.touched >= enough


def assert_once_each(nsqd: Nsqd, topic: str, handled: Handled, counters: Counters) -> None:
    assert sorted(handled) == [(body, 1) for body in sorted(numbered(MESSAGES))]
    stats = nsqd.channel_stats(topic, CHANNEL)
    assert (stats["timeout_count"], stats["requeue_count"]) == (0, 0)
    assert left(nsqd, topic) == 0
    assert (counters.finished, counters.expired, counters.given_up) == (MESSAGES, 0, 0)


async def test_messages_that_wait_for_a_slow_handler_are_handled_once(
    hasty_nsqd: Nsqd, topic: str
) -> None:
    """In every form, all at the same time: they wait for more than they work."""
    forms = ("async", "threads", "iteration", "batches", "handler of batches", "group")
    await asyncio.gather(*(handle_slowly(hasty_nsqd, topic, form) for form in forms))


async def handle_slowly(nsqd: Nsqd, topic: str, form: str) -> None:
    topic = f"{topic}.{form.replace(' ', '-')}"
    publish(nsqd, topic, numbered(MESSAGES))
    group = TopicGroup([topic], CHANNEL, nsqd=nsqd.tcp_address)
    consumer = group.consumers[topic]
    if form != "group":
        consumer = Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address)
    handled: Handled = []

    async def handle(message: Message) -> None:
        await until(touched_often(consumer.counters, consumer.in_flight))
        handled.append((message.body, message.attempts))

    def handle_in_thread(message: Message) -> None:
        wait_until(touched_often(consumer.counters, consumer.in_flight), timeout_s=60)
        handled.append((message.body, message.attempts))

    async def handle_batch(batch: Batch) -> None:
        for message in batch:
            await handle(message)

    async def iterate() -> None:
        async for message in consumer:
            await handle(message)
            message.finish()

    async def iterate_batches() -> None:
        async for batch in consumer.batches(2):
            await handle_batch(batch)
            batch.finish()

    works = {
        "async": lambda: consumer.run(handle),
        "threads": lambda: consumer.run(handle_in_thread),
        "iteration": iterate,
        "batches": iterate_batches,
        "handler of batches": lambda: consumer.run_batches(handle_batch, size_max=2),
        "group": lambda: group.run(handle),
    }
    async with group if form == "group" else consumer:
        working = asyncio.create_task(works[form]())
        await until(lambda: consumer.counters.finished == MESSAGES)
    await working
    assert_once_each(nsqd, topic, handled, consumer.counters)


def test_messages_that_wait_for_a_slow_thread_are_handled_once(
    hasty_nsqd: Nsqd, topic: str
) -> None:
    """In every form, all at the same time: they wait for more than they work."""
    forms = ("run", "run_batches", "messages", "batches")
    with ThreadPoolExecutor(len(forms)) as threads:
        for done in [threads.submit(handle_in_threads, hasty_nsqd, topic, form) for form in forms]:
            done.result()


def handle_in_threads(nsqd: Nsqd, topic: str, form: str) -> None:
    topic = f"{topic}.{form}"
    publish(nsqd, topic, numbered(MESSAGES))
    handled: Handled = []
    with sync.Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address) as consumer:
        counters = consumer.counters

        def handle(message: Message) -> None:
            wait_until(touched_often(counters, consumer.in_flight), timeout_s=60)
            handled.append((message.body, message.attempts))
            message.finish()
            if len(handled) == MESSAGES:
                consumer.stop_soon()

        def handle_batch(batch: Batch) -> None:
            for message in batch:
                handle(message)

        if form == "run":
            consumer.run(handle)
        elif form == "run_batches":
            consumer.run_batches(handle_batch)
        elif form == "messages":
            for message in consumer:
                handle(message)
        else:
            for batch in consumer.batches():
                handle_batch(batch)
    assert_once_each(nsqd, topic, handled, counters)


async def test_a_handler_that_blocks_the_event_loop_leaves_time_to_touch(
    tmp_path: Path, topic: str
) -> None:
    """Each blocks for less than half a message timeout, all together for longer than one."""
    count = 8
    handled: list[int] = []
    with Nsqd(tmp_path / "data", ["--msg-timeout=2s"]) as nsqd:
        publish(nsqd, topic, numbered(count))
        consumer = Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address)

        def handle(message: Message) -> None:
            threading.Event().wait(0.3)
            handled.append(message.attempts)
            if len(handled) == count:
                consumer.stop_soon()

        await consumer.run(handle, threads=False)
        assert left(nsqd, topic) == 0
    assert handled == [1] * count
    assert consumer.counters.expired == 0


async def test_quick_handlers_are_not_touched_for_and_one_timer_serves_all(
    nsqd: Nsqd, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers = []

    class Watched(leases.ConsumerLeases):
        def _set_timer(self, at: float) -> None:
            timers.append(at)
            super()._set_timer(at)

    monkeypatch.setattr("pumpline.client.consuming.subscription.ConsumerLeases", Watched)
    publish(nsqd, topic, numbered(2000))
    async with Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address) as consumer:
        await finish_all(consumer, 2000)
        assert len(timers) == 1
    assert consumer.counters.touched == 0


async def test_messages_that_wait_too_long_go_to_another_consumer(
    impatient_nsqd: Nsqd, topic: str
) -> None:
    publish(impatient_nsqd, topic, numbered(5))
    address = impatient_nsqd.tcp_address
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def hang(message: Message) -> None:
        begun.set()
        await go_on.wait()

    hanging = Consumer(topic, CHANNEL, nsqd=address, max_in_flight=5)
    running = asyncio.create_task(hanging.run(hang))
    await begun.wait()
    await until(lambda: hanging.in_flight == 5)
    hanging.max_in_flight = 0  # what it gives back does not come back
    async with Consumer(topic, CHANNEL, nsqd=address) as other:
        attempts = []
        async for message in other:
            attempts.append(message.attempts)
            message.finish()
            if len(attempts) == 4:
                break
    go_on.set()
    await hanging.stop()
    await running
    assert attempts == [2] * 4
    assert (hanging.counters.given_back, hanging.counters.expired) == (4, 0)
    assert left(impatient_nsqd, topic) == 0


@pytest.mark.parametrize("threads", [False, True])
async def test_a_message_that_was_given_back_has_not_been_attempted(
    impatient_nsqd: Nsqd, topic: str, threads: bool
) -> None:
    publish(impatient_nsqd, topic, numbered(2))
    consumer = Consumer(topic, CHANNEL, nsqd=impatient_nsqd.tcp_address, max_attempts=1)
    go_on = threading.Event()
    waited_for: Handled = []

    def handle(message: Message) -> None:
        if not go_on.is_set():
            message.finish()  # the handler still runs: its message must not come again
            go_on.wait()
        else:
            waited_for.append((message.body, message.attempts))

    async def handle_async(message: Message) -> None:
        if not go_on.is_set():
            message.finish()
            await asyncio.to_thread(go_on.wait)
        else:
            waited_for.append((message.body, message.attempts))

    running = asyncio.create_task(consumer.run(handle if threads else handle_async))
    await until(lambda: consumer.counters.given_back >= 3)
    go_on.set()
    await until(lambda: left(impatient_nsqd, topic) == 0)
    await consumer.stop()
    await running
    assert consumer.counters.given_up == 0
    [(_, attempts)] = waited_for
    assert attempts >= 4


async def test_a_message_lost_with_the_connection_before_it_was_begun_has_not_been_attempted(
    nsqd: Nsqd, topic: str, proxy: Proxy
) -> None:
    publish(nsqd, topic, numbered(2))
    consumer = Consumer(topic, CHANNEL, nsqd=proxy.address, max_attempts=1, giving_up="drop")
    begun, go_on = asyncio.Event(), asyncio.Event()
    handled: Handled = []

    async def handle(message: Message) -> None:
        handled.append((message.body, message.attempts))
        begun.set()
        await go_on.wait()

    running = asyncio.create_task(consumer.run(handle))
    await begun.wait()
    await until(lambda: consumer.in_flight == 2)
    proxy.cut()
    await until(lambda: consumer.counters.expired == 2)
    go_on.set()
    await until(lambda: left(nsqd, topic) == 0)
    await consumer.stop()
    await running
    assert [attempts for _, attempts in handled] == [1, 2]
    assert len({body for body, _ in handled}) == 2
    assert consumer.counters.given_up == 1  # the one that was begun


async def test_answered_messages_are_let_go_although_an_older_one_is_not(
    nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, [b"slow"])
    async with Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, max_in_flight=2) as consumer:
        messages = aiter(consumer)
        slow = await anext(messages)
        publish(nsqd, topic, numbered(1000))
        for _ in range(1000):
            (await anext(messages)).finish()
        assert consumer._running is not None
        [subscription] = consumer._running.subscriptions.by_address.values()
        kept = [*subscription._leases._fresh]
        assert sum(len(arrival.messages) for arrival in kept) <= 2 * leases.KEPT_MIN
        slow.finish()
