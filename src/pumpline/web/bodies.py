"""Bodies on their way: buffers that they are received into, once, and where they stay.

A body of known length is read from the socket straight into its buffer; one in chunks goes through
llhttp. Fresh memory costs as much as a copy, so large buffers are lent and used again. What is lent
is bounded for all connections together. A body for which nothing can be lent gets a small buffer
that grows with what really arrives, so that nobody can claim memory by announcing a length.

Knows bytes; must not know what is in them, nor sockets.
"""

from httptools import HttpParserError, HttpRequestParser

from pumpline.web.head import HEAD_END

SMALL_BYTES = 64 << 10  # not worth lending
LENT_BYTES_MAX = 64 << 20
LEND_BYTES_MAX = 4 << 20  # a client as slow as `Patience` allows needs a minute for it
FREE_MAX = 4  # buffers kept for later
STEP_BYTES = 256 << 10  # sizes of buffers, so that bodies of about a size can have the same

PIECE_BYTES = 8 << 10  # of a body in chunks, given to llhttp at once: 1,400 chunks at most
TURN_PIECES = 1000  # of a body in chunks, and
TURN_CHUNKS = 3000  # about 2 ms: then others get their turn

_CHUNKED_HEAD = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


class BodyBuffers:
    """Buffers for large bodies."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []
        self._lent_bytes = 0

    def lend(self, size_bytes: int) -> bytearray | None:
        """One with space for that many bytes, if it may be had."""
        buffer_bytes = -(-size_bytes // STEP_BYTES) * STEP_BYTES
        for index, buffer in enumerate(self._free):
            if len(buffer) >= size_bytes:
                buffer_bytes = len(self._free.pop(index))
                break
        else:
            buffer = bytearray()
        if buffer_bytes > LEND_BYTES_MAX or self._lent_bytes + buffer_bytes > LENT_BYTES_MAX:
            return None
        self._lent_bytes += buffer_bytes
        return buffer or bytearray(buffer_bytes)

    def give_back(self, buffer: bytearray) -> None:
        self._lent_bytes -= len(buffer)
        if len(self._free) == FREE_MAX:
            del self._free[0]  # too small for what comes now, or one as good as this
        self._free.append(buffer)

    def forget(self) -> None:
        """Give memory back that is not used."""
        self._free.clear()


class SizedBody:
    """A body of known length. `free` is where the next bytes of it belong, and no byte more."""

    __slots__ = ("_buffers", "_is_lent", "_view", "buffer", "filled_bytes", "size_bytes")

    def __init__(self, buffers: BodyBuffers, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.filled_bytes = 0
        self._buffers = buffers
        lent = buffers.lend(size_bytes) if size_bytes > SMALL_BYTES else None
        self._is_lent = lent is not None
        self.buffer = bytearray(min(size_bytes, SMALL_BYTES)) if lent is None else lent
        self._view = memoryview(self.buffer)[:size_bytes]

    @property
    def free(self) -> memoryview:
        return self._view[self.filled_bytes :]

    @property
    def is_whole(self) -> bool:
        return self.filled_bytes == self.size_bytes

    def fill(self, data: memoryview) -> None:
        """Take the beginning of the body, of which the client sends the rest later."""
        at = 0
        while at < len(data):
            free = self.free
            piece = data[at : at + len(free)]
            free[: len(piece)] = piece
            at += len(piece)
            self.filled(len(piece))

    def filled(self, count: int) -> None:
        """So many bytes were written to `free`."""
        self.filled_bytes += count
        if self.filled_bytes == len(self._view) < self.size_bytes:
            grown = bytearray(min(2 * len(self._view), self.size_bytes))
            grown[: self.filled_bytes] = self._view
            self.buffer, self._view = grown, memoryview(grown)

    def release(self) -> None:
        """Nobody reads it any more."""
        if self._is_lent:
            self._is_lent = False
            self._buffers.give_back(self.buffer)


class ChunkedBody:
    """A body in chunks. What follows it is not touched.

    llhttp does not tell where in the data a body ended. It ends with an empty line, so the data is
    fed in pieces that end where an empty line does: no piece has more than the end in it. Chunks of
    a byte, or of nothing but empty lines, are many pieces of work: see `feed`.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._last = b""  # the bytes before, of which an empty line may have begun
        self._decoded = _Decoded()
        self._parser = HttpRequestParser(self._decoded)
        self._parser.feed_data(_CHUNKED_HEAD)

    @property
    def buffer(self) -> bytearray:
        return self._decoded.buffer

    @property
    def is_whole(self) -> bool:
        return self._decoded.is_whole

    @property
    def is_too_long(self) -> bool:
        return len(self.buffer) > self._bytes_max

    def feed(self, data: bytes) -> int:
        """How many of the bytes were read. The others do not belong to the body if it `is_whole`;
        if it is not, it is for others to get their turn before the rest is fed. ValueError if the
        body is malformed."""
        decoded = self._decoded
        at = pieces = decoded.piece_count = 0
        while at < len(data) and not self.is_whole and not self.is_too_long:
            pieces += 1
            if pieces > TURN_PIECES or decoded.piece_count > TURN_CHUNKS:
                break
            end = self._after_empty_line(data, at)
            piece = data[at:end]
            try:
                self._parser.feed_data(piece)
            except HttpParserError as error:
                raise ValueError(str(error)) from None
            self._last = (self._last + piece)[-len(HEAD_END) + 1 :]
            at = end
        return at

    def _after_empty_line(self, data: bytes, at: int) -> int:
        start = (self._last + data[at : at + len(HEAD_END) - 1]).find(HEAD_END)
        if start >= 0:
            return at + start + len(HEAD_END) - len(self._last)
        piece_end = min(at + PIECE_BYTES, len(data))
        found = data.find(HEAD_END, at, piece_end)
        return piece_end if found < 0 else found + len(HEAD_END)


class _Decoded:
    """What llhttp reports. Not the body itself: it has the parser, which keeps whom it reports to,
    and its buffer would stay until that cycle is collected."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.is_whole = False
        self.piece_count = 0  # of chunks, since it was set back

    def on_body(self, data: bytes) -> None:
        self.piece_count += 1
        self.buffer += data

    def on_message_complete(self) -> None:
        self.is_whole = True
