"""Several topics with one handler: weights, a shared max_in_flight, and a stop of all."""

import asyncio
from collections import Counter

import pytest

from pumpline.client import Message, TopicGroup
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


def test_a_group_needs_an_address() -> None:
    with pytest.raises(ValueError, match="needs the address"):
        TopicGroup(["a"], "ch")
