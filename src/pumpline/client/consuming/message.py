"""A message in a consumer's hands: what it says, and the ways to answer it.

A message is answered once: `finish`, `requeue`, or not at all, in which case nsqd delivers it
again when its time is up. The first answer counts. Answers go out together, once an iteration of
the event loop.

Messages that came in one chunk share an `Arrival`, so that a message costs one small object, and
counting and timing are done by the chunk. Knows no socket: an `AnswerSender` sends the answers.
"""

import json
from collections.abc import Callable
from typing import Any, Protocol

from pumpline.client.delay import Delay, milliseconds

Record = tuple[int, int, bytes, bytes]
"""Publish time in nanoseconds, attempts, id, body."""


class AnswerSender(Protocol):
    """Where messages came from, and where their answers go."""

    address: str
    """Of the nsqd."""
    topic: str
    channel: str
    finished: list[bytes]
    """Ids to finish with the next flush."""

    def flush_soon(self) -> None: ...
    def requeue(self, record: Record, delay_ms: int | None, *, backoff: bool) -> None: ...
    def touch(self, message: "Message") -> None: ...
    def not_begun(self, message: "Message") -> None: ...
    def deliveries_not_begun(self, record: Record) -> int: ...
    def call_from_thread(self, function: Callable[[], object]) -> None: ...


class Arrival:
    """Messages that came in one chunk, and until when they may be answered."""

    __slots__ = (
        "ends_at",
        "expires_at",
        "is_over",
        "is_stale",
        "messages",
        "outstanding",
        "sender",
    )

    def __init__(
        self, sender: AnswerSender, count: int, *, expires_at: float, ends_at: float
    ) -> None:
        self.sender = sender
        self.outstanding = count  # not answered yet
        self.expires_at = expires_at
        self.ends_at = ends_at  # touching cannot extend expires_at beyond this
        self.is_stale = False  # over, or so old that nobody is to begin them any more
        self.is_over = False  # expired, or the connection is lost: nsqd delivers them again
        self.messages: list[Message] = []  # until all are answered, or it is over


class Message:
    """A message that nsqd has delivered to this consumer.

    `finish`, `requeue` and `touch` return False when it is too late: the message is answered
    already, has timed out, or its connection is lost. nsqd then delivers it again."""

    __slots__ = ("_arrival", "_record", "decoded", "is_answered")

    decoded: Any  # set by a consumer that has a type or a codec

    def __init__(self, arrival: Arrival, record: Record) -> None:
        self._arrival = arrival
        self._record = record
        self.is_answered = False

    @property
    def body(self) -> bytes:
        """The bytes that were published."""
        return self._record[3]

    @property
    def id(self) -> str:
        """16 characters, the same at each delivery. No other message has the same id."""
        return self._record[2].decode("latin-1")

    @property
    def attempts(self) -> int:
        """Deliveries so far: 1 at the first one."""
        return self._record[1]

    @property
    def timestamp_ns(self) -> int:
        """When nsqd received it, in nanoseconds since 1970."""
        return self._record[0]

    @property
    def topic(self) -> str:
        """The topic it was published to."""
        return self._arrival.sender.topic

    @property
    def channel(self) -> str:
        """The channel of the consumer."""
        return self._arrival.sender.channel

    @property
    def node(self) -> str:
        """The address of the nsqd it came from."""
        return self._arrival.sender.address

    def json(self) -> Any:
        """The value of a JSON body; ValueError if the body is not JSON."""
        return json.loads(self.body)

    @property
    def value(self) -> Any:
        """The decoded body; TypeError if the consumer has no `type` and no `codec`."""
        try:
            return self.decoded
        except AttributeError:
            raise TypeError("message.value needs a consumer with a type or a codec") from None

    @property
    def is_over(self) -> bool:
        """Whether its time is up or its connection is lost: answers are not sent any more, and nsqd
        delivers it again. Our timer starts when the message arrives and nsqd's when it is sent, so
        the new delivery can come a moment before this becomes true."""
        return self._arrival.is_over and not self.is_answered

    @property
    def is_stale(self) -> bool:
        """Whether it has waited so long that nobody should begin to handle it: call `give_back`."""
        return self._arrival.is_stale

    @property
    def ends_at(self) -> float:
        """The event loop's time at which nsqd takes it back, however often it is touched
        (--max-msg-timeout)."""
        return self._arrival.ends_at

    def finish(self) -> bool:
        """The message is handled: nsqd does not deliver it again on this channel."""
        arrival = self._arrival
        if self.is_answered or arrival.is_over:
            return False
        self.is_answered = True
        arrival.outstanding -= 1
        finished = arrival.sender.finished
        if not finished:
            arrival.sender.flush_soon()
        finished.append(self._record[2])
        return True

    def requeue(self, delay_s: Delay | None = None, *, backoff: bool = True) -> bool:
        """Ask nsqd to deliver it again after a delay (seconds or a timedelta). The default delay is
        the consumer's requeue_delay_s times the attempts. With `backoff` it counts as failed: if
        many messages fail, the consumer backs off."""
        delay_ms = None if delay_s is None else milliseconds(delay_s)
        arrival = self._arrival
        if self.is_answered or arrival.is_over:
            return False
        self.is_answered = True
        arrival.outstanding -= 1
        arrival.sender.requeue(self._record, delay_ms, backoff=backoff)
        return True

    def give_back(self) -> None:
        """Return a message that nobody has begun to handle: nsqd delivers it again at once, to this
        consumer or another. This consumer does not count the delivery as an attempt."""
        if not self.is_answered:
            self._arrival.sender.not_begun(self)
            Message.requeue(self, 0, backoff=False)

    def touch(self) -> bool:
        """Start its message timeout again, because it is still being handled."""
        if self.is_answered or self._arrival.is_over:
            return False
        self._arrival.sender.touch(self)
        return True

    def __repr__(self) -> str:
        """Without the body, which may be confidential: this is in log lines."""
        where = f"{self.topic}/{self.channel}"
        return f"<Message {self.id} of {where} attempts={self.attempts} bytes={len(self.body)}>"


class ThreadMessage(Message):
    """For handlers that run in threads: answers are passed on to the event loop's thread."""

    __slots__ = ("is_passed_on",)

    def __init__(self, arrival: Arrival, record: Record) -> None:
        super().__init__(arrival, record)
        self.is_passed_on = False  # an answer is on its way to the event loop

    def finish(self) -> bool:
        return self._answer(super().finish)

    def requeue(self, delay_s: Delay | None = None, *, backoff: bool = True) -> bool:
        if delay_s is not None:
            milliseconds(delay_s)  # raises here if it is not a delay; no caller sees it later
        requeue = super().requeue
        return self._answer(lambda: requeue(delay_s, backoff=backoff))

    def give_back(self) -> None:
        if not self.is_passed_on and not self.is_answered:
            self._arrival.sender.call_from_thread(super().give_back)
            self.is_passed_on = True

    def touch(self) -> bool:
        return self._pass_on(super().touch)

    def _answer(self, answer: Callable[[], bool]) -> bool:
        is_in_time = self._pass_on(answer)
        self.is_passed_on = True
        return is_in_time

    def _pass_on(self, answer: Callable[[], bool]) -> bool:
        if self.is_passed_on or self.is_answered or self._arrival.is_over:
            return False
        self._arrival.sender.call_from_thread(answer)
        return True


class Batch(list[Message]):
    """A list of messages that are handled together."""

    @property
    def is_stale(self) -> bool:
        """Whether all have waited so long that nobody should begin to handle them."""
        return all(message.is_stale for message in self)

    def finish(self) -> None:
        """Finish each message."""
        for message in self:
            message.finish()

    def requeue(self, delay_s: Delay | None = None, *, backoff: bool = True) -> None:
        """Requeue each message."""
        for message in self:
            message.requeue(delay_s, backoff=backoff)

    def give_back(self) -> None:
        """Give back each message: nobody has begun to handle the batch."""
        for message in self:
            message.give_back()

    def touch(self) -> None:
        """Touch each message."""
        for message in self:
            message.touch()
