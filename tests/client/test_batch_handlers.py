"""Handlers of batches: what becomes of their messages."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from pumpline.client import Batch, Consumer, Drop, Message, Retry, Settings
from tests.kit.client.consuming import CHANNEL, left, numbered, publish, until
from tests.kit.daemons import Nsqd

AT_ONCE = Settings(requeue_delay_s=0, backoff_max_s=0, stop_timeout_s=10)

Batches = list[list[bytes]]


def new_consumer(nsqd: Nsqd, topic: str, settings: Settings = AT_ONCE) -> Consumer:
    return Consumer(
        topic, CHANNEL, nsqd=nsqd.tcp_address, max_in_flight=100, max_attempts=0, settings=settings
    )


async def run_until_empty(consumer: Consumer, nsqd: Nsqd, handler: object, **how: object) -> None:
    running = asyncio.create_task(consumer.run_batches(handler, **how))  # type: ignore[arg-type]
    await until(lambda: left(nsqd, consumer.topic) == 0)
    await consumer.stop()
    await running


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_handler_that_returns_finishes_its_batch(
    nsqd: Nsqd, topic: str, concurrency: int
) -> None:
    publish(nsqd, topic, numbered(250))
    batches: Batches = []

    async def handle(batch: Batch) -> None:
        batches.append([message.body for message in batch])
        await asyncio.sleep(0)

    consumer = new_consumer(nsqd, topic)
    await run_until_empty(consumer, nsqd, handle, size_max=20, concurrency=concurrency)
    assert sorted(body for batch in batches for body in batch) == sorted(numbered(250))
    assert max(map(len, batches)) == 20
    assert (consumer.counters.finished, consumer.counters.requeued) == (250, 0)


def fail() -> Exception:
    return ValueError("bad")


def retry() -> Exception:
    return Retry(0)


@pytest.mark.parametrize("error", [fail, retry])
async def test_a_handler_that_raises_requeues_what_it_has_not_answered(
    nsqd: Nsqd, topic: str, error: Callable[[], Exception]
) -> None:
    publish(nsqd, topic, numbered(10))
    attempts: dict[bytes, list[int]] = {}

    async def handle(batch: Batch) -> None:
        for message in batch:
            attempts.setdefault(message.body, []).append(message.attempts)
        if b"last" not in attempts:
            publish(nsqd, topic, [b"last"])  # it makes the next batch full
            attempts[b"last"] = []
            batch[0].finish()
            raise error()

    consumer = new_consumer(nsqd, topic)
    await run_until_empty(consumer, nsqd, handle, size_max=10, wait_s=60)
    assert attempts.pop(b"last") == [1]
    assert sorted(attempts.values()) == [[1], *([[1, 2]] * 9)]


async def test_a_plain_function_runs_in_threads_and_may_answer(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, numbered(40))
    attempts: dict[bytes, list[int]] = {}
    both = threading.Barrier(2)  # two batches are handled at the same time

    def handle(batch: Batch) -> None:
        assert threading.current_thread() is not threading.main_thread()
        with pytest.raises(RuntimeError, match="call stop_soon"):
            asyncio.run(consumer.stop())
        for message in batch:
            attempts.setdefault(message.body, []).append(message.attempts)
        if batch[0].attempts == 1 and batch[-1].attempts == 1:
            both.wait(60)
            batch[0].finish()
            raise Retry(0)

    consumer = new_consumer(nsqd, topic)
    await run_until_empty(consumer, nsqd, handle, size_max=20, concurrency=2)
    assert sorted(attempts.values()) == [*([[1]] * 2), *([[1, 2]] * 38)]
    assert consumer.counters.finished == 40


async def test_a_function_that_returns_an_awaitable_has_not_handled_its_batch(
    nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(nsqd, topic, [b"x"])

    async def called() -> None: ...

    consumer = new_consumer(nsqd, topic, Settings(stop_timeout_s=10))
    running = asyncio.create_task(consumer.run_batches(lambda batch: called()))
    await until(lambda: consumer.counters.requeued)
    await consumer.stop()
    await running
    assert consumer.counters.finished == 0
    assert "returned an awaitable" in caplog.text


async def test_drop_finishes_the_batch(
    nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(nsqd, topic, numbered(10))

    async def handle(batch: Batch) -> None:
        raise Drop("withdrawn")

    consumer = new_consumer(nsqd, topic)
    await run_until_empty(consumer, nsqd, handle)
    assert (consumer.counters.finished, consumer.counters.requeued) == (10, 0)
    assert "messages: withdrawn" in caplog.text


async def test_batches_that_fail_make_the_consumer_back_off(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, numbered(10))
    settings = Settings(requeue_delay_s=0, backoff_multiplier_s=3600, backoff_max_s=3600)
    consumer = new_consumer(nsqd, topic, settings)

    async def handle(batch: Batch) -> None:
        raise OSError("down")

    running = asyncio.create_task(consumer.run_batches(handle, size_max=10, wait_s=5))
    await until(lambda: consumer.is_backing_off)
    await consumer.stop()
    await running


async def test_a_stop_that_waits_no_longer_puts_the_batch_back(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, numbered(5))
    consumer = new_consumer(nsqd, topic)
    begun = asyncio.Event()

    async def hang(batch: Batch) -> None:
        with pytest.raises(RuntimeError, match="call stop_soon"):
            await consumer.stop()
        begun.set()
        await asyncio.sleep(3600)

    running = asyncio.create_task(consumer.run_batches(hang, size_max=5, wait_s=5))
    await begun.wait()
    await consumer.stop(timeout_s=0)
    await running
    await until(lambda: nsqd.channel_stats(topic, CHANNEL)["depth"] == 5)


async def test_wrong_arguments_are_told_at_once(nsqd: Nsqd, topic: str) -> None:
    async def handle(batch: Batch) -> None: ...
    async def around(message: Message, call_next: object) -> None: ...

    consumer = new_consumer(nsqd, topic)
    with pytest.raises(ValueError, match="at least 1 message"):
        await consumer.run_batches(handle, size_max=0)
    with pytest.raises(ValueError, match="wait_s must not be negative"):
        await consumer.run_batches(handle, wait_s=-1)
    with pytest.raises(ValueError, match="concurrency must be at least 1"):
        await consumer.run_batches(handle, concurrency=0)
    surrounded = Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, middleware=[around])
    with pytest.raises(ValueError, match="middleware is for handlers of single messages"):
        await surrounded.run_batches(handle)
