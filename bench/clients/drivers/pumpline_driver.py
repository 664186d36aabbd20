"""Our own client. With PUMPLINE_BENCH_UVLOOP set, on uvloop."""

from __future__ import annotations

import asyncio
import os

from bench.clients.drivers.task import BATCH, BATCHES_UNDER_WAY, BODY, CHANNEL, IN_FLIGHT_MAX, Task
from pumpline.client import Consumer, Message, Producer


async def publish(task: Task) -> None:
    async with Producer(task.address) as producer:
        if task.workload == "mpub":
            await task.publish(BATCHES_UNDER_WAY, producer.publish_many, [BODY] * BATCH, BATCH)
        else:
            await task.publish(task.publishers, producer.publish, BODY, 1)


async def consume(task: Task) -> None:
    consumer = Consumer(task.topic, CHANNEL, nsqd=[task.address], max_in_flight=IN_FLIGHT_MAX)

    async def handle(message: Message) -> None:
        task.count_consumed()

    await consumer.run(handle)


async def iterate(task: Task) -> None:
    consumer = Consumer(task.topic, CHANNEL, nsqd=[task.address], max_in_flight=IN_FLIGHT_MAX)
    async for message in consumer:
        message.finish()
        task.count_consumed()


def main() -> None:
    task = Task.from_arguments()
    work = {"sub": consume, "sub_iterate": iterate}.get(task.workload, publish)
    if os.environ.get("PUMPLINE_BENCH_UVLOOP"):
        import uvloop

        uvloop.run(work(task))
    else:
        asyncio.run(work(task))


if __name__ == "__main__":
    main()
