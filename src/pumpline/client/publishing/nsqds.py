"""The nsqds of a producer: connects to all of them, and picks the one for the next publication.

By default the first address that is up gets everything and the others stand by; with `spread`,
all that are up take turns. Knows addresses and connections; must not know what is published.
"""

import asyncio
from collections.abc import Callable
from hashlib import blake2b

from pumpline.client.errors import ConnectError
from pumpline.client.publishing.limits import check_positive
from pumpline.client.publishing.producer_connection import OnPublicationAnswer, ProducerConnection
from pumpline.client.settings import Settings


class Nsqds:
    def __init__(
        self,
        addresses: list[str],
        settings: Settings,
        *,
        spread: bool,
        confirm_timeout_s: float,
        needs_tokens: bool,
    ) -> None:
        """`needs_tokens`: an nsqd that knows no publish tokens counts as one that is down."""
        check_positive(confirm_timeout_s=confirm_timeout_s)
        self.addresses = addresses
        self._settings = settings
        self._spread = spread
        self._confirm_timeout_s = confirm_timeout_s
        self._needs_tokens = needs_tokens
        self._connections: list[ProducerConnection] = []
        self._turn = 0
        self._on_change: Callable[[], None]
        self._changed = asyncio.Event()

    @property
    def is_started(self) -> bool:
        return bool(self._connections)

    @property
    def connected(self) -> list[str]:
        """The addresses that can be published to now."""
        return [each.address for each in self._connections if each.is_ready]

    @property
    def are_down(self) -> bool:
        """None is connected, and the last try to connect to each of them has failed."""
        return all(
            each.failure is not None and each.connection is None for each in self._connections
        )

    @property
    def failures(self) -> list[ConnectError]:
        """Why those that are not connected could not be reached."""
        return [each.failure for each in self._connections if each.failure is not None]

    def begin(self, *, on_change: Callable[[], None], on_answer: OnPublicationAnswer) -> None:
        """Connect to all, in the background.

        `on_change` is called when a connection becomes writable, and when it fails to connect.
        """
        self._on_change = on_change
        self._connections = [
            ProducerConnection(
                address,
                self._settings,
                on_change=self._change,
                on_answer=on_answer,
                confirm_timeout_s=self._confirm_timeout_s,
                needs_tokens=self._needs_tokens,
            )
            for address in self.addresses
        ]

    async def one_up(self) -> None:
        """Return when one is up; ConnectError when every one of them has failed."""
        while not any(each.is_ready for each in self._connections):
            failures = self.failures
            if len(failures) == len(self._connections):
                if len(failures) == 1:
                    raise failures[0]
                raise ConnectError("; ".join(map(str, failures)))
            self._changed.clear()
            await self._changed.wait()

    def pick(self) -> ProducerConnection | None:
        """The connection for the next publication; None if no nsqd can take one now."""
        if not self._spread:
            for each in self._connections:
                if each.is_ready:
                    return each
            return None
        ready = [each for each in self._connections if each.is_ready]
        self._turn += 1
        return ready[self._turn % len(ready)] if ready else None

    def ready_at(self, address: str) -> ProducerConnection | None:
        """The connection to this nsqd, if it can take a publication now."""
        for each in self._connections:
            if each.address == address and each.is_ready:
                return each
        return None

    def address_for(self, token: str) -> str:
        """The nsqd for a publish with this token, the same one in every process that has the same
        addresses; empty if there is one only. Rendezvous hashing: another address in the list moves
        few tokens."""
        if len(self.addresses) == 1:
            return ""
        return max(
            self.addresses, key=lambda address: blake2b(f"{token} {address}".encode()).digest()
        )

    async def close(self) -> None:
        connections, self._connections = self._connections, []
        await asyncio.gather(*(each.close() for each in connections))

    def _change(self) -> None:
        self._changed.set()
        self._on_change()
