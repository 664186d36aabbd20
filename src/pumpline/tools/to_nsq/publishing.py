"""Where to_nsq publishes: producers of nsqds, or pumpline nsqds with tokens.

| class          | a message goes to     | sent again after a failure                      |
|----------------|-----------------------|-------------------------------------------------|
| ProducerSink   | every nsqd, or one    | for 30 s; it may then be there twice            |
| TokenSink      | likewise              | as long as it takes; it is there once           |

Several batches are under way at a time, in order. A failure is raised by the next call.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, Protocol

from pumpline.client import ConnectError, Producer, PublishError, Settings
from pumpline.core.protocol.commands import mpub_body
from pumpline.tools.token_publisher import TokenMessage, TokenPublisher
from pumpline.tools.tool import ToolFailure

UNDER_WAY_MAX = 8  # batches
TOKEN_BATCH_MESSAGES = 1000  # the same input must give the same batches, whatever a read returns
TOKEN_BATCH_BYTES = 1 << 20
MESSAGE_BYTES_MAX = 1 << 31  # nsqd knows its limit
BODY_BYTES_MAX = 4 << 20


class Sink(Protocol):
    async def start(self) -> None: ...
    async def put(self, messages: list[bytes]) -> None: ...
    async def end(self) -> None:
        """All that was put is published."""

    async def close(self) -> None: ...


class UnderWay:
    """Publishes that are not confirmed yet."""

    def __init__(self) -> None:
        self._tasks: deque[asyncio.Task[None]] = deque()

    async def add(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))
        while len(self._tasks) > UNDER_WAY_MAX:
            await self._first()

    async def end(self) -> None:
        while self._tasks:
            await self._first()

    async def _first(self) -> None:
        try:
            await self._tasks.popleft()
        except (PublishError, ValueError) as error:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks.clear()
            raise ToolFailure(str(error)) from None


class ProducerSink:
    def __init__(
        self, topic: str, addresses: list[str], settings: Settings, *, spread: bool
    ) -> None:
        self._topic = topic
        groups = [addresses] if spread else [[address] for address in addresses]
        try:
            self._producers = [
                Producer(
                    group,
                    settings=settings,
                    spread=spread,
                    message_bytes_max=MESSAGE_BYTES_MAX,
                    body_bytes_max=BODY_BYTES_MAX,
                )
                for group in groups
            ]
        except ValueError as error:
            raise ToolFailure(str(error)) from None
        self._started: list[Producer] = []
        self._under_way = UnderWay()

    async def start(self) -> None:
        try:
            for producer in self._producers:
                await producer.start()
                self._started.append(producer)
        except ConnectError as error:
            raise ToolFailure(str(error)) from None

    async def put(self, messages: list[bytes]) -> None:
        for producer in self._producers:
            await self._under_way.add(producer.publish_many(self._topic, messages))

    async def end(self) -> None:
        await self._under_way.end()

    async def close(self) -> None:
        for producer in self._started:
            await producer.close()


class TokenSink:
    """Batch n of the input has the token `<name>.<n>`."""

    def __init__(
        self, topic: str, addresses: list[str], name: str, *, access_token: str, spread: bool
    ) -> None:
        self._topic = topic
        self._name = name
        self._publishers = [
            TokenPublisher(address, access_token=access_token) for address in sorted(addresses)
        ]
        self._spread = spread
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        self._number = 0
        self._under_way = UnderWay()

    async def start(self) -> None:
        for publisher in self._publishers:
            await publisher.check()

    async def put(self, messages: list[bytes]) -> None:
        for message in messages:
            self._batch.append(message)
            self._batch_bytes += len(message)
            is_large = self._batch_bytes >= TOKEN_BATCH_BYTES
            if is_large or len(self._batch) >= TOKEN_BATCH_MESSAGES:
                await self._send()

    async def end(self) -> None:
        if self._batch:
            await self._send()
        await self._under_way.end()

    async def close(self) -> None:
        for publisher in self._publishers:
            await publisher.close()

    async def _send(self) -> None:
        batch = TokenMessage(f"{self._name}.{self._number}", mpub_body(self._batch))
        chosen = self._publishers
        if self._spread:
            chosen = [chosen[self._number % len(chosen)]]
        self._number += 1
        self._batch, self._batch_bytes = [], 0
        for publisher in chosen:
            await self._under_way.add(self._publish(publisher, batch))

    async def _publish(self, publisher: TokenPublisher, batch: TokenMessage) -> None:
        if await publisher.publish(self._topic, [batch], many=True):
            raise ToolFailure(f"{publisher.address} refused messages")
