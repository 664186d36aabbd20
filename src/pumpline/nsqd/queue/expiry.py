"""Messages that are too old: a channel passes them over, by the batch, when their turn comes.

A message is too old `message_ttl` after it was published, or after it was due if it was published
with a delay. What a consumer has in flight is not touched. A channel nobody consumes from would
keep old messages on disk for ever, so the pass of `queue.retention` lets go of whole segments too;
it looks at no message, so it waits for the longest delay there may be as well.
"""

from typing import TYPE_CHECKING

from pumpline.core.messages.batches import AnyBatch
from pumpline.core.messages.kernels import due_run

if TYPE_CHECKING:  # a channel makes its own
    from pumpline.nsqd.queue.channel import Channel

BATCHES_MAX = 500  # in a row; of small ones from the page cache: 5 ms


class Expiry:
    """The expired messages of one channel."""

    __slots__ = ("_batches", "_channel", "count")

    def __init__(self, channel: "Channel") -> None:
        self.count = 0  # messages passed over
        self._channel = channel
        self._batches = 0  # since the last pause

    def expired_until(self, batch: AnyBatch, start: int, end: int) -> int:
        """The first offset of [start, end) that is not too old, or `end`."""
        topic = self._channel.topic
        old_ns = topic.tick.wall_ns - topic.ttl_ns  # what was published until then is too old
        if batch.timestamp_ns > old_ns:
            return start
        end = batch.first_at(old_ns + 1, start, end)
        if not batch.dues or end == start:
            return end
        if batch.due_ns(start) > old_ns:
            return start
        return batch.first + due_run(batch.dues, start - batch.first, end - batch.first, old_ns)

    def pass_over(self, start: int, end: int) -> bool:
        """[start, end), next to be delivered, is too old. False: pause first,
        so that others have their turn."""
        channel = self._channel
        if self._batches > BATCHES_MAX:
            return False
        self._batches += 1
        if self._batches > BATCHES_MAX:
            channel.topic.tick.later(0, self._resume)
            return False
        self.count += channel.delivery.skip(start, end)
        channel.note_change()
        return True

    def _resume(self) -> None:
        self._batches = 0
        self._channel.announce()

    def drop_below(self, offset: int) -> int:
        """Drop what is below `offset` and not in flight; returns how many messages."""
        dropped = self._channel.delivery.expire(offset)
        if dropped:
            self.count += dropped
            self._channel.note_change()
        return dropped
