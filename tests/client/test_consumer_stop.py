"""Stops at any moment, in any way: a message is handled, or is back in the channel at once."""

import asyncio
import random

import pytest

from pumpline.client import Consumer, Message, Settings
from tests.kit.client.consuming import CHANNEL, numbered, publish, until
from tests.kit.daemons import Nsqd

COUNT = 50  # a round, on each nsqd
ROUNDS = 15
SETTINGS = Settings(redistribute_interval_s=0.005, stop_timeout_s=10)


async def stop(consumer: Consumer, running: "asyncio.Task[None]", how: str) -> None:
    if how == "stop":
        await consumer.stop()
    elif how == "stop_soon":
        consumer.stop_soon()
    else:
        running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("form", ["async", "threads", "iterate", "batches"])
async def test_what_was_not_handled_is_back_when_the_stop_is_over(
    nsqd: Nsqd, own_nsqd: Nsqd, topic: str, form: str
) -> None:
    nsqds = [nsqd, own_nsqd]
    dice = random.Random(form)
    handled = 0
    for number in range(ROUNDS):
        for each in nsqds:
            publish(each, topic, numbered(COUNT))
        consumer = Consumer(
            topic,
            CHANNEL,
            nsqd=[each.tcp_address for each in nsqds],
            max_in_flight=dice.choice([1, 2, 20, 100]),
            settings=SETTINGS,
            max_attempts=0,
        )
        running = asyncio.create_task(consume(consumer, form, dice.randint(1, 4)))
        goal = dice.randint(0, COUNT)
        await until(lambda goal=goal, its=consumer: its.counters.finished >= goal)  # type: ignore[misc]
        for _ in range(dice.randrange(20)):
            await asyncio.sleep(0)
        is_iteration = form in ("iterate", "batches")  # which, cancelled, does not wait
        hows = ["stop", "stop_soon"] if is_iteration else ["stop", "stop_soon", "cancel"]
        await stop(consumer, running, dice.choice(hows))
        if is_iteration:
            await consumer.stop()
        handled += consumer.counters.finished
        stats = [each.channel_stats(topic, CHANNEL) for each in nsqds]
        assert [each["in_flight_count"] for each in stats] == [0, 0]
        assert sum(each["depth"] for each in stats) == 2 * COUNT * (number + 1) - handled
        assert consumer.in_flight == 0
    assert handled > 0


async def consume(consumer: Consumer, form: str, concurrency: int) -> None:
    if form == "async":
        await consumer.run(pass_by, concurrency=concurrency)
    elif form == "threads":
        await consumer.run(lambda message: None, concurrency=concurrency)
    elif form == "iterate":
        consumer.start()
        async for message in consumer:
            await asyncio.sleep(0)
            message.finish()
    else:
        consumer.start()
        async for batch in consumer.batches(7, wait_s=0.002):
            await asyncio.sleep(0)
            batch.finish()


async def pass_by(message: Message) -> None:
    await asyncio.sleep(0)
