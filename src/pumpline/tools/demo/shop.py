"""The demo's shop: makes orders, publishes them and consumes them.

Some orders are published twice, as by a producer that was not sure of the first time; some messages
are broken. The ledger has what nsqd acknowledged and what consumers received, to be compared at the
end.
"""

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field

from pumpline.client import Consumer, Producer, Settings

TOPIC = "orders"
CHANNEL = "billing"
BATCHES_A_SECOND = 20
REPEATED_SHARE = 0.03
BROKEN_SHARE = 0.01
CITIES = ("Berlin", "Lagos", "Lima", "Mumbai", "Osaka", "Oslo", "Quito", "Rome")
GOODS = (("tea", 4.5), ("lamp", 39.9), ("chair", 120.0), ("book", 18.25), ("pan", 27.8))
POLL_S = 0.5


@dataclass(slots=True)
class Ledger:
    """What was acknowledged, and what was received."""

    orders: set[int] = field(default_factory=set)
    published: int = 0  # messages acknowledged: repeats and broken ones too
    repeated: int = 0
    broken: int = 0
    bodies: set[bytes] = field(default_factory=set)
    received: Counter[bytes] = field(default_factory=Counter)

    @property
    def unconsumed(self) -> int:
        """How many acknowledged messages no consumer has received."""
        return len(self.bodies - self.received.keys())


@dataclass(slots=True)
class OrderBatch:
    """Orders as message bodies; a repeated order is in `bodies` twice, a broken one only there."""

    orders: list[int]
    bodies: list[bytes]
    repeated: int
    broken: int


class Shop:
    """Makes orders; with the same seed always the same ones."""

    def __init__(self, seed: int = 7) -> None:
        self._random = random.Random(seed)
        self._number = 0

    def batch(self, size: int) -> OrderBatch:
        made = OrderBatch([], [], 0, 0)
        while len(made.bodies) < size:
            self._number += 1
            chance = self._random.random()
            order = self._order(self._number)
            if chance < BROKEN_SHARE:
                made.bodies.append(self._break(order))
                made.broken += 1
                continue
            made.orders.append(self._number)
            made.bodies.append(json.dumps(order).encode())
            if chance > 1 - REPEATED_SHARE:
                made.bodies.append(made.bodies[-1])
                made.repeated += 1
        return made

    def _order(self, number: int) -> dict[str, object]:
        choose = self._random
        lines: list[dict[str, object]] = []
        total = 0.0
        for name, price in choose.sample(GOODS, choose.randint(1, 3)):
            quantity = choose.randint(1, 4)
            lines.append({"item": name, "quantity": quantity, "price": price})
            total += quantity * price
        return {
            "order_id": number,
            "customer": f"c-{choose.randint(1, 5000)}",
            "city": choose.choice(CITIES),
            "lines": lines,
            "total": round(total, 2),
        }

    def _break(self, order: dict[str, object]) -> bytes:
        """Breaks an order in one of three ways: wrong type, cut off, not UTF-8."""
        kind = self._random.randrange(3)
        if kind == 0:
            return json.dumps({**order, "total": "free"}).encode()
        text = json.dumps(order).encode()
        return text[: len(text) // 2] if kind == 1 else text.replace(b"c-", b"\xff-", 1)


async def publish(producer: Producer, shop: Shop, ledger: Ledger, size: int) -> None:
    """Publishes new orders, and writes them down when nsqd has acknowledged them."""
    made = shop.batch(size)
    await producer.publish_many(TOPIC, made.bodies)
    ledger.orders.update(made.orders)
    ledger.bodies.update(made.bodies)
    ledger.published += len(made.bodies)
    ledger.repeated += made.repeated
    ledger.broken += made.broken


async def produce(
    producer: Producer, shop: Shop, ledger: Ledger, *, rate: int, stop: asyncio.Event
) -> None:
    """Publishes at `rate` messages a second until `stop` is set."""
    size = max(rate // BATCHES_A_SECOND, 1)
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    while not stop.is_set():
        await publish(producer, shop, ledger, size)
        due_s += 1 / BATCHES_A_SECOND
        await asyncio.sleep(max(due_s - loop.time(), 0))


async def consume(lookupd: str, ledger: Ledger) -> None:
    """One consumer of the channel, until it is cancelled."""
    settings = Settings(poll_interval_s=POLL_S)
    consumer = Consumer(TOPIC, CHANNEL, lookupd=lookupd, max_in_flight=500, settings=settings)
    async with consumer:
        async for batch in consumer.batches(200):
            for message in batch:
                ledger.received[message.body] += 1
                message.finish()
