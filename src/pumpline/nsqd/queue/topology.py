"""Topology-aware delivery: consumers of nsqd's own zone first, then of its region, then others.

On with `--enable-experiment=topology-aware-consumption`. A channel's line of consumers is then
three lines, `Tiers`, that look like one: its head is the head of the nearest line with anybody in
it. So a message goes to a near consumer if one has credit, and to whoever has if none does; it
never waits for a near one. Within a tier consumers are served in turn, as without.

What was delivered how far is not counted on the way: each consumer counts its messages anyhow.
"""

from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pumpline.nsqd.options import Options
    from pumpline.nsqd.queue.consumer import Consumer

EXPERIMENT = "topology-aware-consumption"


class Locality(IntEnum):
    ZONE = 0
    REGION = 1
    GLOBAL = 2


class Delivered(NamedTuple):
    """Messages by how near the consumers were."""

    zone: int
    region: int
    globally: int


def is_topology_aware(options: "Options") -> bool:
    return EXPERIMENT in options.enable_experiment


def locality_of(zone: str, region: str, options: "Options") -> Locality:
    """How near a client in that zone and region is. Names that are empty are never equal."""
    if options.topology_zone and zone == options.topology_zone:
        return Locality.ZONE
    if options.topology_region and region == options.topology_region:
        return Locality.REGION
    return Locality.GLOBAL


class Tiers:
    """As much of a deque of consumers as a channel uses; its length is that of the first tier."""

    def __init__(self) -> None:
        self._tiers: tuple[deque[Consumer], ...] = tuple(deque() for _ in Locality)
        self._gone = [0 for _ in Locality]  # messages delivered to consumers that left

    def __len__(self) -> int:
        return len(self._first())

    def __getitem__(self, index: int) -> "Consumer":
        return self._first()[index]

    def append(self, consumer: "Consumer") -> None:
        self._tiers[consumer.locality].append(consumer)

    def remove(self, consumer: "Consumer") -> None:
        self._tiers[consumer.locality].remove(consumer)

    def popleft(self) -> "Consumer":
        return self._first().popleft()

    def rotate(self, count: int) -> None:
        self._first().rotate(count)

    def clear(self) -> None:
        for tier in self._tiers:
            tier.clear()

    def note_gone(self, consumer: "Consumer") -> None:
        """A consumer has left; what it was given still counts."""
        self._gone[consumer.locality] += consumer.message_count

    def delivered(self, consumers: "dict[Consumer, None]") -> Delivered:
        """To those that left and to `consumers`."""
        counts = list(self._gone)
        for consumer in consumers:
            counts[consumer.locality] += consumer.message_count
        return Delivered(*counts)

    def _first(self) -> "deque[Consumer]":
        zone, region, everybody = self._tiers
        return zone or region or everybody
