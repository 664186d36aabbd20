"""pynsq, on tornado's loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import nsq

from bench.clients.drivers.task import BATCH, BATCHES_UNDER_WAY, BODY, CHANNEL, IN_FLIGHT_MAX, Task


async def connected(task: Task) -> Any:
    writer = nsq.Writer([task.address])
    while not writer.conns:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)  # pynsq does not say when it is ready
    return writer


async def publish(task: Task, workers: int, send: Callable[..., Any], what: Any, n: int) -> None:
    """Publishes with callbacks: pynsq is meant to be used so, and it is its fastest way."""
    done = asyncio.get_running_loop().create_future()
    under_way = workers

    def answered(_: Any, data: Any) -> None:
        nonlocal under_way
        if data != b"OK":
            raise RuntimeError(data)
        task.messages += n
        if not task.is_over:
            send(task.next_topic(), what, callback=answered)
            return
        under_way -= 1
        if not under_way:
            done.set_result(None)

    task.begin()
    for _ in range(workers):
        send(task.next_topic(), what, callback=answered)
    await done
    task.report()


async def consume(task: Task) -> None:
    def handle(_: Any) -> bool:
        task.count_consumed()
        return True

    nsq.Reader(
        topic=task.topic,
        channel=CHANNEL,
        message_handler=handle,
        nsqd_tcp_addresses=[task.address],
        max_in_flight=IN_FLIGHT_MAX,
    )
    await asyncio.get_running_loop().create_future()


async def main() -> None:
    task = Task.from_arguments()
    if task.workload == "sub":
        await consume(task)
        return
    writer = await connected(task)
    if task.workload == "mpub":
        await publish(task, BATCHES_UNDER_WAY, writer.mpub, [BODY] * BATCH, BATCH)
    else:
        await publish(task, task.publishers, writer.pub, BODY, 1)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
