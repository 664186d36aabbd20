"""ansq, on asyncio."""

from __future__ import annotations

import asyncio

import ansq

from bench.clients.drivers.task import BATCH, BATCHES_UNDER_WAY, BODY, CHANNEL, IN_FLIGHT_MAX, Stint


async def publish(stint: Stint) -> None:
    writer = await ansq.create_writer(nsqd_tcp_addresses=[stint.address])
    if stint.workload == "mpub":

        async def send(topic: str, bodies: list[bytes]) -> None:
            await writer.mpub(topic, *bodies)

        await stint.publish(BATCHES_UNDER_WAY, send, [BODY] * BATCH, BATCH)
    else:
        await stint.publish(stint.publishers, writer.pub, BODY, 1)
    await writer.close()


async def consume(stint: Stint) -> None:
    reader = await ansq.create_reader(
        topic=stint.topic, channel=CHANNEL, nsqd_tcp_addresses=[stint.address]
    )
    for connection in reader.connections:
        await connection.rdy(IN_FLIGHT_MAX)
    async for message in reader.messages():
        await message.fin()
        stint.count_consumed()


def main() -> None:
    stint = Stint.from_arguments()
    asyncio.run(consume(stint) if stint.workload.startswith("sub") else publish(stint))


if __name__ == "__main__":
    main()
