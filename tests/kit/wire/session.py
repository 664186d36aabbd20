"""One raw connection, read strictly: the next frame is the next frame.

Knows the framing of the server's replies and nothing of what they mean. Unlike RawClient, which
it wraps, it answers no heartbeat and sets no message aside, so a test sees the order of frames.
"""

import socket
import struct
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tests.kit.daemons import RawClient
from tests.kit.wire.commands import fin, identify, pub, rdy, sub

FRAME_RESPONSE, FRAME_ERROR, FRAME_MESSAGE = 0, 1, 2
OK = (FRAME_RESPONSE, b"OK")
HEARTBEAT_FRAME = (FRAME_RESPONSE, b"_heartbeat_")

# Nobody waits this long when all is well. The original fires the timers of a young channel up to
# 5 s late, and a busy machine adds to that.
FRAME_TIMEOUT_S = 60.0

# publish time in ns, attempts, id; the body follows
MESSAGE_HEADER = struct.Struct(">qH16s")

BARRIER_ID = "barrier-barrier-"


class Frame(NamedTuple):
    type: int
    data: bytes


class Message(NamedTuple):
    timestamp_ns: int
    attempts: int
    id: str
    body: bytes


class Session:
    def __init__(self, raw: RawClient) -> None:
        self.raw = raw

    def close(self) -> None:
        self.raw.close()

    def half_close(self) -> None:
        self.raw.socket.shutdown(socket.SHUT_WR)

    def send(self, *commands: bytes) -> None:
        """Everything in one write."""
        self.raw.send(b"".join(commands))

    def send_by_byte(self, data: bytes) -> None:
        for position in range(len(data)):
            self.raw.send(data[position : position + 1])

    def frame(self, timeout_s: float = FRAME_TIMEOUT_S) -> Frame:
        """The next frame. TimeoutError if none comes; EOFError or a reset if there is no more."""
        return Frame(*self.raw.read_frame(timeout_s))

    def frames(self, count: int) -> list[Frame]:
        return [self.frame() for _ in range(count)]

    def message(self, timeout_s: float = FRAME_TIMEOUT_S) -> Message:
        """The next frame, which must be a message."""
        return as_message(self.frame(timeout_s))

    def messages(self, count: int) -> list[Message]:
        return [self.message() for _ in range(count)]

    def request(self, command: bytes) -> Frame:
        """Sends one command that has a reply."""
        self.send(command)
        return self.frame()

    def publish(self, topic: str, *bodies: bytes) -> None:
        for body in bodies:
            assert self.request(pub(topic, body)) == OK

    def subscribe(self, topic: str, channel: str, *, ready: int = 0, **fields: object) -> None:
        """SUB, after an IDENTIFY with `fields` if there are any."""
        if fields:
            assert self.request(identify(fields)) == OK
        assert self.request(sub(topic, channel)) == OK
        if ready:
            self.send(rdy(ready))

    def finish(self, *messages: Message) -> None:
        self.send(*[fin(message.id) for message in messages])

    def before_barrier(self) -> list[Frame]:
        """The frames that came before the server had run every command sent so far.

        Only for subscribed connections: the barrier is a FIN that cannot succeed.
        """
        self.send(fin(BARRIER_ID))
        frames: list[Frame] = []
        while True:
            frame = self.frame()
            if frame.type == FRAME_ERROR and BARRIER_ID.encode() in frame.data:
                return frames
            frames.append(frame)

    def until_closed(self, timeout_s: float = FRAME_TIMEOUT_S) -> list[Frame]:
        """Every frame up to the end of the stream."""
        deadline = time.monotonic() + timeout_s
        frames: list[Frame] = []
        while True:
            try:
                frames.append(self.frame(deadline - time.monotonic()))
            except (EOFError, ConnectionResetError):
                return frames


# Opens a session to the module's daemon, or to one given.
Connect = Callable[..., Session]


def as_message(frame: Frame) -> Message:
    assert frame.type == FRAME_MESSAGE, frame
    timestamp_ns, attempts, message_id = MESSAGE_HEADER.unpack_from(frame.data)
    body = frame.data[MESSAGE_HEADER.size :]
    return Message(timestamp_ns, attempts, message_id.decode(), body)


def bodies(messages: Iterable[Message]) -> list[bytes]:
    return [message.body for message in messages]
