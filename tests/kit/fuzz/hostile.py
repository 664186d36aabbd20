"""A connection that sends what it likes, in pieces it likes, and ends as it likes.

Knows sockets, not what is said on them. Reads all the time, unless told to be deaf until all is
sent, so that the other side never waits for it for ever.
"""

import errno
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from enum import Enum, auto

CLOSE_S = 60.0  # for nsqd to close a connection on which nothing more will come
ANSWER_S = 0.05  # for something to come that can be answered
LINGER_S = 0.1  # of silence
_RECEIVE_BYTES = 1 << 16
_RESET_ERRORS = (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN)
_RESET = struct.pack("ii", 1, 0)  # linger for no time: close sends RST


class Ending(Enum):
    HALF_CLOSE = auto()  # say no more, and read to the end
    LINGER = auto()  # read as long as something comes, then close
    CLOSE = auto()  # with whatever came unread
    RESET = auto()


Answer = Callable[[bytes], bytes]


def converse(
    port: int,
    pieces: Sequence[bytes],
    ending: Ending,
    *,
    deaf: bool = False,
    answer: Answer | None = None,
) -> tuple[bytes, bool]:
    """What came back, and whether nsqd ended the connection in order.

    `answer` is given what came and returns what to send next, after all pieces. AssertionError
    if the connection is still open long after the last word.
    """
    raw = socket.create_connection(("127.0.0.1", port), CLOSE_S)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with raw:
        talk = _Talk(raw, list(pieces), ending, deaf=deaf, answer=answer)
        try:
            talk.run()
        except OSError as error:
            if error.errno not in _RESET_ERRORS:
                raise
            return bytes(talk.received), False
        return bytes(talk.received), ending is Ending.HALF_CLOSE


class _Talk:
    def __init__(
        self,
        raw: socket.socket,
        pieces: list[bytes],
        ending: Ending,
        *,
        deaf: bool,
        answer: Answer | None,
    ) -> None:
        self.received = bytearray()
        self._raw = raw
        self._pieces = pieces
        self._ending = ending
        self._deaf = deaf
        self._answer = answer
        self._deadline_s = time.monotonic() + CLOSE_S
        self._ended = False  # by nsqd

    def run(self) -> None:
        self._raw.setblocking(False)
        try:
            self._speak()
        except OSError as error:
            # What came before the reset is still there to be read.
            if error.errno not in _RESET_ERRORS or self._ending is Ending.RESET:
                raise
        if self._ending is Ending.HALF_CLOSE:
            self._deadline_s = time.monotonic() + CLOSE_S
            while not self._ended:
                self._wait(reads=True, writes=False)
                self._receive()
        elif self._ending is Ending.LINGER:
            while not self._ended and select.select([self._raw], [], [], LINGER_S)[0]:
                self._receive()

    def _speak(self) -> None:
        self._send_pieces()
        if self._answer is not None and not self._ended:
            if select.select([self._raw], [], [], ANSWER_S)[0]:
                self._receive()
            self._pieces = [self._answer(bytes(self.received))]
            self._send_pieces()
        if self._ending is Ending.RESET:
            self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        elif self._ending is Ending.HALF_CLOSE and not self._ended:
            self._raw.shutdown(socket.SHUT_WR)

    def _send_pieces(self) -> None:
        while self._pieces and not self._ended:
            readable, writable = self._wait(reads=not self._deaf, writes=True)
            if readable:
                self._receive()
            if writable and not self._ended:
                sent = self._raw.send(self._pieces[0])
                self._pieces[0] = self._pieces[0][sent:]
                if not self._pieces[0]:
                    del self._pieces[0]

    def _receive(self) -> None:
        data = self._raw.recv(_RECEIVE_BYTES)
        self.received += data
        self._ended = not data

    def _wait(self, *, reads: bool, writes: bool) -> tuple[bool, bool]:
        left_s = self._deadline_s - time.monotonic()
        raws = [self._raw]
        readable, writable, _ = select.select(
            raws if reads else [], raws if writes else [], [], max(left_s, 0)
        )
        assert readable or writable, f"still open, {len(self.received)} bytes received"
        return bool(readable), bool(writable)
