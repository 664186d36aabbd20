"""When the oldest unfinished message of each channel was published: its lag in time.

Most are known from memory: the batch is in the log's tail. The others need a read of one batch
header, which a thread does, and which is remembered for as long as the channel stands still. A
search reads at most LOOKUPS_MAX headers and checks one segment that this process has not seen the
inside of. Channels that are left over keep the time they had, which is too old but never too new,
and come first in the next search.

Knows logs and offsets; must not know what a channel does with them.
"""

import asyncio
from typing import NamedTuple, Protocol

from pumpline.log import ranges
from pumpline.log.log import Log
from pumpline.log.ring import Ring

LOOKUPS_MAX = 256  # 20 to 500 us each, in a thread
KNOWN_MAX = 65_536  # channels
CHECKS_MAX = 1  # of a whole segment: up to half a second, in a thread


class Told(Protocol):
    """What the time is for."""

    oldest_timestamp: int


class _Known(NamedTuple):
    offset: int
    published_ns: int


class _Missing(NamedTuple):
    key: tuple[int, str]
    log: Log
    offset: int
    told: Told


class OldestTimes:
    """What earlier searches found, by log and channel."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], _Known] = {}
        self._waiting: set[tuple[int, str]] = set()  # left over by the last search
        self._looking = asyncio.Lock()

    def search(self) -> "Search":
        return Search(self._known)

    async def finish(self, search: "Search") -> None:
        """Look up what the search could not tell from memory."""
        if search.missing:
            async with self._looking:
                await self._look_up(search)
        if len(self._known) > KNOWN_MAX:  # of channels that are gone, if nobody ever asks for all
            self._known.clear()
        if search.saw_all:
            self._known = {key: each for key, each in self._known.items() if key in search.seen}

    async def _look_up(self, search: "Search") -> None:
        missing = sorted(search.missing, key=lambda each: each.key not in self._waiting)
        jobs: dict[tuple[int, int], tuple[Log, ranges.Piece, int]] = {}
        checked: set[str] = set()
        for each in missing:
            place = each.log.base_id, each.offset
            pieces = ranges.select(each.log, each.offset, each.offset + 1, files_max=1).pieces
            if not pieces or place in jobs or len(jobs) == LOOKUPS_MAX:
                continue
            segment = pieces[0].segment
            if segment.unchecked_bytes and segment.path not in checked:
                if len(checked) == CHECKS_MAX:
                    continue
                checked.add(segment.path)
            jobs[place] = each.log, pieces[0], each.offset
        found = dict(zip(jobs, await asyncio.to_thread(_read, list(jobs.values())), strict=True))
        self._waiting = set()
        for each in missing:
            published_ns = found.get((each.log.base_id, each.offset))
            if published_ns is None:
                self._waiting.add(each.key)
            elif published_ns:
                each.told.oldest_timestamp = published_ns
                self._known[each.key] = _Known(each.offset, published_ns)


class Search:
    """One reading of the figures."""

    def __init__(self, known: dict[tuple[int, str], _Known]) -> None:
        self.saw_all = False  # of the broker's channels
        self.seen: set[tuple[int, str]] = set()
        self.missing: list[_Missing] = []
        self.known = known

    def tell(self, told: Told, log: Log | Ring, name: str, *, low: int, end: int) -> None:
        """The channel `name` has finished all below `low`, and may read up to `end`."""
        offset = max(low, log.first)
        if offset >= end:
            return
        batch = log.in_tail(offset)
        if batch is not None:
            told.oldest_timestamp = batch.published_ns(max(offset, batch.first))
        elif isinstance(log, Log):
            key = log.base_id, name
            self.seen.add(key)
            known = self.known.get(key)
            if known is not None and known.offset <= offset:
                told.oldest_timestamp = known.published_ns
            if known is None or known.offset != offset:
                self.missing.append(_Missing(key, log, offset, told))


def _read(jobs: list[tuple[Log, ranges.Piece, int]]) -> list[int]:
    """In a thread; 0 for what is not there any more."""
    times_ns = []
    for log, piece, offset in jobs:
        try:
            times_ns.append(ranges.published_ns(log, piece, offset))
        except OSError:
            times_ns.append(0)
    return times_ns
