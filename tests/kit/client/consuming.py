"""What tests of the client share: putting messages there, waiting, and counting what is left."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

from pumpline.client import Consumer, Message
from tests.kit.daemons import Nsqd, wait_until

CHANNEL = "ch"


def publish(nsqd: Nsqd, topic: str, bodies: Iterable[bytes]) -> None:
    """Into the channel too, which is made if it is missing."""
    nsqd.http("POST", f"/topic/create?topic={topic}")
    nsqd.http("POST", f"/channel/create?topic={topic}&channel={CHANNEL}")
    if listed := list(bodies):
        with nsqd.connect() as client:
            client.mpub(topic, listed)


def numbered(count: int, name: str = "m") -> list[bytes]:
    return [f"{name}-{number}".encode() for number in range(count)]


async def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.002)


async def finish_all(consumer: Consumer, count: int) -> list[bytes]:
    """Bodies of the next so many messages, each finished."""
    bodies = []
    async with asyncio.timeout(60):
        async for message in consumer:
            bodies.append(message.body)
            message.finish()
            if len(bodies) == count:
                break
    return bodies


async def take(consumer: Consumer, count: int) -> list[Message]:
    """The next so many messages, not answered."""
    taken: list[Message] = []
    async with asyncio.timeout(60):
        async for message in consumer:
            taken.append(message)
            if len(taken) == count:
                break
    return taken


def left(nsqd: Nsqd, topic: str) -> int:
    """Messages of the channel that are not finished."""
    stats = nsqd.channel_stats(topic, CHANNEL)
    return int(stats["depth"] + stats["in_flight_count"] + stats["deferred_count"])


def drain(nsqd: Nsqd, topic: str, count: int) -> Counter[bytes]:
    """Consume so many messages, all there must be."""
    with nsqd.connect() as client:
        client.sub(topic, CHANNEL)
        client.rdy(2500)
        received = Counter[bytes]()
        for _ in range(count):
            message = client.read_message()
            client.fin(message.id)
            received[message.body] += 1
        wait_until(lambda: left(nsqd, topic) == 0)
    return received
