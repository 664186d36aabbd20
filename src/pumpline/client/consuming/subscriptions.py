"""The nsqds of a consumer: a subscription to each one that was named, by the user or discovery.

Polls discovery, subscribes to nsqds that appear, and leaves those that no nsqlookupd names any
more. Knows nothing of messages.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from pumpline.client.consuming.rdy_sender import RdySender
from pumpline.client.consuming.subscription import Subscription, SubscriptionTerms
from pumpline.client.discovery import Discovery

POLL_GAP_S = 1.0  # least time between two polls, however many connections are lost

logger = logging.getLogger("pumpline.client")


class Subscriptions:
    def __init__(
        self,
        terms: SubscriptionTerms,
        rdy_sender: RdySender,
        *,
        nsqds: set[str],
        discovery: Discovery | None,
    ) -> None:
        """`nsqds` are always subscribed to, whatever discovery says."""
        self.by_address: dict[str, Subscription] = {}
        self._terms = terms
        self._rdy_sender = rdy_sender
        self._nsqds = nsqds
        self._discovery = discovery
        self._retiring: set[Subscription] = set()
        self._poll_now = asyncio.Event()
        self._polled = asyncio.Event()  # set after the next poll that begins
        self._tasks: asyncio.TaskGroup

    @property
    def connected(self) -> list[str]:
        """Addresses of the nsqds that are subscribed to at this moment."""
        return [each.address for each in self.by_address.values() if each.connection is not None]

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Until it is cancelled. Each subscription is a task of `tasks`."""
        self._tasks = tasks
        self._follow(set())
        if self._discovery is None:
            await asyncio.get_running_loop().create_future()
        else:
            await self._discover(self._discovery)

    def leave(self) -> None:
        """Ask every nsqd for no more messages."""
        for each in self._all():
            each.leave()

    async def drain(self, timeout_s: float) -> None:
        """Having left, wait until the messages in hand are answered."""
        await asyncio.gather(*(each.drain(timeout_s) for each in self._all()))

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._all()))

    def _all(self) -> list[Subscription]:
        return [*self.by_address.values(), *self._retiring]

    async def _discover(self, discovery: Discovery) -> None:
        while True:
            self._poll_now.clear()
            polled, self._polled = self._polled, asyncio.Event()
            await discovery.poll(lambda: self._follow(discovery.nodes))
            self._follow(discovery.nodes)
            polled.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(discovery.pause_s()):
                    await self._poll_now.wait()
                    await asyncio.sleep(POLL_GAP_S)

    def _follow(self, nodes: set[str]) -> None:
        """Subscribe to these and to the fixed ones, and leave all others."""
        wanted = self._nsqds | nodes
        for address in sorted(wanted - self.by_address.keys()):
            subscription = Subscription(
                address,
                self._terms,
                self._rdy_sender,
                on_connection_end=self._poll_now.set,
                before_reconnect=self._before_reconnect(address),
            )
            self.by_address[address] = subscription
            subscription.task = self._tasks.create_task(subscription.run())
        for address in sorted(self.by_address.keys() - wanted):
            logger.info("%s: no nsqlookupd names it any more", address)
            retired = self.by_address.pop(address)
            self._retiring.add(retired)
            self._tasks.create_task(self._retire(retired))

    def _before_reconnect(self, address: str) -> Callable[[], Awaitable[None]] | None:
        discovery = self._discovery
        is_asked = self._terms.settings.reconnect_if_named and address not in self._nsqds
        return partial(self._named, address, discovery) if is_asked and discovery else None

    async def _named(self, address: str, discovery: Discovery) -> None:
        """Until a poll that begins from now on names this nsqd."""
        while True:
            self._poll_now.set()
            await self._polled.wait()
            if address in discovery.sightings.named:
                return

    async def _retire(self, subscription: Subscription) -> None:
        subscription.leave()
        await subscription.drain(self._terms.settings.stop_timeout_s)
        await subscription.close()
        subscription.task.cancel()
        self._retiring.discard(subscription)
