"""Our own client. With PUMPLINE_BENCH_UVLOOP set, on uvloop."""

from __future__ import annotations

import asyncio
import os

from bench.clients.drivers.task import BATCH, BATCHES_UNDER_WAY, BODY, CHANNEL, IN_FLIGHT_MAX, Stint
from pumpline.client import Consumer, Message, Producer


async def publish(stint: Stint) -> None:
    async with Producer(stint.address) as producer:
        if stint.workload == "mpub":
            await stint.publish(BATCHES_UNDER_WAY, producer.publish_many, [BODY] * BATCH, BATCH)
        else:
            await stint.publish(stint.publishers, producer.publish, BODY, 1)


async def consume(stint: Stint) -> None:
    consumer = Consumer(stint.topic, CHANNEL, nsqd=[stint.address], max_in_flight=IN_FLIGHT_MAX)

    async def handle(message: Message) -> None:
        stint.count_consumed()

    await consumer.run(handle)


async def iterate(stint: Stint) -> None:
    consumer = Consumer(stint.topic, CHANNEL, nsqd=[stint.address], max_in_flight=IN_FLIGHT_MAX)
    async for message in consumer:
        message.finish()
        stint.count_consumed()


def main() -> None:
    stint = Stint.from_arguments()
    work = {"sub": consume, "sub_iterate": iterate}.get(stint.workload, publish)
    if os.environ.get("PUMPLINE_BENCH_UVLOOP"):
        import uvloop

        uvloop.run(work(stint))
    else:
        asyncio.run(work(stint))


if __name__ == "__main__":
    main()
