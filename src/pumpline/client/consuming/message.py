"""A message in a consumer's hands: what it says, and the ways to answer it.

A message is answered once: `finish`, `requeue`, or not at all, in which case nsqd delivers it
again when its time is up. The first answer counts. Answers go out together, once an iteration of
the event loop.

Messages that came in one chunk share a `Delivery`, so that a message costs one small object, and
counting and timing are done by the chunk. Knows no socket: a `Link` carries the answers.
"""

from collections.abc import Callable
from typing import Protocol

from pumpline.client.delay import Delay, milliseconds

Record = tuple[int, int, bytes, bytes]
"""Publish time in nanoseconds, attempts, id, body."""


class Link(Protocol):
    """Where messages came from, and where their answers go."""

    finished: list[bytes]
    """Ids to finish with the next flush."""

    def flush_soon(self) -> None: ...
    def requeue(self, record: Record, delay_ms: int | None, *, backoff: bool) -> None: ...
    def touch(self, message: "Message") -> None: ...
    def call_from_thread(self, function: Callable[[], object]) -> None: ...


class Delivery:
    """Messages that came together, and until when they are ours."""

    __slots__ = ("ends_at", "expires_at", "is_over", "link", "messages", "outstanding")

    def __init__(self, link: Link, count: int, *, expires_at: float, ends_at: float) -> None:
        self.link = link
        self.outstanding = count  # not answered yet
        self.expires_at = expires_at
        self.ends_at = ends_at  # no touch goes beyond this
        self.is_over = False  # nsqd has them again, or its connection is lost
        self.messages: list[Message] = []  # only if they are touched automatically


class Message:
    """`finish`, `requeue` and `touch` return False when it is too late: the message is answered
    already, has timed out, or came over a connection that is lost (nsqd will deliver it again)."""

    __slots__ = ("_delivery", "_record", "is_answered")

    def __init__(self, delivery: Delivery, record: Record) -> None:
        self._delivery = delivery
        self._record = record
        self.is_answered = False

    @property
    def body(self) -> bytes:
        return self._record[3]

    @property
    def id(self) -> str:
        return self._record[2].decode("latin-1")

    @property
    def attempts(self) -> int:
        """1 on the first delivery."""
        return self._record[1]

    @property
    def timestamp_ns(self) -> int:
        """When nsqd took it, since 1970."""
        return self._record[0]

    @property
    def is_over(self) -> bool:
        """Whether nsqd will deliver it again, or has done so, whatever is answered now."""
        return self._delivery.is_over and not self.is_answered

    def finish(self) -> bool:
        """Done: nsqd forgets it."""
        delivery = self._delivery
        if self.is_answered or delivery.is_over:
            return False
        self.is_answered = True
        delivery.outstanding -= 1
        finished = delivery.link.finished
        if not finished:
            delivery.link.flush_soon()
        finished.append(self._record[2])
        return True

    def requeue(self, delay_s: Delay | None = None, *, backoff: bool = True) -> bool:
        """Not now: nsqd delivers it again after the delay (seconds or a timedelta), by default the
        consumer's requeue_delay_s times its attempts. `backoff` says that the whole consumer should
        hold back, as something is wrong with the world and not just with this message."""
        delay_ms = None if delay_s is None else milliseconds(delay_s)
        delivery = self._delivery
        if self.is_answered or delivery.is_over:
            return False
        self.is_answered = True
        delivery.outstanding -= 1
        delivery.link.requeue(self._record, delay_ms, backoff=backoff)
        return True

    def touch(self) -> bool:
        """Still at it: its time starts anew."""
        if self.is_answered or self._delivery.is_over:
            return False
        self._delivery.link.touch(self)
        return True

    def __repr__(self) -> str:
        return f"<Message {self.id} attempts={self.attempts} body={self.body[:40]!r}>"


class ThreadMessage(Message):
    """For handlers that run in threads: answers are passed on to the event loop's thread."""

    __slots__ = ("is_passed_on",)

    def __init__(self, delivery: Delivery, record: Record) -> None:
        super().__init__(delivery, record)
        self.is_passed_on = False  # it will be answered

    def finish(self) -> bool:
        return self._answer(super().finish)

    def requeue(self, delay_s: Delay | None = None, *, backoff: bool = True) -> bool:
        if delay_s is not None:
            milliseconds(delay_s)  # a wrong one is told here, and not where nobody sees it
        requeue = super().requeue
        return self._answer(lambda: requeue(delay_s, backoff=backoff))

    def touch(self) -> bool:
        return self._pass_on(super().touch)

    def _answer(self, answer: Callable[[], bool]) -> bool:
        is_in_time = self._pass_on(answer)
        self.is_passed_on = True
        return is_in_time

    def _pass_on(self, answer: Callable[[], bool]) -> bool:
        if self.is_passed_on or self.is_answered or self._delivery.is_over:
            return False
        self._delivery.link.call_from_thread(answer)
        return True


class Batch(list[Message]):
    """Messages to be handled together."""

    def finish(self) -> None:
        for message in self:
            message.finish()

    def requeue(self, delay_s: Delay | None = None, *, backoff: bool = True) -> None:
        for message in self:
            message.requeue(delay_s, backoff=backoff)

    def touch(self) -> None:
        for message in self:
            message.touch()
