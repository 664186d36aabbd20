"""Three nsqds, a bad network, handlers that fail: every message is handled, and nothing is left."""

import asyncio
import contextlib
import random
from collections import Counter
from pathlib import Path

import pytest

from pumpline.client import Consumer, Message, Settings
from tests.kit.client.chaos import trouble
from tests.kit.client.consuming import CHANNEL, left, numbered, publish, until
from tests.kit.daemons import Nsqd
from tests.kit.proxy import Proxy

COUNTS = (2000, 200, 20)
TROUBLES = 12
SETTINGS = Settings(
    heartbeat_interval_s=1,
    read_timeout_s=1,
    requeue_delay_s=0.01,
    backoff_multiplier_s=0.005,
    backoff_max_s=0.05,
    stop_timeout_s=10,
)
FAILURES_IN_1000 = 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("max_in_flight", [2, 100])
async def test_every_message_is_handled_whatever_happens(
    tmp_path: Path, topic: str, seed: int, max_in_flight: int
) -> None:
    dice = random.Random(seed)
    seen = Counter[bytes]()
    at_a_time: list[int] = []
    now = 0

    async def handle(message: Message) -> None:
        nonlocal now
        now += 1
        at_a_time.append(now)
        try:
            await asyncio.sleep(0)
            if dice.randrange(1000) < FAILURES_IN_1000:
                raise OSError("bad luck")
            seen[message.body] += 1
        finally:
            now -= 1

    with contextlib.ExitStack() as daemons:
        flags = ["--msg-timeout=500ms"]
        nsqds = [daemons.enter_context(Nsqd(tmp_path / f"data{n}", flags)) for n in range(3)]
        for number, (nsqd, count) in enumerate(zip(nsqds, COUNTS, strict=True)):
            publish(nsqd, topic, numbered(count, str(number)))
        async with contextlib.AsyncExitStack() as network:
            proxies = [await network.enter_async_context(Proxy(nsqd.tcp_port)) for nsqd in nsqds]
            consumer = Consumer(
                topic,
                CHANNEL,
                nsqd=[proxy.address for proxy in proxies],
                max_in_flight=max_in_flight,
                max_attempts=0,
                settings=SETTINGS,
            )
            running = asyncio.create_task(consumer.run(handle, concurrency=4))
            for _ in range(TROUBLES):
                await trouble(proxies, dice)
            for proxy in proxies:
                proxy.resume()
            await until(lambda: sum(left(nsqd, topic) for nsqd in nsqds) == 0, 60)
            await consumer.stop()
            await running
    for number, count in enumerate(COUNTS):
        assert all(seen[body] for body in numbered(count, str(number)))
    assert max(at_a_time) <= 4
