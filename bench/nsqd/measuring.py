"""One measured phase: how long it lasts, what is read before and after, and the figure it gives.

Knows a server and load processes; must not know what a workload does or what it should reach.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bench.kit.load_processes import LoadProcesses
from bench.kit.servers import BenchFailure, Server, machine_busy_s

# The shares of a backlog between which it is measured, to leave out both ends.
BACKLOG_FROM, BACKLOG_TO = 0.1, 0.9
# A load process this busy, or a broker this idle, means that the load set the figure.
CLIENT_BUSY_CORES = 0.9
BROKER_BUSY_CORES = 0.8


@dataclass(frozen=True)
class Size:
    """How long and how much; `quick` shrinks it to a smoke run."""

    seconds: float = 4.0
    warmup_s: float = 0.5
    # Under a million, so that it fits the peer's memory queue of the basis.
    backlog: int = 900_000
    queued: int = 1_000_000
    requeued: int = 200_000
    large: int = 4_000  # messages of 500 kB: 2 GB, which the peer keeps in memory
    idle_topics: int = 10_000

    @classmethod
    def quick(cls) -> Size:
        """About a second a phase."""
        return cls(
            seconds=1.0,
            warmup_s=0.25,
            backlog=200_000,
            requeued=20_000,
            large=400,
            idle_topics=1_000,
        )


@dataclass(frozen=True)
class Figure:
    """The result of one run. CPU in cores is CPU time over elapsed time."""

    value: float
    rss_mb: float
    cpu_us_per_message: float | None = None
    client_us_per_message: float | None = None
    broker_cores: float | None = None
    client_cores: float | None = None
    client_cores_min: float | None = None
    # CPU used by neither broker nor load: other work on the machine, which spoils a comparison.
    other_cores: float | None = None
    extra: Mapping[str, float] = field(default_factory=dict)

    @property
    def client_bound(self) -> bool:
        """True when the load, not the broker, set the figure."""
        if self.broker_cores is None or self.client_cores_min is None:
            return False
        return self.client_cores_min > CLIENT_BUSY_CORES or self.broker_cores < BROKER_BUSY_CORES


def measure(
    server: Server,
    load: LoadProcesses,
    slots: Iterable[int],
    size: Size,
    *,
    backlog: int | None = None,
    whole: int | None = None,
    channels: int | None = 1,
) -> Figure:
    """Starts connected load processes and takes the difference of two readings of everything.

    With `whole` that is from the start until so many messages are counted. The run counts only if
    the server agrees: the messages that the load saw acknowledged, or received on each channel,
    must not be more than /stats says. Without `channels` the load counts what /stats does not.
    """
    slots = list(slots)
    seconds: float | None = size.seconds
    messages_to = whole
    if whole is not None:
        seconds = None
    elif backlog is not None:
        load.begin()
        load.wait_until(server, slots, messages=int(backlog * BACKLOG_FROM))
        messages_to = int(backlog * BACKLOG_TO)
    else:
        load.begin()
        load.wait_until(server, slots, seconds=size.warmup_s)
    from_s, from_messages = time.perf_counter(), load.total(slots)
    from_broker, from_clients, from_busy = server.cpu_s(), load.cpu_s(), machine_busy_s()
    load.begin()
    load.wait_until(server, slots, seconds=seconds, messages=messages_to)
    elapsed_s, messages = time.perf_counter() - from_s, load.total(slots) - from_messages
    broker_s = server.cpu_s() - from_broker
    clients_s = [now - then for now, then in zip(load.cpu_s(), from_clients, strict=True)]
    busy_s = machine_busy_s() - from_busy
    load.check(server)
    if messages <= 0:
        raise BenchFailure("no message was counted")
    counted, stored = messages + from_messages, server.stored()
    if channels is not None and counted > stored * channels:
        raise BenchFailure(f"load counted {counted:,}, server took in {stored:,} x {channels}")
    return Figure(
        value=messages / elapsed_s,
        rss_mb=server.rss_peak_mb(),
        cpu_us_per_message=broker_s / messages * 1e6,
        client_us_per_message=sum(clients_s) / messages * 1e6,
        broker_cores=broker_s / elapsed_s,
        client_cores=sum(clients_s) / elapsed_s,
        client_cores_min=min(clients_s) / elapsed_s,
        other_cores=max(0.0, busy_s - broker_s - sum(clients_s)) / elapsed_s,
    )
