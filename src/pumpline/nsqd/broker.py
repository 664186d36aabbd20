"""The broker: topics by name, connections, and what makes and unmakes them. Servers are around it
(`broker.server`), files below it (`pumpline.log`)."""

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

from pumpline import NSQ_VERSION
from pumpline.core.messages.ids import new_base
from pumpline.core.text.names import is_ephemeral
from pumpline.log.directory import ChannelMetadata, Manifest, Metadata, TopicMetadata
from pumpline.log.log import sync_paths
from pumpline.log.ring import Ring
from pumpline.nsqd.discovery.lookupds import Lookups
from pumpline.nsqd.draining import Draining
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.storage.go_import import import_queues
from pumpline.nsqd.storage.loading import load_topics, new_log
from pumpline.nsqd.storage.metadata import MetadataWriter

if TYPE_CHECKING:
    from pumpline.nsqd.protocol.connection import Connection
    from pumpline.nsqd.services import Services

RECEIVE_BYTES = 256 * 1024
TAIL_BYTES_MAX = 4 << 20  # of one topic
TAILS_BYTES_MAX = 64 << 20  # of all topics together

_LOG = logging.getLogger(__name__)


class Broker:
    def __init__(self, services: "Services", loop: asyncio.AbstractEventLoop) -> None:
        self.services = services
        self.options: Options = services.options
        self.loop = loop
        self.topics: dict[str, Topic] = {}
        self.connections: dict[Connection, None] = {}
        self.received = bytearray(RECEIVE_BYTES)  # shared by all of them
        self.refused_connections = 0
        self.dropped_clients: Counter[str] = Counter()  # by the reason, see `heartbeat`
        self.client_errors: Counter[str] = Counter()  # that ended a connection, by their code
        self.started_at_s = services.tick.wall_ns // 1_000_000_000
        self.metadata = MetadataWriter(
            services, describe=self.describe, count=lambda: len(self.topics)
        )
        self.serving = False  # the listeners accept clients
        self.draining = Draining(self)
        self.lookups = Lookups(self.options, topics=lambda: self.topics)
        services.registration_changed = self._registration_changed
        services.topic_gone = self.delete_topic
        services.drop_history = self._drop_history
        services.find_topic = self.topic

    def load(self) -> None:
        """Bring back what is in the data directory."""
        import_queues(self.services)
        self.topics = load_topics(self.services)
        self._share_memory()

    # -- topics -------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """The topic of that name, created if need be; OSError when it cannot be."""
        topic = self.topics.get(name)
        return topic if topic is not None else self._create_topic(name)

    def _create_topic(self, name: str) -> Topic:
        services = self.services
        base_id = new_base(self.options.node_id, services.tick.wall_ns)
        if is_ephemeral(name):
            log: Ring = Ring(base_id=base_id, messages_max=self.options.mem_queue_size)
            topic = Topic(services, name, log, pumped=0, paused=False)
        else:
            manifest = Manifest(base_id=base_id, awaits_channels=self.lookups.has_any)
            services.directory.create_topic(name, manifest)
            new = new_log(services, name, base_id)
            new.sync_also(services.directory.topics_path)
            topic = Topic(services, name, new, pumped=0, paused=False)
        self.topics[name] = topic
        self._share_memory()
        _LOG.info("TOPIC(%s): created", name)
        self.lookups.discover(topic)
        self._registration_changed(name, None)
        return topic

    def delete_topic(self, name: str) -> None:
        """KeyError if there is none."""
        topic = self.topics[name]
        _LOG.info("TOPIC(%s): deleting", name)
        topic.delete()
        del self.topics[name]
        self._share_memory()
        self._registration_changed(name, None)

    def _drop_history(self) -> bool:
        dropped = [topic.drop_history() for topic in self.topics.values()]
        return any(dropped)

    def _share_memory(self) -> None:
        share = TAILS_BYTES_MAX // max(len(self.topics), 1)
        self.services.tail_bytes_max = min(TAIL_BYTES_MAX, share)

    def _registration_changed(self, topic: str, channel: str | None) -> None:
        self.lookups.changed(topic)
        if not is_ephemeral(channel or topic):
            self.metadata.changed()

    def describe(self) -> Metadata:
        """nsqd.dat as of now."""
        topics = []
        for topic in self.topics.values():
            if topic.ephemeral:
                continue
            channels = [
                ChannelMetadata(name=channel.name, paused=channel.paused)
                for channel in topic.channels.values()
                if not channel.ephemeral
            ]
            topics.append(
                TopicMetadata(name=topic.name, paused=topic.paused, channels=channels or None)
            )
        return Metadata(topics=topics or None, version=NSQ_VERSION)

    def unready(self) -> str | None:
        """Why clients had better go elsewhere, if they had."""
        if self.draining.active:
            return "draining"
        return self.services.health.error if self.serving else "starting"

    # -- connections --------------------------------------------------------------------------

    def admit(self, connection: "Connection") -> bool:
        limit = self.options.max_connections
        if limit and len(self.connections) >= limit:
            self.refused_connections += 1
            _LOG.error("TCP: refused client(%s): limit of %d reached", connection.peer, limit)
            return False
        self.connections[connection] = None
        return True

    def dismiss(self, connection: "Connection") -> None:
        self.connections.pop(connection, None)

    # -- the end ------------------------------------------------------------------------------

    async def close(self) -> None:
        """Everything to disk; connections and listeners are closed by now."""
        for topic in self.topics.values():
            for channel in topic.channels.values():
                channel.close()
        self.services.checkpoints.write_now()
        dirty = {path for topic in self.topics.values() for path in topic.take_dirty()}
        try:
            await self.metadata.close()
            await asyncio.to_thread(sync_paths, sorted(dirty))
        except OSError as error:
            # Logs and cursors are in their files; what is missing is found again on start.
            _LOG.error("failed to persist metadata - %s", error)
        for topic in self.topics.values():
            topic.close()
        self.services.files.close()
