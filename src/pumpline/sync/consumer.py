"""`pumpline.client.Consumer` for threads: the same name and arguments, and the same messages."""

from collections.abc import Iterable
from typing import Unpack

from pumpline import client
from pumpline.client.connection.address import list_of_addresses
from pumpline.client.consuming.arguments import ConsumerArguments
from pumpline.client.consuming.subscription import Counters
from pumpline.sync.worker import ThreadWorker, kept


class Consumer(ThreadWorker[client.Consumer]):
    """As `pumpline.client.Consumer`: the same arguments, and messages with the same methods."""

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        nsqd: str | Iterable[str] = (),
        lookupd: str | Iterable[str] = (),
        **arguments: Unpack[ConsumerArguments],
    ) -> None:
        nsqds, lookupds = list_of_addresses(nsqd), list_of_addresses(lookupd)
        given = kept(arguments)
        super().__init__(
            lambda: client.Consumer(topic, channel, nsqd=nsqds, lookupd=lookupds, **given)
        )

    @property
    def counters(self) -> Counters:
        """Numbers of messages since the start; all 0 while it is not running."""
        running = self._client.get()
        return Counters() if running is None else running[1].counters

    @property
    def connections(self) -> list[str]:
        """The addresses of the nsqds it is subscribed to now."""
        running = self._client.get()
        return [] if running is None else running[1].connections
