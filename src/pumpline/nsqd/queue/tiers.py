"""A queue of ready consumers in three tiers, nearest first; see `queue.topology`."""

from collections import deque

from pumpline.nsqd.queue.consumer import ChannelConsumer
from pumpline.nsqd.queue.topology import Delivered, Locality


class Tiers:
    """As much of a deque of consumers as a channel uses; its length is that of the first tier."""

    def __init__(self) -> None:
        self._tiers: tuple[deque[ChannelConsumer], ...] = tuple(deque() for _ in Locality)
        self._gone = [0 for _ in Locality]  # messages delivered to consumers that left

    def __len__(self) -> int:
        return len(self._first())

    def __getitem__(self, index: int) -> ChannelConsumer:
        return self._first()[index]

    def append(self, consumer: ChannelConsumer) -> None:
        self._tiers[consumer.locality].append(consumer)

    def remove(self, consumer: ChannelConsumer) -> None:
        self._tiers[consumer.locality].remove(consumer)

    def popleft(self) -> ChannelConsumer:
        return self._first().popleft()

    def rotate(self, count: int) -> None:
        self._first().rotate(count)

    def clear(self) -> None:
        for tier in self._tiers:
            tier.clear()

    def note_gone(self, consumer: ChannelConsumer) -> None:
        """A consumer has left; what it was given still counts."""
        self._gone[consumer.locality] += consumer.message_count

    def delivered(self, consumers: dict[ChannelConsumer, None]) -> Delivered:
        """To those that left and to `consumers`."""
        counts = list(self._gone)
        for consumer in consumers:
            counts[consumer.locality] += consumer.message_count
        return Delivered(*counts)

    def _first(self) -> deque[ChannelConsumer]:
        zone, region, everybody = self._tiers
        return zone or region or everybody
