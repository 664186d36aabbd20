"""gnsq, on gevent."""

from __future__ import annotations

import gevent.monkey

gevent.monkey.patch_all()

import os  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

import gevent  # noqa: E402
import gnsq  # noqa: E402

from bench.clients.drivers.task import (  # noqa: E402
    BATCH,
    BATCHES_UNDER_WAY,
    BODY,
    CHANNEL,
    IN_FLIGHT_MAX,
    Task,
)


def publish(task: Task, workers: int, send: Callable[..., Any], what: Any, count: int) -> None:
    def work() -> None:
        while not task.is_over:
            send(task.next_topic(), what)
            task.messages += count

    task.begin()
    gevent.joinall([gevent.spawn(work) for _ in range(workers)], raise_error=True)
    task.report()


def consume(task: Task) -> None:
    consumer = gnsq.Consumer(
        task.topic, CHANNEL, nsqd_tcp_addresses=[task.address], max_in_flight=IN_FLIGHT_MAX
    )

    @consumer.on_message.connect
    def handle(_: Any, message: Any) -> None:
        task.count_consumed()

    consumer.start()


def main() -> None:
    task = Task.from_arguments()
    if task.workload == "sub":
        consume(task)
        return
    producer = gnsq.Producer([task.address])
    producer.start()
    if task.workload == "mpub":
        publish(task, BATCHES_UNDER_WAY, producer.multipublish, [BODY] * BATCH, BATCH)
    else:
        publish(task, task.publishers, producer.publish, BODY, 1)
    os._exit(0)


if __name__ == "__main__":
    main()
