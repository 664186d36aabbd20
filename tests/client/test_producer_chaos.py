"""Two nsqds behind a bad network: what is confirmed is there, what is not sent is not."""

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from pumpline.client import NotSentError, Producer, PublishError, UnconfirmedError
from tests.kit.client.chaos import KINDS, trouble
from tests.kit.client.consuming import CHANNEL, publish
from tests.kit.daemons import Nsqd
from tests.kit.proxy import Proxy

TASKS = 30
TROUBLES = 15  # in each of four ways


@pytest.mark.slow
@pytest.mark.parametrize("retry", [True, False], ids=["retry", "once"])
@pytest.mark.parametrize("spread", [True, False], ids=["spread", "first"])
async def test_what_is_said_of_every_message_is_true(
    tmp_path: Path, topic: str, retry: bool, spread: bool
) -> None:
    dice = random.Random(f"{retry}{spread}")
    confirmed: set[bytes] = set()
    doubtful: set[bytes] = set()
    refused: set[bytes] = set()
    is_over = False

    async def work(producer: Producer, name: int) -> None:
        number = 0
        while not is_over:
            bodies = [b"%d-%d-%d" % (name, number, part) for part in range(dice.choice([1, 1, 5]))]
            number += 1
            try:
                async with asyncio.timeout(dice.choice([0.02, 5])):
                    if len(bodies) == 1:
                        await producer.publish(topic, bodies[0])
                    else:
                        await producer.publish_many(topic, bodies)
                confirmed.update(bodies)
            except NotSentError:
                refused.update(bodies)
            except (UnconfirmedError, TimeoutError):
                doubtful.update(bodies)
            await asyncio.sleep(dice.random() * 0.01)

    with contextlib.ExitStack() as daemons:
        nsqds = [daemons.enter_context(Nsqd(tmp_path / f"data{n}")) for n in range(2)]
        for nsqd in nsqds:
            publish(nsqd, topic, [])
        async with contextlib.AsyncExitStack() as network:
            proxies = [await network.enter_async_context(Proxy(nsqd.tcp_port)) for nsqd in nsqds]
            producer = Producer(
                [proxy.address for proxy in proxies],
                spread=spread,
                timeout_s=0.5,
                confirm_timeout_s=0.2,
                retry_unconfirmed=retry,
                pending_bytes_max=4000,
            )
            await producer.start()
            workers = [asyncio.create_task(work(producer, n)) for n in range(TASKS)]
            for _ in range(TROUBLES):
                await trouble(proxies, dice, kinds=(*KINDS, "refuse"), stall_s=0.3)
            for proxy in proxies:
                proxy.resume()
                proxy.accept()
            is_over = True
            await asyncio.gather(*workers)
            await producer.close()
            with pytest.raises(PublishError):
                await producer.publish(topic, b"m")
            assert producer._queue.budget.taken_bytes == 0
        stored = [body for nsqd in nsqds for body in stored_in(nsqd, topic)]
    assert confirmed
    assert confirmed <= set(stored)
    assert not refused & set(stored)
    assert set(stored) <= confirmed | doubtful
    if not retry:
        assert len(stored) == len(set(stored))


def stored_in(nsqd: Nsqd, topic: str) -> list[bytes]:
    count = nsqd.channel_stats(topic, CHANNEL)["depth"]
    with nsqd.connect() as client:
        client.sub(topic, CHANNEL)
        client.rdy(2500)
        bodies = []
        for _ in range(count):
            message = client.read_message()
            client.fin(message.id)
            bodies.append(message.body)
    return bodies
