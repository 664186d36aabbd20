"""Since when the oldest unfinished message of each channel waits: its lag in time.

Deferred messages do not wait. A message that was published with a delay waits from its due time on,
an imported one from its import on.

Most times are known from memory: the batch is in the log's tail. The others need a read of one
batch, which a thread does, and which is remembered for as long as the channel stands still. A
search reads at most LOOKUPS_MAX batches, for LOOKUPS_S, and checks segments that this process has
not seen the inside of until CHECKED_BYTES_MAX is reached. Channels that are left over keep the time
they had, which is too old but never too new, and come first in the next search.

Knows logs and offsets; must not know what a channel does with them.
"""

import asyncio
import time
from typing import NamedTuple, Protocol

from pumpline.core.messages.batches import BadBatch
from pumpline.log import ranges
from pumpline.log.log import Log
from pumpline.log.ring import Ring
from pumpline.nsqd.queue.channel import Channel
from pumpline.web.yielding import Pace

LOOKUPS_MAX = 16_384  # 20 to 500 us each, in a thread
LOOKUPS_S = 0.5  # no more of them after that
KNOWN_MAX = 131_072  # messages
CHECKED_BYTES_MAX = 64 << 20  # but one segment at least: up to half a second, in a thread
UNKNOWN = -1


class Told(Protocol):
    """What the time is for: 0 if nothing waits."""

    oldest_timestamp: int


class Lag:
    """Since when a channel or a hold has a message that waits."""

    __slots__ = ("oldest_timestamp",)

    def __init__(self) -> None:
        self.oldest_timestamp = UNKNOWN


class _Key(NamedTuple):
    base_id: int
    name: str
    is_delayed: bool


class _Known(NamedTuple):
    offset: int
    since_ns: int


class _Missing(NamedTuple):
    key: _Key
    log: Log
    offset: int
    told: Told


class OldestTimes:
    """What earlier searches found, by log and channel."""

    def __init__(self) -> None:
        self._known: dict[_Key, _Known] = {}
        self._waiting: set[_Key] = set()  # left over by the last search
        self._looking = asyncio.Lock()

    def search(self) -> "Search":
        return Search(self._known)

    async def finish(self, search: "Search") -> None:
        """Look up what the search could not tell from memory."""
        if search.missing:
            async with self._looking:
                await self._look_up(search)
        search.combine()
        if len(self._known) > KNOWN_MAX:  # of channels that are gone, if nobody ever asks for all
            self._known.clear()
        if search.saw_all:
            self._known = {key: each for key, each in self._known.items() if key in search.seen}

    async def _look_up(self, search: "Search") -> None:
        pace = Pace()
        missing = sorted(search.missing, key=lambda each: each.key not in self._waiting)
        jobs: dict[tuple[int, int], tuple[Log, ranges.Piece, int]] = {}
        checked: set[str] = set()
        checked_bytes = 0
        for each in missing:
            place = each.log.base_id, each.offset
            if len(jobs) == LOOKUPS_MAX:
                break
            pieces = ranges.select(each.log, each.offset, each.offset + 1, files_max=1).pieces
            if not pieces or place in jobs:
                continue
            segment = pieces[0].segment
            if segment.unchecked_bytes and segment.path not in checked:
                if checked and checked_bytes + segment.unchecked_bytes > CHECKED_BYTES_MAX:
                    continue
                checked.add(segment.path)
                checked_bytes += segment.unchecked_bytes
            jobs[place] = each.log, pieces[0], each.offset
            await pace.breathe()
        times_ns = await asyncio.to_thread(_read, list(jobs.values()))
        found = dict(zip(jobs, times_ns, strict=False))
        self._waiting = set()
        for each in missing:
            since_ns = found.get((each.log.base_id, each.offset))
            if since_ns is None:
                self._waiting.add(each.key)
            elif since_ns:
                each.told.oldest_timestamp = since_ns
                self._known[each.key] = _Known(each.offset, since_ns)
            await pace.breathe()


class Search:
    """One reading of the figures."""

    def __init__(self, known: dict[_Key, _Known]) -> None:
        self.saw_all = False  # of the broker's channels
        self.seen: set[_Key] = set()
        self.missing: list[_Missing] = []
        self.known = known
        self._pairs: list[tuple[Told, Lag, Lag]] = []

    def tell_channel(self, told: Told, channel: Channel) -> None:
        limit = channel.topic.pumped
        leased = [consumer.leases.deadlines for consumer in channel.consumers]
        oldest, delayed = channel.delivery.oldest(leased, limit)
        log = channel.topic.log
        if delayed == limit:
            self.tell(told, log, channel.name, oldest, end=limit)
            return
        first, second = Lag(), Lag()
        self.tell(first, log, channel.name, oldest, end=limit)
        self.tell(second, log, channel.name, delayed, end=limit, is_delayed=True)
        self._pairs.append((told, first, second))

    def combine(self) -> None:
        """Of two messages of a channel, the one that waits longer counts."""
        for told, *pair in self._pairs:
            times_ns = [lag.oldest_timestamp for lag in pair]
            if UNKNOWN not in times_ns:
                told.oldest_timestamp = min(filter(None, times_ns), default=0)

    def tell(
        self,
        told: Told,
        log: Log | Ring,
        name: str,
        offset: int,
        *,
        end: int,
        is_delayed: bool = False,
    ) -> None:
        """The message at `offset` is the oldest that waits for the channel or hold `name`, which
        may read up to `end`."""
        offset = max(offset, log.first)
        if offset >= end:
            told.oldest_timestamp = 0
            return
        batch = log.in_tail(offset)
        if batch is not None:
            told.oldest_timestamp = batch.waiting_since_ns(max(offset, batch.first))
        elif isinstance(log, Log):
            key = _Key(log.base_id, name, is_delayed)
            self.seen.add(key)
            known = self.known.get(key)
            is_exact = known is not None and known.offset == offset
            if not is_exact:
                self.missing.append(_Missing(key, log, offset, told))
            if known is not None and (is_exact or (known.offset < offset and not is_delayed)):
                told.oldest_timestamp = known.since_ns


def _read(jobs: list[tuple[Log, ranges.Piece, int]]) -> list[int]:
    """In a thread: the times of as many as LOOKUPS_S allows; 0 for what is not there any more."""
    times_ns: list[int] = []
    until_s = time.monotonic() + LOOKUPS_S
    for log, piece, offset in jobs:
        if times_ns and time.monotonic() > until_s:
            break
        try:
            times_ns.append(ranges.waiting_since_ns(log, piece, offset))
        except (OSError, BadBatch):
            times_ns.append(0)
    return times_ns
