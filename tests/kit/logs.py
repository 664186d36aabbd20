"""Logs for tests: batches with known bodies, and threads and timers that are run by hand."""

import os
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pumpline.core.messages.batches import Builder, LogBatch, read_batch
from pumpline.core.messages.frame import MESSAGE_OVERHEAD_BYTES, encode_message
from pumpline.log import ranges
from pumpline.log.files import FilePool
from pumpline.log.log import Log
from pumpline.log.reader import Reader

BASE_ID = 0x0123456000000000
TIMESTAMP_NS = 1_700_000_000_000_000_000
SEGMENT_BYTES_MAX = 100 << 20
ROUNDS_MAX = 100  # of asking a reader for an offset


def batch_of(
    first: int,
    bodies: list[bytes],
    *,
    due_ns: int = 0,
    dues_ns: Sequence[int] = (),
    tokens: Sequence[bytes] = (),
) -> LogBatch:
    """A sealed batch of messages with these bodies; `due_ns` is the due time of all that `dues_ns`
    has none for."""
    builder = Builder(first=first, timestamp_ns=TIMESTAMP_NS)
    for body, its_due_ns in zip_longest(bodies, dues_ns, fillvalue=due_ns):
        assert isinstance(body, bytes)
        builder.add(
            encode_message(
                timestamp_ns=TIMESTAMP_NS,
                attempts=1,
                message_id=BASE_ID + builder.end,
                body=body,
            ),
            its_due_ns,
        )
    builder.tokens = b"".join(tokens)
    return builder.seal()


def bytes_of(batch: LogBatch) -> bytes:
    """A batch as it is in a segment."""
    parts = batch.head(), batch.ends, batch.dues, batch.frames, batch.tokens
    return b"".join(parts)


def body_at(batch: LogBatch, offset: int) -> bytes:
    """The body of one message, once its id was seen to be the right one."""
    frame = bytes(batch.cut(offset, offset + 1))
    assert frame[18:MESSAGE_OVERHEAD_BYTES] == b"%016x" % (BASE_ID + offset)
    return frame[MESSAGE_OVERHEAD_BYTES:]


def bodies_of(batch: LogBatch) -> list[bytes]:
    return [body_at(batch, offset) for offset in range(batch.first, batch.end)]


def batches_in(data: bytes) -> list[LogBatch]:
    """What a reader of raw bytes makes of them; nothing else may be in there."""
    view = memoryview(data)
    batches: list[LogBatch] = []
    at = 0
    while at < len(view):
        batches.append(read_batch(view, at))
        at += batches[-1].size_bytes
    return batches


def read_range(
    log: Log, start: int, to: int, *, bytes_max: int = 1 << 30
) -> tuple[list[LogBatch], int]:
    """The batches that stand for [start, to), and how far they go."""
    found = ranges.open_range(ranges.select(log, start, to), start, to, bytes_max=bytes_max)
    try:
        data = b"".join(os.pread(fd, length, position) for fd, position, length, _ in found.extents)
        assert len(data) == found.size_bytes
        return batches_in(data), found.to
    finally:
        found.close()


class Threads:
    """An offload whose jobs run, and report, when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.finished: list[tuple[Callable[[Any], None], Any]] = []

    def __call__(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.waiting.append((job, done))

    def forget(self) -> None:
        self.waiting.clear()
        self.finished.clear()

    def work(self, index: int = 0) -> None:
        """Run one job; its outcome is not reported yet."""
        job, done = self.waiting.pop(index)
        try:
            result = job()
        except OSError as error:
            # A traceback would keep this frame, with what the job has read, until the garbage
            # collector comes: whether readers find that in memory must not depend on when it does.
            result = error.with_traceback(None)
        self.finished.append((done, result))

    def report(self, index: int = 0) -> None:
        done, result = self.finished.pop(index)
        done(result)

    def run(self) -> int:
        """Run and report everything, in order; returns how many jobs there were."""
        count = 0
        while self.waiting or self.finished:
            if self.finished:
                self.report()
                count += 1
            else:
                self.work()
        return count


def at_once(job: Callable[[], Any], done: Callable[[Any], None]) -> None:
    """An offload that does not wait: the disk is never slow."""
    done(job())


class Timers:
    """A `later` whose callbacks run when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, delay_s: float, callback: Callable[[], None], /) -> object:
        self.waiting.append((delay_s, callback))
        return None

    def fire_due(self) -> bool:
        """Run what is due at once; returns whether there was anything."""
        due = [callback for delay_s, callback in self.waiting if not delay_s]
        self.waiting = [each for each in self.waiting if each[0]]
        for callback in due:
            callback()
        return bool(due)

    def fire(self) -> None:
        """Run what is waiting now, in order of time."""
        waiting, self.waiting = self.waiting, []
        for _, callback in sorted(waiting, key=lambda each: each[0]):
            callback()


class Disk:
    """A directory with one log, and what a log needs to be opened."""

    def __init__(self, path: Path, *, segment_bytes_max: int = SEGMENT_BYTES_MAX) -> None:
        self.path = path
        self.segment_bytes_max = segment_bytes_max
        self.threads = Threads()
        self.timers = Timers()
        self.files = FilePool(16)

    def open(self, clean: tuple[int, int, int] | None = None) -> Log:
        return Log(
            str(self.path),
            base_id=BASE_ID,
            files=self.files,
            offload=self.threads,
            later=self.timers,
            segment_bytes_max=self.segment_bytes_max,
            clean=clean,
        )

    def write(self, name: str, *batches: LogBatch) -> Path:
        """A segment as if written earlier."""
        path = self.path / name
        path.write_bytes(b"".join(map(bytes_of, batches)))
        return path

    def names(self, suffix: str) -> list[str]:
        return sorted(name for name in os.listdir(self.path) if name.endswith(suffix))

    def find(self, reader: Reader, offset: int) -> LogBatch | None:
        """What `reader.batch` answers once threads had time; None where nothing follows."""
        for _ in range(ROUNDS_MAX):
            batch = reader.batch(offset)
            if batch is not None:
                return batch if batch.count else None
            if not self.timers.fire_due() and not self.threads.run():
                return None
        raise AssertionError(f"the reader never found its way to {offset}")

    def read(self, log: Log, start: int = 0) -> dict[int, bytes]:
        """All messages from `start` on, by offset, read as a channel would."""
        reader = log.reader(lambda: None)
        found: dict[int, bytes] = {}
        at = start
        while at < log.end:
            batch = self.find(reader, at)
            if batch is None:
                break
            at = max(at, batch.first)
            found[at] = body_at(batch, at)
            at += 1
        return found


def failing_writev(written_bytes: int, code: int) -> Callable[[int, list[bytes]], int]:
    """Writes so much, and says so; the rest fails."""
    writev = os.writev

    def write_some(fd: int, parts: list[bytes]) -> int:
        if not written_bytes:
            raise OSError(code, os.strerror(code))
        return writev(fd, [b"".join(parts)[:written_bytes]])

    return write_some
