"""Reads a file descriptor in a thread and cuts it into messages, many at a time.

What can be read at once becomes one list, so a slow input is passed on as it comes and a fast one
in large pieces. Empty messages are left out; the last one needs no delimiter.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

from pumpline.tools.standard_streams import read_some

READ_BYTES = 1 << 20
PIECES_WAITING = 4
MESSAGE_BYTES_MAX = 256 << 20


class MessageTooLong(Exception):
    """No delimiter within MESSAGE_BYTES_MAX."""


class PieceCutter:
    """Pieces of input in, messages out; sans-IO."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._rest = b""

    def cut(self, piece: bytes) -> list[bytes]:
        *messages, self._rest = (self._rest + piece if self._rest else piece).split(self._delimiter)
        if len(self._rest) > MESSAGE_BYTES_MAX:
            raise MessageTooLong
        return list(filter(None, messages))

    def end(self) -> list[bytes]:
        """What is left when the input ends."""
        return [self._rest] if self._rest else []


async def read_messages(
    fd: int, delimiter: bytes, stop: asyncio.Event
) -> AsyncIterator[list[bytes]]:
    """Messages until the input ends, or `stop` is set."""
    pieces: asyncio.Queue[bytes | OSError] = asyncio.Queue(PIECES_WAITING)
    loop = asyncio.get_running_loop()

    def read() -> None:
        # A daemon thread, because a read of a terminal or pipe cannot be called off.
        for piece in _pieces(fd):
            try:
                asyncio.run_coroutine_threadsafe(pieces.put(piece), loop).result()
            except RuntimeError:
                return  # the loop is closed

    threading.Thread(target=read, name="to-nsq-stdin", daemon=True).start()
    cutter = PieceCutter(delimiter)
    stopped = asyncio.create_task(stop.wait())
    try:
        while not stop.is_set():
            coming = asyncio.create_task(pieces.get())
            await asyncio.wait({coming, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                return
            piece = coming.result()
            if isinstance(piece, OSError):
                raise piece
            messages = cutter.cut(piece) if piece else cutter.end()
            if messages:
                yield messages
            if not piece:
                return
    finally:
        stopped.cancel()


def _pieces(fd: int) -> Iterator[bytes | OSError]:
    """Until the empty piece at the end."""
    piece = b"start"
    while piece:
        try:
            piece = read_some(fd, READ_BYTES)
        except OSError as error:
            yield error
            return
        yield piece
