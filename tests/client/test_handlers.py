"""Handlers: what is answered for them, how many run at a time, backing off, and stopping."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable

import pytest

from pumpline.client import Consumer, Drop, Message, Retry, Settings
from tests.kit.client.consuming import CHANNEL, finish_all, left, numbered, publish, until
from tests.kit.daemons import Nsqd

QUICK = Settings(
    requeue_delay_s=0, backoff_multiplier_s=0.01, backoff_max_s=0.04, stop_timeout_s=10
)

NewConsumer = Callable[..., Consumer]


@pytest.fixture
def new_consumer(nsqd: Nsqd, topic: str) -> NewConsumer:
    def make(**words: object) -> Consumer:
        words = {"settings": QUICK, "max_attempts": 0, **words}
        return Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, **words)  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize("form", ["async", "threads", "on the loop", "object", "awaitable"])
async def test_a_handler_that_returns_finishes_its_message(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer, form: str
) -> None:
    publish(nsqd, topic, numbered(500))
    consumer = new_consumer(max_in_flight=100)
    loop = asyncio.get_running_loop()
    bodies: list[bytes] = []
    handler_threads = set()

    def handle(message: Message) -> None:
        bodies.append(message.body)
        handler_threads.add(threading.current_thread())
        if len(bodies) == 500:
            loop.call_soon_threadsafe(consumer.stop_soon)

    async def handle_async(message: Message) -> None:
        handle(message)

    def begin_async(message: Message) -> Awaitable[None]:
        return handle_async(message)

    class Object:
        async def __call__(self, message: Message) -> None:
            handle(message)

    handlers = {
        "async": handle_async,
        "threads": handle,
        "on the loop": handle,
        "object": Object(),
        "awaitable": begin_async,
    }
    threads = False if form in ("on the loop", "awaitable") else None
    async with asyncio.timeout(60):
        await consumer.run(handlers[form], concurrency=3, threads=threads)
    assert sorted(bodies) == sorted(numbered(500))
    assert left(nsqd, topic) == 0
    assert (threading.current_thread() in handler_threads) == (form != "threads")


async def test_a_handler_can_be_named_by_a_decorator(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer
) -> None:
    publish(nsqd, topic, [b"m"])
    consumer = new_consumer()
    bodies = []

    @consumer.handler(concurrency=2)
    async def handle(message: Message) -> None:
        bodies.append(message.body)
        consumer.stop_soon()

    await consumer.run()
    assert bodies == [b"m"]


async def test_running_without_a_handler_is_refused(new_consumer: NewConsumer) -> None:
    with pytest.raises(ValueError, match="handler"):
        await new_consumer().run()


async def test_a_coroutine_function_in_threads_is_refused(new_consumer: NewConsumer) -> None:
    async def handle(message: Message) -> None: ...

    with pytest.raises(ValueError, match="threads"):
        await new_consumer().run(handle, threads=True)


@pytest.mark.parametrize("threads", [False, True])
async def test_a_handler_that_raises_requeues_backs_off_and_resumes(
    nsqd: Nsqd,
    topic: str,
    new_consumer: NewConsumer,
    threads: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    publish(nsqd, topic, numbered(50))
    consumer = new_consumer(max_in_flight=10)
    loop = asyncio.get_running_loop()
    attempts: dict[bytes, list[int]] = {}
    broken = [True] * 3

    def handle(message: Message) -> None:
        attempts.setdefault(message.body, []).append(message.attempts)
        if broken:
            broken.pop()
            raise LookupError("the world is broken")
        if len(attempts) == 50 and not broken:
            loop.call_soon_threadsafe(stop_when_done)

    def stop_when_done() -> None:
        if left(nsqd, topic) == 0 and not consumer.is_backing_off:
            consumer.stop_soon()
        else:
            loop.call_later(0.01, stop_when_done)

    with caplog.at_level(logging.INFO):
        async with asyncio.timeout(60):
            await consumer.run(handle, threads=threads)
    assert left(nsqd, topic) == 0
    assert sum(len(each) for each in attempts.values()) == 53
    assert consumer.counters.requeued == 3
    assert "LookupError: the world is broken" in caplog.text
    assert "backing off for 0.02 s (level 1)" in caplog.text
    assert "backing off is over" in caplog.text


@pytest.mark.parametrize("threads", [False, True])
async def test_a_message_that_fails_among_others_does_not_hold_them_back(
    nsqd: Nsqd,
    topic: str,
    new_consumer: NewConsumer,
    threads: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The poison message fails again and again while others come; nothing backs off."""
    publish(nsqd, topic, [b"poison"])
    slow = Settings(requeue_delay_s=0, backoff_multiplier_s=3600, backoff_max_s=3600)
    consumer = new_consumer(settings=slow)
    handled: list[bytes] = []
    poisoned = threading.Event()

    def handle(message: Message) -> None:
        if message.body == b"poison" and message.attempts < 20:
            if message.attempts == 3:
                poisoned.set()
            raise LookupError("poison")
        handled.append(message.body)

    running = asyncio.create_task(consumer.run(handle, threads=threads))
    await until(poisoned.is_set)
    publish(nsqd, topic, numbered(50))
    await until(lambda: left(nsqd, topic) == 0)
    await consumer.stop()
    await running
    assert sorted(handled) == sorted([*numbered(50), b"poison"])
    assert "backing off" not in caplog.text


@pytest.mark.parametrize("threads", [False, True])
async def test_retry_and_drop_act_without_backing_off(
    nsqd: Nsqd,
    topic: str,
    new_consumer: NewConsumer,
    threads: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    publish(nsqd, topic, numbered(20))
    slow = Settings(requeue_delay_s=3600, backoff_multiplier_s=3600, backoff_max_s=3600)
    consumer = new_consumer(settings=slow)

    def handle(message: Message) -> None:
        if message.attempts == 1:
            raise Retry(0.01)
        raise Drop("withdrawn")

    running = asyncio.create_task(consumer.run(handle, threads=threads))
    await until(lambda: left(nsqd, topic) == 0)
    await consumer.stop()
    await running
    assert (consumer.counters.requeued, consumer.counters.finished) == (20, 20)
    assert "withdrawn" in caplog.text
    assert "backing off" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_retry_without_a_delay_waits_as_a_failed_message_does(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer
) -> None:
    publish(nsqd, topic, [b"x"])
    consumer = new_consumer(settings=Settings(requeue_delay_s=3600))

    async def handle(message: Message) -> None:
        raise Retry

    running = asyncio.create_task(consumer.run(handle))
    await until(lambda: nsqd.channel_stats(topic, CHANNEL)["deferred_count"] == 1)
    await consumer.stop()
    await running


def test_a_retry_after_nonsense_is_an_error_in_the_handler() -> None:
    with pytest.raises(ValueError, match="cannot be delayed"):
        Retry(-1)
    with pytest.raises(TypeError, match="a delay is"):
        Retry("soon")  # type: ignore[arg-type]


async def test_while_backing_off_one_message_is_tried_at_a_time(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer
) -> None:
    publish(nsqd, topic, numbered(100))
    consumer = new_consumer(max_in_flight=50)
    in_hand_while_down: list[int] = []
    is_down = True

    async def handle(message: Message) -> None:
        in_hand_while_down.append(consumer.in_flight)
        if is_down:
            raise OSError("down")

    running = asyncio.create_task(consumer.run(handle))
    await until(lambda: len(in_hand_while_down) >= 56)  # the first 50, then probes
    assert consumer.is_backing_off
    assert set(in_hand_while_down[52:]) == {1}
    is_down = False
    await until(lambda: left(nsqd, topic) == 0)
    assert not consumer.is_backing_off
    await consumer.stop()
    await running


@pytest.mark.parametrize("threads", [True, False], ids=["in a thread", "on the loop"])
async def test_a_message_the_handler_has_answered_is_left_alone(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer, threads: bool
) -> None:
    publish(nsqd, topic, numbered(2))
    consumer = new_consumer()

    def handle(message: Message) -> None:
        if message.attempts == 1:
            message.touch()
            message.requeue(0, backoff=False)

    running = asyncio.create_task(consumer.run(handle, threads=threads))
    await until(lambda: consumer.counters.finished == 2)
    await consumer.stop()
    await running
    assert (consumer.counters.requeued, consumer.counters.touched) == (2, 2)
    assert (consumer.counters.finished, consumer.counters.refused) == (2, 0)
    assert left(nsqd, topic) == 0


async def test_no_more_messages_are_handled_at_a_time_than_asked_for(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer
) -> None:
    publish(nsqd, topic, numbered(30))
    consumer = new_consumer(max_in_flight=20)
    barrier = asyncio.Barrier(5)
    at_a_time: list[int] = []
    now = 0

    async def handle(message: Message) -> None:
        nonlocal now
        now += 1
        at_a_time.append(now)
        await barrier.wait()  # nobody goes on before five are here
        now -= 1

    running = asyncio.create_task(consumer.run(handle, concurrency=5))
    await until(lambda: consumer.counters.finished == 30)
    await consumer.stop()
    await running
    assert max(at_a_time) == 5


async def test_blocking_handlers_run_side_by_side_and_leave_the_loop_alone(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer
) -> None:
    publish(nsqd, topic, numbered(12))
    consumer = new_consumer(max_in_flight=12)
    barrier = threading.Barrier(4, timeout=10)

    def handle(message: Message) -> None:
        barrier.wait()

    running = asyncio.create_task(consumer.run(handle, concurrency=4))
    await until(lambda: consumer.counters.finished == 12)
    await consumer.stop()
    await running


async def test_a_stop_lets_handlers_finish_and_puts_back_what_nobody_has_begun(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer
) -> None:
    publish(nsqd, topic, numbered(100))
    consumer = new_consumer(max_in_flight=40)
    begun, go_on = asyncio.Event(), asyncio.Event()
    handled = []

    async def handle(message: Message) -> None:
        begun.set()
        await go_on.wait()
        handled.append(message.body)

    running = asyncio.create_task(consumer.run(handle, concurrency=3))
    await begun.wait()
    stopping = asyncio.create_task(consumer.stop())
    await until(lambda: nsqd.channel_stats(topic, CHANNEL)["in_flight_count"] == 3)
    assert not running.done()
    go_on.set()
    await stopping
    await running
    assert len(handled) == 3
    assert left(nsqd, topic) == 97
    rest = await finish_all(new_consumer(), 97)
    assert sorted([*handled, *rest]) == sorted(numbered(100))


async def test_a_stop_waits_for_what_a_handler_does_after_it_has_answered(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer
) -> None:
    publish(nsqd, topic, [b"m"])
    consumer = new_consumer()
    begun, go_on = asyncio.Event(), asyncio.Event()
    is_done = False

    async def handle(message: Message) -> None:
        nonlocal is_done
        message.finish()
        begun.set()
        await go_on.wait()
        is_done = True

    running = asyncio.create_task(consumer.run(handle))
    await begun.wait()
    stopping = asyncio.create_task(consumer.stop())
    await until(lambda: left(nsqd, topic) == 0)
    go_on.set()
    await stopping
    await running
    assert is_done


async def test_a_handler_that_does_not_end_is_cancelled_and_its_message_put_back(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer
) -> None:
    publish(nsqd, topic, [b"m"])
    consumer = new_consumer()
    begun = asyncio.Event()

    async def handle(message: Message) -> None:
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(consumer.run(handle))
    await begun.wait()
    await consumer.stop(timeout_s=0.05)
    await running
    stats = nsqd.channel_stats(topic, CHANNEL)
    assert (stats["depth"], stats["in_flight_count"]) == (1, 0)


async def test_cancelling_run_stops_gracefully(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer
) -> None:
    publish(nsqd, topic, numbered(10))
    consumer = new_consumer()
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        begun.set()
        await go_on.wait()

    running = asyncio.create_task(consumer.run(handle))
    await begun.wait()
    running.cancel()
    await until(lambda: nsqd.channel_stats(topic, CHANNEL)["in_flight_count"] == 1)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert consumer.counters.finished == 1
    assert left(nsqd, topic) == 9


async def test_a_cancellation_inside_a_handler_is_a_failure_like_any_other(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer
) -> None:
    publish(nsqd, topic, [b"m"])
    consumer = new_consumer()

    async def handle(message: Message) -> None:
        if message.attempts == 1:
            raise asyncio.CancelledError

    running = asyncio.create_task(consumer.run(handle))
    await until(lambda: consumer.counters.finished == 1)
    await consumer.stop()
    await running
    assert consumer.counters.requeued == 1


async def test_a_handler_that_waits_for_its_own_end_is_told(
    nsqd: Nsqd, topic: str, new_consumer: NewConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    publish(nsqd, topic, [b"m"])
    consumer = new_consumer()

    async def handle(message: Message) -> None:
        consumer.stop_soon()
        await consumer.stop()

    async with asyncio.timeout(60):
        await consumer.run(handle)
    assert "call stop_soon" in caplog.text
    assert left(nsqd, topic) == 1


class Ends(BaseException):
    """Neither an Exception nor a cancellation."""


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_that_raises_a_base_exception_ends_the_run_at_once(
    nsqd: Nsqd, topic: str, is_async: bool
) -> None:
    """Its message, and those of other handlers, are put back: nothing waits for a timeout."""
    publish(nsqd, topic, numbered(3))
    consumer = Consumer(
        topic, CHANNEL, nsqd=nsqd.tcp_address, settings=Settings(stop_timeout_s=3600)
    )

    async def fail(message: Message) -> None:
        if message.body != b"m-2":
            await asyncio.get_running_loop().create_future()
        raise Ends

    def fail_at_once(message: Message) -> None:
        raise Ends

    async with asyncio.timeout(60):
        with pytest.raises(BaseExceptionGroup) as ended:
            handler = fail if is_async else fail_at_once
            await consumer.run(handler, concurrency=3, threads=False)
    assert ended.group_contains(Ends)
    stats = nsqd.channel_stats(topic, CHANNEL)
    assert (stats["in_flight_count"], left(nsqd, topic)) == (0, 3)
