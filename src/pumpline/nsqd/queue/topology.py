"""Topology-aware delivery: consumers of nsqd's own zone first, then of its region, then others.

On with `--enable-experiment=topology-aware-consumption`. A channel's queue of ready consumers is
then three queues (`queue.tiers`) that look like one: its head is the head of the nearest queue that
is not empty. So a message goes to a near consumer if one has credit, else to any other; it never
waits for a near one. Within a tier consumers are served in turn, as without the experiment.

Deliveries are counted by distance from the counts that each consumer has anyhow.
"""

from enum import IntEnum
from typing import NamedTuple

from pumpline.nsqd.options import Options

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


def is_topology_aware(options: Options) -> bool:
    return EXPERIMENT in options.enable_experiment


def locality_of(zone: str, region: str, options: Options) -> Locality:
    """How near a client in that zone and region is. Names that are empty are never equal."""
    if options.topology_zone and zone == options.topology_zone:
        return Locality.ZONE
    if options.topology_region and region == options.topology_region:
        return Locality.REGION
    return Locality.GLOBAL
