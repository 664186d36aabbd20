"""Dead letters: messages of a channel that were delivered as often as they may be.

A message that is requeued after its last attempt (by REQ, a timeout, or its consumer's end) is
published to the dead-letter topic. It is finished in the channel once that topic has synced it,
as the channel's cursor may reach the disk before the letter. A crash in between delivers it again
with its attempts, so it may be a dead letter twice, and is never lost. Until then it is neither
waiting nor in flight. A failed write or fsync is tried again every second.

Form `json` (the default) says where the message came from, and keeps the body readable; its fields
are in `core/messages/dead_letter.py`. Form `body` is the body alone, for consumers that handle dead
letters like the original messages.
"""

import logging
from collections import deque
from typing import TYPE_CHECKING

from pumpline.core.messages.batches import AnyBatch
from pumpline.core.messages.dead_letter import dead_letter
from pumpline.core.messages.frame import MESSAGE_OVERHEAD_BYTES
from pumpline.core.text.settings import FORM_BODY
from pumpline.log.completion import EXITING
from pumpline.log.reader import Reader
from pumpline.log.ring import RingReader

if TYPE_CHECKING:  # a channel makes its own
    from pumpline.nsqd.queue.channel import Channel
    from pumpline.nsqd.queue.topic import Topic

LETTERS_PER_TICK = 256
LETTERS_BYTES_PER_TICK = 4 << 20
RETRY_S = 1.0

_LOG = logging.getLogger(__name__)


class DeadLetters:
    """The dead letters of one channel. At most as many wait as may be in flight."""

    def __init__(self, channel: "Channel") -> None:
        self.count = 0  # written
        self.failures = 0
        self._channel = channel
        self._waiting: deque[int] = deque()
        self._writing: set[int] = set()
        self._reader: Reader | RingReader | None = None
        self._is_paused = False  # after a failure

    @property
    def pending(self) -> int:
        """Messages that are not safe in the dead-letter topic yet."""
        return len(self._waiting) + len(self._writing)

    def claim(self, offset: int) -> bool:
        """Take a requeued message if this was its last attempt; returns whether it was."""
        channel = self._channel
        if channel.delivery.attempts.get(offset, 1) < channel.topic.attempts_max:
            return False
        channel.delivery.withdraw(offset)
        self._waiting.append(offset)
        self._announce()
        return True

    def clear(self) -> None:
        """Forget all of them: the channel was emptied or moved."""
        self._waiting.clear()
        self._writing.clear()

    def dispatch(self) -> None:
        """In each tick: publish the waiting letters whose messages are in memory."""
        if not self._waiting or self._is_paused or self._channel.exiting:
            return
        offsets: list[int] = []
        letters: list[bytes] = []
        size_bytes = 0
        while self._waiting and len(letters) < LETTERS_PER_TICK:
            offset = self._waiting[0]
            batch = self._batch(offset)
            if batch is None or size_bytes > LETTERS_BYTES_PER_TICK:
                break
            self._waiting.popleft()
            if batch.first > offset:
                self._finish([offset])
                self._channel.dropped_count += 1
                continue
            offsets.append(offset)
            letters.append(self._letter(batch, offset))
            size_bytes += len(letters[-1])
        if letters:
            self._write(offsets, letters)

    def _write(self, offsets: list[int], letters: list[bytes]) -> None:
        channel = self._channel
        name = channel.topic.settings.dead_letters_of(channel.topic.name)
        try:
            target = channel.topic.ensure_dead_letter_topic()
        except OSError as error:
            channel.topic.disk.health.failed(error, f"topic {name}")
            self._retry(offsets, str(error))
            return
        for letter in letters:
            completion = target.publishing.add(letter, 0, len(letter), alone=True)
        self._writing.update(offsets)
        completion.when_done(lambda: self._written(offsets, target, completion.error))

    def _written(self, offsets: list[int], target: "Topic", error: str | None) -> None:
        if self._channel.exiting:
            return
        if error is not None:
            self._retry(self._end_write(offsets), error)
            return
        self.count += len(self._writing.intersection(offsets))
        self._sync(offsets, target)
        if self._waiting:
            self._announce()

    def _sync(self, offsets: list[int], target: "Topic") -> None:
        completion = self._channel.topic.disk.sync(target.log)
        if completion.done:
            self._synced(offsets, target, completion.error)
        else:
            completion.when_done(lambda: self._synced(offsets, target, completion.error))

    def _synced(self, offsets: list[int], target: "Topic", error: str | None) -> None:
        if self._channel.exiting:
            return
        if error is None or error == EXITING:  # the letters are deleted with their topic
            self._finish(self._end_write(offsets))
        else:
            self._channel.topic.tick.later(RETRY_S, lambda: self._sync(offsets, target))

    def _end_write(self, offsets: list[int]) -> list[int]:
        """Returns those of `offsets` that were still being written: `clear` forgets the others."""
        mine = [offset for offset in offsets if offset in self._writing]
        self._writing.difference_update(mine)
        return mine

    def _retry(self, offsets: list[int], reason: str) -> None:
        topic = self._channel.topic
        self.failures += 1
        self._waiting.extend(offsets)
        if not self._is_paused:
            self._is_paused = True
            topic.tick.later(RETRY_S, self._resume)
            _LOG.error(
                "CHANNEL(%s:%s): failed to write %d dead letters - %s (will try again)",
                topic.name,
                self._channel.name,
                len(offsets),
                reason,
            )

    def _resume(self) -> None:
        self._is_paused = False
        self._announce()

    def _finish(self, offsets: list[int]) -> None:
        self._channel.delivery.finish([(offset, offset + 1) for offset in offsets])
        self._channel.note_change()

    def _announce(self) -> None:
        if not self._channel.exiting:
            self._channel.topic.tick.dispatch(self)

    def _batch(self, offset: int) -> AnyBatch | None:
        if self._reader is None:
            self._reader = self._channel.topic.log.reader(self._announce)
        return self._reader.batch(offset)

    def _letter(self, batch: AnyBatch, offset: int) -> bytes:
        channel = self._channel
        topic = channel.topic
        body = bytes(batch.cut(offset, offset + 1)[MESSAGE_OVERHEAD_BYTES:])
        if topic.settings.dead_letter_form == FORM_BODY:
            return body
        return dead_letter(
            topic=topic.name,
            channel=channel.name,
            message_id=f"{topic.log.base_id + offset:016x}",
            offset=offset,
            attempts=channel.delivery.attempts.get(offset, 1),
            timestamp_ns=batch.published_ns(offset),
            body=body,
        )
