"""Several topics with one handler: weights, a shared max_in_flight, and a stop of all."""

import asyncio
import threading
from collections import Counter

import pytest

from pumpline import sync
from pumpline.client import Batch, Message, TopicGroup
from pumpline.testing import LocalNsqd
from tests.kit.client.consuming import CHANNEL, numbered, publish, until
from tests.kit.daemons import Nsqd


def group(nsqd: Nsqd, topics: object, **options: object) -> TopicGroup:
    return TopicGroup(topics, CHANNEL, nsqd=nsqd.tcp_address, **options)  # type: ignore[arg-type]


async def test_messages_of_all_topics_are_handled_and_finished(nsqd: Nsqd, topic: str) -> None:
    topics = [f"{topic}.a", f"{topic}.b", f"{topic}.c"]
    for each in topics:
        publish(nsqd, each, numbered(50, each))
    seen: Counter[str] = Counter()
    running = group(nsqd, topics)

    async def handle(message: Message) -> None:
        assert message.body.decode().startswith(message.topic)
        seen[message.topic] += 1
        if seen.total() == 150:
            running.stop_soon()

    async with asyncio.timeout(60):
        await running.run(handle, concurrency=5)
    assert seen == dict.fromkeys(topics, 50)
    for each in topics:
        assert nsqd.channel_stats(each, CHANNEL)["depth"] == 0
        assert running.consumers[each].counters.finished == 50


@pytest.mark.parametrize("threads", [False, True])
async def test_a_topic_with_a_higher_weight_has_more_turns_and_none_starves(
    nsqd: Nsqd, topic: str, threads: bool
) -> None:
    high, low = f"{topic}.high", f"{topic}.low"
    publish(nsqd, high, numbered(40))
    publish(nsqd, low, numbered(10))
    order: list[str] = []
    running = group(nsqd, {high: 4, low: 1}, max_in_flight=50)
    begun = asyncio.Event()

    async def handle(message: Message) -> None:
        await begun.wait()
        order.append(message.topic)
        await asyncio.sleep(0)
        if len(order) == 50:
            running.stop_soon()

    def handle_in_thread(message: Message) -> None:
        asyncio.run_coroutine_threadsafe(begun.wait(), loop).result()
        order.append(message.topic)
        if len(order) == 50:
            loop.call_soon_threadsafe(running.stop_soon)

    loop = asyncio.get_running_loop()
    handler = handle_in_thread if threads else handle
    run = asyncio.create_task(running.run(handler))
    await until(lambda: running.in_flight == 50)  # all of them: both topics have messages waiting
    begun.set()
    async with asyncio.timeout(60):
        await run
    assert 19 <= Counter(order[:25])[high] <= 21  # the first was taken before there was a choice


async def test_max_in_flight_is_shared_and_lent_to_busy_topics(nsqd: Nsqd, topic: str) -> None:
    busy, idle = f"{topic}.busy", f"{topic}.idle"
    publish(nsqd, busy, numbered(100))
    publish(nsqd, idle, [])
    async with group(nsqd, {busy: 1, idle: 9}, max_in_flight=20) as running:
        await until(lambda: running.in_flight >= 19)  # all but the one of the idle topic
        assert sum(each.max_in_flight for each in running.consumers.values()) <= 20
        publish(nsqd, idle, numbered(50))
        in_hand = []
        async with asyncio.timeout(60):
            async for message in running:
                assert running.in_flight <= 20
                if message.topic == busy:
                    message.finish()
                else:
                    in_hand.append(message)
                if len(in_hand) == 10:  # the idle topic has got its share back
                    break
        running.max_in_flight = 0
        assert [each.max_in_flight for each in running.consumers.values()] == [0, 0]
        for message in in_hand:  # the end waits for them
            message.finish()


async def test_a_cancelled_run_stops_all_and_gives_everything_back(nsqd: Nsqd, topic: str) -> None:
    topics = [f"{topic}.a", f"{topic}.b"]
    for each in topics:
        publish(nsqd, each, numbered(20))
    running = group(nsqd, topics, max_in_flight=10)
    in_handler = asyncio.Event()

    async def wait(message: Message) -> None:
        in_handler.set()
        await asyncio.sleep(0.05)

    run = asyncio.create_task(running.run(wait))
    await in_handler.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert running.in_flight == 0
    for each in topics:
        stats = nsqd.channel_stats(each, CHANNEL)
        assert stats["in_flight_count"] == 0
        assert stats["depth"] >= 19
    with pytest.raises(RuntimeError, match="does not start again"):
        running.start()


async def test_a_handler_cannot_wait_for_its_own_end(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, [b"x"])
    running = group(nsqd, [topic])
    texts = []

    async def handle(message: Message) -> None:
        try:
            await running.stop()
        except RuntimeError as error:
            texts.append(str(error))
        running.stop_soon()

    async with asyncio.timeout(60):
        await running.run(handle)
    assert texts == ["a handler cannot wait for its own end: call stop_soon"]


async def test_middleware_surrounds_handlers_of_all_topics(nsqd: Nsqd, topic: str) -> None:
    topics = [f"{topic}.a", f"{topic}.b"]
    for each in topics:
        publish(nsqd, each, [b"x"])
    seen = []

    async def around(message: Message, call_next: object) -> None:
        await call_next(message)  # type: ignore[operator]
        seen.append(message.topic)
        if len(seen) == 2:
            running.stop_soon()

    async def handle(message: Message) -> None:
        pass

    running = group(nsqd, topics, middleware=[around])
    async with asyncio.timeout(60):
        await running.run(handle)
    assert sorted(seen) == topics


async def test_batches_have_messages_of_all_topics_and_hooks_surround_the_run(
    nsqd: Nsqd, topic: str
) -> None:
    topics = [f"{topic}.a", f"{topic}.b"]
    for each in topics:
        publish(nsqd, each, numbered(30, each))
    running = group(nsqd, topics, max_in_flight=60)
    seen: Counter[str] = Counter()
    calls: list[str] = []

    @running.on_start
    def begin() -> None:
        assert running.in_flight == 0
        calls.append("start")

    @running.on_stop
    async def end() -> None:
        calls.append("stop")

    async def handle(batch: Batch) -> None:
        assert len(batch) <= 20
        seen.update(message.topic for message in batch)
        if seen.total() == 60:
            running.stop_soon()

    async with asyncio.timeout(60):
        await running.run_batches(handle, size_max=20, wait_s=0.01)
    assert seen == dict.fromkeys(topics, 30)
    assert calls == ["start", "stop"]
    for each in topics:
        assert running.consumers[each].counters.finished == 30


async def test_a_batch_waits_to_become_full_with_messages_of_any_topic(
    nsqd: Nsqd, topic: str
) -> None:
    topics = [f"{topic}.a", f"{topic}.b"]
    async with group(nsqd, topics) as running:
        publish(nsqd, topics[0], numbered(3))
        batches = running.batches(5, wait_s=60)
        taking = asyncio.ensure_future(anext(batches))
        await until(lambda: running.in_flight == 3)
        publish(nsqd, topics[1], numbered(2))
        async with asyncio.timeout(60):
            batch = await taking
        assert Counter(message.topic for message in batch) == {topics[0]: 3, topics[1]: 2}
        batch.finish()
        await batches.aclose()


async def test_a_batch_that_nobody_gets_is_given_back(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, numbered(3))
    running = group(nsqd, [topic])
    async with running:
        taking = asyncio.ensure_future(anext(running.batches(100, wait_s=3600)))
        await until(lambda: running.in_flight == 3)
        await asyncio.sleep(0)
        running.max_in_flight = 0
        taking.cancel()
        await asyncio.wait([taking])
        await until(lambda: running.in_flight == 0)
    assert nsqd.channel_stats(topic, CHANNEL)["depth"] == 3


def test_a_group_without_asyncio() -> None:
    with LocalNsqd() as nsqd:
        nsqd.publish("a", *numbered(5))
        nsqd.publish("b", *numbered(5))
        with sync.TopicGroup(iter(["a", "b"]), "ch", nsqd=nsqd.tcp_address) as iterated:
            first = next(iter(iterated))
            first.requeue(0, backoff=False)
            assert set(iterated.counters) == {"a", "b"}
        running = sync.TopicGroup({"a": 2, "b": 1}, "ch", nsqd=nsqd.tcp_address)
        seen: Counter[str] = Counter()
        calls: list[str] = []
        running.on_start(lambda: calls.append("start"))
        running.on_stop(lambda: calls.append("stop"))

        def handle(message: Message) -> None:
            assert threading.current_thread() is not threading.main_thread()
            seen[message.topic] += 1
            if seen.total() == 10:
                running.stop_soon()

        running.run(handle, concurrency=2)
        assert seen == {"a": 5, "b": 5}
        assert calls == ["start", "stop"]
        assert (running.in_flight, running.counters) == (0, {})

        nsqd.publish("a", *numbered(4))
        again = sync.TopicGroup(["a", "b"], "ch", nsqd=nsqd.tcp_address)
        bodies: list[bytes] = []

        def handle_batch(batch: Batch) -> None:
            bodies.extend(message.body for message in batch)
            if len(bodies) == 4:
                again.stop_soon()

        again.run_batches(handle_batch, size_max=2)
        assert sorted(bodies) == sorted(numbered(4))
        assert nsqd.depth("a", "ch") == nsqd.depth("b", "ch") == 0


def test_without_asyncio_hooks_and_batch_handlers_are_plain_functions() -> None:
    async def wrong(*_: object) -> None: ...

    running = sync.TopicGroup(["a"], "ch", nsqd="127.0.0.1:4150")
    for take in (running.on_start, running.on_stop, running.run_batches):
        with pytest.raises(TypeError, match="calls plain functions"):
            take(wrong)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("topics", "options", "error"),
    [
        ("orders", {}, "topics are a list of names, or names with weights, not str"),
        (7, {}, "topics are a list of names, or names with weights, not int"),
        ([], {}, "a group needs a topic"),
        (["a", "a"], {}, "a topic is there twice"),
        (["a b"], {}, "'a b' is not a valid topic name"),
        ([7], {}, "a topic name is text, not int"),
        ({"a": 0}, {}, "the weight of 'a' is not in 1-1000"),
        ({"a": 1.5}, {}, "the weight of 'a' is a whole number, not 1.5"),
        (["a", "b"], {"max_in_flight": 1}, "max_in_flight 1 is too small for 2 topics"),
        (["a"], {"max_in_flight": -1}, "max_in_flight must not be negative"),
    ],
)
def test_mistakes(topics: object, options: dict[str, object], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        TopicGroup(topics, "ch", nsqd="127.0.0.1:4150", **options)  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError), match=error):
        sync.TopicGroup(topics, "ch", nsqd="127.0.0.1:4150", **options)  # type: ignore[arg-type]


def test_a_group_needs_an_address() -> None:
    with pytest.raises(ValueError, match="needs the address"):
        TopicGroup(["a"], "ch")
