"""GET /metrics: the broker's figures for Prometheus, read when they are asked for.

The figures of topics, channels and clients are those of /stats, under names that say their unit,
and so is the way to ask for some of them only. Series of single clients are given only when asked
for (`include_clients=true`): their number has no bound, and each lives as long as a connection.

Nothing is counted for this module's sake on the way of a message.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from pumpline.core.messages import kernels
from pumpline.nsqd.broker import Broker
from pumpline.nsqd.protocol.heartbeat import SILENT, SLOW
from pumpline.nsqd.queue.channel import Channel
from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.queue.topic_state import CLOSED
from pumpline.nsqd.queue.topology import Locality
from pumpline.nsqd.stats import families
from pumpline.nsqd.stats.memory import Memory
from pumpline.nsqd.stats.oldest import UNKNOWN, Lag, OldestTimes, Search
from pumpline.nsqd.stats.stats import (
    ClientStats,
    LatencyStats,
    Selection,
    channel_stats,
    choose,
    client_stats,
    topic_latency,
    topic_stats,
)
from pumpline.web.process_metrics import LoopDelay, add_build, add_http, add_process
from pumpline.web.prometheus_text import Exposition, Family, labels
from pumpline.web.replies import Reply
from pumpline.web.request import Request
from pumpline.web.server import HttpServer
from pumpline.web.yielding import Pace

_NS_PER_S = 1_000_000_000
_US_PER_S = 1_000_000


class Metrics:
    def __init__(self, broker: Broker, *, memory: Memory, http: Sequence[HttpServer]) -> None:
        """`http`: the servers whose clients count."""
        self._broker = broker
        self._memory = memory
        self._http = http
        self._delay = LoopDelay()
        self.oldest = OldestTimes()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._delay.start(loop)

    def close(self) -> None:
        self._delay.close()

    async def get(self, request: Request) -> Reply:
        selection = Selection.asked(request.query(), clients=False)
        exposition = Exposition()
        self._add_broker(exposition)
        self._add_disk(exposition)
        self._add_memory(exposition)
        add_process(exposition)
        await self._add_topics(exposition, selection)
        return await exposition.reply(request.header("Accept"))

    def _add_broker(self, exposition: Exposition) -> None:
        broker = self._broker
        health = broker.disk.health
        add_build(exposition, "nsqd", broker.loop, kernels=kernels.form)
        exposition.add(families.STARTED, broker.started_at_s)
        exposition.add(families.HEALTHY, int(health.error is None))
        exposition.add(families.WRITE_FAILURES, health.failures)
        exposition.add(families.TOPICS, len(broker.topics))
        exposition.add(families.CONNECTIONS, len(broker.connections))
        exposition.add(
            families.PRODUCERS, sum(bool(each.published.by_topic()) for each in broker.connections)
        )
        exposition.add(families.REFUSED, broker.connections.refused_count)
        for reason in (SILENT, SLOW):
            exposition.add(
                families.DROPPED_CLIENTS, broker.connections.dropped[reason], labels(reason=reason)
            )
        for code, count in sorted(broker.connections.errors.items()):
            exposition.add(families.CLIENT_ERRORS, count, labels(code=code))
        for lookupd in broker.lookups.lookupds:
            where = labels(address=lookupd.address)
            exposition.add(families.LOOKUPD_CONNECTED, int(lookupd.about is not None), where)
            exposition.add(families.LOOKUPD_FAILURES, lookupd.failure_count, where)
        add_http(exposition, "nsqd", self._http)
        self._delay.add_to(exposition, "nsqd")

    def _add_disk(self, exposition: Exposition) -> None:
        disk = self._broker.disk
        exposition.add_histogram(families.FSYNCS, disk.fsyncs.times_s)
        exposition.add(families.FSYNC_FAILURES, disk.fsyncs.failures)
        exposition.add(families.CHECKPOINT_AGE, disk.checkpoints.age_s)
        exposition.add(families.CHECKPOINT_FAILURES, disk.checkpoints.failures)
        exposition.add(families.LOG_FILES, len(disk.files))
        with suppress(OSError):
            exposition.add(families.DISK_FREE, disk.directory.free_share())
            free_bytes, total_bytes = disk.directory.disk_bytes()
            exposition.add(families.DISK_FREE_BYTES, free_bytes)
            exposition.add(families.DISK_BYTES, total_bytes)

    def _add_memory(self, exposition: Exposition) -> None:
        memory = self._memory.stats()
        exposition.add(families.HEAP_OBJECTS, memory.heap_objects)
        exposition.add(families.GC_RUNS, memory.gc_total_runs)
        for percentile, pause_us in (
            ("95", memory.gc_pause_usec_95),
            ("99", memory.gc_pause_usec_99),
            ("100", memory.gc_pause_usec_100),
        ):
            where = labels(percentile=percentile)
            exposition.add(families.GC_PAUSES, pause_us / _US_PER_S, where)

    async def _add_topics(self, exposition: Exposition, selection: Selection) -> None:
        pace = Pace()
        lags = _Lags(self.oldest.search())
        for topic in choose(self._broker.topics, selection.topic) or ():
            channels = choose(topic.channels, selection.channel)
            if channels is not None and topic.state is not CLOSED:
                _add_topic(exposition, topic, await topic_latency(topic, pace))
                lags.of_holds(topic)
                for channel in channels:
                    await pace.breathe()
                    if not channel.deleted:
                        _add_channel(exposition, channel, selection)
                        lags.of_channel(channel)
            await pace.breathe()
        lags.search.saw_all = not selection.topic and not selection.channel
        await self.oldest.finish(lags.search)
        await lags.add_to(exposition, self._broker.tick.wall_ns)
        if selection.clients:
            for connection in self._broker.connections:
                if connection.is_gone:  # since the last pause
                    continue
                for published in client_stats(connection, selection.topic).pub_counts:
                    where = labels(
                        topic=published.topic,
                        client_id=connection.protocol.client_options.client_id,
                        remote_address=connection.peer,
                    )
                    exposition.add(families.CLIENT_PUBLISHED, published.count, where)
                await pace.breathe()


class _Lags:
    """Lags in time, some of which need a look into the log first."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self._found: list[tuple[Family, Lag, str]] = []

    def of_channel(self, channel: Channel) -> None:
        where = labels(topic=channel.topic.name, channel=channel.name)
        self.search.tell_channel(self._new(families.CHANNEL_LAG, where), channel)

    def of_holds(self, topic: Topic) -> None:
        for name, hold in topic.upkeep.holds.by_name.items():
            lag = self._new(families.HOLD_LAG, labels(topic=topic.name, hold=name))
            self.search.tell(lag, topic.log, name, hold.offset, end=topic.log.end)

    def _new(self, family: Family, where: str) -> Lag:
        lag = Lag()
        self._found.append((family, lag, where))
        return lag

    async def add_to(self, exposition: Exposition, now_ns: int) -> None:
        """A lag that is not known yet has no sample: a later scrape has it."""
        pace = Pace()
        for family, lag, where in self._found:
            since_ns = lag.oldest_timestamp
            if since_ns != UNKNOWN:
                waits_ns = max(now_ns - since_ns, 0) if since_ns else 0
                exposition.add(family, waits_ns / _NS_PER_S, where)
            await pace.breathe()


def _add_topic(exposition: Exposition, topic: Topic, latency: LatencyStats) -> None:
    stats = topic_stats(topic, latency)
    where = labels(topic=topic.name)
    for field, family in families.TOPIC_FIGURES:
        exposition.add(family, getattr(stats, field), where)
    exposition.add(families.TOPIC_PAUSED, int(stats.paused), where)
    _add_latency(exposition, families.TOPIC_LATENCY, stats.e2e_processing_latency, where)
    exposition.add(families.TOPIC_REFUSED, topic.publishing.refused_count, where)
    exposition.add(families.TOPIC_OVERFLOW, topic.publishing.overflow_count, where)
    exposition.add(families.TOPIC_TOKENS, len(topic.upkeep.tokens), where)
    exposition.add(families.TOPIC_FORGOTTEN, topic.upkeep.tokens.forgotten_count, where)
    exposition.add(families.TOPIC_REPEATS, topic.upkeep.tokens.repeat_count, where)
    log = topic.log
    exposition.add(families.LOG_BYTES, log.size_bytes, where)
    exposition.add(families.LOG_FIRST, log.first, where)
    exposition.add(families.LOG_END, log.end, where)
    if topic.ephemeral:
        exposition.add(families.TOPIC_DROPPED, log.dropped, where)
    else:
        exposition.add(families.LOG_SEGMENTS, len(log.segments), where)
        _add_holds(exposition, topic)


def _add_holds(exposition: Exposition, topic: Topic) -> None:
    holds = topic.upkeep.holds
    exposition.add(families.HOLDS_DROPPED, holds.dropped_count, labels(topic=topic.name))
    for name, hold in holds.by_name.items():
        where = labels(topic=topic.name, hold=name)
        exposition.add(families.HOLD_DEPTH, holds.depth(hold), where)
        exposition.add(families.HOLD_BYTES, holds.pinned_bytes(hold), where)
        exposition.add(families.HOLD_DROPPED, int(hold.dropped), where)


def _add_channel(exposition: Exposition, channel: Channel, selection: Selection) -> None:
    stats = channel_stats(channel, selection)
    where = labels(topic=channel.topic.name, channel=channel.name)
    for field, family in families.CHANNEL_FIGURES:
        exposition.add(family, getattr(stats, field), where)
    exposition.add(families.CHANNEL_PAUSED, int(stats.paused), where)
    exposition.add(families.CHANNEL_DROPPED, channel.dropped_count, where)
    exposition.add(families.CHANNEL_OVERFLOW, channel.overflow_count, where)
    exposition.add(families.CHANNEL_EXPIRED, channel.expiry.count, where)
    exposition.add(families.CHANNEL_DEAD, channel.dead_letters.count, where)
    _add_latency(exposition, families.CHANNEL_LATENCY, stats.e2e_processing_latency, where)
    for locality, count in zip(Locality, channel.delivered or (), strict=False):
        near = labels(locality=locality.name.lower())
        exposition.add(families.CHANNEL_DELIVERED, count, f"{where},{near}")
    for client in stats.clients or ():
        _add_client(exposition, client, where)


def _add_client(exposition: Exposition, client: ClientStats, where: str) -> None:
    who = labels(
        client_id=client.client_id,
        remote_address=client.remote_address,
        user_agent=client.user_agent,
    )
    for field, family in families.CLIENT_FIGURES:
        exposition.add(family, getattr(client, field), f"{where},{who}")


def _add_latency(exposition: Exposition, family: Family, latency: LatencyStats, where: str) -> None:
    for each in latency.percentiles or ():
        percentile = labels(percentile=f"{each.quantile * 100:g}")
        exposition.add(family, each.value / _NS_PER_S, f"{where},{percentile}")
