"""Ranges of a log: found by offset and by time, whole in spite of damage, retirement and growth."""

import os
from pathlib import Path

import pytest

from pumpline.core.messages.batches import Builder, LogBatch
from pumpline.core.messages.frame import encode_message
from pumpline.log import ranges, recovery
from pumpline.log.log import Log
from tests.kit.logs import BASE_ID, TIMESTAMP_NS, Disk, bodies_of, bytes_of, read_range

SEGMENT_BYTES = 400
YEAR_2099_NS = 4_080_000_000_000_000_000


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path, segment_bytes_max=SEGMENT_BYTES)


def published(first: int, messages: list[tuple[int, bytes]]) -> LogBatch:
    """A batch of messages with these publish times and bodies."""
    builder = Builder(first=first, timestamp_ns=messages[0][0])
    for timestamp_ns, body in messages:
        message_id = BASE_ID + builder.end
        builder.add(
            encode_message(timestamp_ns=timestamp_ns, attempts=1, message_id=message_id, body=body)
        )
    return builder.seal()


def timed(first: int, timestamp_ns: int) -> LogBatch:
    """A batch of two messages, published at that time."""
    return published(first, [(timestamp_ns, b"%05d" % offset) for offset in (first, first + 1)])


def filled(disk: Disk, batches: int) -> Log:
    """Batches of two messages, one a second."""
    log = disk.open()
    for index in range(batches):
        log.append([timed(2 * index, TIMESTAMP_NS + index * 10**9)])
    return log


def reopened(disk: Disk, log: Log) -> Log:
    """After a clean stop: this process has not seen what is in the files."""
    mark = log.mark()
    log.close()
    return disk.open(mark)


def spans(batches: list[LogBatch]) -> list[tuple[int, int]]:
    return [(batch.first, batch.end) for batch in batches]


def damage(path: str, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 0xFF]))


def test_a_range_begins_and_ends_with_the_batches_it_touches(disk: Disk) -> None:
    log = filled(disk, 20)
    assert len(log.segments) > 3
    batches, reached = read_range(log, 7, 29)
    assert spans(batches) == [(first, first + 2) for first in range(6, 30, 2)]
    assert reached == 29


def test_a_range_of_nothing_is_empty(disk: Disk) -> None:
    log = filled(disk, 3)
    assert read_range(log, 6, 6) == ([], 6)


def test_a_range_stops_where_the_room_ends_but_has_one_batch_at_least(disk: Disk) -> None:
    log = filled(disk, 20)
    size_bytes = timed(0, 0).size_bytes
    for bytes_max, count in ((1, 1), (size_bytes, 1), (3 * size_bytes, 3), (9 * size_bytes, 9)):
        batches, reached = read_range(log, 0, 40, bytes_max=bytes_max)
        assert (len(batches), reached) == (count, 2 * count)


def test_a_range_opens_so_many_files_and_no_more(disk: Disk) -> None:
    disk.segment_bytes_max = 1
    log = filled(disk, 40)
    assert len(log.segments) == 40
    batches, reached = read_range(log, 0, 80)
    assert (len(batches), reached) == (ranges.FILES_MAX, 2 * ranges.FILES_MAX)


def test_what_was_found_can_be_read_after_it_was_retired(disk: Disk) -> None:
    log = filled(disk, 20)
    found = ranges.open_range(ranges.select(log, 0, 40), 0, 40, bytes_max=1 << 30)
    expected = b"".join(bytes_of(timed(2 * i, TIMESTAMP_NS + i * 10**9)) for i in range(20))
    log.retire(len(log.segments))
    data = b"".join(os.pread(fd, length, position) for fd, position, length, _ in found.extents)
    found.close()
    assert data == expected


def test_what_was_retired_since_it_was_selected_is_said_to_be_missing(disk: Disk) -> None:
    log = filled(disk, 20)
    selection = ranges.select(log, 0, 40)
    descriptors = os.listdir("/proc/self/fd")
    log.retire(2)
    with pytest.raises(FileNotFoundError):
        ranges.open_range(selection, 0, 40, bytes_max=1 << 30)
    assert len(os.listdir("/proc/self/fd")) <= len(descriptors)


def parts_of(log: Log, start: int, to: int, bytes_max: int) -> list[tuple[int, bytes]]:
    """What each part of the range reaches, and its bytes, by the names of the files."""
    selection = ranges.select(log, start, to)
    found = []
    for file in ranges.find_parts(selection, start, to, bytes_max=bytes_max, parts_max=1000):
        with open(file.path, "rb") as opened:
            status = os.fstat(opened.fileno())
            assert (file.device, file.inode) == (status.st_dev, status.st_ino)
            for part in file.parts:
                pieces = [os.pread(opened.fileno(), size, at) for at, size in part.extents]
                found.append((part.to, b"".join(pieces)))
    return found


@pytest.mark.parametrize("bytes_max", [1, 150, 300, 1 << 20])
def test_parts_follow_on_each_other_and_are_what_a_range_would_be(
    disk: Disk, bytes_max: int
) -> None:
    log = filled(disk, 20)
    found = parts_of(log, 7, 29, bytes_max)
    batches, _ = read_range(log, 7, 29)
    assert b"".join(data for _, data in found) == b"".join(map(bytes_of, batches))
    reached = [to for to, _ in found]
    assert reached == sorted(set(reached))
    assert reached[-1] == 29
    size_bytes = timed(0, 0).size_bytes
    assert max(len(data) for _, data in found) <= max(bytes_max, size_bytes)


def test_parts_are_so_many_and_no_more(disk: Disk) -> None:
    log = filled(disk, 20)
    files = ranges.find_parts(ranges.select(log, 0, 40), 0, 40, bytes_max=1, parts_max=5)
    assert [part.to for file in files for part in file.parts] == [2, 4, 6, 8, 10]


def test_a_part_with_damage_in_it_has_what_is_around(disk: Disk) -> None:
    log = filled(disk, 20)
    size_bytes = timed(0, 0).size_bytes
    damaged = log.segments[1]
    damage(damaged.path, 2 * size_bytes - 1)
    log = reopened(disk, log)
    gone = damaged.first + 2
    found = parts_of(log, 0, 40, 1 << 20)
    batches, _ = read_range(log, 0, 40)
    assert gone not in [batch.first for batch in batches]
    assert b"".join(data for _, data in found) == b"".join(map(bytes_of, batches))
    assert found[-1][0] == 40


@pytest.mark.parametrize("where", ["length", "first", "body"])
def test_damage_is_left_out_and_kept(disk: Disk, where: str) -> None:
    log = filled(disk, 20)
    size_bytes = timed(0, 0).size_bytes
    damaged = log.segments[1]
    position = {"length": 3, "first": 15, "body": size_bytes - 1}[where]
    damage(damaged.path, size_bytes + position)
    log = reopened(disk, log)
    gone = damaged.first + 2
    batches, reached = read_range(log, 0, 40)
    assert spans(batches) == [(o, o + 2) for o in range(0, 40, 2) if o != gone]
    assert reached == 40
    assert disk.names(".bad") == [f"{damaged.first:020d}.log.{size_bytes}.bad"]
    batches, reached = read_range(log, gone, gone + 2)
    assert (batches, reached) == ([], gone + 2)


def test_damage_at_the_end_of_a_segment_is_left_out(disk: Disk) -> None:
    log = filled(disk, 20)
    damaged = log.segments[1]
    damage(damaged.path, damaged.size_bytes - 1)
    gone = log.segments[2].first - 2
    log = reopened(disk, log)
    batches, reached = read_range(log, gone - 2, gone + 4)
    assert (spans(batches), reached) == ([(gone - 2, gone), (gone + 2, gone + 4)], gone + 4)


def test_a_segment_is_checked_once(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    log = reopened(disk, filled(disk, 20))
    checked: list[str] = []
    survey = recovery.survey
    monkeypatch.setattr(
        recovery,
        "survey",
        lambda segment, *rest: checked.append(segment.path) or survey(segment, *rest),
    )
    for _ in range(3):
        assert read_range(log, 0, 40)[1] == 40
    assert checked == [segment.path for segment in log.segments]


def test_what_is_written_after_a_restart_is_found_behind_what_was_there(disk: Disk) -> None:
    disk.segment_bytes_max = 1 << 20
    log = reopened(disk, filled(disk, 5))
    log.append([timed(10, TIMESTAMP_NS + 5 * 10**9)])
    batches, reached = read_range(log, 3, 12)
    assert (spans(batches), reached) == ([(o, o + 2) for o in range(2, 12, 2)], 12)
    assert bodies_of(batches[-1]) == [b"00010", b"00011"]


@pytest.mark.parametrize("again", [False, True])
def test_a_time_leads_to_the_first_message_from_then_on(disk: Disk, again: bool) -> None:
    log = filled(disk, 20)
    if again:
        log = reopened(disk, log)
    selection = ranges.select(log, 0, 40, files_max=1 << 31)
    for index in range(20):
        at_ns = TIMESTAMP_NS + index * 10**9
        assert ranges.find_time(selection, at_ns) == 2 * index
        assert ranges.find_time(selection, at_ns - 1) == 2 * index
    assert ranges.find_time(selection, TIMESTAMP_NS + 19 * 10**9 + 1) is None
    assert ranges.find_time(selection, 0) == 0


def test_a_time_is_found_in_a_long_segment_by_its_index(disk: Disk) -> None:
    disk.segment_bytes_max = 100 << 20
    log = disk.open()
    body = b"x" * 5000
    for index in range(100):
        log.append([published(index, [(TIMESTAMP_NS + index, body)])])
    selection = ranges.select(log, 0, 100)
    assert [ranges.find_time(selection, TIMESTAMP_NS + i) for i in range(100)] == list(range(100))


@pytest.mark.parametrize("segment_bytes", [100, SEGMENT_BYTES, 1 << 20])
@pytest.mark.parametrize("again", [False, True])
def test_a_time_leads_into_a_batch_of_many_ticks(
    disk: Disk, segment_bytes: int, again: bool
) -> None:
    """Messages 0 to 59, in batches of six; two were published in each second."""
    disk.segment_bytes_max = segment_bytes
    log = disk.open()
    at_ns = [TIMESTAMP_NS + (offset // 2) * 10**9 for offset in range(60)]
    for first in range(0, 60, 6):
        log.append([published(first, [(at_ns[o], b"%d" % o) for o in range(first, first + 6)])])
    if again:
        log = reopened(disk, log)
    selection = ranges.select(log, 0, 60, files_max=1 << 31)
    for offset in range(0, 60, 2):
        assert ranges.find_time(selection, at_ns[offset]) == offset
        assert ranges.find_time(selection, at_ns[offset] - 1) == offset
        following = offset + 2 if offset < 58 else None
        assert ranges.find_time(selection, at_ns[offset] + 1) == following
    for offset in range(60):
        [piece] = ranges.select(log, offset, offset + 1).pieces
        assert ranges.waiting_since_ns(log, piece, offset) == at_ns[offset]


def test_a_time_is_not_looked_for_before_the_start_also_in_the_middle_of_a_batch(
    disk: Disk,
) -> None:
    log = disk.open()
    log.append([published(0, [(TIMESTAMP_NS + offset, b"x") for offset in range(8)])])
    selection = ranges.select(log, 0, 8)
    assert ranges.find_time(selection, TIMESTAMP_NS + 2, 5) == 5
    assert ranges.find_time(selection, TIMESTAMP_NS + 6, 5) == 6


def test_a_log_without_messages_has_no_times(disk: Disk) -> None:
    assert ranges.find_time(ranges.select(disk.open(), 0, 0), TIMESTAMP_NS) is None


@pytest.mark.parametrize("damaged", range(4))
def test_times_are_found_beside_a_segment_that_is_all_damage(disk: Disk, damaged: int) -> None:
    log = filled(disk, 20)
    first, end = log.segments[damaged].first, log.segments[damaged + 1].first
    path = Path(log.segments[damaged].path)
    path.write_bytes(bytes(path.stat().st_size))
    log = reopened(disk, log)
    selection = ranges.select(log, 0, 40, files_max=1 << 31)
    for index in range(20):
        if not first <= 2 * index < end:
            assert ranges.find_time(selection, TIMESTAMP_NS + index * 10**9) == 2 * index


def test_the_beginning_of_a_damaged_segment_is_that_of_its_first_whole_batch(disk: Disk) -> None:
    log = filled(disk, 20)
    second = log.segments[1].first
    damage(log.segments[1].path, 15)
    log = reopened(disk, log)
    piece = ranges.select(log, second, second + 1).pieces[0]
    assert ranges.begun_ns(log, piece) == TIMESTAMP_NS + (second // 2 + 1) * 10**9


# -- a clock that is set back ---------------------------------------------------------------------


def test_times_are_found_where_the_clock_was_set_back(disk: Disk) -> None:
    log = filled(disk, 20)
    for index in range(20):  # the same twenty seconds once more
        log.append([timed(40 + 2 * index, TIMESTAMP_NS + index * 10**9)])
    assert log.ordered_from == 40
    log = reopened(disk, log)
    assert log.ordered_from == 40
    selection = ranges.select(log, 40, 80, files_max=1 << 31)
    for index in range(20):
        at_ns = TIMESTAMP_NS + index * 10**9
        assert ranges.find_time(selection, at_ns, 40) == 40 + 2 * index
    assert ranges.find_time(selection, TIMESTAMP_NS + 20 * 10**9, 40) is None


def test_the_last_time_that_the_clock_was_set_back_counts(disk: Disk) -> None:
    log = filled(disk, 3)
    log.append([timed(6, TIMESTAMP_NS)])
    log.append([timed(8, TIMESTAMP_NS - 1)])
    log.append([timed(10, TIMESTAMP_NS - 1)])
    assert log.ordered_from == 8
    assert disk.names(".unordered") == [f"{8:020d}.unordered"]


def test_a_kill_leaves_no_more_than_one_note_of_a_clock_that_was_set_back(disk: Disk) -> None:
    """The new one is there before the old one goes."""
    log = filled(disk, 3)
    for offset in (2, 4):
        (Path(log.directory) / f"{offset:020d}.unordered").touch()
    log = reopened(disk, log)
    assert log.ordered_from == 4
    assert disk.names(".unordered") == [f"{4:020d}.unordered"]


def test_a_loss_of_power_may_take_the_note_of_a_clock_that_was_set_back(disk: Disk) -> None:
    """Its name was not synced, and the messages are there."""
    log = disk.open()
    for offset, time_ns in enumerate([5, 3, 4]):
        log.append([timed(2 * offset, TIMESTAMP_NS + time_ns)])
    (disk.path / f"{2:020d}.unordered").unlink()
    log = disk.open()
    assert log.ordered_from == 2
    assert disk.names(".unordered") == [f"{2:020d}.unordered"]


def test_a_clock_that_was_set_back_while_nobody_wrote_is_noticed(disk: Disk) -> None:
    """By the files, which know when they were written; the batches here say a time before that."""
    log = reopened(disk, filled(disk, 3))
    assert log.ordered_from == 0
    log.append([timed(6, TIMESTAMP_NS + 10 * 10**9)])
    assert log.ordered_from == 6


def test_a_clock_that_was_set_back_before_the_messages_were_written_is_noticed(disk: Disk) -> None:
    """They are published before, and flushed after it: the file would be older than they are."""
    log = disk.open()
    log.append([timed(0, YEAR_2099_NS)])
    log = reopened(disk, log)
    log.append([timed(2, YEAR_2099_NS - 1)])
    assert log.ordered_from == 2


def test_the_first_message_of_a_log_is_in_order_whatever_its_time(disk: Disk) -> None:
    log = disk.open()
    log.note_disorder(0)
    log.append([timed(0, 1)])
    assert (log.ordered_from, disk.names(".unordered")) == (0, [])
