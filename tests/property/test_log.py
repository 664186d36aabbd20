"""A log on disk against a plain list: whatever is done to it, every message is read back.

Readers work as in the broker: what is in memory at once, the rest by jobs that end whenever and in
whatever order. Both ways to the disk are tried, through the page cache and through threads alone.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import hypothesis.strategies as st
from hypothesis import note
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from pumpline.core.messages.batches import LogBatch
from pumpline.core.messages.kernels import message
from pumpline.log import log as log_module
from pumpline.log import reader as reader_module
from pumpline.log import segment as segment_module
from pumpline.log.log import Log, State
from pumpline.log.reader import Reader
from pumpline.log.shared_batches import SharedBatches
from tests.kit.logs import TIMESTAMP_NS, Disk, batch_of, body_at, bytes_of, read_range

READERS = 3
LINE = b"PUB t\n"
ERRORS = (errno.EMFILE, errno.EIO)

body_sizes = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=4), min_size=1, max_size=3)
portions = st.floats(0, 1)


class LogMachine(RuleBasedStateMachine):
    nowait = reader_module._NOWAIT
    block_bytes = 300

    def __init__(self) -> None:
        super().__init__()
        self.disk = Disk(Path(tempfile.mkdtemp()), segment_bytes_max=400)
        self.patches = [
            mock.patch.object(reader_module, "_NOWAIT", self.nowait),
            mock.patch.object(reader_module, "BLOCK_BYTES", self.block_bytes),
            mock.patch.object(segment_module, "INDEX_STRIDE_BYTES", 150),
            mock.patch.object(log_module._LOG, "disabled", True),
        ]
        for patch in self.patches:
            patch.start()
        self.ever: dict[int, bytes] = {}  # everything that was acknowledged, and not lost
        self.accepted: dict[int, bytes] = {}  # what may still be refused
        self.shared = SharedBatches(is_immediate=True)
        self.number = 0
        self.mark: tuple[int, int, int] | None = None  # all before it is synced
        self.mark_end = -1  # -1: no mark is held
        self.torn = False  # a failed write could not be undone
        self.log: Log
        self.readers: list[Reader] = []

    @initialize()
    def open(self) -> None:
        self._opened(None)

    def teardown(self) -> None:
        for patch in self.patches:
            patch.stop()
        self.disk.files.close()
        shutil.rmtree(self.disk.path)

    # -- writing ----------------------------------------------------------------------------------

    @rule(sizes=body_sizes, due_ns=st.sampled_from([0, 0, 99]))
    def append(self, sizes: list[list[int]], due_ns: int) -> None:
        batches = self._batches(sizes, due_ns)
        self.log.seal_open()  # while it is known what is pending
        self.shared.take()
        self.log.append(batches)
        self.accepted.update(_bodies(batches))
        self._acknowledged(self.log.accepted)
        assert self.log.written == self.log.end == self.log.accepted

    @rule(sizes=body_sizes, portion=portions, undone=st.booleans())
    def fail_to_append(self, sizes: list[list[int]], portion: float, undone: bool) -> None:
        batches = self._batches(sizes, 0)
        data = b"".join(map(bytes_of, batches))
        written = data[: int(portion * (len(data) - 1))]
        writev = os.writev

        def write_some(fd: int, parts: list[bytes]) -> int:
            return writev(fd, [written[: sum(map(len, parts))]])  # an empty file stays empty

        fail = _failing(errno.ENOSPC)
        with mock.patch("os.writev", write_some), mock.patch("os.write", fail):
            truncate = os.ftruncate if undone else fail
            with mock.patch("os.ftruncate", truncate):
                try:
                    self.log.seal_open()
                    self.shared.take()
                    self.log.append(batches)
                except OSError:
                    self.torn = self.torn or not undone
                    self._refused()
                    return
        raise AssertionError("the write did not fail")

    @rule(sizes=body_sizes, due_ns=st.sampled_from([0, 0, 99]))
    def accept(self, sizes: list[list[int]], due_ns: int) -> None:
        batches = self._batches(sizes, due_ns)
        self.log.accept(batches)
        self.accepted.update(_bodies(batches))

    @rule(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4))
    def add_small(self, sizes: list[int]) -> None:
        """As the kernel does, to the batch that is open."""
        if not self.log.is_shared:
            if self.log.accepted > self.log.end:
                return  # what was accepted goes first
            self.log.share_batch(self.shared, (LINE,))
        for body in self._new_bodies(sizes):
            frames, ends, first_id = self.shared.by_line[LINE]
            self.accepted[self.log.accepted] = body
            message_id = first_id + (len(ends) >> 2)
            message(body, 0, len(body), frames, ends, message_id, TIMESTAMP_NS)
            self.shared.lines.append(LINE)

    @rule(portion=portions)
    def acknowledge(self, portion: float) -> None:
        """A commit succeeds; of batches, an fsync may cover some."""
        end, accepted = self.log.end, self.log.accepted
        is_shared = self.log.is_shared
        self.shared.take()
        to = accepted if is_shared else end + int(portion * (accepted - end))
        if to > self.log.end:
            self.log.advance(to)
        assert self.log.end == to
        self._acknowledged(to)

    @rule()
    def refuse(self) -> None:
        end = self.log.end
        self.shared.take()
        self.log.refuse(end)
        self._refused()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert (self.log.written, self.log.state) == (self.log.end, State.OPEN)

    @rule(undone=st.booleans())
    def fail_to_flush(self, undone: bool) -> None:
        has_more = self.log.written < self.log.end
        fail = _failing(errno.ENOSPC)
        truncate = os.ftruncate if undone else fail
        with mock.patch("os.writev", fail), mock.patch("os.ftruncate", truncate):
            try:
                self.log.flush()
            except OSError:
                assert self.log.state is State.STUCK
            else:
                assert not has_more

    @precondition(lambda self: not self.log.tail and self.log.open is None)
    @rule(gap=st.integers(0, 9))
    def skip_to(self, gap: int) -> None:
        self.log.skip_to(self.log.end + gap)
        self.mark_end = -1

    @precondition(lambda self: not self._is_stuck)
    @rule()
    def take_mark(self) -> None:
        """An fsync succeeds."""
        self.mark, self.mark_end = self.log.mark(), self.log.written
        self.log.note_synced(self.log.written)

    @precondition(lambda self: self.mark_end >= 0)
    @rule(later=st.booleans())
    def cut_back(self, later: bool) -> None:
        """An fsync fails: what was written since the last one stays readable."""
        if later:
            self.log.write_again(self.mark)
        else:
            self.log.cut_back(self.mark)
            assert self.log.written == self.mark_end

    @property
    def _is_stuck(self) -> bool:
        return self.log.state is State.STUCK

    def _acknowledged(self, to: int) -> None:
        for offset in [offset for offset in self.accepted if offset < to]:
            self.ever[offset] = self.accepted.pop(offset)

    def _refused(self) -> None:
        self.accepted.clear()
        assert self.log.accepted == self.log.end

    # -- what time does ---------------------------------------------------------------------------

    @rule(lowest=portions, messages_max=st.integers(0, 20), bytes_max=st.integers(0, 1000))
    def trim(self, lowest: float, messages_max: int, bytes_max: int) -> None:
        self.log.trim(int(lowest * self.log.end), messages_max=messages_max, bytes_max=bytes_max)

    @rule(low=portions)
    def retire(self, low: float) -> None:
        synced = self.log.written if self.mark_end < 0 else self.mark_end
        self.log.retire(len(self.log.consumed(int(low * synced))))

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @precondition(lambda self: not self.torn)
    @rule(clean=st.booleans(), torn=portions)
    def restart(self, clean: bool, torn: float) -> None:
        """After a clean stop, or after a kill in the middle of a write."""
        if clean:
            self.log.flush()
        mark = self.log.mark() if clean else None
        end, written = self.log.end, self.log.written
        newest = self.log.segments[-1].path if self.log.segments else ""
        self.log.close()
        self.disk.files.close()
        if not clean and os.path.exists(newest):
            data = bytes_of(batch_of(written, [b"never acknowledged"]))
            with open(newest, "ab") as file:
                file.write(data[: int(torn * (len(data) - 1))])
        # The write-ahead log has the rest.
        self.ever = {offset: body for offset, body in self.ever.items() if offset < written}
        self._opened(mark)
        self.log.skip_to(end)  # as the cursors of channels would have it

    # -- reading ----------------------------------------------------------------------------------

    @rule(index=st.integers(0, READERS - 1), where=portions)
    def read(self, index: int, where: float) -> None:
        self._read(index, int(where * self.log.end))

    @rule(index=st.integers(0, READERS - 1), start=portions, count=st.integers(1, 8))
    def read_on(self, index: int, start: float, count: int) -> None:
        at = int(start * self.log.end)
        for _ in range(count):
            at = max(self._read(index, at), at + 1)

    @rule(index=st.integers(0, READERS - 1))
    def release(self, index: int) -> None:
        self.readers[index].release()

    @precondition(lambda self: self.disk.threads.waiting)
    @rule(which=portions)
    def work(self, which: float) -> None:
        self.disk.threads.work(int(which * (len(self.disk.threads.waiting) - 1)))

    @precondition(lambda self: self.disk.threads.waiting)
    @rule(call=st.sampled_from(["open", "pread"]), code=st.sampled_from(ERRORS))
    def fail_to_work(self, call: str, code: int) -> None:
        with mock.patch(f"os.{call}", _failing(code)):
            self.disk.threads.work()

    @rule(index=st.integers(0, READERS - 1), where=portions, code=st.sampled_from(ERRORS))
    def read_badly(self, index: int, where: float, code: int) -> None:
        """The event loop's own reads fail; the thread's will not."""
        with mock.patch("os.preadv", _failing(code)):
            self._read(index, int(where * self.log.end))

    @rule()
    def retry(self) -> None:
        self.disk.timers.fire()

    @precondition(lambda self: self.disk.threads.finished)
    @rule(which=portions)
    def report(self, which: float) -> None:
        self.disk.threads.report(int(which * (len(self.disk.threads.finished) - 1)))

    @rule(start=portions)
    def read_everything(self, start: float) -> None:
        at = int(start * self.log.end)
        found = self._read_from(at)
        expected = {o: body for o, body in self.ever.items() if o >= at}
        assert {o: body for o, body in found.items() if o >= self.log.first} == {
            o: body for o, body in expected.items() if o >= self.log.first
        }
        assert found.items() <= expected.items()

    @rule(start=portions, length=portions, bytes_max=st.integers(1, 2000))
    def read_range(self, start: float, length: float, bytes_max: int) -> None:
        """Raw ranges, one after the other, are exactly the messages; no more than was asked."""
        written = self.log.written
        at = max(int(start * written), self.log.first)
        to = at + int(length * max(written - at, 0))
        while at < to:
            batches, reached = read_range(self.log, at, to, bytes_max=bytes_max)
            note(f"[{at}, {to}) -> {[(b.first, b.end) for b in batches]}, {reached}")
            assert at < reached <= to
            assert all(batch.end > at and batch.first < reached for batch in batches)
            assert len(batches) <= 1 or sum(b.size_bytes for b in batches) <= bytes_max
            found = {o: body_at(b, o) for b in batches for o in range(b.first, b.end)}
            expected = {o: body for o, body in self.ever.items() if at <= o < reached}
            assert {o: body for o, body in found.items() if at <= o < reached} == expected
            at = reached

    # -- always -----------------------------------------------------------------------------------

    @invariant()
    def nothing_was_damaged(self) -> None:
        assert self.disk.names(".bad") == []

    @invariant()
    def offsets_are_in_order(self) -> None:
        log = self.log
        assert log.synced <= max(log.written, self.mark_end)
        assert log.written <= log.end <= log.accepted
        assert log.accepted - log.end == len(self.accepted)

    @invariant()
    def sizes_are_those_of_the_files(self) -> None:
        for segment in self.log.segments:
            if os.path.exists(segment.path):
                assert segment.size_bytes <= os.path.getsize(segment.path)
            else:
                assert segment.size_bytes == 0

    # -- parts ------------------------------------------------------------------------------------

    def _opened(self, mark: tuple[int, int, int] | None) -> None:
        self.log = self.disk.open(mark)
        self.log.keeps_unsynced = True
        self.log.follow(lambda: None)
        self.shared = SharedBatches(is_immediate=True)
        self.accepted.clear()
        self.mark_end = -1
        self.disk.threads.waiting.clear()
        self.disk.threads.finished.clear()
        self.disk.timers.waiting.clear()
        self.readers = [self.log.reader(lambda: None) for _ in range(READERS)]

    def _batches(self, sizes: list[list[int]], due_ns: int) -> list[LogBatch]:
        batches = []
        first = self.log.accepted
        for group in sizes:
            batches.append(batch_of(first, self._new_bodies(group), due_ns=due_ns))
            first = batches[-1].end
        return batches

    def _new_bodies(self, sizes: list[int]) -> list[bytes]:
        numbers = range(self.number, self.number + len(sizes))
        self.number += len(sizes)
        return [b"%d" % number + b"." * size for number, size in zip(numbers, sizes, strict=True)]

    def _read_from(self, at: int) -> dict[int, bytes]:
        reader = self.log.reader(lambda: None)
        found: dict[int, bytes] = {}
        while at < self.log.end:
            batch = reader.batch(at)
            if batch is None:
                if not self.disk.threads.run():
                    break
            elif not batch.count:  # nothing follows up to here
                assert batch.first > at
                at = batch.first
            else:
                at = max(at, batch.first)
                if at < self.log.end:
                    found[at] = body_at(batch, at)
                at += 1
        return found

    def _read(self, index: int, offset: int) -> int:
        """What a reader says about an offset is true; returns where the answer ends."""
        batch = self.readers[index].batch(offset)
        there = [o for o in self.ever if o >= max(offset, self.log.first)]
        if batch is None:
            loading = self.readers[index]._loading
            assert loading or not there
            return offset
        if not batch.count:  # nothing follows up to here
            assert batch.first == self.log.written
            assert not any(o < batch.first for o in there)
            return batch.first
        note(f"reader {index}: {offset} -> [{batch.first}, {batch.end})")
        assert batch.end > offset
        assert not any(o < batch.first for o in there)  # else it was stepped over
        for at in range(batch.first, min(batch.end, self.log.end)):
            assert self.ever[at] == body_at(batch, at)
        return batch.end


def _bodies(batches: list[LogBatch]) -> dict[int, bytes]:
    return {o: body_at(batch, o) for batch in batches for o in range(batch.first, batch.end)}


def _failing(code: int) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail


class ThreadsOnlyMachine(LogMachine):
    nowait = 0


TestLog = LogMachine.TestCase
TestLogThroughThreadsOnly = ThreadsOnlyMachine.TestCase
