"""The log of an ephemeral topic: the same interface as `log.log.Log`, in memory only and bounded.

Holds at most `messages_max` messages that not every channel is done with; what is published beyond
that is dropped and counted, as NSQ does.
"""

from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter

from pumpline.core.messages.batches import LogBatch
from pumpline.log.segment import Segment

_END = attrgetter("end")


class RingReader:
    __slots__ = ("_ring",)

    def __init__(self, ring: "Ring") -> None:
        self._ring = ring

    def batch(self, offset: int) -> LogBatch | None:
        return self._ring.in_tail(offset)

    def release(self) -> None:
        pass


class Ring:
    """Nothing of it is ever on disk: it has no segments, no marks, and nothing to sync."""

    keeps_unfinished = True  # a message that comes back is read from here, and nowhere else

    def __init__(self, *, base_id: int, messages_max: int) -> None:
        self.base_id = base_id
        self.end = 0
        self.dropped = 0
        self.unsynced = 0
        self.segments: list[Segment] = []
        self.tail: list[LogBatch] = []
        self._messages = 0
        self._messages_max = messages_max

    @property
    def first(self) -> int:
        return self.tail[0].first if self.tail else self.end

    @property
    def size_bytes(self) -> int:
        return sum(batch.size_bytes for batch in self.tail)

    def append(self, batches: list[LogBatch]) -> None:
        for batch in batches:
            room = self._messages_max - self._messages
            if batch.count > room:
                self.dropped += batch.count - max(room, 0)
            if room > 0:
                kept = batch if batch.count <= room else _head_of(batch, room)
                self.tail.append(kept)
                self._messages += kept.count
                self.end = kept.end

    def reader(self, on_ready: Callable[[], None]) -> RingReader:
        return RingReader(self)

    def in_tail(self, offset: int) -> LogBatch | None:
        index = bisect_right(self.tail, offset, key=_END)
        return self.tail[index] if index < len(self.tail) else None

    def trim(self, lowest: int, *, messages_max: int, bytes_max: int) -> None:
        """Forget what is below `lowest`; what exceeds the bounds was dropped by `append`."""
        drop = bisect_right(self.tail, lowest, key=_END)
        self._messages -= sum(batch.count for batch in self.tail[:drop])
        del self.tail[:drop]

    # -- as of a log on disk, with nothing on it -----------------------------------------------

    def mark(self) -> tuple[int, int, int] | None:
        return None

    def take_dirty(self) -> list[str]:
        return []

    def sync_also(self, path: str) -> None:
        pass

    def sync_failed(self, paths: list[str]) -> None:
        pass

    def cut_back(self, mark: tuple[int, int, int] | None) -> None:
        pass

    def bytes_from(self, offset: int) -> int:
        return 0

    def consumed(self, low: int) -> list[Segment]:
        return []

    def retire(self, count: int) -> None:
        pass

    def roll(self) -> None:
        pass

    def close(self) -> None:
        self.tail.clear()


def _head_of(batch: LogBatch, count: int) -> LogBatch:
    """The first `count` messages of a batch."""
    return LogBatch(
        first=batch.first,
        count=count,
        timestamp_ns=batch.timestamp_ns,
        due_ns=batch.due_ns,
        ends=batch.ends[: 4 * count],
        frames=batch.frames[: batch.position(batch.first + count)],
    )
