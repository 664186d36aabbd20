"""A topic's history: what every channel and hold has passed, and what deletes it.

Knows the log's segments and sees a topic as a small protocol; must not know when history goes
(`queue.retention`, `queue.history_sweep`).
"""

import errno
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a topic makes its own
    from pumpline.nsqd.queue.topic import Topic

_LOG = logging.getLogger(__name__)


class TopicHistory:
    def __init__(self, topic: "Topic") -> None:
        self._topic = topic

    @property
    def low(self) -> int:
        """Everything below is finished by every channel with a cursor, and passed by every hold.

        What no channel has been given is kept for the first one, unless holds are all there is:
        what they have passed is history.
        """
        topic = self._topic
        lows = [c.delivery.low for c in topic.channels.values() if c.cursor_file is not None]
        held = topic.holds.low
        if held is not None:
            lows.append(held)
        if not lows or (topic.channels and lows == [held]):
            lows.append(topic.pumped)
        return min(lows)

    def retire(self, count: int) -> None:
        """Delete the `count` oldest segments."""
        topic = self._topic
        end = topic.log.segments[count].first
        topic.tokens.retiring(end)
        topic.log.retire(count)
        topic.tokens.retiring(end)  # a full disk may have had no room for them before
        first = topic.log.first
        if topic.pumped < first:  # as after a paused topic dropped its oldest messages
            topic.skip_to(first)

    def drop(self, *, newest: bool) -> bool:
        """Delete all consumed segments; return whether there were any. `newest`: the one that is
        written to as well, if everything in it is consumed."""
        log = self._topic.log
        dropped = self._drop_consumed()
        if newest and self.low >= log.end and self._may_drop_newest():
            with suppress(OSError):  # no file can be created
                log.roll()
            dropped += self._drop_consumed()
        if dropped:
            name = self._topic.name
            _LOG.warning("TOPIC(%s): dropped %d consumed segments to free disk", name, dropped)
        return bool(dropped)

    def _may_drop_newest(self) -> bool:
        """Whether its publish tokens are filed, or can be as soon as it is gone."""
        error = self._topic.tokens.retiring(self._topic.log.end)
        return error is None or error.errno in (errno.ENOSPC, errno.EDQUOT)

    def _drop_consumed(self) -> int:
        count = len(self._topic.log.consumed(self.low))
        if count:
            self.retire(count)
        return count
