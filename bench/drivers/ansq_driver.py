"""ansq, on asyncio."""

from __future__ import annotations

import asyncio
import os

import ansq

from bench.drivers.stint import (
    BATCH,
    BATCHES_UNDER_WAY,
    BODY,
    CHANNEL,
    IN_FLIGHT_MAX,
    PUBLISHERS,
    Stint,
)


async def publish(stint: Stint, workers: int) -> None:
    writer = await ansq.create_writer(nsqd_tcp_addresses=[stint.address])

    async def work() -> None:
        while not stint.is_over:
            await writer.pub(stint.topic, BODY)
            stint.messages += 1

    stint.begin()
    await asyncio.gather(*(work() for _ in range(workers)))
    stint.report()
    await writer.close()


async def publish_many(stint: Stint) -> None:
    writer = await ansq.create_writer(nsqd_tcp_addresses=[stint.address])
    bodies = [BODY] * BATCH

    async def work() -> None:
        while not stint.is_over:
            await writer.mpub(stint.topic, *bodies)
            stint.messages += BATCH

    stint.begin()
    await asyncio.gather(*(work() for _ in range(BATCHES_UNDER_WAY)))
    stint.report()
    await writer.close()


async def consume(stint: Stint) -> None:
    reader = await ansq.create_reader(
        topic=stint.topic, channel=CHANNEL, nsqd_tcp_addresses=[stint.address]
    )
    for connection in reader.connections:
        await connection.rdy(IN_FLIGHT_MAX)
    async for message in reader.messages():
        await message.fin()
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
        "sub_iterate": lambda: consume(stint),
    }[stint.workload]
    asyncio.run(work())


if __name__ == "__main__":
    main()
