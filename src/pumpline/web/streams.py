"""Replies that are sent piece by piece: spans of files, and events as they happen.

Files are sent by `sendfile`, from threads, on a duplicate of the connection's socket, as uvloop has
no sendfile of its own: a thread sends while the socket takes it, and waits for it POLL_MS at most,
so that a slow client holds a socket and descriptors but no thread. Over TLS the bytes are read and
written. Whatever happens, the descriptors are closed, when no thread uses them any more.

Events come from an iterator that is asked for more only when the client has taken what there was:
a slow client is served at its own pace, and given up when it takes nothing for too long. While
there is nothing to send nobody looks for it: `EventStream.wake` says when to.
"""

import asyncio
import os
import select
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Any, Protocol, TypeVar

from aiohttp import web
from aiohttp.http import HttpVersion11

from pumpline.web.time_limits import Allowance

SLICE_BYTES_MAX = 32 << 20  # sent by a thread before others have their turn
READ_BYTES = 256 * 1024
POLL_MS = 20
WAIT_S = 1.0  # between looks at whether the connection is still there
RETRY_MS = 1000  # a client waits before it comes back
_FLUSH_S_MAX = 0.05
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_TCP_CONGESTION = 13  # of Linux; others refuse it, and nothing is lost
_UNPACED = b"reno"

SIGN_OF_LIFE = b":\n\n"  # a comment, to readers of events

T = TypeVar("T")


class Stream(Protocol):
    """The body of a reply."""

    @property
    def length_bytes(self) -> int | None:
        """None: nobody knows yet."""
        ...

    async def send(
        self, request: web.BaseRequest, response: web.StreamResponse, allowance: Allowance
    ) -> None:
        """Send it all, after the head; ConnectionError when the client is gone."""
        ...

    def close(self) -> None:
        """Nothing will be sent any more."""
        ...


def stream_response(
    request: web.BaseRequest, stream: Stream, status: int, headers: Mapping[str, str]
) -> web.StreamResponse:
    """A response that says how long its body is, or how its end will be known."""
    response = web.StreamResponse(status=status, headers=headers)
    if stream.length_bytes is not None:
        response.content_length = stream.length_bytes
    elif request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    else:
        response.force_close()
    return response


class FileStream:
    """Spans of open files: (descriptor, position, bytes). Owns the descriptors."""

    def __init__(
        self,
        spans: Sequence[tuple[int, int, int]],
        *,
        threads: Executor,
        on_close: Callable[[], None],
    ) -> None:
        self._spans = list(spans)
        self._threads = threads
        self._on_close = on_close
        self._fds = {fd for fd, _, _ in spans}
        self._job: Future[Any] | None = None  # uses the descriptors

    @property
    def length_bytes(self) -> int:
        return sum(length for _, _, length in self._spans)

    async def send(
        self, request: web.BaseRequest, response: web.StreamResponse, allowance: Allowance
    ) -> None:
        transport = _transport(request)
        connection = transport.get_extra_info("socket")
        if connection is None or transport.get_extra_info("ssl_object") is not None:
            await self._send_copies(response)
            return
        await _flush(request)
        out = _duplicate(connection.fileno())
        self._fds.add(out)
        for fd, start, length in self._spans:
            position, end = start, start + length
            while position < end:
                sent = await self._run(partial(_push, out, fd, position, end))
                position += sent
                _transport(request)
                if not sent:
                    await _writable(out)

    async def _send_copies(self, response: web.StreamResponse) -> None:
        for fd, start, length in self._spans:
            position, end = start, start + length
            while position < end:
                data = await self._run(partial(_read, fd, position, end))
                position += len(data)
                await response.write(data)

    async def _run(self, job: Callable[[], T]) -> T:
        future = self._threads.submit(job)
        self._job = future
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        self._on_close()
        if self._job is None:
            self._close_files()
        else:
            self._job.add_done_callback(self._close_files)  # at once if it is done

    def _close_files(self, _: object = None) -> None:
        while self._fds:
            os.close(self._fds.pop())


class EventStream:
    """Server-sent events, until there are no more. Nothing to send for now is an empty piece."""

    def __init__(self, events: AsyncIterator[bytes], *, on_close: Callable[[], None]) -> None:
        self._events = events
        self._on_close = on_close
        self._woken = asyncio.Event()

    @property
    def length_bytes(self) -> None:
        return None

    async def send(
        self, request: web.BaseRequest, response: web.StreamResponse, allowance: Allowance
    ) -> None:
        piece = b"retry: %d\n\n" % RETRY_MS
        while True:
            if not piece:
                piece = await self._wait(allowance.patience.heartbeat_s)
            _transport(request)
            if piece:
                allowance.give(len(piece))
                await response.write(piece)
                allowance.end()
            try:
                piece = await anext(self._events)
            except StopAsyncIteration:
                return

    async def _wait(self, patience_s: float) -> bytes:
        """Until `wake`; what to send if that takes too long."""
        try:
            async with asyncio.timeout(patience_s):
                await self._woken.wait()
        except TimeoutError:
            return SIGN_OF_LIFE
        self._woken.clear()
        return b""

    def wake(self) -> None:
        """There may be news, or nobody to tell them to."""
        self._woken.set()

    def close(self) -> None:
        self._on_close()


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


def _transport(request: web.BaseRequest) -> asyncio.Transport:
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("client is gone")
    return transport


def _duplicate(fd: int) -> int:
    """A descriptor of the same socket, which stays open as long as a thread needs it."""
    duplicate = socket.socket(fileno=os.dup(fd))
    with suppress(OSError, ValueError):
        if duplicate.family in _INTERNET and ip_address(duplicate.getpeername()[0]).is_loopback:
            # Where bbr is the system's choice, its pacing is two thirds of the cost of a range.
            duplicate.setsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, _UNPACED)
    return duplicate.detach()


async def _flush(request: web.BaseRequest) -> None:
    """Wait until what was written is in the socket: the rest goes past the transport."""
    delay_s = 0.0
    while _transport(request).get_write_buffer_size():
        await asyncio.sleep(delay_s)
        delay_s = min(delay_s + 0.001, _FLUSH_S_MAX)


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
