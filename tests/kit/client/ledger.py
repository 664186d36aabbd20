"""Books over what clients were told, against what there is: on a bad network, from a seed.

Producers publish and consumers handle while proxies cut, stall, fragment and reorder (what one
connection sends overtakes what another one sent before), nsqds are killed and started again, calls
are cancelled, the loop is blocked, and consumers join and leave. Then the network heals, everything
that is left is consumed, and the books must balance:

| entry      | means                                   | must hold in the end                      |
|------------|-----------------------------------------|-------------------------------------------|
| confirmed  | `publish` has returned                  | was handled                               |
| doubtful   | UnconfirmedError, or it was cancelled   | nothing                                   |
| not_sent   | NotSentError or RefusedError            | was never delivered                       |
| partly     | `confirmed` of an error                 | so many messages of the call were handled |

Knows the client as users do.
"""

import asyncio
import random
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Protocol

from pumpline.client import (
    Consumer,
    Message,
    NotSentError,
    Producer,
    PublishError,
    RefusedError,
    Settings,
)
from tests.kit.client.chaos import KINDS, trouble
from tests.kit.client.consuming import CHANNEL, until
from tests.kit.proxy import Proxy

MAX_IN_FLIGHT = 7
SETTLE_S = 60.0  # nobody waits so long when all is well


class LedgerNode(Protocol):
    """An nsqd that can be ended at once, and started again on its ports."""

    @property
    def tcp_port(self) -> int: ...
    def bounce(self) -> None: ...


class Books:
    def __init__(self) -> None:
        self.confirmed: set[bytes] = set()
        self.doubtful: set[bytes] = set()
        self.not_sent: set[bytes] = set()
        self.partly: list[tuple[list[bytes], int]] = []
        self.delivered: Counter[bytes] = Counter()
        self.handled: set[bytes] = set()

    @property
    def is_settled(self) -> bool:
        """All that must be handled has been."""
        return self.confirmed <= self.handled and all(map(self._is_handled, self.partly))

    def _is_handled(self, entry: tuple[list[bytes], int]) -> bool:
        bodies, confirmed = entry
        return len(self.handled.intersection(bodies)) >= confirmed

    def check(self) -> None:
        delivered = set(self.delivered)
        assert self.confirmed, "nothing happened"
        assert self.confirmed <= self.handled, f"lost: {sorted(self.confirmed - self.handled)[:5]}"
        short = [entry for entry in self.partly if not self._is_handled(entry)]
        assert not short, f"said to be confirmed: {short[:1]}"
        false = delivered & self.not_sent - self.confirmed - self.doubtful
        assert not false, f"said not to be sent: {sorted(false)[:5]}"
        unknown = delivered - self.confirmed - self.doubtful
        assert not unknown, f"nobody published: {sorted(unknown)[:5]}"


class Ledger:
    def __init__(
        self, seed: object, topic: str, nodes: list[LedgerNode], settings: Settings | None = None
    ) -> None:
        self.books = Books()
        self._topic = topic
        self._dice = random.Random(f"{seed}")
        self._nodes = nodes
        self._settings = replace(
            settings or Settings(connect_timeout_s=2),
            requeue_delay_s=0,
            backoff_multiplier_s=0.01,
            backoff_max_s=0.05,
            stop_timeout_s=1,
        )
        self._is_over = False

    async def run(self, troubles: int) -> None:
        async with AsyncExitStack() as stack:
            proxies = []
            for node in self._nodes:
                proxy = await stack.enter_async_context(Proxy(node.tcp_port))
                proxies.append(proxy)
                if self._dice.random() < 0.7:
                    proxy.make_rough(self._dice)
            addresses = [proxy.address for proxy in proxies]
            async with asyncio.timeout(180), asyncio.TaskGroup() as tasks:
                for number in range(2):
                    tasks.create_task(self._produce(addresses, number))
                for _ in range(2):
                    tasks.create_task(self._consume(addresses))
                await self._disturb(proxies, troubles)
                for proxy in proxies:
                    proxy.heal()
                self._is_over = True
            await self.settle(addresses)

    async def _disturb(self, proxies: list[Proxy], troubles: int) -> None:
        dice = self._dice
        for _ in range(troubles):
            if dice.random() < 0.1:
                await asyncio.to_thread(dice.choice(self._nodes).bounce)
            elif dice.random() < 0.1:
                time.sleep(dice.random() * 0.1)  # as users do
            else:
                await trouble(proxies, dice, kinds=(*KINDS, "refuse"), stall_s=0.2)

    async def _produce(self, addresses: list[str], name: int) -> None:
        dice = self._dice
        producer = Producer(
            dice.sample(addresses, len(addresses)),
            settings=self._settings,
            spread=dice.random() < 0.5,
            timeout_s=0.6,
            confirm_timeout_s=0.3,
            retry_unconfirmed=dice.random() < 0.5,
            pending_bytes_max=dice.choice([3000, 1 << 20]),
        )
        while not self._is_over:
            with suppress(ConnectionError):
                await producer.start()
                break
        workers = [self._publish(producer, b"%d.%d" % (name, part)) for part in range(3)]
        await asyncio.gather(*workers)
        await producer.close()

    async def _publish(self, producer: Producer, name: bytes) -> None:
        dice, books = self._dice, self.books
        number = 0
        while not self._is_over:
            bodies = [b"%b-%d-%d" % (name, number, part) for part in range(dice.choice([1, 1, 30]))]
            number += 1
            try:
                async with asyncio.timeout(dice.choice([0.01, 0.2, 5])):
                    if len(bodies) > 1:
                        await producer.publish_many(self._topic, bodies)
                    else:
                        defer = dice.choice([None, None, 0.05])
                        await producer.publish(self._topic, bodies[0], defer=defer)
                books.confirmed.update(bodies)
            except TimeoutError:
                books.doubtful.update(bodies)
            except PublishError as error:
                books.partly.append((bodies, error.confirmed))
                is_certain = isinstance(error, NotSentError | RefusedError) and not error.confirmed
                (books.not_sent if is_certain else books.doubtful).update(bodies)
            await asyncio.sleep(dice.random() * 0.01)

    async def _consume(self, addresses: list[str]) -> None:
        """Consumers that come and go."""
        dice = self._dice
        while not self._is_over:
            consumer = self._consumer(addresses)
            running = asyncio.create_task(consumer.run(self._handle, concurrency=5))
            await asyncio.sleep(dice.random())
            assert consumer.in_flight <= 4 * MAX_IN_FLIGHT
            if dice.random() < 0.5:
                consumer.stop_soon()
            else:
                running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    def _consumer(self, addresses: list[str]) -> Consumer:
        return Consumer(
            self._topic,
            CHANNEL,
            nsqd=addresses,
            max_in_flight=self._dice.choice([1, 2, MAX_IN_FLIGHT]),
            max_attempts=0,
            settings=self._settings,
        )

    async def _handle(self, message: Message) -> None:
        dice = self._dice
        self.books.delivered[message.body] += 1
        roll = dice.random()
        if roll < 0.02 and not self._is_over:
            raise RuntimeError("a handler failed, on purpose")
        if roll < 0.1:
            await asyncio.sleep(dice.random() * 0.02)
        if roll < 0.05:
            message.touch()
        if roll > 0.97 and not self._is_over:
            message.requeue(0, backoff=False)
            return
        if message.finish():
            self.books.handled.add(message.body)

    async def settle(self, addresses: list[str]) -> None:
        """Consume what is left, on a good network, and check the books."""
        self._is_over = True
        consumer = self._consumer(addresses)
        consumer.max_in_flight = 100
        running = asyncio.create_task(consumer.run(self._handle, concurrency=20))
        await until(lambda: consumer.connections)  # a stop before the start has no effect
        try:
            with suppress(TimeoutError):  # the check says what is missing
                await until(lambda: self.books.is_settled, timeout_s=SETTLE_S)
        finally:
            consumer.stop_soon()
            await running
        self.books.check()
