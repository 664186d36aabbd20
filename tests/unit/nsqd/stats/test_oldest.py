"""The publish time of the oldest unfinished message: from memory, from disk, within a bound."""

from pathlib import Path

import pytest

from pumpline.core.messages.batches import Builder, LogBatch
from pumpline.core.messages.kernels import message
from pumpline.log.log import Log
from pumpline.log.ring import Ring
from pumpline.nsqd.stats import oldest
from pumpline.nsqd.stats.oldest import OldestTimes, Search
from tests.kit.logs import BASE_ID, TIMESTAMP_NS, Disk

SECOND_NS = 10**9


class Figures:
    def __init__(self) -> None:
        self.oldest_timestamp = 0

    @property
    def second(self) -> int | None:
        """Of publishing; None: not told."""
        told = self.oldest_timestamp
        return (told - TIMESTAMP_NS) // SECOND_NS if told else None


def filled(disk: Disk, *, base_id: int = 0) -> Log:
    """Twenty batches of two messages, one a second, none of them in memory."""
    log = disk.open()
    log.base_id = base_id or log.base_id
    for index in range(20):
        log.append([timed(2 * index, TIMESTAMP_NS + index * SECOND_NS, [b"%05d" % index] * 2)])
    log.trim(log.end, messages_max=0, bytes_max=0)
    return log


def timed(first: int, timestamp_ns: int, bodies: list[bytes]) -> LogBatch:
    """A batch of messages that were published at that time."""
    builder = Builder(first=first, timestamp_ns=timestamp_ns)
    for body in bodies:
        message_id = BASE_ID + builder.end
        message(body, 0, len(body), builder.frames, builder.ends, message_id, timestamp_ns)
    return builder.seal()


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path, segment_bytes_max=400)


async def told(
    times: OldestTimes, log: Log | Ring, lows: dict[str, int], *, end: int = 40
) -> dict[str, int | None]:
    search = times.search()
    figures = {name: asked(search, log, name, low=low, end=end) for name, low in lows.items()}
    search.saw_all = True
    await times.finish(search)
    return {name: each.second for name, each in figures.items()}


def asked(search: Search, log: Log | Ring, name: str, *, low: int, end: int) -> Figures:
    figures = Figures()
    search.tell(figures, log, name, low, end=end)
    return figures


async def test_the_batch_of_the_oldest_message_is_found_on_disk(disk: Disk) -> None:
    log = filled(disk)
    lows = {"first": 0, "odd": 7, "even": 8, "last": 39, "done": 40}
    seconds = {"first": 0, "odd": 3, "even": 4, "last": 19, "done": None}
    assert await told(OldestTimes(), log, lows) == seconds


async def test_what_was_retired_is_not_the_oldest_any_more(disk: Disk) -> None:
    log = filled(disk)
    log.retire(2)
    assert await told(OldestTimes(), log, {"ch": 0}) == {"ch": log.first // 2}


async def test_what_is_in_memory_needs_no_disk(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oldest, "LOOKUPS_MAX", 0)
    log = filled(disk)
    log.follow(lambda: None)
    batch = timed(40, TIMESTAMP_NS + 99 * SECOND_NS, [b"new"])
    log.append([batch])
    assert await told(OldestTimes(), log, {"ch": 40}, end=41) == {"ch": 99}
    ring = Ring(base_id=1, messages_max=10)
    ring.start_at(40)
    ring.append([batch])
    assert await told(OldestTimes(), ring, {"ch": 40}, end=41) == {"ch": 99}


async def test_a_channel_that_stands_still_is_looked_up_once(disk: Disk) -> None:
    log = filled(disk)
    times = OldestTimes()
    assert await told(times, log, {"ch": 6}) == {"ch": 3}
    for segment in log.segments:
        Path(segment.path).unlink()
    assert await told(times, log, {"ch": 6}) == {"ch": 3}
    assert await told(times, log, {"ch": 6, "other": 6}) == {"ch": 3, "other": None}


async def test_a_search_is_bounded_and_the_next_one_goes_on(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oldest, "LOOKUPS_MAX", 3)
    log = filled(disk)
    times = OldestTimes()
    lows = {f"ch{index}": 2 * index for index in range(8)}
    rounds = [await told(times, log, lows) for _ in range(3)]
    assert [sum(each is not None for each in found.values()) for found in rounds] == [3, 6, 8]
    assert rounds[-1] == {name: low // 2 for name, low in lows.items()}
    # All of them move: some are told anew, the others have an older time, and nobody starves.
    moved = {name: low + 2 for name, low in lows.items()}
    for _ in range(3):
        found = await told(times, log, moved)
        assert all(found[name] in (low // 2, low // 2 + 1) for name, low in lows.items())
    assert found == {name: low // 2 for name, low in moved.items()}


async def test_what_is_remembered_is_bounded(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if nobody ever asks for all channels: those that are gone would stay."""
    monkeypatch.setattr(oldest, "KNOWN_MAX", 10)
    log = filled(disk)
    times = OldestTimes()
    for index in range(100):
        search = times.search()
        figures = asked(search, log, f"ch{index}", low=6, end=40)
        await times.finish(search)
        assert figures.second == 3
    assert len(times.search().known) <= 11


async def test_a_channel_that_went_back_has_no_time_too_new(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(disk)
    times = OldestTimes()
    assert await told(times, log, {"ch": 30}) == {"ch": 15}
    monkeypatch.setattr(oldest, "LOOKUPS_MAX", 0)
    assert await told(times, log, {"ch": 4}) == {"ch": None}


async def test_unseen_segments_are_checked_within_a_bound(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oldest, "CHECKED_BYTES_MAX", 1)  # but one segment at least
    log = filled(disk)
    mark = log.mark()
    log.close()
    log = disk.open(mark)
    assert len(log.segments) >= 3
    lows = {"a": log.segments[0].first, "b": log.segments[1].first}
    times = OldestTimes()
    assert await told(times, log, lows) == {"a": 0, "b": None}
    assert await told(times, log, lows) == {"a": 0, "b": lows["b"] // 2}
