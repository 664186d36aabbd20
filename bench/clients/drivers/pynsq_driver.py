"""pynsq, on tornado's loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import nsq

from bench.clients.drivers.task import BATCH, BATCHES_UNDER_WAY, BODY, CHANNEL, IN_FLIGHT_MAX, Stint


async def connected(stint: Stint) -> Any:
    writer = nsq.Writer([stint.address])
    while not writer.conns:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)  # it has no sign for being ready
    return writer


async def publish(stint: Stint, workers: int, send: Callable[..., Any], what: Any, n: int) -> None:
    """By callbacks, which is how it is meant to be used, and the fastest way."""
    done = asyncio.get_running_loop().create_future()
    under_way = workers

    def answered(_: Any, data: Any) -> None:
        nonlocal under_way
        if data != b"OK":
            raise RuntimeError(data)
        stint.messages += n
        if not stint.is_over:
            send(stint.topic, what, callback=answered)
            return
        under_way -= 1
        if not under_way:
            done.set_result(None)

    stint.begin()
    for _ in range(workers):
        send(stint.topic, what, callback=answered)
    await done
    stint.report()


async def consume(stint: Stint) -> None:
    def handle(_: Any) -> bool:
        stint.count_consumed()
        return True

    nsq.Reader(
        topic=stint.topic,
        channel=CHANNEL,
        message_handler=handle,
        nsqd_tcp_addresses=[stint.address],
        max_in_flight=IN_FLIGHT_MAX,
    )
    await asyncio.get_running_loop().create_future()


async def main() -> None:
    stint = Stint.from_arguments()
    if stint.workload == "sub":
        await consume(stint)
        return
    writer = await connected(stint)
    if stint.workload == "mpub":
        await publish(stint, BATCHES_UNDER_WAY, writer.mpub, [BODY] * BATCH, BATCH)
    else:
        await publish(stint, stint.publishers, writer.pub, BODY, 1)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
