"""`pumpline.client.TopicGroup` for threads: the same name and arguments, and the same messages."""

from collections.abc import Iterable, Mapping
from typing import Unpack

from pumpline import client
from pumpline.client.connection.address import list_of_addresses
from pumpline.client.consuming.arguments import ConsumerArguments
from pumpline.client.consuming.subscription import Counters
from pumpline.sync.worker import ThreadWorker, kept


class TopicGroup(ThreadWorker[client.TopicGroup]):
    """As `pumpline.client.TopicGroup`: the same arguments, and messages with the same methods."""

    def __init__(
        self,
        topics: Mapping[str, int] | Iterable[str],
        channel: str,
        *,
        nsqd: str | Iterable[str] = (),
        lookupd: str | Iterable[str] = (),
        **arguments: Unpack[ConsumerArguments],
    ) -> None:
        if not isinstance(topics, str | bytes | Mapping) and isinstance(topics, Iterable):
            topics = list(topics)  # it is used more than once
        nsqds, lookupds = list_of_addresses(nsqd), list_of_addresses(lookupd)
        given = kept(arguments)
        super().__init__(
            lambda: client.TopicGroup(topics, channel, nsqd=nsqds, lookupd=lookupds, **given)
        )

    @property
    def counters(self) -> dict[str, Counters]:
        """Numbers of messages of each topic since the start; empty while it is not running."""
        running = self._client.get()
        if running is None:
            return {}
        return {topic: each.counters for topic, each in running[1].consumers.items()}
