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
    Stint,
)


def publish(stint: Stint, workers: int, send: Callable[..., Any], what: Any, count: int) -> None:
    def work() -> None:
        while not stint.is_over:
            send(stint.topic, what)
            stint.messages += count

    stint.begin()
    gevent.joinall([gevent.spawn(work) for _ in range(workers)], raise_error=True)
    stint.report()


def consume(stint: Stint) -> None:
    consumer = gnsq.Consumer(
        stint.topic, CHANNEL, nsqd_tcp_addresses=[stint.address], max_in_flight=IN_FLIGHT_MAX
    )

    @consumer.on_message.connect
    def handle(_: Any, message: Any) -> None:
        stint.count_consumed()

    consumer.start()


def main() -> None:
    stint = Stint.from_arguments()
    if stint.workload == "sub":
        consume(stint)
        return
    producer = gnsq.Producer([stint.address])
    producer.start()
    if stint.workload == "mpub":
        publish(stint, BATCHES_UNDER_WAY, producer.multipublish, [BODY] * BATCH, BATCH)
    else:
        publish(stint, stint.publishers, producer.publish, BODY, 1)
    os._exit(0)


if __name__ == "__main__":
    main()
