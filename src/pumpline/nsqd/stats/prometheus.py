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
from pumpline.nsqd.queue.topology import Locality
from pumpline.nsqd.stats.memory import Memory
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
from pumpline.web.prometheus_text import COUNTER, GAUGE, HISTOGRAM, Exposition, Family, labels
from pumpline.web.replies import Reply
from pumpline.web.request import Request
from pumpline.web.server import HttpServer
from pumpline.web.yielding import Pace

_NS_PER_S = 1_000_000_000
_US_PER_S = 1_000_000

STARTED = Family("nsqd_start_time_seconds", GAUGE, "When nsqd started, since 1970.")
HEALTHY = Family("nsqd_healthy", GAUGE, "1 if the last write to the data directory succeeded.")
WRITE_FAILURES = Family("nsqd_write_failures", COUNTER, "Failed writes to the data directory.")
TOPICS = Family("nsqd_topics", GAUGE, "Topics.")
CONNECTIONS = Family("nsqd_connections", GAUGE, "TCP clients connected.")
PRODUCERS = Family("nsqd_producers", GAUGE, "TCP clients connected that have published.")
REFUSED = Family("nsqd_refused_connections", COUNTER, "Clients over --max-connections.")
DROPPED_CLIENTS = Family(
    "nsqd_dropped_clients", COUNTER, "Clients given up that said nothing, or took nothing."
)
CLIENT_ERRORS = Family("nsqd_client_errors", COUNTER, "Errors that ended a connection, by code.")
LOOKUPD_CONNECTED = Family("nsqd_lookupd_connected", GAUGE, "1 if connected to that nsqlookupd.")
LOOKUPD_FAILURES = Family(
    "nsqd_lookupd_failures", COUNTER, "Connections to an nsqlookupd that ended, or were never made."
)
FSYNCS = Family("nsqd_fsync_seconds", HISTOGRAM, "Time that fsyncs of a topic's log took.")
FSYNC_FAILURES = Family("nsqd_fsync_failures", COUNTER, "Failed fsyncs.")
CHECKPOINT_AGE = Family(
    "nsqd_checkpoint_age_seconds", GAUGE, "Age of the oldest change of a channel not on disk."
)
CHECKPOINT_FAILURES = Family("nsqd_checkpoint_failures", COUNTER, "Failed writes of cursors.")
LOG_FILES = Family("nsqd_log_files_open", GAUGE, "Log files held open.")
DISK_FREE = Family("nsqd_disk_free_ratio", GAUGE, "Free part of the data directory's disk.")
DISK_FREE_BYTES = Family("nsqd_disk_free_bytes", GAUGE, "Free bytes of the data directory's disk.")
DISK_BYTES = Family("nsqd_disk_bytes", GAUGE, "Size of the data directory's disk.")
HEAP_OBJECTS = Family("nsqd_heap_objects", GAUGE, "Blocks given out by Python's allocator.")
GC_RUNS = Family("nsqd_gc_runs", COUNTER, "Garbage collections.")
GC_PAUSES = Family("nsqd_gc_pause_seconds", GAUGE, "Percentiles of the last 256 collections.")

TOPIC_FIGURES = (
    ("depth", Family("nsqd_topic_depth", GAUGE, "Messages that no channel has been given.")),
    ("backend_depth", Family("nsqd_topic_backend_depth", GAUGE, "Those beyond --mem-queue-size.")),
    ("message_count", Family("nsqd_topic_messages", COUNTER, "Messages published.")),
    ("message_bytes", Family("nsqd_topic_message_bytes", COUNTER, "Bytes of their bodies.")),
)
TOPIC_PAUSED = Family("nsqd_topic_paused", GAUGE, "1 if the topic is paused.")
LOG_BYTES = Family("nsqd_topic_log_bytes", GAUGE, "Size of the topic's log.")
LOG_SEGMENTS = Family("nsqd_topic_log_segments", GAUGE, "Files of the topic's log.")
LOG_FIRST = Family("nsqd_topic_log_first_offset", GAUGE, "Oldest offset in the topic's log.")
LOG_END = Family("nsqd_topic_log_end_offset", GAUGE, "Offset of the next message.")
TOPIC_DROPPED = Family(
    "nsqd_topic_dropped_messages", COUNTER, "Messages dropped as an ephemeral topic was full."
)
TOPIC_REFUSED = Family("nsqd_topic_refused_messages", COUNTER, "Refused by a full backlog.")
TOPIC_TOKENS = Family("nsqd_topic_publish_tokens", GAUGE, "Publish tokens remembered.")
TOPIC_FORGOTTEN = Family(
    "nsqd_topic_forgotten_publish_tokens", COUNTER, "Those forgotten to make room for newer ones."
)
TOPIC_REPEATS = Family(
    "nsqd_topic_publish_repeats", COUNTER, "Publishes answered only, as their token was known."
)
TOPIC_OVERFLOW = Family("nsqd_topic_overflow_messages", COUNTER, "Dropped from a full backlog.")
TOPIC_LATENCY = Family(
    "nsqd_topic_e2e_processing_latency_seconds", GAUGE, "From publish to FIN, in the window."
)

HOLD_DEPTH = Family("nsqd_hold_depth", GAUGE, "Messages from a hold's offset on.")
HOLD_BYTES = Family("nsqd_hold_pinned_bytes", GAUGE, "Bytes of the log from there on, about.")
HOLD_DROPPED = Family("nsqd_hold_dropped", GAUGE, "1 if the hold was dropped: it pins nothing.")
HOLDS_DROPPED = Family("nsqd_topic_dropped_holds", COUNTER, "Holds over their byte limit.")

CHANNEL_FIGURES = (
    ("depth", Family("nsqd_channel_depth", GAUGE, "Messages waiting to be delivered.")),
    (
        "backend_depth",
        Family("nsqd_channel_backend_depth", GAUGE, "Those beyond --mem-queue-size."),
    ),
    ("in_flight_count", Family("nsqd_channel_in_flight", GAUGE, "Messages in flight.")),
    ("deferred_count", Family("nsqd_channel_deferred", GAUGE, "Messages deferred.")),
    ("message_count", Family("nsqd_channel_messages", COUNTER, "Messages given to the channel.")),
    ("requeue_count", Family("nsqd_channel_requeues", COUNTER, "Messages requeued.")),
    ("timeout_count", Family("nsqd_channel_timeouts", COUNTER, "Messages timed out.")),
    ("client_count", Family("nsqd_channel_consumers", GAUGE, "Consumers subscribed.")),
)
CHANNEL_PAUSED = Family("nsqd_channel_paused", GAUGE, "1 if the channel is paused.")
CHANNEL_DROPPED = Family(
    "nsqd_channel_dropped_messages",
    COUNTER,
    "Messages that an ephemeral channel had no room for, or that were gone from the log.",
)
CHANNEL_OVERFLOW = Family("nsqd_channel_overflow_messages", COUNTER, "Dropped from a full backlog.")
CHANNEL_EXPIRED = Family("nsqd_channel_expired_messages", COUNTER, "Passed over as too old.")
CHANNEL_DEAD = Family("nsqd_channel_dead_letters", COUNTER, "Given up after too many attempts.")
CHANNEL_DELIVERED = Family(
    "nsqd_channel_delivered_messages",
    COUNTER,
    "Messages by how near the consumer was; with topology-aware consumption only.",
)
CHANNEL_LATENCY = Family(
    "nsqd_channel_e2e_processing_latency_seconds", GAUGE, "From publish to FIN, in the window."
)

CLIENT_FIGURES = (
    ("state", Family("nsqd_client_state", GAUGE, "0 new, 3 subscribed, 4 closing.")),
    ("ready_count", Family("nsqd_client_ready", GAUGE, "RDY count.")),
    ("in_flight_count", Family("nsqd_client_in_flight", GAUGE, "Messages in flight.")),
    ("message_count", Family("nsqd_client_messages", COUNTER, "Messages delivered.")),
    ("finish_count", Family("nsqd_client_finishes", COUNTER, "Messages finished.")),
    ("requeue_count", Family("nsqd_client_requeues", COUNTER, "Messages requeued.")),
    ("connect_ts", Family("nsqd_client_connected_seconds", GAUGE, "When it came, since 1970.")),
)
CLIENT_PUBLISHED = Family("nsqd_client_published_messages", COUNTER, "Messages published.")


class Metrics:
    def __init__(self, broker: Broker, *, memory: Memory, http: Sequence[HttpServer]) -> None:
        """`http`: the servers whose clients count."""
        self._broker = broker
        self._memory = memory
        self._http = http
        self._delay = LoopDelay()

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
        form = "compiled" if kernels.compiled else "python"
        add_build(exposition, "nsqd", broker.loop, kernels=form)
        exposition.add(STARTED, broker.started_at_s)
        exposition.add(HEALTHY, int(health.error is None))
        exposition.add(WRITE_FAILURES, health.failures)
        exposition.add(TOPICS, len(broker.topics))
        exposition.add(CONNECTIONS, len(broker.connections))
        exposition.add(PRODUCERS, sum(bool(each.pub_counts) for each in broker.connections))
        exposition.add(REFUSED, broker.connections.refused_count)
        for reason in (SILENT, SLOW):
            exposition.add(
                DROPPED_CLIENTS, broker.connections.dropped[reason], labels(reason=reason)
            )
        for code, count in sorted(broker.connections.errors.items()):
            exposition.add(CLIENT_ERRORS, count, labels(code=code))
        for lookupd in broker.lookups.lookupds:
            where = labels(address=lookupd.address)
            exposition.add(LOOKUPD_CONNECTED, int(lookupd.about is not None), where)
            exposition.add(LOOKUPD_FAILURES, lookupd.failure_count, where)
        add_http(exposition, "nsqd", self._http)
        self._delay.add_to(exposition, "nsqd")

    def _add_disk(self, exposition: Exposition) -> None:
        disk = self._broker.disk
        exposition.add_histogram(FSYNCS, disk.fsyncs.times_s)
        exposition.add(FSYNC_FAILURES, disk.fsyncs.failures)
        exposition.add(CHECKPOINT_AGE, disk.checkpoints.age_s)
        exposition.add(CHECKPOINT_FAILURES, disk.checkpoints.failures)
        exposition.add(LOG_FILES, len(disk.files))
        with suppress(OSError):
            exposition.add(DISK_FREE, disk.directory.free_share())
            free_bytes, total_bytes = disk.directory.disk_bytes()
            exposition.add(DISK_FREE_BYTES, free_bytes)
            exposition.add(DISK_BYTES, total_bytes)

    def _add_memory(self, exposition: Exposition) -> None:
        memory = self._memory.stats()
        exposition.add(HEAP_OBJECTS, memory.heap_objects)
        exposition.add(GC_RUNS, memory.gc_total_runs)
        for quantile, pause_us in (
            ("0.95", memory.gc_pause_usec_95),
            ("0.99", memory.gc_pause_usec_99),
            ("1", memory.gc_pause_usec_100),
        ):
            exposition.add(GC_PAUSES, pause_us / _US_PER_S, labels(quantile=quantile))

    async def _add_topics(self, exposition: Exposition, selection: Selection) -> None:
        pace = Pace()
        for topic in choose(self._broker.topics, selection.topic) or ():
            channels = choose(topic.channels, selection.channel)
            if channels is not None and not topic.exiting:
                _add_topic(exposition, topic, await topic_latency(topic, pace))
                for channel in channels:
                    await pace.breathe()
                    if not channel.deleted:
                        _add_channel(exposition, channel, selection)
            await pace.breathe()
        if selection.clients:
            for connection in self._broker.connections:
                for published in client_stats(connection, selection.topic).pub_counts:
                    where = labels(
                        topic=published.topic,
                        client_id=connection.protocol.client_options.client_id,
                        remote_address=connection.peer,
                    )
                    exposition.add(CLIENT_PUBLISHED, published.count, where)
                await pace.breathe()


def _add_topic(exposition: Exposition, topic: Topic, latency: LatencyStats) -> None:
    stats = topic_stats(topic, latency)
    where = labels(topic=topic.name)
    for field, family in TOPIC_FIGURES:
        exposition.add(family, getattr(stats, field), where)
    exposition.add(TOPIC_PAUSED, int(stats.paused), where)
    _add_latency(exposition, TOPIC_LATENCY, stats.e2e_processing_latency, where)
    exposition.add(TOPIC_REFUSED, topic.refused_count, where)
    exposition.add(TOPIC_OVERFLOW, topic.overflow_count, where)
    exposition.add(TOPIC_TOKENS, len(topic.tokens), where)
    exposition.add(TOPIC_FORGOTTEN, topic.tokens.forgotten_count, where)
    exposition.add(TOPIC_REPEATS, topic.tokens.repeat_count, where)
    log = topic.log
    exposition.add(LOG_BYTES, log.size_bytes, where)
    exposition.add(LOG_FIRST, log.first, where)
    exposition.add(LOG_END, log.end, where)
    if topic.ephemeral:
        exposition.add(TOPIC_DROPPED, log.dropped, where)
    else:
        exposition.add(LOG_SEGMENTS, len(log.segments), where)
        _add_holds(exposition, topic)


def _add_holds(exposition: Exposition, topic: Topic) -> None:
    exposition.add(HOLDS_DROPPED, topic.holds.dropped_count, labels(topic=topic.name))
    for name, hold in topic.holds.by_name.items():
        where = labels(topic=topic.name, hold=name)
        exposition.add(HOLD_DEPTH, topic.holds.depth(hold), where)
        exposition.add(HOLD_BYTES, topic.holds.pinned_bytes(hold), where)
        exposition.add(HOLD_DROPPED, int(hold.dropped), where)


def _add_channel(exposition: Exposition, channel: Channel, selection: Selection) -> None:
    stats = channel_stats(channel, selection)
    where = labels(topic=channel.topic.name, channel=channel.name)
    for field, family in CHANNEL_FIGURES:
        exposition.add(family, getattr(stats, field), where)
    exposition.add(CHANNEL_PAUSED, int(stats.paused), where)
    exposition.add(CHANNEL_DROPPED, channel.dropped_count, where)
    exposition.add(CHANNEL_OVERFLOW, channel.overflow_count, where)
    exposition.add(CHANNEL_EXPIRED, channel.expiry.count, where)
    exposition.add(CHANNEL_DEAD, channel.dead_letters.count, where)
    _add_latency(exposition, CHANNEL_LATENCY, stats.e2e_processing_latency, where)
    for locality, count in zip(Locality, channel.delivered or (), strict=False):
        near = labels(locality=locality.name.lower())
        exposition.add(CHANNEL_DELIVERED, count, f"{where},{near}")
    for client in stats.clients or ():
        _add_client(exposition, client, where)


def _add_client(exposition: Exposition, client: ClientStats, where: str) -> None:
    who = labels(
        client_id=client.client_id,
        remote_address=client.remote_address,
        user_agent=client.user_agent,
    )
    for field, family in CLIENT_FIGURES:
        exposition.add(family, getattr(client, field), f"{where},{who}")


def _add_latency(exposition: Exposition, family: Family, latency: LatencyStats, where: str) -> None:
    for each in latency.percentiles or ():
        quantile = labels(quantile=f"{each.quantile:g}")
        exposition.add(family, each.value / _NS_PER_S, f"{where},{quantile}")
