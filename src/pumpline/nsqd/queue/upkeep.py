"""The upkeep of one topic: its manifest, holds, publish tokens and consumed history.

*History* is the part of the log that every channel and hold has passed. This module says how far it
goes and deletes it; `queue.retention` and `queue.history_sweep` decide when.
"""

import errno
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from pumpline.core.text.settings import NO_SETTINGS
from pumpline.log.directory import Manifest
from pumpline.log.log import Log, State
from pumpline.nsqd.storage.holds import Holds
from pumpline.nsqd.storage.loading import StoredTopic
from pumpline.nsqd.storage.manifest import ManifestWriter
from pumpline.nsqd.storage.publish_tokens import PublishTokens

if TYPE_CHECKING:  # a topic makes its own
    from pumpline.nsqd.queue.topic import Topic

_LOG = logging.getLogger(__name__)


class Upkeep:
    def __init__(self, topic: "Topic") -> None:
        log, disk, count_max = topic.log, topic.disk, topic.options.max_publish_tokens
        self.holds = Holds(topic.name, log, later=disk.later)
        self.tokens = PublishTokens(topic.name, log, disk, count_max=count_max)
        self.manifest = ManifestWriter(topic.name, log, disk, describe=self._describe)
        self._topic = topic
        self._log = log
        log.make_room = self.make_room
        if isinstance(log, Log):
            log.syncing.on_synced = self.tokens.synced
            log.syncing.on_failed = self.tokens.sync_failed

    def restore(self, stored: StoredTopic) -> None:
        """After a restart."""
        self.holds.restore(stored.holds)
        self.tokens.restore(stored.tokens)
        self.manifest.clean_mark = stored.manifest.clean
        self.manifest.is_missing = not stored.has_manifest

    def _describe(self) -> Manifest:
        topic = self._topic
        return Manifest(
            base_id=self._log.base_id,
            pumped=topic.pumped,
            settings=None if topic.settings == NO_SETTINGS else topic.settings,
            awaits_channels=topic.awaits_channels,
        )

    def close(self) -> bool:
        """Write what a stop has to leave. Returns whether the segments have all messages, and
        nothing of them is unsynced."""
        log = self._log
        if not isinstance(log, Log):
            return True
        is_safe = log.written == log.end and not log.unsynced and log.state is not State.STUCK
        if log.mark() != self.manifest.clean_mark:
            self.manifest.try_write(clean=is_safe and self.tokens.close())
        return is_safe

    # -- history ------------------------------------------------------------------------------

    @property
    def low(self) -> int:
        """Every channel with a cursor has finished everything below, and every hold has passed it.

        Messages that no channel has been given are kept for the first channel. If the topic has
        holds only, messages that they have passed are history.
        """
        topic = self._topic
        lows = [c.delivery.low for c in topic.channels.values() if c.cursor_file is not None]
        held = self.holds.low
        if held is not None:
            lows.append(held)
        if not lows or (topic.channels and lows == [held]):
            lows.append(topic.pumped)
        return min(lows)

    def may_retire(self, count: int, otherwise: Callable[[], None]) -> bool:
        """Whether the `count` oldest segments can go now: their publish tokens are on the disk. If
        not, `otherwise` is called when they may be."""
        return self.tokens.may_retire(self._log.segments[count].first, otherwise)

    def retire(self, count: int) -> None:
        """Delete the `count` oldest segments."""
        log, tokens = self._log, self.tokens
        end = log.segments[count].first
        error = tokens.retiring(end)
        log.retire(count)
        if error is not None:  # a full disk may have had no room for them before
            tokens.retiring(end)
        if self._topic.pumped < log.first:  # as after a paused topic dropped its oldest messages
            self._topic.skip_to(log.first)

    def drop_history(self, *, newest: bool) -> bool:
        """Delete all consumed segments; return whether there were any. `newest`: also the one that
        is written to, if everything in it is consumed."""
        log = self._log
        dropped = self._retire_consumed()
        if newest and self.low >= log.end and self._may_drop_newest():
            with suppress(OSError):  # no file can be created
                log.roll()
            dropped += self._retire_consumed()
        if dropped:
            name = self._topic.name
            _LOG.warning("TOPIC(%s): dropped %d consumed segments to free disk", name, dropped)
        return bool(dropped)

    def make_room(self) -> bool:
        """The disk is full: delete history, of this topic or else of others; return whether there
        was any."""
        return self.drop_history(newest=True) or self._topic.owner.drop_history()

    def _may_drop_newest(self) -> bool:
        """Whether its publish tokens are in their file, or can be as soon as it is deleted."""
        error = self.tokens.retiring(self._log.end)
        return error is None or error.errno in (errno.ENOSPC, errno.EDQUOT)

    def _retire_consumed(self) -> int:
        count = len(self._log.consumed(self.low))
        if count:
            self.retire(count)
        return count
