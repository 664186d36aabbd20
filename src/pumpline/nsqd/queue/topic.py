"""A topic: a log, and the channels that read it.

This is the core of a topic; `publishing` adds messages, and `upkeep` has what is kept beside the
log: manifest, holds, publish tokens, consumed history. `log.group_commit` commits messages in the
tick. Channels read the log up to `pumped`; nothing is copied for them.

`pumped` is the log's end while the topic has channels, is not paused, and does not wait for the
channels that it has on other nodes, as a new topic does. Else `pumped` stands still: the messages
beyond are the topic's own depth, kept for the channels that it has when it moves on.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from pumpline.core.messages.batches import LogBatch
from pumpline.core.messages.delivery import Delivery
from pumpline.core.text.names import is_ephemeral
from pumpline.core.text.settings import NO_SETTINGS, TopicSettings
from pumpline.log.completion import EXITING
from pumpline.log.cursor import CursorFile
from pumpline.log.log import Log
from pumpline.log.ring import Ring
from pumpline.nsqd.queue.backlog import Backlog
from pumpline.nsqd.queue.channel import Channel
from pumpline.nsqd.queue.publishing import Publishing
from pumpline.nsqd.queue.topic_state import CLOSED, OPEN, PROVISIONAL, TopicState
from pumpline.nsqd.queue.upkeep import Upkeep
from pumpline.nsqd.storage.disk_health import write_with_room

if TYPE_CHECKING:  # it makes the topics
    from pumpline.nsqd.queue.topics import Topics

_LOG = logging.getLogger(__name__)


class NameTaken(Exception):
    """A channel cannot be created: a hold has its name."""


class Topic:
    def __init__(
        self, owner: "Topics", name: str, log: Log | Ring, *, pumped: int, paused: bool
    ) -> None:
        self.owner = owner
        self.options = owner.options
        self.tick = owner.tick
        self.disk = owner.disk
        self.log = log
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.state: TopicState = OPEN
        self.paused = paused
        self.awaits_channels = False
        self.channels: dict[str, Channel] = {}
        self.watchers: set[Callable[[], None]] = set()  # see `watch`
        self.settings = NO_SETTINGS
        self.ttl_ns = 0  # 0: messages do not expire
        self.attempts_max = 0  # 0: no dead letters
        self._stopped_at: int | None = pumped  # `pumped`, if it stands still
        self._counted_from = log.end
        self._may_rest = False  # while its channels wait for coalesced delivery
        self._deferred: list[LogBatch] = []  # published with a delay, not acknowledged yet
        self.publishing = Publishing(self)
        self.upkeep = Upkeep(self)
        log.follow(self._on_visible)
        if isinstance(log, Log):
            log.on_written = self._trim_later

    @property
    def pumped(self) -> int:
        """Channels may read the log up to here."""
        return self.log.end if self._stopped_at is None else self._stopped_at

    @property
    def depth(self) -> int:
        """Messages that no channel has been given."""
        return self.log.count(self.pumped, self.log.end)

    @property
    def message_count(self) -> int:
        """Messages published since the process started, dropped ones of a ring included."""
        return self.log.end - self._counted_from + self.log.dropped

    # -- published messages -------------------------------------------------------------------

    def ensure_dead_letter_topic(self) -> "Topic":
        """The topic for dead letters, created if need be; OSError when it cannot be."""
        return self.owner.ensure(self.settings.dead_letters_of(self.name))

    def note_deferred(self, batches: list[LogBatch]) -> None:
        """These were published with a delay: channels start their timers when they can read
        them."""
        self._deferred += batches
        self.follow()

    def forget_refused(self) -> None:
        """The log has forgotten messages that were refused."""
        self._deferred = [batch for batch in self._deferred if batch.end <= self.log.accepted]

    def skip_lost_offsets(self) -> None:
        """Before the first message after a loss of power: leave out offsets that messages may have
        had which are lost. To all channels they are finished."""
        log = self.log
        if not isinstance(log, Log):
            return
        try:
            log.flush()
        except OSError:  # the publish is refused for the same reason, or the next one tries again
            return
        log.seal_open()
        log.trim(log.end, messages_max=0, bytes_max=0)
        if log.tail:  # something is not synced, and has to be in memory
            return
        count, log.offsets_to_skip = log.offsets_to_skip, 0
        start, end = log.end, log.end + count
        log.skip_to(end)
        _LOG.info("TOPIC(%s): goes on at offset %d after a loss of power", self.name, end)
        self._counted_from += count
        if self._stopped_at == start:
            self._stopped_at = end
        for channel in self.channels.values():
            channel.skip(start, end)

    def drop_if_unused(self) -> None:
        """A publish is refused: delete the topic if that publish created it, and nobody else has
        asked for it since."""
        is_used = bool(
            self.channels
            or self.paused
            or self.upkeep.holds.by_name
            or self.settings != NO_SETTINGS
            or self.publishing
            or self.log.accepted > self._counted_from
        )
        if self.state is PROVISIONAL and not is_used:
            self.owner.drop(self)

    def _on_visible(self) -> None:
        """The log's end has grown."""
        if self.state is PROVISIONAL or self._deferred or self.watchers:
            self._note_growth()
        waits = self._show() if self._stopped_at is None else False
        if self.publishing.backlog is not None:
            self.publishing.backlog.make_room()
        if self.ephemeral:
            self.tick.dispatch(self)
        elif waits and self._may_rest:
            self.log.rest()  # until `resume`

    def _note_growth(self) -> None:
        if self.state is PROVISIONAL:
            self.state = OPEN
        for wake in tuple(self.watchers):
            wake()
        if self._stopped_at is None:
            self._start_timers()
        else:
            self._deferred.clear()
        self.follow()

    def _show(self) -> bool:
        """Let channels deliver up to `pumped`; returns whether any waits for coalesced delivery."""
        waits = False
        remembered = False
        for channel in self.channels.values():
            if channel.has_ready_consumers:
                waits = not self.tick.deliver(channel) or waits
            remembered = remembered or channel.cursor_file is not None
        if not remembered:
            self.upkeep.manifest.write_soon()  # no cursor says what ephemeral channels were given
        return waits

    def _start_timers(self) -> None:
        shown = [batch for batch in self._deferred if batch.end <= self.pumped]
        del self._deferred[: len(shown)]
        for batch in shown:
            for channel in self.channels.values():
                channel.note_deferred(batch.first, batch.dues, published_ns=batch.timestamp_ns)

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever there is more to read, or the topic ends."""
        self.watchers.add(wake)
        self.follow()

    def unwatch(self, wake: Callable[[], None]) -> None:
        self.watchers.discard(wake)
        self.follow()

    def follow(self) -> None:
        """Let the log call `_on_visible`, unless the topic is idle and has nothing to do there."""
        self._may_rest = (
            not self.watchers
            and not self._deferred
            and self.state is not PROVISIONAL
            and not self.ephemeral
            and self.publishing.backlog is None
            and all(channel.cursor_file is not None for channel in self.channels.values())
        )
        is_idle = self._may_rest and not any(c.consumers for c in self.channels.values())
        self.log.follow(None if is_idle else self._on_visible)

    def resume(self) -> None:
        """A channel that waited for coalesced delivery is served."""
        self.log.follow(self._on_visible)

    def _trim_later(self) -> None:
        self.tick.dispatch(self)

    def dispatch(self) -> None:
        """Forget the part of the log's tail that no channel will read, after they were served."""
        log = self.log
        lowest = log.end if self.channels or not log.keeps_unfinished else 0
        for channel in self.channels.values():
            delivery = channel.delivery
            lowest = min(lowest, delivery.low if log.keeps_unfinished else delivery.next)
        messages_max, bytes_max = self.options.mem_queue_size, self.owner.tail_bytes_max
        log.trim(lowest, messages_max=messages_max, bytes_max=bytes_max)

    # -- channels -----------------------------------------------------------------------------

    def ensure_channel(self, name: str) -> Channel:
        """The channel of that name, created if need be; NameTaken if that is a hold's."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self._create_channel(name)
        return channel

    def _create_channel(self, name: str) -> Channel:
        if name in self.upkeep.holds.by_name:
            raise NameTaken(name)
        delivery = Delivery(self.pumped)
        for gap in self.log.gaps:
            delivery.skip(*gap)
        channel = Channel(self, name, delivery, paused=False)
        if not self.ephemeral and not channel.ephemeral:
            file = CursorFile(self.disk.directory.cursor_path(self.name, name))
            write_with_room(self.log.make_room, self.disk.checkpoints.write_first, channel, file)
            channel.cursor_file = file
        self.adopt(channel)
        _LOG.info("TOPIC(%s): new channel(%s)", self.name, name)
        self.owner.registration_changed(self.name, name)
        return channel

    def adopt(self, channel: Channel) -> None:
        """Add a channel, new or from disk."""
        self.channels[channel.name] = channel
        self._pump()
        self.tick.dispatch(channel)
        channel.start()
        self.follow()

    def delete_channel(self, name: str) -> OSError | None:
        """KeyError if there is none, OSError when it cannot be deleted. Returns the manifest's
        write error, if any: until it is written, a crash redelivers to the next channel."""
        channel = self.channels[name]
        _LOG.info("TOPIC(%s): deleting channel %s", self.name, name)
        others = [c for c in self.channels.values() if c is not channel]
        is_last = not others or (channel.cursor_file and not any(c.cursor_file for c in others))
        # From here on no cursor says what was pumped.
        unwritten = self.upkeep.manifest.try_write() if is_last else None
        self.disk.checkpoints.forget(channel)  # OSError: then it is as it was
        pumped = self.pumped
        del self.channels[name]
        if not self.channels:
            self._stopped_at = pumped
        channel.close()
        self.follow()
        self.owner.registration_changed(self.name, name)
        if self.ephemeral and not self.channels:
            self.owner.delete(self.name)
        return unwritten

    # -- management ---------------------------------------------------------------------------

    def pause(self) -> None:
        """OSError, and no pause, when the manifest, which says what channels were given, cannot be
        written."""
        if not self.paused:
            self.upkeep.manifest.write()
        self._stopped_at = self.pumped
        self.paused = True

    def unpause(self) -> None:
        self.paused = False
        self._pump()

    def _pump(self) -> None:
        """Let `pumped` follow the log's end, if it may."""
        may_pump = self.channels and not self.paused and not self.awaits_channels
        if may_pump and self._stopped_at is not None:
            self._stopped_at = None
            self._start_timers()
            self._show()
            self.tick.dispatch(self)

    def await_channels(self) -> None:
        """Hold messages back, as if paused, until the channels of other nodes are created."""
        self._stopped_at = self.pumped
        self.awaits_channels = True

    def channels_known(self) -> None:
        """The channels that other nodes have are created: let `pumped` move on."""
        self.awaits_channels = False
        if self.state is not CLOSED:
            self.upkeep.manifest.try_write()
            self._pump()

    def empty(self) -> None:
        """Drop the messages that no channel has been given; OSError when the manifest cannot be
        written yet."""
        self.skip_to(self.log.end)
        self.upkeep.manifest.write()

    def skip_to(self, offset: int) -> None:
        """Drop the messages below `offset` that no channel has been given."""
        if self._stopped_at is not None and self._stopped_at < offset:
            for channel in self.channels.values():
                channel.skip(self._stopped_at, offset)
            self._stopped_at = offset

    def forget_below(self, end: int) -> int:
        """Without channels: drop the messages below `end` that are kept for the first one; returns
        how many."""
        end = min(end, self.log.end)
        if end <= self.pumped:
            return 0
        forgotten = self.log.count(self.pumped, end)
        self.skip_to(end)
        self.upkeep.manifest.write_soon()
        return forgotten

    def store_settings(self, settings: TopicSettings) -> None:
        """Write settings to disk, then use them; OSError if they cannot be written.

        They survive a kill from here on, and a loss of power after `Directory.sync_manifest`.
        """
        before, self.settings = self.settings, settings
        try:
            self.upkeep.manifest.replace()
        except OSError:
            self.settings = before
            raise
        self.use(settings)
        if self.publishing.backlog is not None:
            self.publishing.backlog.make_room()
        for channel in self.channels.values():
            channel.announce()

    def use(self, settings: TopicSettings) -> None:
        """Use these settings from now on."""
        self.settings = settings
        self.ttl_ns = settings.message_ttl_ns or 0
        self.attempts_max = settings.max_attempts or 0
        self.publishing.backlog = Backlog.of(self, settings)
        if self.publishing.backlog is not None:
            self.owner.group_commit.commit()
            self.log.unshare_batch()  # each publish is checked from now on
        self.follow()

    def close(self) -> bool:
        """Stop; the caller writes the checkpoints and syncs the log first. Returns whether the
        segments have all messages, and nothing of them is unsynced."""
        self._exit()
        is_safe = self.upkeep.close()
        self.log.close()
        return is_safe

    def _exit(self) -> None:
        self.state = CLOSED
        for wake in tuple(self.watchers):
            wake()

    def delete(self) -> None:
        """OSError, and no change, when its directory cannot be moved away."""
        directory = self.disk.directory
        self.owner.group_commit.commit()
        removed = "" if self.ephemeral else directory.remove_topic(self.name)
        self._exit()
        for channel in self.channels.values():
            channel.close()
        self.disk.checkpoints.forget_all(self.channels.values())
        self.channels.clear()
        self.upkeep.tokens.sync_failed(EXITING)
        self.log.close()
        if removed:
            self.disk.offload(lambda: directory.shred(removed), lambda _: None)
