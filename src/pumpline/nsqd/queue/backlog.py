"""A bound on how far channels may fall behind: `max_depth` messages, `max_bytes` of log.

A channel's backlog is what it has not finished: waiting, in flight and deferred. That of a topic
without channels is what it keeps for its first one. Ephemeral channels have a bound of their own.

- `reject`: a publish that would take a channel beyond the bound fails, with all that is published
  to the topic in the same tick: they are one batch.
- `drop-oldest`: the publish succeeds, and every channel beyond the bound lets go of its oldest
  messages that are not in flight; they are counted.

Messages are counted exactly; bytes are taken from the index of the segments, which has a point for
every 16 KiB, and between points as if all messages were of a size.
"""

from typing import TYPE_CHECKING

from pumpline.core.messages.batches import LogBatch
from pumpline.core.messages.spans import back_from
from pumpline.core.text.settings import DROP_OLDEST, TopicSettings
from pumpline.nsqd.queue.channel import Channel

if TYPE_CHECKING:  # a topic makes its own
    from pumpline.nsqd.queue.topic import Topic

BACKLOG_FULL = "backlog full"  # how a refusal begins

_UNBOUNDED = 1 << 63
_ROUNDS_MAX = 8  # to come below max_bytes: each round takes the mean size of what is left


class Backlog:
    def __init__(self, topic: "Topic", settings: TopicSettings) -> None:
        self._topic = topic
        self._log = topic.log
        self._drops = settings.when_full == DROP_OLDEST
        self._depth_max = settings.max_depth or _UNBOUNDED
        self._bytes_max = settings.max_bytes or _UNBOUNDED

    @classmethod
    def of(cls, topic: "Topic", settings: TopicSettings) -> "Backlog | None":
        """None: no bound."""
        bounded = settings.max_depth is not None or settings.max_bytes is not None
        return cls(topic, settings) if bounded and not topic.ephemeral else None

    def refusal(self, batches: list[LogBatch]) -> str | None:
        """Why these batches cannot be published; None if they can."""
        if self._drops:
            return None
        count = sum(batch.count for batch in batches)
        size_bytes = sum(batch.size_bytes for batch in batches)
        end = self._log.accepted
        over = None
        if self._depth_max < _UNBOUNDED and self._depth(end) + count > self._depth_max:
            over = f"max_depth of {self._depth_max} reached"
        elif self._bytes_max < _UNBOUNDED and self._bytes(end) + size_bytes > self._bytes_max:
            over = f"max_bytes of {self._bytes_max} reached"
        if over is None:
            return None
        self._topic.publishing.refused_count += count
        return f"{BACKLOG_FULL}: {over}"

    def make_room(self) -> None:
        """Drop the oldest messages until every channel is within the bound."""
        if not self._drops:
            return
        topic = self._topic
        end = topic.log.end
        if not topic.channels:
            self._advance_pump(end)
        for channel in self._channels():
            over = _unfinished(channel, end) - self._depth_max
            if over > 0:
                self._drop(channel, over, end)
            if self._bytes_max < _UNBOUNDED:
                self._drop_bytes(channel, end)

    def _drop_bytes(self, channel: Channel, end: int) -> None:
        for _ in range(_ROUNDS_MAX):
            over_bytes = self._bytes_of(channel, end) - self._bytes_max
            left = _unfinished(channel, end)
            if over_bytes <= 0 or not left:
                return
            mean_bytes = max((self._bytes_max + over_bytes) // left, 1)
            if not self._drop(channel, -(-over_bytes // mean_bytes), end):
                return

    def _drop(self, channel: Channel, count: int, end: int) -> int:
        dropped = channel.delivery.drop(count, end)
        channel.overflow_count += dropped
        channel.note_change()
        return dropped

    def _advance_pump(self, end: int) -> None:
        topic = self._topic
        count = self._log.count(topic.pumped, end)
        keep = min(self._depth_max, count)
        size_bytes = self._log.bytes_from(topic.pumped)
        if size_bytes > self._bytes_max:
            keep = min(keep, keep * self._bytes_max // size_bytes)
        if keep < count:
            kept_from = back_from(self._log.gaps, end, keep)
            topic.publishing.overflow_count += topic.forget_below(kept_from)

    # -- measures -----------------------------------------------------------------------------

    def _channels(self) -> list[Channel]:
        return [each for each in self._topic.channels.values() if each.cursor_file is not None]

    def _depth(self, end: int) -> int:
        unfinished = [_unfinished(channel, end) for channel in self._channels()]
        return max(unfinished, default=self._log.count(self._kept_from(), end))

    def _bytes(self, end: int) -> int:
        sizes = [self._bytes_of(channel, end) for channel in self._channels()]
        return max(sizes) if sizes else self._log.bytes_from(self._kept_from())

    def _kept_from(self) -> int:
        """Without channels: what is kept for the first one, unless holds are all there is."""
        return max(self._topic.pumped, self._topic.upkeep.low)

    def _bytes_of(self, channel: Channel, end: int) -> int:
        """Exact for what was never delivered, by the mean size for the rest."""
        log = self._log
        following = channel.delivery.next
        fresh = channel.delivery.fresh(end)
        others = max(_unfinished(channel, end) - fresh, 0)
        mean_bytes = log.size_bytes // max(log.count(log.first, log.end), 1)
        return log.bytes_from(following) + others * mean_bytes


def _unfinished(channel: Channel, end: int) -> int:
    finished = channel.delivery.finished
    return max(end - finished.low - finished.above, 0)
