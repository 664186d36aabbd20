"""The workloads: the load of each, what it counts, and its target.

| workload       | load                                                  | figure                 |
|----------------|-------------------------------------------------------|------------------------|
| mpub           | MPUB of 200, 2 connections                            | messages published / s |
| sub            | RDY 2500, 2 consumers on a backlog                    | messages received / s  |
| both           | mpub and sub at once, at most 200,000 apart           | messages received / s  |
| pub_pipelined  | PUB, 2 connections, 50 in flight on each              | messages published / s |
| pub_sync       | PUB, 50 connections, 1 outstanding on each            | messages published / s |
| http_pub       | POST /pub, 20 connections kept open                   | messages published / s |
| http_pub_token | the same with an access token, which Go nsqd ignores  | messages published / s |
| http_mpub      | POST /mpub?binary=true of 1 MiB, 2 connections        | messages published / s |
| rdy1           | RDY 1, 50 consumers on a backlog                      | messages received / s  |
| fanout4        | MPUB to 4 channels, one consumer on each              | deliveries / s         |
| mpub_default   | mpub, the peer with its default memory queue          | messages published / s |
| sub_default    | sub, the peer with its default memory queue           | messages received / s  |
| <upgrade>_mpub | mpub over tls, snappy or deflate, of JSON             | messages published / s |
| <upgrade>_sub  | sub over tls, snappy or deflate, of JSON              | messages received / s  |
| rss            | 1,000,000 messages queued                             | resident MB            |
| latency        | 5,000 PUB / s, published and received by one process  | p50 in ms              |
| idle           | 10,000 topics with a channel each, nothing else       | CPU, % of a core       |
| consumers1000  | RDY 10, 1,000 consumers on a backlog, then 10         | rate with 1,000 / 10   |

Messages have 200 bytes. Knows load, servers and targets; must not know the table or the files that
results go to.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.kit.load_processes import LoadProcesses
from bench.kit.servers import (
    ACCESS_TOKEN,
    METADATA_FILE,
    BenchFailure,
    Command,
    Server,
)
from bench.nsqd.http_load import post_mpub, post_pub
from bench.nsqd.load import (
    MPUB_MESSAGES,
    Lead,
    Topics,
    drain,
    drain_many,
    echo,
    publish,
    publish_in_turn,
)
from bench.nsqd.measuring import Figure, Size, measure
from bench.nsqd.upgrades import DEFLATE, SNAPPY, TLS, tls_flags

TOPIC, CHANNEL = "bench", "ch"
# Commands in flight on each connection of an MPUB publisher. With one command, a broker that works
# in batches often waits for its publishers, and the figure measures the publishers.
MPUB_WINDOW = 4
PUB_WINDOW = 50
RDY_MAX = 2500
LEAD_MESSAGES = 200_000
SETTLE_S = 1.0
LATENCY_PER_S = 5_000


@dataclass(frozen=True)
class Target:
    """`ratio`: times better than the peer; `value`: the figure itself."""

    of: str
    bound: float
    at_most: bool = False

    def met(self, *, value: float, ratio: float | None) -> bool | None:
        """None when there is no peer to compare with."""
        figure = ratio if self.of == "ratio" else value
        if figure is None:
            return None
        return figure <= self.bound if self.at_most else figure >= self.bound


@dataclass(frozen=True)
class Workload:
    """A row of the table. `fewer` says that a smaller figure is better."""

    name: str
    run: Callable[[Server, Size], Figure]
    target: Target
    unit: str = "msg/s"
    fewer: bool = False
    peer_default: bool = False
    seed: Callable[[Path, Size], None] | None = None
    flags: Callable[[Path], Sequence[str]] | None = None
    own_flags: Callable[[Path], Sequence[str]] | None = None  # that the peer does not have

    def ratio(self, ours: float, peer: float) -> float | None:
        """How many times better than the peer; None when a figure is zero."""
        better, worse = (peer, ours) if self.fewer else (ours, peer)
        return better / worse if worse else None


def run(workload: Workload, command: Command, size: Size, data_root: Path | None) -> Figure:
    """One run on a fresh server with a fresh data path."""
    seed = workload.seed
    with Server(
        command,
        data_root=data_root,
        seed=(lambda path: seed(path, size)) if seed else None,
        flags=workload.flags or (None if command.is_peer else workload.own_flags),
    ) as server:
        figure = workload.run(server, size)
        server.check_alive()
        return figure


def preload(server: Server, topic: str, messages: int, *, documents: bool = False) -> None:
    """Queues messages by MPUB on two connections, until all are acknowledged and in /stats."""
    each = messages // 2 // MPUB_MESSAGES * MPUB_MESSAGES
    with LoadProcesses() as load:
        slots = [
            load.add(
                publish,
                server.tcp_port,
                topic,
                messages_per_command=MPUB_MESSAGES,
                window=MPUB_WINDOW,
                messages_max=each,
                documents=documents,
            )
            for _ in range(2)
        ]
        load.connect(server)
        load.begin()
        load.wait_until(server, slots, messages=2 * each)
    stored = server.stored(topic)
    if stored != 2 * each:
        raise BenchFailure(f"{2 * each:,} acknowledged, server took in {stored:,}")


def run_mpub(server: Server, size: Size) -> Figure:
    topics = Topics(TOPIC, CHANNEL, server.http_port, messages_each=size.backlog // 2)
    return _publish(server, size, topics, messages_per_command=MPUB_MESSAGES, window=MPUB_WINDOW)


def run_pub_pipelined(server: Server, size: Size) -> Figure:
    topics = Topics(TOPIC, CHANNEL, server.http_port, messages_each=size.backlog // 2)
    return _publish(server, size, topics, messages_per_command=1, window=PUB_WINDOW)


def _publish(
    server: Server, size: Size, topics: Topics, *, messages_per_command: int, window: int
) -> Figure:
    with LoadProcesses() as load:
        slots = [
            load.add(
                publish,
                server.tcp_port,
                topics,
                messages_per_command=messages_per_command,
                window=window,
            )
            for _ in range(2)
        ]
        load.connect(server)
        return measure(server, load, slots, size)


def run_upgraded_mpub(server: Server, size: Size, *, upgrade: str) -> Figure:
    topics = Topics(TOPIC, CHANNEL, server.http_port, messages_each=size.backlog // 2)
    how = {"messages_per_command": MPUB_MESSAGES, "window": MPUB_WINDOW}
    with LoadProcesses() as load:
        slots = [
            load.add(publish, server.tcp_port, topics, **how, upgrade=upgrade, documents=True)
            for _ in range(2)
        ]
        load.connect(server)
        return measure(server, load, slots, size)


def run_upgraded_sub(server: Server, size: Size, *, upgrade: str) -> Figure:
    server.create(TOPIC, CHANNEL)
    preload(server, TOPIC, size.backlog, documents=True)
    how = {"rdy": RDY_MAX, "upgrade": upgrade}
    with LoadProcesses() as load:
        slots = [load.add(drain, server.tcp_port, TOPIC, CHANNEL, **how) for _ in range(2)]
        load.connect(server)
        return measure(server, load, slots, size, backlog=size.backlog)


def run_pub_sync(server: Server, size: Size) -> Figure:
    server.create(TOPIC, CHANNEL)
    with LoadProcesses() as load:
        slot = load.add(publish_in_turn, server.tcp_port, TOPIC, connections=50)
        load.connect(server)
        return measure(server, load, [slot], size)


def run_http_pub(server: Server, size: Size) -> Figure:
    server.create(TOPIC, CHANNEL)
    with LoadProcesses() as load:
        slot = load.add(post_pub, server.http_port, TOPIC, connections=20)
        load.connect(server)
        return measure(server, load, [slot], size)


def run_http_mpub(server: Server, size: Size) -> Figure:
    server.create(TOPIC, CHANNEL)
    with LoadProcesses() as load:
        slots = [load.add(post_mpub, server.http_port, TOPIC) for _ in range(2)]
        load.connect(server)
        return measure(server, load, slots, size)


def access_token_flags(directory: Path) -> Sequence[str]:
    """The flags of a server whose HTTP API wants an access token."""
    path = directory / "access-tokens"
    path.touch(mode=0o600)
    path.write_text(ACCESS_TOKEN + "\n")
    return [f"--http-token-file={path}"]


def run_sub(server: Server, size: Size) -> Figure:
    server.create(TOPIC, CHANNEL)
    preload(server, TOPIC, size.backlog)
    with LoadProcesses() as load:
        slots = [load.add(drain, server.tcp_port, TOPIC, CHANNEL, rdy=RDY_MAX) for _ in range(2)]
        load.connect(server)
        return measure(server, load, slots, size, backlog=size.backlog)


def run_rdy1(server: Server, size: Size) -> Figure:
    server.create(TOPIC, CHANNEL)
    preload(server, TOPIC, size.backlog)
    return _drain_many(server, size, TOPIC, size.backlog, rdy=1, consumers=50)


def _drain_many(
    server: Server, size: Size, topic: str, backlog: int, *, rdy: int, consumers: int
) -> Figure:
    with LoadProcesses() as load:
        slot = load.add(drain_many, server.tcp_port, [topic] * consumers, CHANNEL, rdy=rdy)
        load.connect(server)
        return measure(server, load, [slot], size, backlog=backlog)


def run_both(server: Server, size: Size) -> Figure:
    return _end_to_end(server, size, publishers=2, groups=[[2, 3]])


def run_fanout4(server: Server, size: Size) -> Figure:
    return _end_to_end(server, size, publishers=1, groups=[[1], [2], [3], [4]])


def _end_to_end(server: Server, size: Size, *, publishers: int, groups: list[list[int]]) -> Figure:
    """Publishers have the first slots, then each channel's consumers have a group of slots."""
    channels = [f"{CHANNEL}{index}" for index in range(len(groups))]
    server.create(TOPIC, *channels)
    lead = Lead(range(publishers), groups, messages_max=LEAD_MESSAGES)
    with LoadProcesses() as load:
        for _ in range(publishers):
            load.add(
                publish,
                server.tcp_port,
                TOPIC,
                messages_per_command=MPUB_MESSAGES,
                window=MPUB_WINDOW,
                lead=lead,
            )
        for channel, group in zip(channels, groups, strict=True):
            for slot in group:
                added = load.add(drain, server.tcp_port, TOPIC, channel, rdy=RDY_MAX)
                assert added == slot
        load.connect(server)
        slots = [slot for group in groups for slot in group]
        return measure(server, load, slots, size, channels=len(groups))


def run_rss(server: Server, size: Size) -> Figure:
    server.create(TOPIC, CHANNEL)
    cpu_s = server.cpu_s()
    preload(server, TOPIC, size.queued)
    time.sleep(SETTLE_S)
    return Figure(
        value=server.rss_mb(),
        rss_mb=server.rss_peak_mb(),
        cpu_us_per_message=(server.cpu_s() - cpu_s) / size.queued * 1e6,
    )


def run_latency(server: Server, size: Size) -> Figure:
    server.create(TOPIC, CHANNEL)
    with LoadProcesses() as load:
        slot = load.add(
            echo,
            server.tcp_port,
            TOPIC,
            CHANNEL,
            rdy=RDY_MAX,
            messages_per_s=LATENCY_PER_S,
            # The load's own warm-up and end are outside the CPU readings.
            warmup_s=size.warmup_s,
            seconds=size.seconds,
        )
        load.connect(server)
        figure = measure(server, load, [slot], size)
        load.stop[0] = 1
        found = load.found()
    # A load at a fixed rate leaves the broker idle by design, so neither side is the limit.
    return replace(
        figure,
        value=found["p50_ms"],
        client_cores_min=None,
        extra={"p50_ms": found["p50_ms"], "p99_ms": found["p99_ms"], "rate": figure.value},
    )


START_CPU_SHARE = 0.2


def seed_idle(data_path: Path, size: Size) -> None:
    """Writes a metadata file with the topics. Creating them over HTTP would take minutes for
    10,000, because Go nsqd rewrites that file for each."""
    topics = [
        {
            "name": f"idle{index}",
            "paused": False,
            "channels": [{"name": CHANNEL, "paused": False}],
        }
        for index in range(size.idle_topics)
    ]
    text = json.dumps({"topics": topics, "version": "1.3.0"})
    (data_path / METADATA_FILE).write_text(text)


def run_idle(server: Server, size: Size) -> Figure:
    present = {
        topic["topic_name"] for topic in server.stats()["topics"] if len(topic["channels"]) == 1
    }
    for index in range(size.idle_topics):
        if f"idle{index}" not in present:
            server.create(f"idle{index}", CHANNEL)
    _await_start(server)
    from_s, from_cpu_s = time.perf_counter(), server.cpu_s()
    time.sleep(size.seconds)
    server.check_alive()
    cores = (server.cpu_s() - from_cpu_s) / (time.perf_counter() - from_s)
    return Figure(value=100 * cores, rss_mb=server.rss_peak_mb(), broker_cores=cores)


def _await_start(server: Server) -> None:
    """Waits until the broker is idle after a start with many topics, for a minute at most."""
    for _ in range(60):
        from_cpu_s = server.cpu_s()
        time.sleep(SETTLE_S)
        if server.cpu_s() - from_cpu_s < START_CPU_SHARE * SETTLE_S:
            return


def run_consumers1000(server: Server, size: Size) -> Figure:
    backlog = size.backlog // 2
    rates = {}
    for consumers in (10, 1000):
        topic = f"{TOPIC}{consumers}"
        server.create(topic, CHANNEL)
        preload(server, topic, backlog)
        figure = _drain_many(server, size, topic, backlog, rdy=10, consumers=consumers)
        rates[consumers] = figure.value
    return replace(
        figure,
        value=rates[1000] / rates[10],
        extra={"rate": rates[1000], "rate_10": rates[10]},
    )


def at_least(times: float) -> Target:
    """The target of a ratio to the peer."""
    return Target("ratio", times)


def _upgraded(upgrade: str) -> Iterator[Workload]:
    flags = tls_flags if upgrade == TLS else None
    for name, how in (("mpub", run_upgraded_mpub), ("sub", run_upgraded_sub)):
        yield Workload(f"{upgrade}_{name}", partial(how, upgrade=upgrade), at_least(1), flags=flags)


WORKLOADS = (
    Workload("mpub", run_mpub, at_least(2.5)),
    Workload("sub", run_sub, at_least(2.5)),
    Workload("both", run_both, at_least(2)),
    Workload("pub_pipelined", run_pub_pipelined, at_least(4)),
    Workload("pub_sync", run_pub_sync, at_least(1.2)),
    Workload("http_pub", run_http_pub, at_least(1.3)),
    Workload("http_pub_token", run_http_pub, at_least(1.3), own_flags=access_token_flags),
    Workload("http_mpub", run_http_mpub, at_least(1)),
    Workload("rdy1", run_rdy1, at_least(1.8)),
    Workload("fanout4", run_fanout4, at_least(2.5)),
    Workload("mpub_default", run_mpub, at_least(8), peer_default=True),
    Workload("sub_default", run_sub, at_least(3.5), peer_default=True),
    *_upgraded(TLS),
    *_upgraded(SNAPPY),
    *_upgraded(DEFLATE),
    Workload("rss", run_rss, Target("value", 60, at_most=True), "MB", fewer=True),
    Workload("latency", run_latency, at_least(20), "ms p50", fewer=True, peer_default=True),
    Workload(
        "idle",
        run_idle,
        Target("value", 2, at_most=True),
        "% core",
        fewer=True,
        peer_default=True,
        seed=seed_idle,
    ),
    Workload("consumers1000", run_consumers1000, Target("value", 0.5), "of 10's rate"),
)


def middle(figures: Iterable[float | None]) -> float | None:
    """The median of the figures that are not None."""
    present = [figure for figure in figures if figure is not None]
    return statistics.median(present) if present else None
