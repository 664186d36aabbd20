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
from pumpline.log import log as log_module
from pumpline.log import reader as reader_module
from pumpline.log import segment as segment_module
from pumpline.log.log import Log
from pumpline.log.reader import Reader
from tests.kit.logs import Disk, batch_of, bodies_of, body_at, bytes_of, read_range

READERS = 3
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
        self.ever: dict[int, bytes] = {}  # everything appended and not taken back
        self.number = 0
        self.mark: tuple[int, int, int] | None = None
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
        self.log.append(batches)
        for batch in batches:
            self.ever.update(zip(range(batch.first, batch.end), bodies_of(batch), strict=True))

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
                    self.log.append(batches)
                except OSError:
                    self.torn = self.torn or not undone
                    return
        raise AssertionError("the write did not fail")

    @rule(gap=st.integers(0, 9))
    def skip_to(self, gap: int) -> None:
        self.log.skip_to(self.log.end + gap)
        self.mark_end = -1

    @rule()
    def take_mark(self) -> None:
        self.mark, self.mark_end = self.log.mark(), self.log.end

    @precondition(lambda self: self.mark_end >= 0)
    @rule()
    def cut_back(self) -> None:
        self.log.cut_back(self.mark)
        assert self.log.end == self.mark_end
        self.ever = {o: body for o, body in self.ever.items() if o < self.mark_end}

    # -- what time does ---------------------------------------------------------------------------

    @rule(lowest=portions, messages_max=st.integers(0, 20), bytes_max=st.integers(0, 1000))
    def trim(self, lowest: float, messages_max: int, bytes_max: int) -> None:
        self.log.trim(int(lowest * self.log.end), messages_max=messages_max, bytes_max=bytes_max)

    @rule(low=portions)
    def retire(self, low: float) -> None:
        visible = self.log.end if self.mark_end < 0 else self.mark_end
        self.log.retire(len(self.log.consumed(int(low * visible))))

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @precondition(lambda self: not self.torn)
    @rule(clean=st.booleans(), torn=portions)
    def restart(self, clean: bool, torn: float) -> None:
        """After a clean stop, or after a kill in the middle of a write."""
        mark = self.log.mark() if clean else None
        end = self.log.end
        newest = self.log.segments[-1].path if self.log.segments else ""
        self.log.close()
        self.disk.files.close()
        if not clean and os.path.exists(newest):
            data = bytes_of(batch_of(end, [b"never acknowledged"]))
            with open(newest, "ab") as file:
                file.write(data[: int(torn * (len(data) - 1))])
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
        found = self.disk.read(self.log, at)
        expected = {o: body for o, body in self.ever.items() if o >= at}
        assert {o: body for o, body in found.items() if o >= self.log.first} == {
            o: body for o, body in expected.items() if o >= self.log.first
        }
        assert found.items() <= expected.items()

    @rule(start=portions, length=portions, bytes_max=st.integers(1, 2000))
    def read_range(self, start: float, length: float, bytes_max: int) -> None:
        """Raw ranges, one after the other, are exactly the messages; no more than was asked."""
        visible = self.log.end if self.mark_end < 0 else self.mark_end
        at = max(int(start * visible), self.log.first)
        to = at + int(length * max(visible - at, 0))
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
    def sizes_are_those_of_the_files(self) -> None:
        for segment in self.log.segments:
            if os.path.exists(segment.path):
                assert segment.size_bytes <= os.path.getsize(segment.path)
            else:
                assert segment.size_bytes == 0

    # -- parts ------------------------------------------------------------------------------------

    def _opened(self, mark: tuple[int, int, int] | None) -> None:
        self.log = self.disk.open(mark)
        self.mark_end = -1
        self.disk.threads.waiting.clear()
        self.disk.threads.finished.clear()
        self.disk.timers.waiting.clear()
        self.readers = [self.log.reader(lambda: None) for _ in range(READERS)]

    def _batches(self, sizes: list[list[int]], due_ns: int) -> list[LogBatch]:
        batches = []
        first = self.log.end
        for group in sizes:
            bodies = []
            for size in group:
                self.number += 1
                bodies.append(b"%d" % self.number + b"." * size)
            batches.append(batch_of(first, bodies, due_ns=due_ns))
            first = batches[-1].end
        return batches

    def _read(self, index: int, offset: int) -> int:
        """What a reader says about an offset is true; returns where the answer ends."""
        batch = self.readers[index].batch(offset)
        there = [o for o in self.ever if o >= max(offset, self.log.first)]
        if batch is None:
            loading = self.readers[index]._loading
            assert loading or not there
            return offset
        if not batch.count:  # nothing follows up to here
            assert batch.first == self.log.end
            assert not there
            return batch.first
        note(f"reader {index}: {offset} -> [{batch.first}, {batch.end})")
        assert batch.end > offset
        assert not any(o < batch.first for o in there)  # else it was stepped over
        for at, body in enumerate(bodies_of(batch), batch.first):
            assert self.ever[at] == body
        return batch.end


def _failing(code: int) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail


class ThreadsOnlyMachine(LogMachine):
    nowait = 0


TestLog = LogMachine.TestCase
TestLogThroughThreadsOnly = ThreadsOnlyMachine.TestCase
