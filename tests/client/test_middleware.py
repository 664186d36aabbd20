"""Functions around handlers and publishes: their order, and what passes through them."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pumpline import sync
from pumpline.client import Consumer, Drop, Message, Outgoing, Producer, RefusedError, Retry
from pumpline.client.around import Around, CallNext
from pumpline.testing import LocalNsqd
from tests.kit.client.consuming import CHANNEL, left, publish, until
from tests.kit.daemons import Nsqd

Calls = list[str]


def noting(calls: Calls, name: str, *, in_thread: bool = False) -> Around[Message]:
    """Notes before and after, and what was raised."""

    async def around(message: Message, call_next: CallNext[Message]) -> None:
        assert (threading.current_thread() is not threading.main_thread()) is in_thread
        calls.append(f"{name} before")
        try:
            await call_next(message)
        except Exception as error:
            calls.append(f"{name} {type(error).__name__}")
            raise
        calls.append(f"{name} after")

    return around


@pytest.mark.parametrize("form", ["async", "threads", "on the loop"])
async def test_functions_are_called_around_the_handler_the_first_outermost(
    nsqd: Nsqd, topic: str, form: str
) -> None:
    publish(nsqd, topic, [b"1"])
    calls: Calls = []
    in_threads = form == "threads"
    consumer = Consumer(
        topic,
        CHANNEL,
        nsqd=nsqd.tcp_address,
        middleware=[noting(calls, each, in_thread=in_threads) for each in ("a", "b")],
    )
    loop = asyncio.get_running_loop()

    def handle(message: Message) -> None:
        calls.append(f"handle {message.attempts}")
        if message.attempts == 1:
            raise Retry(0)
        if message.attempts == 2:
            raise Drop("enough")

    async def handle_async(message: Message) -> None:
        handle(message)

    handler = handle_async if form == "async" else handle
    running = loop.create_task(consumer.run(handler, threads=in_threads))
    await until(lambda: left(nsqd, topic) == 0)
    await consumer.stop()
    await running
    assert calls == [
        *("a before", "b before", "handle 1", "b Retry", "a Retry"),
        *("a before", "b before", "handle 2", "b Drop", "a Drop"),
    ]


async def test_what_middleware_raises_or_swallows_decides(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, [b"1"])

    async def around(message: Message, call_next: CallNext[Message]) -> None:
        if message.attempts == 1:
            raise Retry(0)  # the handler is not called
        with pytest.raises(ValueError, match="swallowed"):
            await call_next(message)

    attempts: list[int] = []
    consumer = Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, middleware=[around])

    @consumer.handler()
    async def handle(message: Message) -> None:
        attempts.append(message.attempts)
        raise ValueError("swallowed")

    running = asyncio.create_task(consumer.run())
    await until(lambda: left(nsqd, topic) == 0)
    await consumer.stop()
    await running
    assert (attempts, consumer.counters.finished) == ([2], 1)


def test_middleware_is_made_of_coroutine_functions() -> None:
    def plain(message: object, call_next: object) -> None: ...
    async def handle(message: Message) -> None: ...
    def handle_in_thread(message: Message) -> None: ...

    wrong = [plain]
    for handler in (handle, handle_in_thread):
        consumer = Consumer("t", "c", nsqd="a:1", middleware=wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="middleware is `async def around"):
            consumer.handler()(handler)
    with pytest.raises(TypeError, match="middleware is `async def around"):
        Producer("a:1", middleware=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("in_handler", [False, True])
async def test_around_a_thread_only_the_handler_can_be_awaited(
    nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture, in_handler: bool
) -> None:
    """Neither is taken for a message that was handled."""
    publish(nsqd, topic, [b"1"])

    class Pause:
        def __await__(self) -> Iterator[None]:
            yield

    async def around(message: Message, call_next: CallNext[Message]) -> None:
        if not in_handler:
            await Pause()
        await call_next(message)

    async def called() -> None: ...

    handled = []

    def handle(message: Message) -> object:
        handled.append(message.body)
        return called() if in_handler else None

    consumer = Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address, middleware=[around])
    running = asyncio.create_task(consumer.run(handle, threads=True))
    await until(lambda: consumer.counters.requeued)
    await consumer.stop()
    await running
    assert (handled, consumer.counters.finished) == ([b"1"] if in_handler else [], 0)
    assert ("returned an awaitable" if in_handler else "nothing but call_next") in caplog.text


def test_middleware_without_asyncio() -> None:
    calls: Calls = []
    seen: list[Outgoing] = []

    async def around(outgoing: Outgoing, call_next: CallNext[Outgoing]) -> None:
        seen.append(outgoing)
        await call_next(outgoing)

    with LocalNsqd() as nsqd:
        with sync.Producer(nsqd.tcp_address, middleware=iter([around])) as producer:
            producer.publish("t", b"1")
        consumer = sync.Consumer(
            "t",
            "c",
            nsqd=nsqd.tcp_address,
            middleware=iter([noting(calls, "a", in_thread=True)]),
        )
        consumer.run(lambda message: consumer.stop_soon())
    assert calls == ["a before", "a after"]
    assert [each.topic for each in seen] == ["t"]


async def test_functions_are_called_around_each_publish(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, [])
    seen: list[Outgoing | str] = []

    async def outer(outgoing: Outgoing, call_next: CallNext[Outgoing]) -> None:
        try:
            await call_next(outgoing)
        except RefusedError as error:
            seen.append(error.code)
            raise

    async def inner(outgoing: Outgoing, call_next: CallNext[Outgoing]) -> None:
        seen.append(outgoing)
        bodies = tuple(b"<%b>" % bytes(body) for body in outgoing.bodies)
        await call_next(replace(outgoing, bodies=bodies))

    async with Producer(nsqd.tcp_address, middleware=[outer, inner]) as producer:
        await producer.publish(topic, b"1")
        await producer.publish_json(topic, 2, defer=0)
        await producer.publish_many(topic, [b"3", b"4"])
        with pytest.raises(RefusedError):
            await producer.publish(topic, b"5", defer=7200)
    assert seen == [
        Outgoing(topic, (b"1",)),
        Outgoing(topic, (b"2",), 0),
        Outgoing(topic, [b"3", b"4"]),
        Outgoing(topic, (b"5",), 7200),
        "E_INVALID",
    ]
    async with Consumer(topic, CHANNEL, nsqd=nsqd.tcp_address) as consumer:
        bodies = []
        async for message in consumer:
            bodies.append(message.body)
            message.finish()
            if len(bodies) == 4:
                break
    assert sorted(bodies) == [b"<1>", b"<2>", b"<3>", b"<4>"]


async def test_several_messages_cannot_be_deferred_by_middleware(nsqd: Nsqd, topic: str) -> None:
    async def around(outgoing: Outgoing, call_next: CallNext[Outgoing]) -> None:
        await call_next(replace(outgoing, defer=1))

    async with Producer(nsqd.tcp_address, middleware=[around]) as producer:
        with pytest.raises(ValueError, match="one message at a time can be deferred"):
            await producer.publish_many(topic, [b"1", b"2"])
