"""Where nsq_to_nsq publishes: to nsqds as NSQ's tool does, or to pumpline nsqds with tokens.

Both take a batch and answer its messages: finish what was published, requeue what was not.
"""

import asyncio
import random
import time
from binascii import crc32
from collections.abc import Sequence

from pumpline.client import ConnectError, Message, Producer, PublishError, Settings
from pumpline.tools.host_pool import HostPool
from pumpline.tools.status_lines import StatusLines
from pumpline.tools.token_publisher import TokenMessage, TokenPublisher
from pumpline.tools.tool import ToolFailure, log

PUBLISH_TIMEOUT_S = 30.0

Outgoing = tuple[Message, bytes]
"""A message that was consumed, and the body to publish."""


class NsqdDestinations:
    """Nsqds of any kind: at least once."""

    def __init__(
        self, addresses: Sequence[str], settings: Settings, *, mode: str, status: StatusLines
    ) -> None:
        try:
            self._producers = {
                address: Producer(
                    address,
                    settings=settings,
                    timeout_s=PUBLISH_TIMEOUT_S,
                    message_bytes_max=1 << 31,  # what the source took may be more than our default
                    body_bytes_max=4 << 20,
                )
                for address in addresses
            }
        except ValueError as error:
            raise ToolFailure(str(error)) from None
        self._pool = HostPool(list(self._producers), mode, now=time.monotonic, random=random.random)
        self._status = status
        self._started: set[str] = set()
        self._why_not_started: dict[str, ConnectError] = {}
        self._starting = asyncio.Lock()

    async def publish(self, topic: str, outgoing: Sequence[Outgoing]) -> None:
        host = self._pool.next()
        for _ in self._producers:
            if await self._is_up(host.address):
                break
            self._pool.failed(host)
            host = self._pool.next()
        if host.address not in self._started:
            reason = self._why_not_started.get(host.address, f"{host.address}: not connected")
            log.error("ERROR: publishing failed: %s", reason)
            for message, _ in outgoing:
                message.requeue()
            return
        since_s = time.monotonic()
        try:
            producer = self._producers[host.address]
            await producer.publish_many(topic, [body for _, body in outgoing])
        except (PublishError, ValueError) as error:
            log.error("ERROR: publishing to %s failed: %s", host.address, error)
            self._pool.failed(host)
            await self._publish_each(producer, topic, outgoing)
            return
        elapsed_s = time.monotonic() - since_s
        self._pool.succeeded(host, elapsed_s)
        self._status.took(host.address, elapsed_s, len(outgoing))
        for message, _ in outgoing:
            message.finish()

    async def close(self) -> None:
        for address in self._started:
            await self._producers[address].close()

    async def _is_up(self, address: str) -> bool:
        producer = self._producers[address]
        async with self._starting:
            if address not in self._started:
                try:
                    await producer.start()
                    self._started.add(address)
                except ConnectError as error:
                    self._why_not_started[address] = error
        return bool(producer.connected)

    async def _publish_each(
        self, producer: Producer, topic: str, outgoing: Sequence[Outgoing]
    ) -> None:
        """One message may be to blame for all: try each alone, unless nobody is there."""
        for message, body in outgoing:
            try:
                if len(outgoing) == 1 or not producer.connected:
                    raise ConnectError("not connected")
                await producer.publish(topic, body)
            except (PublishError, ConnectError, ValueError):
                message.requeue()
            else:
                message.finish()


class TokenDestinations:
    """Pumpline nsqds: each message once, however often it is delivered."""

    def __init__(self, addresses: Sequence[str], *, access_token: str, status: StatusLines) -> None:
        # Sorted, so that a message goes to the same nsqd in whatever order they are named.
        self._publishers = [
            TokenPublisher(address, access_token=access_token) for address in sorted(addresses)
        ]
        self._status = status

    async def check(self) -> None:
        for publisher in self._publishers:
            await publisher.check()

    async def publish(self, topic: str, outgoing: Sequence[Outgoing]) -> None:
        shares: list[dict[TokenMessage, Message]] = [{} for _ in self._publishers]
        for message, body in outgoing:
            token = token_of(message)
            share = shares[crc32(token.encode()) % len(shares)]
            share[TokenMessage(token, body)] = message
        for publisher, share in zip(self._publishers, shares, strict=True):
            if not share:
                continue
            since_s = time.monotonic()
            refused = await publisher.publish(topic, list(share))
            for each in refused:
                share.pop(each).requeue()
            for message in share.values():
                message.finish()
            self._status.took(publisher.address, time.monotonic() - since_s, len(share))

    async def close(self) -> None:
        for publisher in self._publishers:
            await publisher.close()


def token_of(message: Message) -> str:
    """The message's identity, the same at every delivery by every nsqd address: when it was
    published, its id, and a checksum of its body."""
    return f"{message.timestamp_ns:x}.{message.id}.{crc32(message.body):08x}"
