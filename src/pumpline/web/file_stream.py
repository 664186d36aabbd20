"""Spans of files as a reply.

Files are sent by `sendfile`, from threads, on a duplicate of the connection's socket, as uvloop has
no sendfile of its own. A thread sends while the socket takes it, and waits for it POLL_MS at most,
so that a slow client holds a socket and descriptors but no thread. Over TLS the bytes are read and
written. Whatever happens, the descriptors are closed when no thread uses them any more.
"""

import asyncio
import os
import select
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from pumpline.web.loopback import unpace
from pumpline.web.replies import ReplySink

SLICE_BYTES_MAX = 32 << 20  # sent by a thread before others have their turn
READ_BYTES = 256 * 1024
POLL_MS = 20
WAIT_S = 1.0  # between looks at whether the connection is still there

T = TypeVar("T")


class FileStream:
    """Spans of open files: (descriptor, position, bytes). Owns the descriptors."""

    endless = False

    def __init__(
        self, spans: Sequence[tuple[int, int, int]], *, on_close: Callable[[], None]
    ) -> None:
        self._spans = list(spans)
        self._on_close = on_close
        self._fds = {fd for fd, _, _ in spans}
        self._job: asyncio.Future[Any] | None = None  # uses the descriptors

    @property
    def length_bytes(self) -> int:
        return sum(length for _, _, length in self._spans)

    async def send(self, sink: ReplySink) -> None:
        await sink.drain()
        socket_fd = sink.socket_fd()
        if socket_fd is None:
            await self._send_copies(sink)
            return
        out = _duplicate(socket_fd)
        self._fds.add(out)
        for fd, start, length in self._spans:
            position, end = start, start + length
            while position < end:
                sent = await self._run(partial(_push, out, fd, position, end))
                position += sent
                sink.check()
                if not sent:
                    await _writable(out)

    async def _send_copies(self, sink: ReplySink) -> None:
        for fd, start, length in self._spans:
            position, end = start, start + length
            while position < end:
                data = await self._run(partial(_read, fd, position, end))
                position += len(data)
                await sink.write(data)

    async def _run(self, job: Callable[[], T]) -> T:
        """In a thread. If the wait is cancelled the thread goes on, until its slice is over."""
        future = asyncio.get_running_loop().run_in_executor(None, job)
        self._job = future
        return await asyncio.shield(future)

    def close(self) -> None:
        self._on_close()
        if self._job is None or self._job.done():
            self._close_files()
        else:
            self._job.add_done_callback(self._close_files)

    def _close_files(self, job: "asyncio.Future[Any] | None" = None) -> None:
        if job is not None and not job.cancelled():
            job.exception()  # nobody waits for it any more
        while self._fds:
            os.close(self._fds.pop())


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


async def _writable(fd: int) -> None:
    """Wait until a socket takes more, or for WAIT_S."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_writer(fd, lambda: None if ready.done() else ready.set_result(None))
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                await ready
    finally:
        loop.remove_writer(fd)
