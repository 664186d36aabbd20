"""Spans of files as a reply.

Files are sent by `sendfile`, from threads, on a duplicate of the connection's socket, as uvloop has
no sendfile of its own. A thread sends while the socket takes it, and waits for it POLL_MS at most,
so that a slow client holds no thread. Over TLS the bytes are read and written.

Open files are bounded by turns. A stream keeps its turn, and so its files, while nobody waits for
one. Otherwise it closes its files and gives up its turn after a slice, or when its client takes no
more. It waits for the next turn when the client can be sent to again, and opens its files again; if
one of them was deleted meanwhile, the connection is closed. So clients that do not read never keep
others from reading. Descriptors are closed when no thread uses them any more.
"""

import asyncio
import os
import select
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from pumpline.web.loopback import unpace
from pumpline.web.stream_sink import StreamSink
from pumpline.web.turn_queue import TurnQueue

SLICE_BYTES_MAX = 32 << 20  # sent by a thread before others get it, and in a turn if others wait
READ_BYTES = 256 * 1024
POLL_MS = 20
WAIT_S = 1.0  # between looks at whether the connection is still there

T = TypeVar("T")


class FileSpan(NamedTuple):
    fd: int
    position: int
    length_bytes: int
    path: str  # of the file, to open it again


class FileStream:
    """Owns the descriptors of its spans, and a turn that its maker has acquired."""

    endless = False

    def __init__(self, spans: Sequence[tuple[int, int, int, str]], turns: TurnQueue) -> None:
        self._spans = [FileSpan(*span) for span in spans]
        self._turns = turns
        self._has_turn = True
        self._turn_bytes = 0  # sent since the turn began
        self._files = {span.path: span.fd for span in self._spans}  # that are open
        self._identities = {path: _identity(fd) for path, fd in self._files.items()}
        self._out: int | None = None  # a duplicate of the socket's descriptor
        self._job: asyncio.Future[Any] | None = None  # uses the descriptors

    @property
    def length_bytes(self) -> int:
        return sum(span.length_bytes for span in self._spans)

    async def send(self, sink: StreamSink) -> None:
        await sink.drain()
        socket_fd = sink.socket_fd()
        if socket_fd is not None:
            self._out = _duplicate(socket_fd)
        for index, span in enumerate(self._spans):
            position, end = span.position, span.position + span.length_bytes
            while position < end:
                if not self._has_turn:
                    await self._resume(self._spans[index:])
                fd = self._files[span.path]
                if self._out is None:
                    count = await self._copy(sink, fd, position, end)
                else:
                    count = await self._push(sink, self._out, fd, position, end)
                position += count
                self._turn_bytes += count
                if self._turn_bytes >= SLICE_BYTES_MAX:
                    self._yield()

    async def _push(self, sink: StreamSink, out: int, fd: int, position: int, end: int) -> int:
        sent = await self._run(partial(_push, out, fd, position, end))
        sink.check()
        if not sent:
            self._yield()
            while not await _writable(out):
                sink.check()
                self._yield()
        return sent

    async def _copy(self, sink: StreamSink, fd: int, position: int, end: int) -> int:
        data = await self._run(partial(_read, fd, position, end))
        sink.put(data)
        while not await sink.room(WAIT_S):
            self._yield()
        return len(data)

    def _yield(self) -> None:
        """Let the next have the turn, if anybody waits for one."""
        self._turn_bytes = 0
        if self._has_turn and self._turns.is_awaited:
            self._close_files()
            self._end_turn()

    async def _resume(self, rest: Sequence[FileSpan]) -> None:
        await self._turns.acquire()
        self._has_turn = True
        paths = {span.path for span in rest}
        self._files = await self._run(partial(_open, {p: self._identities[p] for p in paths}))

    async def _run(self, job: Callable[[], T]) -> T:
        """In a thread. If the wait is cancelled the thread goes on, until its slice is over."""
        future = asyncio.get_running_loop().run_in_executor(None, job)
        self._job = future
        return await asyncio.shield(future)

    def _end_turn(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._turns.release()

    def close(self) -> None:
        self._end_turn()
        if self._job is None or self._job.done():
            self._close()
        else:
            self._job.add_done_callback(self._close)

    def _close(self, job: "asyncio.Future[Any] | None" = None) -> None:
        if job is not None and not job.cancelled() and job.exception() is None:
            opened = job.result()
            if isinstance(opened, dict):  # by `_open`, for nobody
                self._files = opened
        self._close_files()
        if self._out is not None:
            os.close(self._out)
            self._out = None

    def _close_files(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])


def _open(identities: dict[str, tuple[int, int]]) -> dict[str, int]:
    """From a thread: open files by their paths, if they are still the same files."""
    files: dict[str, int] = {}
    try:
        for path, identity in identities.items():
            files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if _identity(files[path]) != identity:
                raise OSError(f"{path} is another file now")
    except BaseException:
        for fd in files.values():
            os.close(fd)
        raise
    return files


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _push(out: int, fd: int, position: int, end: int) -> int:
    """From a thread: send until the slice is over or the client takes no more; the bytes sent."""
    sent = 0
    limit = min(end - position, SLICE_BYTES_MAX)
    while sent < limit:
        try:
            count = os.sendfile(out, fd, position + sent, limit - sent)
        except BlockingIOError:
            poll = select.poll()
            poll.register(out, select.POLLOUT)
            if not poll.poll(POLL_MS):
                break
            continue
        if not count:
            raise OSError(f"file ends at {position + sent}, before {end}")
        sent += count
    return sent


def _read(fd: int, position: int, end: int) -> bytes:
    data = os.pread(fd, min(READ_BYTES, end - position), position)
    if not data:
        raise OSError(f"file ends at {position}, before {end}")
    return data


def _duplicate(fd: int) -> int:
    """A descriptor of the same socket, which stays open as long as a thread needs it."""
    duplicate = socket.socket(fileno=os.dup(fd))
    with suppress(OSError):
        peer = duplicate.getpeername()
        if isinstance(peer, tuple):
            unpace(duplicate.fileno(), peer[0])
    return duplicate.detach()


async def _writable(fd: int) -> bool:
    """Wait until a socket takes more; False if it has not within WAIT_S."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_writer(fd, lambda: None if ready.done() else ready.set_result(None))
    try:
        async with asyncio.timeout(WAIT_S):
            await ready
        return True
    except TimeoutError:
        return False
    finally:
        loop.remove_writer(fd)
