"""Clients that speak protocol V2: they send what they are told, and enter what they see.

A publisher's replies and a consumer's messages go into the ledger when nsqd writes them; commands
when nsqd has read them.
"""

import json
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from tests.kit.sim.books import ChannelBook, Copy, Message
from tests.kit.sim.ledger import Ledger
from tests.kit.sim.machine import Machine
from tests.kit.sim.network import Link

_FRAME = Struct(">II")
_MESSAGE = Struct(">qH16s")
_SIZE = Struct(">I")
_RESPONSE, _ERROR, _MESSAGE_TYPE = 0, 1, 2
HEARTBEAT = b"_heartbeat_"


class MessageFrame(NamedTuple):
    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


class Connection:
    """What both kinds of clients have."""

    def __init__(self, machine: Machine, ledger: Ledger, name: str) -> None:
        self.name = name
        self._machine = machine
        self._ledger = ledger
        self._link: Link | None = None
        self._arrivals: deque[tuple[int, Callable[[], None]]] = deque()
        self._output = b""
        self._answers_heartbeats = True

    def __str__(self) -> str:
        return self.name

    @property
    def is_open(self) -> bool:
        return self._link is not None and not self._link.is_over

    def open(self) -> bool:
        self._link = self._machine.connect(self)
        if self._link is not None:
            self._link.send(b"  V2")
        return self._link is not None

    def send(self, data: bytes, arrived: Callable[[], None] | None = None) -> None:
        assert self._link is not None
        self._link.send(data)
        if arrived is not None:
            self._arrivals.append((self._link.sent, arrived))

    def hang_up(self, *, politely: bool) -> None:
        if self._link is not None:
            self._link.hang_up(politely=politely)

    def stall(self, stalled: bool) -> None:
        if self._link is not None:
            self._link.stall(stalled)

    # -- as the network sees it ----------------------------------------------------------------

    def arrived(self, end: int) -> None:
        while self._arrivals and self._arrivals[0][0] <= end:
            self._arrivals.popleft()[1]()

    def written(self, data: bytes) -> None:
        self._output += data
        while len(self._output) >= 8:
            size, kind = _FRAME.unpack_from(self._output)
            if len(self._output) < 4 + size:
                return
            payload = self._output[8 : 4 + size]
            self._output = self._output[4 + size :]
            if kind == _MESSAGE_TYPE:
                timestamp_ns, attempts, id = _MESSAGE.unpack_from(payload)
                self.message(MessageFrame(timestamp_ns, attempts, id, payload[_MESSAGE.size :]))
            elif kind == _ERROR:
                self.failed(payload.decode())
            elif payload == HEARTBEAT:
                if self._answers_heartbeats and self.is_open:
                    self.send(b"NOP\n")
            else:
                self.replied(payload)

    def lost(self) -> None: ...

    def message(self, frame: MessageFrame) -> None:
        self._ledger.fault(f"{self}: a message for somebody who did not subscribe")

    def failed(self, text: str) -> None: ...

    def replied(self, payload: bytes) -> None: ...


class Publisher(Connection):
    def __init__(self, machine: Machine, ledger: Ledger, name: str) -> None:
        super().__init__(machine, ledger, name)
        self._pending: deque[list[Message]] = deque()

    def publish(self, topic: str, bodies: list[bytes], *, delay_ms: int = 0, many: bool) -> None:
        if many:
            messages = self._ledger.sending(topic, bodies)
            parts = b"".join(_SIZE.pack(len(body)) + body for body in bodies)
            sizes = _SIZE.pack(4 + len(parts)) + _SIZE.pack(len(bodies))
            self._publish(messages, b"MPUB %b\n%b%b" % (topic.encode(), sizes, parts))
            return
        for body in bodies:
            messages = self._ledger.sending(topic, [body], delay_ms * 10**6)
            delay = b" %d" % delay_ms if delay_ms else b""
            verb = b"DPUB" if delay_ms else b"PUB"
            line = b"%b %b%b\n" % (verb, topic.encode(), delay)
            self._publish(messages, line + _SIZE.pack(len(body)) + body)

    def _publish(self, messages: list[Message], command: bytes) -> None:
        self._pending.append(messages)
        self.send(command, lambda: self._ledger.arrived(messages))

    def replied(self, payload: bytes) -> None:
        if payload != b"OK" or not self._pending:
            self._ledger.fault(f"{self}: an answer to nothing: {payload!r}")
            return
        self._ledger.taken(self._pending.popleft())

    def failed(self, text: str) -> None:
        if not self._pending:
            self._ledger.fault(f"{self}: an error for nothing: {text}")
        elif "PUB_FAILED" not in text:
            self._ledger.fault(f"{self}: {text}")
        else:
            self._ledger.refused(self._pending.popleft(), text)

    def lost(self) -> None:
        while self._pending:
            self._ledger.lost(self._pending.popleft())


class Subscriber(Connection):
    """A consumer. It keeps its messages in `hand` until it is told to answer them."""

    def __init__(
        self, machine: Machine, ledger: Ledger, name: str, topic: str, channel: str
    ) -> None:
        super().__init__(machine, ledger, name)
        self.topic = topic
        self.channel_name = channel
        self.msg_timeout_ns = 0
        self.rdy = 0
        self.newest = 0  # number of the newest message that came fresh
        self.hand: dict[bytes, MessageFrame] = {}
        self.had: list[MessageFrame] = []  # answered, or never to be
        self.finishes = False  # everything, at once
        self.book: ChannelBook | None = None
        self._waiting: deque[str] = deque()  # what is to be answered
        self._said_close = False
        self._subscribed_at = 0
        self._answered: dict[bytes, Copy] = {}
        self._expected: dict[bytes, int] = {}  # errors that must come: id, and since when

    def subscribe(self, *, msg_timeout_ms: int, rdy: int) -> None:
        self.msg_timeout_ns = msg_timeout_ms * 10**6
        fields = {"feature_negotiation": True, "msg_timeout": msg_timeout_ms, "hostname": self.name}
        body = json.dumps(fields).encode()
        self._waiting += ("IDENTIFY", "SUB")
        names = f"{self.topic} {self.channel_name}".encode()
        self.send(b"IDENTIFY\n" + _SIZE.pack(len(body)) + body)
        self.send(b"SUB " + names + b"\n", self._on_sub)
        self.ready(rdy)

    def _on_sub(self) -> None:
        self._subscribed_at = self._ledger.now
        self.book = self._ledger.created(
            self.topic, self.channel_name, self._ledger.now, certain=False
        )
        self.book.attend(self, self._ledger.now)

    def ready(self, rdy: int) -> None:
        def arrived() -> None:
            self.rdy = rdy

        self.send(b"RDY %d\n" % rdy, arrived)

    def finish(self, frame: MessageFrame) -> None:
        def arrived() -> None:
            if (copy := self._copy(frame)) is not None and self.book is not None:
                self._ledger.finished(self, self.book, copy)

        self._put_away(frame)
        self.send(b"FIN %b\n" % frame.id, arrived)

    def requeue(self, frame: MessageFrame, delay_ms: int) -> None:
        def arrived() -> None:
            if (copy := self._copy(frame)) is not None and self.book is not None:
                self._ledger.requeued(self, self.book, copy, delay_ms * 10**6)

        self._put_away(frame)
        self.send(b"REQ %b %d\n" % (frame.id, delay_ms), arrived)

    def touch(self, frame: MessageFrame) -> None:
        def arrived() -> None:
            if (copy := self._copy(frame)) is not None and self.book is not None:
                self._ledger.touched(self, self.book, copy)

        self.send(b"TOUCH %b\n" % frame.id, arrived)

    def say_close(self) -> None:
        def arrived() -> None:
            self.rdy = 0

        if not self._said_close and self.book is not None and self.book.is_certain:
            self._said_close = True
            self._waiting.append("CLS")
            self.send(b"CLS\n", arrived)

    def _put_away(self, frame: MessageFrame) -> None:
        if self.hand.pop(frame.id, None) is not None:
            self.had = [*self.had[-20:], frame]

    def _copy(self, frame: MessageFrame) -> Copy | None:
        copy = self.book.copies.get(frame.body) if self.book is not None else None
        if copy is not None:
            self._answered[frame.id] = copy
        return copy

    def expect_error(self, copy: Copy) -> None:
        """An answer to this is not its to give."""
        for id, each in self._answered.items():
            if each is copy:
                self._expected[id] = self._ledger.steady_ns

    def check(self) -> None:
        """Errors that were due have come."""
        for id, since_ns in self._expected.items():
            if self.is_open and self._ledger.steady_ns - since_ns > 10**9:
                message = self._answered[id].message
                self._ledger.fault(
                    f"{self}: its answer to {message} counted, which it did not have"
                )

    # -- what nsqd says ------------------------------------------------------------------------

    def message(self, frame: MessageFrame) -> None:
        if self.book is None or "SUB" in self._waiting:
            self._ledger.fault(f"{self}: a message before its SUB is answered")
            return
        self.hand[frame.id] = frame
        self._ledger.delivered(self, self.book, frame)
        if self.finishes:
            self.finish(frame)

    def replied(self, payload: bytes) -> None:
        asked = self._waiting.popleft() if self._waiting else ""
        if asked == "SUB" and payload == b"OK":
            assert self.book is not None
            since = self._subscribed_at
            self.book = self._ledger.created(self.topic, self.channel_name, since)
            self.book.attend(self, self._ledger.now)
        elif asked not in ("IDENTIFY", "CLS"):
            self._ledger.fault(f"{self}: an answer to nothing: {payload!r}")

    def failed(self, text: str) -> None:
        words = text.split()
        if words[0] in ("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"):
            id = words[2].encode()
            self._expected.pop(id, None)
            if (copy := self._answered.get(id)) is not None:
                self._ledger.answer_failed(self, copy, text)
        elif words[0] in ("E_SUB_FAILED", "E_BAD_CHANNEL"):
            self._not_subscribed()
        else:
            self._ledger.fault(f"{self}: {text}")

    def _not_subscribed(self) -> None:
        self._waiting.clear()
        if self.book is not None:
            self.book.consumers.discard(self)
            if not self.book.is_certain:
                self.book.topic.channels.pop(self.channel_name, None)
        self.book = None

    def lost(self) -> None:
        if self.book is not None:
            self._ledger.left(self, self.book)
        self.hand.clear()
        self._expected.clear()
