"""Server-sent events as a reply.

Events come from an iterator that is asked for more only when the client has taken what there was: a
slow client is served at its own pace, and given up when it takes nothing for too long. While there
is nothing to send nobody looks for it: `EventStream.wake` says when to.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from pumpline.web.stream_sink import StreamSink

RETRY_MS = 1000  # a client waits before it comes back
SIGN_OF_LIFE = b":\n\n"  # a comment, to readers of events


class EventStream:
    """Until there are no more events. Nothing to send for now is an empty piece."""

    endless = True

    def __init__(self, events: AsyncIterator[bytes], *, on_close: "OnClose") -> None:
        self._events = events
        self._on_close = on_close
        self._woken = asyncio.Event()

    @property
    def length_bytes(self) -> None:
        return None

    async def send(self, sink: StreamSink) -> None:
        piece = b"retry: %d\n\n" % RETRY_MS
        while True:
            if not piece:
                piece = await self._wait(sink.heartbeat_s)
            sink.check()
            if piece:
                sink.expect(len(piece))
                await sink.write(piece)
                sink.rest()
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
        """There may be news."""
        self._woken.set()

    def close(self) -> None:
        self._on_close(self)


OnClose = Callable[[EventStream], None]
"""Is given the stream, so that it need not keep it, nor the stream itself."""
