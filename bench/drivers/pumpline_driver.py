"""Our own client. With PUMPLINE_BENCH_UVLOOP set, on uvloop."""

from __future__ import annotations

import asyncio
import os

from bench.drivers.stint import (
    BATCH,
    BATCHES_UNDER_WAY,
    BODY,
    CHANNEL,
    IN_FLIGHT_MAX,
    PUBLISHERS,
    Stint,
)
from pumpline.client import Consumer, Message, Producer


async def publish(stint: Stint, workers: int) -> None:
    async with Producer(stint.address) as producer:

        async def work() -> None:
            while not stint.is_over:
                await producer.publish(stint.topic, BODY)
                stint.messages += 1

        stint.begin()
        await asyncio.gather(*(work() for _ in range(workers)))
        stint.report()


async def publish_many(stint: Stint) -> None:
    bodies = [BODY] * BATCH
    async with Producer(stint.address) as producer:

        async def work() -> None:
            while not stint.is_over:
                await producer.publish_many(stint.topic, bodies)
                stint.messages += BATCH

        stint.begin()
        await asyncio.gather(*(work() for _ in range(BATCHES_UNDER_WAY)))
        stint.report()


async def consume(stint: Stint) -> None:
    consumer = Consumer(stint.topic, CHANNEL, nsqd=[stint.address], max_in_flight=IN_FLIGHT_MAX)

    async def handle(message: Message) -> None:
        if stint.consumed():
            stint.report()
            os._exit(0)

    await consumer.run(handle)


async def iterate(stint: Stint) -> None:
    consumer = Consumer(stint.topic, CHANNEL, nsqd=[stint.address], max_in_flight=IN_FLIGHT_MAX)
    async for message in consumer:
        message.finish()
        if stint.consumed():
            stint.report()
            os._exit(0)


def main() -> None:
    stint = Stint.from_arguments()
    work = {
        "pub": lambda: publish(stint, PUBLISHERS),
        "pub_one": lambda: publish(stint, 1),
        "mpub": lambda: publish_many(stint),
        "sub": lambda: consume(stint),
        "sub_iterate": lambda: iterate(stint),
    }[stint.workload]
    if os.environ.get("PUMPLINE_BENCH_UVLOOP"):
        import uvloop

        uvloop.run(work())
    else:
        asyncio.run(work())


if __name__ == "__main__":
    main()
