"""stdout of a tool with an event loop: a thread writes it, and the loop never waits for it.

While a pipe is full, the loop answers heartbeats and signals. The thread waits with `poll` and
writes at most PIPE_BUF bytes after it: a pipe that has room takes so many at once. When there is
nothing to write, the same `poll` notices that the reader has gone.

uvloop's `add_reader` would make stdout non-blocking, for everybody who has the same open file.
"""

import asyncio
import os
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from pumpline.tools.standard_streams import STDOUT, StdoutError, write_some
from pumpline.tools.tool import ToolFailure

PIECE_BYTES = select.PIPE_BUF
DROP_S_MAX = 1.0  # another program may fill the pipe between poll and write, which then blocks


@dataclass(slots=True, eq=False)
class _Output:
    parts: Sequence[bytes]
    ended: "asyncio.Future[StdoutError | None]"
    written: int = 0  # parts of which stdout has every byte
    is_dropped: bool = False

    def end(self, error: StdoutError | None) -> None:
        if not self.ended.done():  # its writer may have been cancelled
            self.ended.set_result(error)


class Stdout:
    """A context manager. One write at a time."""

    def __init__(self, stop: asyncio.Event) -> None:
        """`stop` ends a write, and is set when nobody reads stdout any more."""
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._output: _Output | None = None
        self._is_over = False
        self._woken, self._wake = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)

    async def __aenter__(self) -> Self:
        # A daemon: a write that blocks cannot be called off, and must not keep the process.
        threading.Thread(target=self._run, name="stdout", daemon=True).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        self._wake_up()

    async def write(self, parts: Sequence[bytes]) -> int:
        """Return how many parts were written whole: all of them, unless `stop` is set. A part of
        at most PIPE_BUF bytes is written whole or not at all. ToolFailure, in NSQ's words, if
        stdout cannot be written."""
        if self._stop.is_set():
            return 0
        output = self._output = _Output(parts, self._loop.create_future())
        self._wake_up()
        stopped = asyncio.create_task(self._stop.wait())
        either: set[asyncio.Future[Any]] = {output.ended, stopped}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            if not output.ended.done():
                output.is_dropped = True
                self._wake_up()
        if not output.ended.done():
            await asyncio.wait({output.ended}, timeout=DROP_S_MAX)
        error = output.ended.result() if output.ended.done() else None
        if error is None:
            return output.written
        if not error.is_closed:
            raise ToolFailure(f"ERROR: failed to write to os.Stdout - {error.cause}")
        self._stop.set()
        return 0  # of what is in the pipe, nobody knows what was read

    def _wake_up(self) -> None:
        os.write(self._wake, b".")

    # -- in the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        is_watched = True
        while not self._is_over:
            if (output := self._output) is not None:
                self._output = None
                self._write_and_tell(output)
                is_watched = True
            elif self._wait_for(0, is_watched=is_watched):
                is_watched = False  # poll would return at once from now on
                self._tell(self._stop.set)
        os.close(self._woken)
        os.close(self._wake)

    def _write_and_tell(self, output: _Output) -> None:
        error = None
        try:
            self._write(output)
        except StdoutError as failure:
            error = failure
        self._tell(lambda: output.end(error))

    def _write(self, output: _Output) -> None:
        for piece, parts in _pieces(output.parts):
            left = memoryview(piece)
            while left:
                if output.is_dropped:
                    return
                if self._wait_for(select.POLLOUT):
                    left = left[write_some(left) :]
            output.written += parts

    def _wait_for(self, events: int, *, is_watched: bool = True) -> int:
        """Wait for events of stdout, or for the loop; returns what stdout is ready for. An error of
        it, such as a reader that has gone, is always among the events."""
        if is_watched:
            self._poll.register(STDOUT, events)
        ready = dict(self._poll.poll())
        if is_watched:
            self._poll.unregister(STDOUT)
        if self._woken in ready:
            os.read(self._woken, PIECE_BYTES)
        return ready.get(STDOUT, 0)

    def _tell(self, call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call)


def _pieces(parts: Sequence[bytes]) -> Iterator[tuple[bytes | memoryview, int]]:
    """Pieces of at most PIECE_BYTES, each with how many parts are whole after it."""
    group: list[bytes] = []
    size = 0
    for part in parts:
        if size + len(part) > PIECE_BYTES:
            yield b"".join(group), len(group)
            group, size = [], 0
        if len(part) > PIECE_BYTES:
            for at in range(0, len(part), PIECE_BYTES):
                is_last = at + PIECE_BYTES >= len(part)
                yield memoryview(part)[at : at + PIECE_BYTES], int(is_last)
        else:
            group.append(part)
            size += len(part)
    yield b"".join(group), len(group)
