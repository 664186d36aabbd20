"""The log of an ephemeral topic: the same interface as `log.log.Log`, in memory only and bounded.

Holds at most `messages_max` messages that not every channel is done with; what is published beyond
that is dropped and counted, as NSQ does.
"""

from collections.abc import Callable

from pumpline.core.messages.batches import AnyBatch, LogBatch
from pumpline.log.point_reader import Upcoming
from pumpline.log.segment import Segment
from pumpline.log.tail import Tail


class RingReader:
    __slots__ = ("_ring",)

    def __init__(self, ring: "Ring") -> None:
        self._ring = ring

    def batch(self, offset: int) -> AnyBatch | None:
        return self._ring.in_tail(max(offset, self._ring.first))

    def release(self) -> None:
        pass


class Ring(Tail):
    """Nothing of it is ever on disk: it has no segments, no marks, and nothing to sync."""

    keeps_unfinished = True  # a message that is requeued is read from here, and nowhere else

    def __init__(self, *, base_id: int, messages_max: int) -> None:
        super().__init__(base_id)
        self.unsynced = 0
        self.make_room: Callable[[], bool] = lambda: False
        self.segments: list[Segment] = []
        self._messages = 0
        self._messages_max = messages_max

    @property
    def first(self) -> int:
        return self.tail[0].first if self.tail else self.end

    @property
    def size_bytes(self) -> int:
        return sum(batch.size_bytes for batch in self.tail)

    def append(self, batches: list[LogBatch]) -> list[LogBatch]:
        """Accept what there is room for, and drop the rest; returns what was accepted."""
        kept: list[LogBatch] = []
        for batch in batches:
            room = self._messages_max - self._messages
            if batch.count > room:
                dropped = batch.count - max(room, 0)
                self.dropped += dropped
                self._body_bytes += batch.body_bytes
            if room > 0:
                kept.append(batch if batch.count <= room else batch.split(batch.first + room)[0])
                self._messages += kept[-1].count
                if batch.count > room:
                    self._body_bytes -= kept[-1].body_bytes
        if kept:
            self.accept(kept)
        return kept

    def reader(self, on_ready: Callable[[], None], upcoming: Upcoming | None = None) -> RingReader:
        return RingReader(self)

    def trim(self, lowest: int, *, messages_max: int, bytes_max: int) -> None:
        """Forget what is below `lowest`; what exceeds the bounds was dropped by `append`."""
        before = sum(batch.count for batch in self.tail)
        self._trim(lowest, lowest, messages_max=before, bytes_max=self._tail_bytes)
        self._messages -= before - sum(batch.count for batch in self.tail)

    # -- as of a log on disk, with nothing on it -----------------------------------------------

    def mark(self) -> tuple[int, int, int] | None:
        return None

    def sync_also(self, path: str) -> None:
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
        self._clear()
