"""Point readers find messages at scattered offsets, wherever they are, and survive damage."""

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pumpline.log import point_reader as point_reader_module
from pumpline.log import reader as reader_module
from pumpline.log.log import Log
from pumpline.log.segment import INDEX_STRIDE_BYTES
from tests.kit.logs import BASE_ID, Disk, batch_of, body_at

FIRST = "00000000000000000000.log"


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


@pytest.fixture(params=["page cache", "threads only"], autouse=True)
def is_cold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both ways to read: from the page cache without waiting, and in a thread."""
    if request.param == "threads only":
        monkeypatch.setattr(reader_module, "_NOWAIT", 0)
        monkeypatch.setattr(point_reader_module, "_NOWAIT", 0)
    return request.param == "threads only"


def body(offset: int) -> bytes:
    return b"%d " % offset * (1 + offset % 50)


def filled(disk: Disk, sizes: Sequence[int]) -> Log:
    """A log of batches with so many messages each, with nothing of it in memory."""
    log = disk.open()
    for size in sizes:
        first = log.end
        log.append([batch_of(first, [body(first + index) for index in range(size)])])
    log.trim(log.end, messages_max=0, bytes_max=0)
    assert log.tail == []
    return log


def read(disk: Disk, log: Log, offsets: list[int]) -> dict[int, bytes]:
    """What a channel gets that asks for these one after another; without those that are gone."""
    left = list(offsets)
    reader = log.reader(lambda: None, lambda count: left[:count])
    found: dict[int, bytes] = {}
    while left:
        batch = disk.find(reader, left[0])
        if batch is not None and batch.first <= left[0]:
            found[left[0]] = body_at(batch, left[0])
        del left[0]
    return found


def shuffled(count: int) -> list[int]:
    return random.Random(count).sample(range(count), count)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([1] * 2500, id="one message a batch"),
        pytest.param([1, 700, 2, 1, 1, 2000, 3], id="large batches between small ones"),
    ],
)
def test_messages_are_found_in_any_order(disk: Disk, sizes: list[int]) -> None:
    disk.segment_bytes_max = 3 * INDEX_STRIDE_BYTES
    log = filled(disk, sizes)
    offsets = shuffled(sum(sizes))
    assert read(disk, log, offsets) == {offset: body(offset) for offset in offsets}


def test_a_few_messages_of_a_large_batch_do_not_read_all_of_it(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(disk, [6000])
    read_bytes = 0

    def preadv(fd: int, buffers: list[bytearray], position: int, flags: int) -> int:
        nonlocal read_bytes
        read_bytes += sum(map(len, buffers))
        return os_preadv(fd, buffers, position, flags)

    os_preadv = os.preadv
    monkeypatch.setattr(os, "preadv", preadv)
    offsets = [5999, 17, 4000]
    assert read(disk, log, offsets) == {offset: body(offset) for offset in offsets}
    assert read_bytes < 3 * INDEX_STRIDE_BYTES < log.size_bytes


def test_a_segment_from_before_the_start_is_read_as_well(disk: Disk) -> None:
    disk.segment_bytes_max = INDEX_STRIDE_BYTES
    log = filled(disk, [1] * 3000)
    count, mark = log.end, log.mark()
    log.close()
    again = disk.open(clean=mark)
    assert again.segments[0].unchecked_bytes
    offsets = shuffled(count)
    assert read(disk, again, offsets) == {offset: body(offset) for offset in offsets}


def flip_bit(path: Path, find: Callable[[bytes], int]) -> None:
    data = bytearray(path.read_bytes())
    data[find(bytes(data))] ^= 1
    path.write_bytes(data)


def test_a_damaged_message_is_gone_and_no_other(disk: Disk) -> None:
    log = filled(disk, [1] * 400)
    flip_bit(disk.path / FIRST, lambda data: data.index(b"%016x" % (BASE_ID + 200)) + 17)
    offsets = shuffled(400)
    found = read(disk, log, offsets)
    assert found == {offset: body(offset) for offset in offsets if offset != 200}


def test_a_message_of_a_large_batch_whose_head_is_damaged_is_not_delivered(disk: Disk) -> None:
    log = filled(disk, [6000])
    flip_bit(disk.path / FIRST, lambda data: data.index(b"%016x" % (BASE_ID + 5000)) + 7)
    assert read(disk, log, [5000]) == {}


def test_a_retired_message_is_gone(disk: Disk) -> None:
    disk.segment_bytes_max = 2000
    log = filled(disk, [1] * 100)
    log.retire(3)
    assert log.first > 10
    assert read(disk, log, [5, 99, 6, log.first]) == {99: body(99), log.first: body(log.first)}


def test_a_log_that_is_closed_while_a_thread_reads_gives_nothing(disk: Disk, is_cold: bool) -> None:
    log = filled(disk, [1] * 10)
    calls: list[str] = []
    reader = log.reader(lambda: calls.append("ready"), lambda count: [5, 3])
    assert (reader.batch(5) is None) == is_cold
    log.close()
    disk.threads.run()
    assert reader._found == {}


def test_a_damaged_segment_from_before_the_start_loses_only_what_is_damaged(disk: Disk) -> None:
    disk.segment_bytes_max = 4 * INDEX_STRIDE_BYTES
    log = filled(disk, [1, 300, 5, 1500] + [1] * 1000)
    count, mark = log.end, log.mark()
    log.close()
    flip_bit(disk.path / FIRST, lambda data: data.index(b"%016x" % (BASE_ID + 700)) + 17)
    again = disk.open(clean=mark)
    offsets = shuffled(count)
    lost = range(306, 1806)  # the batch with it
    expected = {offset: body(offset) for offset in offsets if offset not in lost}
    assert read(disk, again, offsets) == expected


def test_a_damaged_length_does_not_lead_astray(disk: Disk) -> None:
    log = filled(disk, [1] * 300)
    mark = log.mark()
    log.close()
    flip_bit(disk.path / FIRST, lambda data: data.index(b"%016x" % (BASE_ID + 200)) - 54)
    again = disk.open(clean=mark)
    offsets = shuffled(300)
    found = read(disk, again, offsets)
    assert {200, *found} == set(offsets)
    assert all(found[offset] == body(offset) for offset in found)
