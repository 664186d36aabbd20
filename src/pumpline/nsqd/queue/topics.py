"""The topics of an nsqd, by name: created, deleted, loaded from disk, and sharing its memory.

Observers keep a record of which topics and channels there are (the nsqlookupds, nsqd.dat), and are
notified of changes. Knows the disk; must not know connections, HTTP or the event loop.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from pumpline import NSQ_VERSION
from pumpline.core.messages.ids import BASE_SEED_BYTES, new_base
from pumpline.core.text.names import is_ephemeral, is_valid_name
from pumpline.log.cursor import CursorFile
from pumpline.log.directory import ChannelMetadata, Manifest, Metadata, TopicMetadata
from pumpline.log.group_commit import GroupCommit
from pumpline.log.log import State
from pumpline.log.ring import Ring
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.channel import Channel
from pumpline.nsqd.queue.history_sweep import HistorySweep
from pumpline.nsqd.queue.tick import Tick
from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.queue.topic_state import OPEN, PROVISIONAL
from pumpline.nsqd.storage.disk import Disk
from pumpline.nsqd.storage.disk_health import write_with_room
from pumpline.nsqd.storage.go_import import import_queues
from pumpline.nsqd.storage.loading import StoredTopic, stored_topics

TAIL_BYTES_MAX = 4 << 20  # of one topic
TAILS_BYTES_MAX = 64 << 20  # of all topics together

_RETRY_S = 1.0

_LOG = logging.getLogger(__name__)


class TopicsObserver(Protocol):
    """Keeps a record of which topics and channels there are."""

    def registration_changed(self, topic: str, channel: str | None) -> None:
        """The topic, or that channel of it, came or went."""


class Topics(Mapping[str, Topic]):
    def __init__(self, options: Options, tick: Tick, disk: Disk) -> None:
        self.options = options
        self.tick = tick
        self.disk = disk
        self.tail_bytes_max = TAIL_BYTES_MAX  # how much of its log a topic may keep in memory
        self.observers: list[TopicsObserver] = []
        # Whether other nodes can be asked for the channels of a new topic, and what asks them: it
        # lets the topic stand still until it has those channels.
        self.has_lookupds: Callable[[], bool] = lambda: False
        self.discover: Callable[[Topic], None] = lambda topic: None
        self._by_name: dict[str, Topic] = {}
        self._sweep = HistorySweep(self._by_name, drop=_drop_history)
        self._undropped: set[Topic] = set()  # nobody uses them, and they could not be deleted
        self.group_commit = GroupCommit(
            disk.wal,
            disk.flusher,
            tick,
            disk,
            message_bytes_max=options.max_msg_size,
            body_bytes_max=options.max_body_size,
            segment_bytes_max=options.max_bytes_per_file,
            syncs=disk.fsyncs.group_commit,
        )
        disk.make_room = self.drop_history
        tick.commit = self.group_commit.on_tick

    def __getitem__(self, name: str) -> Topic:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def ensure(self, name: str) -> Topic:
        """The topic of that name, created if need be; OSError when it cannot be."""
        topic = self._by_name.get(name) or self._create(name)
        topic.state = OPEN
        return topic

    def ensure_provisional(self, name: str) -> Topic:
        """As `ensure`, to publish to: if it is created here, and its first messages cannot be
        written, it is deleted again."""
        topic = self._by_name.get(name)
        if topic is None:
            topic = self._create(name)
            topic.state = PROVISIONAL
        return topic

    def delete(self, name: str) -> None:
        """KeyError if there is none."""
        topic = self._by_name[name]
        _LOG.info("TOPIC(%s): deleting", name)
        topic.delete()
        del self._by_name[name]
        self._share_memory()
        self.registration_changed(name, None)

    def drop(self, topic: Topic) -> None:
        """Delete a topic that nobody uses; if the disk does not let it go, later."""
        try:
            self.delete(topic.name)
        except OSError:
            if not self._undropped:
                self.tick.later(_RETRY_S, self._drop_again)
            self._undropped.add(topic)

    def _drop_again(self) -> None:
        undropped, self._undropped = self._undropped, set()
        for topic in undropped:
            topic.drop_if_unused()

    def drop_history(self) -> bool:
        """Delete consumed segments of topics, as many as a moment allows; return whether there were
        any."""
        return self._sweep.run()

    def registration_changed(self, topic: str, channel: str | None) -> None:
        """A topic, or a channel of it, came or went."""
        for observer in self.observers:
            observer.registration_changed(topic, channel)

    def describe(self) -> Metadata:
        """nsqd.dat as of now."""
        topics = []
        for topic in self._by_name.values():
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

    def _create(self, name: str) -> Topic:
        base_id = self._new_base_id()
        if is_ephemeral(name):
            ring = Ring(base_id=base_id, messages_max=self.options.mem_queue_size)
            topic = Topic(self, name, ring, pumped=0, paused=False)
        else:
            manifest = Manifest(base_id=base_id, awaits_channels=self.has_lookupds())
            write_with_room(self.drop_history, self.disk.directory.create_topic, name, manifest)
            log = self.disk.open_log(name, base_id)
            log.founding = self.disk.directory.founding_paths(name)
            log.sync_also(self.disk.directory.topics_path)
            topic = Topic(self, name, log, pumped=0, paused=False)
        self._by_name[name] = topic
        self._share_memory()
        _LOG.info("TOPIC(%s): created", name)
        self.discover(topic)
        self.registration_changed(name, None)
        return topic

    def _new_base_id(self) -> int:
        return new_base(os.urandom(BASE_SEED_BYTES))

    def _share_memory(self) -> None:
        share = TAILS_BYTES_MAX // max(len(self._by_name), 1)
        self.tail_bytes_max = min(TAIL_BYTES_MAX, share)

    # -- from disk ----------------------------------------------------------------------------

    def load(self) -> None:
        """Load all topics of the data directory."""
        for stored in self.stored():
            self.restore(stored)

    def stored(self) -> Iterator[StoredTopic]:
        """Read the topics in the data directory, after importing the disk queues of Go nsqd. May
        run in a thread: no topic exists yet."""
        manifests = import_queues(self.disk, self.options)
        yield from stored_topics(self.disk, self.options, manifests)

    def restore(self, stored: StoredTopic) -> None:
        """Make a topic of its stored form."""
        self._by_name[stored.entry.name] = self._restored(stored)
        self._share_memory()

    def _restored(self, stored: StoredTopic) -> Topic:
        entry, manifest, log, cursors = stored.entry, stored.manifest, stored.log, stored.cursors
        paused = {c.name: c.paused for c in entry.channels or ()}
        for name in paused:
            if not is_valid_name(name):
                _LOG.warning("skipping creation of invalid channel %s", name)
        still = entry.paused or manifest.awaits_channels or not cursors
        pumped = min(manifest.pumped, log.end) if still else log.end
        pumped = max(pumped, log.first)
        topic = Topic(self, entry.name, log, pumped=pumped, paused=entry.paused)
        topic.upkeep.restore(stored)
        topic.awaits_channels = manifest.awaits_channels
        if manifest.settings is not None:
            topic.use(manifest.settings)
        for name, state in cursors.items():
            channel = Channel(topic, name, state.delivery, paused=paused.get(name, False))
            path = self.disk.directory.cursor_path(entry.name, name)
            channel.cursor_file = CursorFile(path, sound_bytes=state.sound_bytes)
            if not state.sound_bytes:
                channel.note_change()
                # Before anything is appended: what the log has lost is seen by its end alone.
                self.disk.checkpoints.write_now(channel)
            topic.adopt(channel)
        # A kill may have come before a checkpoint knew of the newest delays.
        for deferred in log.recovered.take_deferred():
            if deferred.end <= topic.pumped:
                for channel in topic.channels.values():
                    channel.note_deferred(
                        deferred.first, deferred.dues, published_ns=deferred.published_ns
                    )
        if manifest.pumped > log.end:
            # A loss of power took unsynced messages. The next ones get their offsets: they must not
            # count as given to channels after a restart. Channels come first: on a full disk, what
            # none of them needs is deleted for this.
            topic.upkeep.manifest.try_write()
        if not stored.has_manifest:
            topic.upkeep.manifest.write_soon()
        if log.state is State.STUCK:
            self.disk.flusher.stuck(log)
        if stored.is_in_wal:  # until its segments are synced
            self.disk.flusher.grown([log])
        if log.unsynced:
            self.disk.appended(log)
        topic.follow()
        return topic


def _drop_history(topic: Topic) -> bool:
    return topic.upkeep.drop_history(newest=True)
