"""Daemons that do not answer: they are asked apart from the others, so that nobody waits for them.

A poll waits once for a daemon that falls silent. From then on it is left out, and asked beside the
polls whether it is back. Knows addresses; must not know what is asked of them.
"""

import asyncio
from collections.abc import Iterable

from pumpline.cluster.async_nodes import AsyncNodes
from pumpline.cluster.node import NodeFailure

DOOR = "/info"  # answered by every nsqd and nsqlookupd, whatever else is wrong with it


class SilentDaemons:
    def __init__(self, upstream: AsyncNodes) -> None:
        self._upstream = upstream
        self._silent: set[str] = set()
        self._knocks: dict[str, asyncio.Task[None]] = {}

    def answering(self, addresses: Iterable[str]) -> list[str]:
        return [address for address in addresses if address not in self._silent]

    def add(self, address: str) -> None:
        self._silent.add(address)

    def knock(self, addresses: Iterable[str]) -> None:
        """Ask those of these that are silent whether they are back; forget all others."""
        known = set(addresses)
        self._silent &= known
        for address in self._silent - self._knocks.keys():
            task = asyncio.get_running_loop().create_task(self._ask(address))
            self._knocks[address] = task
        for address in self._knocks.keys() - known:
            self._knocks.pop(address).cancel()

    def close(self) -> None:
        for task in self._knocks.values():
            task.cancel()

    async def _ask(self, address: str) -> None:
        try:
            await self._upstream.get(address, DOOR, {})
            self._silent.discard(address)
        except NodeFailure:
            pass  # still silent; the next poll has it asked again
        finally:
            if self._knocks.get(address) is asyncio.current_task():
                del self._knocks[address]
