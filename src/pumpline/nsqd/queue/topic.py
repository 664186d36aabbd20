"""A topic: a log, and the channels that read it.

Publishing goes through three hands in a tick: a connection puts messages (`queue.intake`), the tick
seals and appends them (`commit`), and the outcome is on the ticket that the connection was given.
Nothing is pumped anywhere: channels see the log up to `pumped`.

`pumped` follows the log's end while the topic has channels, is not paused, and does not wait for
channels that it has on other nodes, as a new one does. Else `pumped` stands still: what lies beyond
is the topic's own depth, kept for whichever channels there are when it moves on.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from pumpline.core.messages.batches import Builder, LogBatch
from pumpline.core.messages.delivery import Delivery
from pumpline.core.text.names import is_ephemeral
from pumpline.core.text.settings import NO_SETTINGS, TopicSettings
from pumpline.log.cursor import CursorFile
from pumpline.log.files import lacks_room
from pumpline.log.log import Log
from pumpline.log.ring import Ring
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.backlog import Backlog
from pumpline.nsqd.queue.channel import Channel
from pumpline.nsqd.queue.group_commit import GroupCommit
from pumpline.nsqd.queue.history import TopicHistory
from pumpline.nsqd.queue.holds import Holds
from pumpline.nsqd.queue.intake import TopicIntake
from pumpline.nsqd.queue.journaling import SMALL_BYTES, Journaling
from pumpline.nsqd.queue.outcome import EXITING, Ticket
from pumpline.nsqd.queue.publish_tokens import PublishTokens
from pumpline.nsqd.queue.tick import Tick
from pumpline.nsqd.storage.disk import Disk
from pumpline.nsqd.storage.disk_health import write_with_room
from pumpline.nsqd.storage.manifest import ManifestWriter

_LOG = logging.getLogger(__name__)


class NameTaken(Exception):
    """A channel cannot be created: a hold has its name."""


class TopicOwner(Protocol):
    """What a topic sees of `queue.topics`."""

    options: Options
    tick: Tick
    disk: Disk

    @property
    def tail_bytes_max(self) -> int:
        """How much of its log a topic may keep in memory, for channels that keep up."""

    def topic(self, name: str) -> "Topic":
        """The topic of that name, created if need be; OSError when it cannot be."""

    def delete(self, name: str) -> None: ...
    def drop(self, topic: "Topic") -> None: ...

    def drop_history(self) -> bool:
        """Delete consumed segments of topics, as many as a moment allows; return whether there were
        any."""

    def registration_changed(self, topic: str, channel: str | None) -> None:
        """A topic, or a channel of it, came or went."""

    @property
    def journaling(self) -> Journaling:
        """Where small publishes to quiet topics are gathered."""


class Topic:
    def __init__(
        self, owner: TopicOwner, name: str, log: Log | Ring, *, pumped: int, paused: bool
    ) -> None:
        self.owner = owner
        self.options = owner.options
        self.tick = owner.tick
        self.disk = owner.disk
        self.log = log
        self.journaled: Builder | None = None  # what the journal has of it, and the log has not
        self.intake = TopicIntake(self)
        self.name = name
        self.pub_line = b"PUB %b\n" % name.encode()
        self.ephemeral = is_ephemeral(name)
        self.paused = paused
        self.awaits_channels = False
        self.exiting = False
        self.provisional = False  # it goes if the first publish cannot be written
        self.channels: dict[str, Channel] = {}
        self.holds = Holds(self)
        self.history = TopicHistory(self)
        self.tokens = PublishTokens(self, count_max=owner.options.max_publish_tokens)
        self.pumped = pumped
        self.manifest = ManifestWriter(self)
        self.message_count = 0
        self.message_bytes = 0
        self.refused_count = 0  # messages, by a full backlog
        self.overflow_count = 0  # messages dropped from a full backlog before there were channels
        self.watchers: set[Callable[[], None]] = set()  # called when more is visible, or it ends
        self.settings = NO_SETTINGS
        self.ttl_ns = 0  # 0: messages do not get too old
        self.attempts_max = 0  # 0: no dead letters
        self._backlog: Backlog | None = None  # none: no bound
        self._is_small = False  # the last batch that did not come from the journal
        self._visible = log.end  # of the log; behind its end while a group commit is under way
        self._deferred: list[LogBatch] = []  # published with a delay, not pumped yet
        self.group_commit = GroupCommit(self)

    @property
    def depth(self) -> int:
        """Messages that no channel has been given."""
        return self._visible - self.pumped

    @property
    def visible_end(self) -> int:
        """Everything below is in the log, and was acknowledged or is about to be."""
        return min(self._visible, self.log.end)

    # -- publishing ---------------------------------------------------------------------------

    def letterbox(self) -> "Topic":
        """The topic for dead letters, created if need be; OSError when it cannot be."""
        return self.owner.topic(self.settings.dead_letters_of(self.name))

    def commit(self) -> None:
        reason = None
        if self.journaled is not None and not self.exiting:
            reason = self.file()
        if reason is None and self.owner.journaling.delays(self) and not self.exiting:
            return  # it is called again
        batches, ticket = self.intake.take()
        if reason is None and batches:
            reason = self._refusal(batches)
        if reason is not None or not batches:
            ticket.settle(reason)
            return
        reason = self._take(batches)
        if reason is not None:
            ticket.settle(reason)
            self.drop_if_unused()
            return
        self._is_small = len(batches) == 1 and batches[0].size_bytes < SMALL_BYTES
        self.group_commit.appended(ticket)
        if self._is_small:
            self.owner.journaling.offer(self)

    def file(self) -> str | None:
        """Append what the journal has of the topic, and was acknowledged, to the log, where all can
        see it; return why it failed, if it did."""
        journaling = self.owner.journaling
        journaling.leave(self)
        batch = journaling.batch_of(self)
        if batch is None:
            return None
        reason = self.group_commit.closed
        if reason is None:
            reason = self._take([batch])
        if reason is None:
            self.group_commit.filed(journaling.filed(self, batch))
            return None
        journaling.stuck(self)
        if self._visible < batch.end:
            self.show(batch.end)  # acknowledged: it counts, and is delivered later
        return reason

    def unjournal(self) -> None:
        """Messages are about to be put that do not go to the journal."""
        self.owner.journaling.leave(self)

    def restore_journaled(self, journaled: Builder) -> None:
        """The journal has messages that could not be filed before."""
        self.owner.journaling.restore(self, journaled)
        self.show(journaled.end)

    def deliver_journaled(self, *, at_once: bool) -> None:
        """A consumer waits for what the journal has of the topic."""
        if at_once:
            self.file()
        else:
            self.owner.journaling.deliver(self)

    @property
    def may_gather(self) -> bool:
        """Whether what is published may go to the journal first: nobody follows the log, and
        nothing has to be checked before."""
        return not (self.watchers or self._backlog is not None or self.intake or self.exiting)

    @property
    def is_awaited(self) -> bool:
        """Whether a consumer waits for what is published."""
        return any(channel.has_takers for channel in self.channels.values())

    def _refusal(self, batches: list[LogBatch]) -> str | None:
        if self.exiting:
            return EXITING
        if self.group_commit.closed is not None:
            return self.group_commit.closed
        return None if self._backlog is None else self._backlog.refusal(batches)

    def _take(self, batches: list[LogBatch]) -> str | None:
        """Append these; return why it failed, if it did."""
        try:
            self._append(batches)
        except OSError as error:
            size_bytes = sum(batch.size_bytes for batch in batches)
            what = f"topic {self.name}"
            return self.disk.health.failed(error, what, size_bytes=size_bytes)
        for batch in batches:
            self.message_count += batch.count
            self.message_bytes += batch.body_bytes
            if batch.due_ns:
                self._deferred.append(batch)
        return None

    def uncount(self, batch: LogBatch) -> None:
        """The log has this one no more: it will be appended again."""
        self.message_count -= batch.count
        self.message_bytes -= batch.body_bytes

    def _append(self, batches: list[LogBatch]) -> None:
        """As `write_with_room`, which costs 0.35 µs for its arguments, once a tick and topic."""
        try:
            self.log.append(batches)
        except OSError as error:
            if not lacks_room(error) or not self.make_room():
                raise
            self.log.append(batches)

    def drop_if_unused(self) -> None:
        """A publish is refused: delete the topic if nobody else has ever asked for it."""
        used = self.channels or self.paused or self.holds.by_name or self.settings != NO_SETTINGS
        if self.provisional and not used and not self.intake and not self.exiting:
            self.owner.drop(self)

    def show(self, end: int) -> None:
        """Messages below `end` may be delivered."""
        self.provisional = self.provisional and end <= self._visible
        self._visible = max(end, self._visible)  # what the journal has may have been shown before
        if self.watchers:
            self._wake_watchers()
        if self.channels and not self.paused and not self.awaits_channels:
            self._pump()
        else:
            self._deferred.clear()
            self.share()
        if self._backlog is not None:
            self._backlog.make_room()

    def _wake_watchers(self) -> None:
        for wake in tuple(self.watchers):
            wake()

    def _pump(self) -> None:
        self.pumped = self._visible
        if self._deferred:
            self._note_deferred()
        share = self.tick.share
        remembered = False
        for channel in self.channels.values():
            if channel.has_takers:
                share(channel)
            remembered = remembered or channel.cursor_file is not None
        if not remembered:
            self.manifest.write_soon()  # ephemeral channels have no cursor that says it
        share(self)

    def _note_deferred(self) -> None:
        shown = [batch for batch in self._deferred if batch.end <= self.pumped]
        del self._deferred[: len(shown)]
        for batch in shown:
            for channel in self.channels.values():
                channel.note_deferred(
                    batch.first, batch.end, due_ns=batch.due_ns, delay_ns=batch.delay_ns
                )

    def share(self) -> None:
        """Forget the part of the log's tail that no channel will read, after they were served."""
        log = self.log
        lowest = log.end if self.channels or not log.keeps_unfinished else 0
        for channel in self.channels.values():
            delivery = channel.delivery
            lowest = min(lowest, delivery.low if log.keeps_unfinished else delivery.next)
        messages_max, bytes_max = self.options.mem_queue_size, self.owner.tail_bytes_max
        log.trim(lowest, messages_max=messages_max, bytes_max=bytes_max)

    # -- syncing (see queue.group_commit) ------------------------------------------------------

    def synced(self, end: int) -> None:
        """All messages below `end` are on disk, and acknowledged."""
        self.tokens.synced(end)
        if self._is_small:
            self.owner.journaling.offer(self)

    def abandon(self) -> list[Ticket]:
        """Drop the messages that are not appended yet; returns the tickets of who waits."""
        tickets = self.tokens.abandon()
        _, ticket = self.intake.take()
        self._deferred.clear()
        return [*tickets, ticket]

    # -- channels -----------------------------------------------------------------------------

    def channel(self, name: str) -> Channel:
        """The channel of that name, created if need be; NameTaken if that is a hold's."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self._create_channel(name)
        return channel

    def _create_channel(self, name: str) -> Channel:
        if name in self.holds.by_name:
            raise NameTaken(name)
        channel = Channel(self, name, Delivery(self.pumped), paused=False)
        if not self.ephemeral and not channel.ephemeral:
            file = CursorFile(self.disk.directory.cursor_path(self.name, name))
            write_with_room(self.make_room, self.disk.checkpoints.write_first, channel, file)
            channel.cursor_file = file
        self.adopt(channel)
        _LOG.info("TOPIC(%s): new channel(%s)", self.name, name)
        self.owner.registration_changed(self.name, name)
        return channel

    def adopt(self, channel: Channel) -> None:
        """Add a channel, new or from disk."""
        self.channels[channel.name] = channel
        if not self.paused and not self.awaits_channels:
            if self.pumped < self._visible:
                self._pump()
            else:
                self.tick.share(channel)
        channel.start()

    def delete_channel(self, name: str) -> OSError | None:
        """KeyError if there is none, OSError when it cannot be deleted; what is returned says why a
        kill would still give what it had to the next channel."""
        channel = self.channels[name]
        _LOG.info("TOPIC(%s): deleting channel %s", self.name, name)
        others = [c for c in self.channels.values() if c is not channel]
        is_last = not others or (channel.cursor_file and not any(c.cursor_file for c in others))
        # No cursor will say any more what was pumped.
        unwritten = self.manifest.try_write() if is_last else None
        self.disk.checkpoints.forget(channel)  # OSError: then it is as it was
        del self.channels[name]
        channel.close()
        self.owner.registration_changed(self.name, name)
        if self.ephemeral and not self.channels:
            self.owner.delete(self.name)
        return unwritten

    # -- management ---------------------------------------------------------------------------

    def pause(self) -> None:
        """OSError, and no pause, when it cannot be written what channels were given before."""
        if not self.paused:
            self.manifest.write()
        self.paused = True

    def unpause(self) -> None:
        self.paused = False
        self.show(self._visible)

    def await_channels(self) -> None:
        """Hold messages back, as if paused, until the channels of other nodes are created."""
        self.awaits_channels = True

    def channels_known(self) -> None:
        """The channels that other nodes have are created: move on."""
        self.awaits_channels = False
        if not self.exiting:
            self.manifest.try_write()
            self.show(self._visible)

    def empty(self) -> None:
        """Drop what no channel has been given; OSError when that cannot be written yet."""
        for channel in self.channels.values():
            channel.skip(self.pumped, self._visible)
        self.pumped = self._visible
        self.manifest.write()

    def store_settings(self, settings: TopicSettings) -> None:
        """Write settings to disk, then use them; OSError if they cannot be written.

        They survive a kill from here on, and a loss of power after `Directory.sync_manifest`.
        """
        self.manifest.write_settings(settings)
        self.use(settings)
        if self._backlog is not None:
            self._backlog.make_room()
        for channel in self.channels.values():
            channel.announce()

    def use(self, settings: TopicSettings) -> None:
        """Use these settings from now on."""
        self.settings = settings
        self.ttl_ns = settings.message_ttl_ns or 0
        self.attempts_max = settings.max_attempts or 0
        self._backlog = Backlog.of(self, settings)

    def close(self) -> None:
        """Stop, with everything on disk; the caller writes the checkpoints first."""
        self.exiting = True
        self._wake_watchers()
        if not self.ephemeral and self.log.mark() != self.manifest.clean_mark:
            clean = self.group_commit.cut() and self.tokens.close() and not self.log.unsynced
            self.manifest.try_write(clean=clean)
        self.log.close()

    def delete(self) -> None:
        """OSError when its directory cannot be put out of sight: then it is as it was."""
        directory = self.disk.directory
        removed = "" if self.ephemeral else directory.remove_topic(self.name)
        self.exiting = True
        self._wake_watchers()
        for channel in self.channels.values():
            channel.close()
        self.disk.checkpoints.forget_all(self.channels.values())
        self.channels.clear()
        self.owner.journaling.forget(self)
        self.group_commit.close()
        self.log.close()
        if removed:
            self.disk.offload(lambda: directory.shred(removed), lambda _: None)

    # -- history ------------------------------------------------------------------------------

    def forget_below(self, end: int) -> int:
        """Without channels: drop what is kept below `end` for the first one; returns how many
        messages."""
        forgotten = max(min(end, self._visible) - self.pumped, 0)
        if forgotten:
            self.pumped += forgotten
            self.manifest.write_soon()
        return forgotten

    def make_room(self) -> bool:
        """The disk is full: delete consumed history, here or else in other topics; return whether
        there was any."""
        return self.drop_history(newest=True) or self.owner.drop_history()

    def drop_history(self, *, newest: bool) -> bool:
        """Delete all consumed segments, as `TopicHistory.drop`."""
        return self.history.drop(newest=newest)
