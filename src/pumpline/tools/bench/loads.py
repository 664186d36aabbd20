"""The loads of `pumpline bench`: each publishes or consumes for a while, and is timed.

Knows one topic of one nsqd; must not know what else that nsqd has.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from pumpline.client import Consumer, Producer

CHANNEL = "bench"
IN_FLIGHT = 2500  # nsqd's --max-rdy-count by default
BATCH = 250  # messages that a consumer handles at once


class Plan(msgspec.Struct, kw_only=True, frozen=True):
    tcp_address: str
    topic: str
    duration_s: float
    messages_max: int  # of each load
    body_bytes: int
    batch: int  # messages in an MPUB
    connections: int


class Timed(msgspec.Struct, kw_only=True):
    """What a load did."""

    messages: int = 0
    seconds: float = 0.0
    latencies_s: list[float] = []


Load = Callable[[Plan], Coroutine[Any, Any, Timed]]


async def publish_batches(plan: Plan) -> Timed:
    """Several connections, each with one MPUB at a time."""
    bodies = [bytes(plan.body_bytes)] * plan.batch
    timed = Timed()
    async with Producer(plan.tcp_address) as first:
        others = [Producer(plan.tcp_address) for _ in range(plan.connections - 1)]
        try:
            for each in others:
                await each.start()
            began_s = time.perf_counter()
            until_s = began_s + plan.duration_s

            async def work(producer: Producer) -> None:
                while timed.messages < plan.messages_max:
                    at_s = time.perf_counter()
                    if at_s >= until_s:
                        break
                    timed.messages += len(bodies)
                    await producer.publish_many(plan.topic, bodies)
                    timed.latencies_s.append(time.perf_counter() - at_s)

            await asyncio.gather(*(work(each) for each in (first, *others)))
            timed.seconds = time.perf_counter() - began_s
        finally:
            for each in others:
                await each.close()
    return timed


async def consume(plan: Plan) -> Timed:
    """Everything that waits, as far as the time allows."""
    timed = Timed()
    consumer = Consumer(plan.topic, CHANNEL, nsqd=plan.tcp_address, max_in_flight=IN_FLIGHT)
    async with consumer:
        began_s = time.perf_counter()
        until_s = began_s + plan.duration_s
        try:
            async with asyncio.timeout(plan.duration_s):
                async for batch in consumer.batches(BATCH):
                    batch.finish()
                    timed.messages += len(batch)
                    timed.seconds = time.perf_counter() - began_s
                    if timed.messages >= plan.messages_max or time.perf_counter() >= until_s:
                        break
        except TimeoutError:  # nothing more came
            pass
    return timed


async def publish_singly(plan: Plan) -> Timed:
    """One connection with one PUB at a time."""
    timed = Timed()
    body = bytes(plan.body_bytes)
    async with Producer(plan.tcp_address, batching=False) as producer:
        began_s = at_s = time.perf_counter()
        until_s = began_s + plan.duration_s
        while at_s < until_s and timed.messages < plan.messages_max:
            await producer.publish(plan.topic, body)
            now_s = time.perf_counter()
            timed.latencies_s.append(now_s - at_s)
            timed.messages += 1
            at_s = now_s
        timed.seconds = at_s - began_s
    return timed


async def round_trips(plan: Plan) -> Timed:
    """From the publish of a message until a consumer has it, one at a time."""
    timed = Timed()
    body = bytes(plan.body_bytes)
    consumer = Consumer(plan.topic, CHANNEL, nsqd=plan.tcp_address, max_in_flight=1)
    async with Producer(plan.tcp_address, batching=False) as producer, consumer:
        began_s = at_s = time.perf_counter()
        until_s = began_s + plan.duration_s
        await producer.publish(plan.topic, body)
        async for message in consumer:
            now_s = time.perf_counter()
            message.finish()
            timed.latencies_s.append(now_s - at_s)
            timed.messages += 1
            timed.seconds = now_s - began_s
            if now_s >= until_s or timed.messages >= plan.messages_max:
                break
            at_s = time.perf_counter()
            await producer.publish(plan.topic, body)
    return timed


LOADS: dict[str, tuple[Load, bool]] = {  # and whether the channel is emptied first
    "publish, batches": (publish_batches, False),
    "consume": (consume, False),
    "publish, one by one": (publish_singly, True),
    "publish to consumer": (round_trips, True),
}
