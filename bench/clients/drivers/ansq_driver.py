"""ansq, on asyncio."""

from __future__ import annotations

import asyncio

import ansq

from bench.clients.drivers.task import BATCH, BATCHES_UNDER_WAY, BODY, CHANNEL, IN_FLIGHT_MAX, Task


async def publish(task: Task) -> None:
    writer = await ansq.create_writer(nsqd_tcp_addresses=[task.address])
    if task.workload == "mpub":

        async def send(topic: str, bodies: list[bytes]) -> None:
            await writer.mpub(topic, *bodies)

        await task.publish(BATCHES_UNDER_WAY, send, [BODY] * BATCH, BATCH)
    else:
        await task.publish(task.publishers, writer.pub, BODY, 1)
    await writer.close()


async def consume(task: Task) -> None:
    reader = await ansq.create_reader(
        topic=task.topic, channel=CHANNEL, nsqd_tcp_addresses=[task.address]
    )
    for connection in reader.connections:
        await connection.rdy(IN_FLIGHT_MAX)
    async for message in reader.messages():
        await message.fin()
        task.count_consumed()


def main() -> None:
    task = Task.from_arguments()
    asyncio.run(consume(task) if task.workload.startswith("sub") else publish(task))


if __name__ == "__main__":
    main()
