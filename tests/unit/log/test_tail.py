"""The tail of a log has all that is not in a file, and more while somebody reads on."""

import errno
import os
from itertools import cycle
from pathlib import Path

import pytest

from pumpline.core.messages.kernels import message
from pumpline.log.log import Log, State
from pumpline.log.shared_batches import SharedBatches
from tests.kit.logs import TIMESTAMP_NS, Disk, batch_of, batches_in, bodies_of, body_at, bytes_of

FIRST = "00000000000000000000.log"


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def followed(disk: Disk) -> Log:
    """A log whose owner says how much of its tail may go; that of an idle log goes by itself."""
    log = disk.open()
    log.follow(lambda: None)
    return log


def append(log: Log, *bodies: bytes) -> None:
    log.append([batch_of(log.end, list(bodies))])


def test_the_tail_keeps_what_somebody_still_wants_within_its_bounds(disk: Disk) -> None:
    log = followed(disk)
    for _ in range(5):
        append(log, bytes(66), bytes(66))  # 200 bytes of frames
    log.trim(3, messages_max=100, bytes_max=10_000)
    assert [batch.first for batch in log.tail] == [2, 4, 6, 8]
    log.trim(3, messages_max=6, bytes_max=10_000)
    assert [batch.first for batch in log.tail] == [4, 6, 8]
    log.trim(3, messages_max=6, bytes_max=500)
    assert [batch.first for batch in log.tail] == [6, 8]
    append(log, bytes(66), bytes(66))
    log.trim(0, messages_max=100, bytes_max=600)
    assert [batch.first for batch in log.tail] == [6, 8, 10]
    log.trim(12, messages_max=100, bytes_max=600)
    assert log.tail == []


def test_a_tail_that_exceeds_its_bounds_loses_an_eighth_of_them(disk: Disk) -> None:
    log = followed(disk)
    for _ in range(16):
        append(log, b"a")
    log.trim(0, messages_max=16, bytes_max=10_000)
    assert len(log.tail) == 16
    append(log, b"a")
    log.trim(0, messages_max=16, bytes_max=10_000)
    assert [batch.first for batch in log.tail] == list(range(3, 17))


def test_the_tail_answers_for_every_offset_it_holds(disk: Disk) -> None:
    log = followed(disk)
    log.append([batch_of(0, [b"a"] * 3), batch_of(3, [b"b"]), batch_of(4, [b"c"] * 2)])
    firsts = [batch.first if (batch := log.in_tail(o)) else None for o in range(7)]
    assert firsts == [0, 0, 0, 3, 4, 4, None]
    log.trim(3, messages_max=100, bytes_max=10_000)
    assert log.in_tail(2) is None


def test_the_tail_of_an_idle_log_is_forgotten_when_it_is_written(disk: Disk) -> None:
    log = disk.open()
    append(log, b"a")
    assert log.tail == []
    log.accept([batch_of(1, [b"b"])])
    log.advance(2)
    assert disk.read(log) == {0: b"a", 1: b"b"}
    log.flush()
    assert log.tail == []
    assert disk.read(log) == {0: b"a", 1: b"b"}


def test_the_tail_keeps_all_that_is_not_written_whatever_its_bounds(disk: Disk) -> None:
    log = followed(disk)
    for first in range(5):
        log.accept([batch_of(first, [b"%d" % first])])
    log.advance(5)
    log.trim(5, messages_max=1, bytes_max=1)
    assert disk.read(log) == {offset: b"%d" % offset for offset in range(5)}
    log.flush()
    log.trim(5, messages_max=1, bytes_max=1)
    assert log.tail == []


# -- accepting and flushing -----------------------------------------------------------------------


def test_what_is_accepted_is_read_when_it_is_acknowledged_and_in_a_file_when_it_is_flushed(
    disk: Disk,
) -> None:
    log = followed(disk)
    log.accept([batch_of(0, [b"a", b"b"])])
    assert (log.written, log.end, log.accepted) == (0, 0, 2)
    log.advance(2)
    assert (log.written, log.end, log.accepted) == (0, 2, 2)
    assert (disk.read(log), os.listdir(disk.path)) == ({0: b"a", 1: b"b"}, [])
    log.flush()
    assert (log.written, log.unsynced) == (2, 2)
    assert (disk.path / FIRST).read_bytes() == bytes_of(batch_of(0, [b"a", b"b"]))


def test_a_flush_writes_what_is_acknowledged_alone(disk: Disk) -> None:
    log = followed(disk)
    log.accept([batch_of(0, [b"a", b"b", b"c"])])
    log.advance(2)  # as if an fsync covered half of it
    log.flush()
    assert (log.written, log.end, log.accepted) == (2, 2, 3)
    assert disk.read(disk.open()) == {0: b"a", 1: b"b"}
    log.refuse(2)
    append(log, b"d")
    assert disk.read(log) == disk.read(disk.open()) == {0: b"a", 1: b"b", 2: b"d"}


def test_what_was_refused_is_forgotten_and_its_offsets_are_given_again(disk: Disk) -> None:
    log = followed(disk)
    append(log, b"a")
    reader = log.reader(lambda: None)
    log.accept([batch_of(1, [b"refused"]), batch_of(2, [b"refused", b"too"])])
    log.refuse(1)
    assert (log.accepted, log.end, log.message_bytes) == (1, 1, 1)
    append(log, b"b")
    batch = disk.find(reader, 1)
    assert batch is not None
    assert bodies_of(batch) == [b"b"]
    assert disk.read(disk.open()) == {0: b"a", 1: b"b"}


def test_a_flush_that_fails_keeps_everything_readable_until_one_succeeds(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = followed(disk)
    append(log, b"a")
    log.accept([batch_of(1, [b"b"])])
    log.advance(2)

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "writev", fail)
        with pytest.raises(OSError):
            log.flush()
        log.trim(log.end, messages_max=0, bytes_max=0)
        assert (log.state, log.written, log.end) == (State.STUCK, 1, 2)
        assert disk.read(log) == {0: b"a", 1: b"b"}
    log.flush()
    assert (log.state, log.written) == (State.OPEN, 2)
    assert disk.read(disk.open()) == {0: b"a", 1: b"b"}


def test_a_flush_of_more_than_a_segment_begins_new_ones(disk: Disk) -> None:
    disk.segment_bytes_max = 100
    log = followed(disk)
    for first in range(0, 10, 2):
        log.accept([batch_of(first, [b"one", b"two"])])
    log.advance(10)
    log.flush()
    assert disk.names(".log") == [f"{first:020d}.log" for first in (0, 2, 4, 6, 8)]
    assert list(disk.read(disk.open())) == list(range(10))


def test_a_log_does_not_roll_while_something_is_not_written(disk: Disk) -> None:
    """A new segment would begin where the messages in memory belong."""
    log = followed(disk)
    append(log, b"a")
    log.accept([batch_of(1, [b"b"])])
    log.advance(2)
    log.roll()
    log.flush()
    log.roll()
    assert [segment.first for segment in log.segments] == [0, 2]
    assert disk.read(disk.open()) == {0: b"a", 1: b"b"}


# -- a batch that is open -------------------------------------------------------------------------


class Shared:
    """A log whose open batch a kernel adds to."""

    def __init__(self, disk: Disk, *, is_immediate: bool) -> None:
        self.log = followed(disk)
        self._batches = SharedBatches(is_immediate=is_immediate)
        self.log.share_batch(self._batches, (b"PUB t\n", b"MPUB t\n"))

    @property
    def lines(self) -> set[bytes]:
        """Of commands whose messages may be added."""
        return set(self._batches.by_line)

    def add(self, *bodies: bytes, at_ns: int = TIMESTAMP_NS) -> None:
        for body, line in zip(bodies, cycle([b"PUB t\n", b"MPUB t\n"]), strict=False):
            frames, ends, first_id = self._batches.by_line[line]
            message_id = first_id + (len(ends) >> 2)
            message(body, 0, len(body), frames, ends, message_id, at_ns)
            self._batches.lines.append(line)

    def acknowledge(self) -> None:
        """All that was added."""
        self._batches.take()
        if not self._batches.is_immediate:
            self.log.advance(self.log.accepted)


@pytest.fixture(params=[True, False], ids=["written", "synced"])
def shared(disk: Disk, request: pytest.FixtureRequest) -> Shared:
    """Messages are acknowledged when they are written to the write-ahead log, or synced."""
    return Shared(disk, is_immediate=request.param)


def test_an_open_batch_is_read_while_it_grows(disk: Disk, shared: Shared) -> None:
    log = shared.log
    reader = log.reader(lambda: None)
    shared.add(b"a")
    shared.acknowledge()
    batch = reader.batch(0)
    assert batch is not None
    sent = batch.cut(0, 1)
    shared.add(b"b", b"c")  # it must be possible to add while what was cut is sent
    assert (log.end, log.accepted) == (1, 3)
    shared.acknowledge()
    assert reader.batch(2) is batch
    assert [body_at(batch, offset) for offset in range(3)] == [b"a", b"b", b"c"]
    assert bytes(sent) == bytes(batch.cut(0, 1))
    log.flush()
    shared.add(b"d")
    shared.acknowledge()
    assert disk.read(log) == {0: b"a", 1: b"b", 2: b"c", 3: b"d"}
    assert disk.read(disk.open()) == {0: b"a", 1: b"b", 2: b"c"}
    log.flush()
    assert disk.read(disk.open()) == {0: b"a", 1: b"b", 2: b"c", 3: b"d"}


def test_a_flush_leaves_in_the_open_batch_what_is_not_acknowledged(
    disk: Disk, shared: Shared
) -> None:
    shared.add(b"a", b"b")
    shared.acknowledge()
    shared.add(b"c")
    shared.log.flush()
    assert (shared.log.written, shared.log.end, shared.log.accepted) == (2, 2, 3)
    shared.add(b"d")
    shared.acknowledge()
    shared.log.flush()
    assert disk.read(disk.open()) == {0: b"a", 1: b"b", 2: b"c", 3: b"d"}


def test_a_refusal_cuts_the_open_batch(disk: Disk, shared: Shared) -> None:
    shared.add(b"a")
    shared.acknowledge()
    shared.add(b"refused", b"too")
    shared.log.refuse(1)
    assert (shared.log.end, shared.log.accepted, shared.log.message_bytes) == (1, 1, 1)
    assert shared.lines == set()
    append(shared.log, b"b")
    assert disk.read(shared.log) == disk.read(disk.open()) == {0: b"a", 1: b"b"}


def test_what_is_accepted_follows_on_the_open_batch(disk: Disk, shared: Shared) -> None:
    shared.add(b"a", b"b")
    shared.log.accept([batch_of(2, [b"c"], due_ns=5)])
    assert shared.lines == set()  # what comes now would have offsets before these
    shared.log.advance(3)
    shared.log.flush()
    assert disk.read(disk.open()) == {0: b"a", 1: b"b", 2: b"c"}


def test_a_batch_of_many_ticks_begins_with_the_time_of_its_first_message(
    disk: Disk, shared: Shared
) -> None:
    for number in range(4):
        shared.add(b"x", at_ns=TIMESTAMP_NS + number)
        shared.acknowledge()
    shared.log.flush()
    [batch] = batches_in((disk.path / FIRST).read_bytes())
    assert batch.timestamp_ns == TIMESTAMP_NS
    assert [batch.published_ns(offset) for offset in range(4)] == [
        TIMESTAMP_NS + number for number in range(4)
    ]


def test_the_bytes_of_bodies_are_those_that_were_acknowledged(disk: Disk, shared: Shared) -> None:
    shared.add(b"four")
    shared.acknowledge()
    shared.add(b"five5")
    assert shared.log.message_bytes == 4
    shared.acknowledge()
    assert shared.log.message_bytes == 9
    shared.log.flush()
    assert shared.log.message_bytes == 9
    append(shared.log, b"1")
    assert shared.log.message_bytes == 10


def test_a_closed_log_shares_no_batch(disk: Disk, shared: Shared) -> None:
    shared.log.close()
    assert shared.lines == set()
