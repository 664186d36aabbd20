"""When a daemon gives memory back, on a clock that the test moves."""

import asyncio
import platform
import subprocess
import sys
from collections.abc import Callable
from typing import Any, cast

import pytest

from pumpline.web.process_memory import (
    LOOK_S,
    LOOK_S_MAX,
    SLACK_BYTES,
    HeapTrim,
    resident_bytes,
    trim_heap,
)


class FakeLoop:
    """Timers and threads that run when the test says so."""

    def __init__(self) -> None:
        self.due_s = 0.0
        self.callback: Callable[[], None] | None = None

    def call_later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> "FakeLoop":
        self.due_s, self.callback = delay_s, lambda: callback(*args)
        return self

    def cancel(self) -> None:
        self.callback = None

    def run_in_executor(self, _: None, work: Callable[[], None]) -> "FakeLoop":
        work()
        return self

    def add_done_callback(self, done: Callable[[Any], None]) -> None:
        done(self)

    def wait(self) -> float:
        """Let the timer run out; how long that took."""
        assert self.callback is not None
        waited_s, callback = self.due_s, self.callback
        self.callback = None
        callback()
        return waited_s


class FakeHeap:
    def __init__(self) -> None:
        self.used = self.resident = 50 << 20
        self.trims = 0
        self.loop = FakeLoop()
        self.keeps = 0
        self.trim = HeapTrim(resident=lambda: self.resident, keep=self._on_keep, trim=self._on_trim)
        self.trim.start(cast(asyncio.AbstractEventLoop, self.loop))

    def _on_keep(self) -> None:
        self.keeps += 1

    def _on_trim(self) -> None:
        self.trims += 1
        self.resident = self.used


BUFFERS = """
import resource
from pumpline.web.process_memory import keep_heap
{call}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use(count):
    for _ in range(count):
        buffers = [bytearray(500_000) for _ in range(4)]
        del buffers
use(5)
before = faults()
use(100)
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="for glibc's malloc")
def test_large_buffers_are_made_of_pages_that_were_freed_and_kept() -> None:
    def pages(call: str) -> int:
        script = BUFFERS.format(call=call)
        return int(subprocess.check_output([sys.executable, "-c", script]))

    assert pages("keep_heap()") < 1_000  # of 50,000
    assert pages("") > 10_000


def test_a_daemon_keeps_freed_memory_from_its_start_on() -> None:
    assert FakeHeap().keeps == 1


def test_a_process_that_does_not_grow_is_left_alone() -> None:
    heap = FakeHeap()
    heap.resident += SLACK_BYTES - 1
    assert {heap.loop.wait() for _ in range(10)} == {LOOK_S}
    assert heap.trims == 0


def test_what_is_free_goes_back() -> None:
    heap = FakeHeap()
    for _ in range(3):
        heap.resident += 2 * SLACK_BYTES
        assert heap.loop.wait() == LOOK_S
        assert heap.resident == heap.used
    assert heap.trims == 3


def test_what_is_in_use_is_tried_less_and_less_often_and_goes_back_in_the_end() -> None:
    heap = FakeHeap()
    in_use = heap.used
    heap.used = heap.resident = in_use + 3 * SLACK_BYTES
    waits = [heap.loop.wait() for _ in range(10)]
    assert waits[:3] == [LOOK_S, 2 * LOOK_S, 4 * LOOK_S]
    assert waits[-1] == LOOK_S_MAX
    heap.used = in_use
    heap.loop.wait()
    assert heap.resident == in_use
    assert heap.loop.wait() == LOOK_S


def test_after_its_end_it_looks_no_more() -> None:
    heap = FakeHeap()
    heap.trim.close()
    assert heap.loop.callback is None


def test_memory_of_this_process() -> None:
    trim_heap()
    assert resident_bytes() > 1 << 20
