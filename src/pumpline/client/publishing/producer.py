"""Publishes to one or several nsqds.

    async with Producer("127.0.0.1:4150") as producer:
        await producer.publish("orders", b"...")

`publish` returns when an nsqd has confirmed the message. Publishes that run at the same time are
collected by topic and sent as one MPUB; many messages at hand are better given to `publish_many`.

Every message has a limited time (`timeout_s`). In that time it is sent again after a failure, to
whichever nsqd is there. What was sent and not answered is sent again, too, unless
`retry_unconfirmed` is off: nsqd may then have it twice, as NSQ promises at least once and no more.
When time is up, the exception says what is known: NotSent, Refused or Unconfirmed (`errors`).

Memory is bounded by `pending_bytes_max`: beyond it, `publish` waits.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self, cast

from pumpline.client.connection.address import parse_address
from pumpline.client.connection.settings import Settings
from pumpline.client.consuming.message import Delay, milliseconds
from pumpline.client.errors import (
    ConnectError,
    ConnectionClosed,
    NotSent,
    PublishError,
    ServerError,
)
from pumpline.client.publishing.bodies import (
    BATCH_MESSAGES_MAX,
    Body,
    blocks,
    bytes_of,
    check_topic,
    portions,
)
from pumpline.client.publishing.byte_budget import Room
from pumpline.client.publishing.link import Link
from pumpline.client.publishing.publication import (
    MESSAGE_COST_BYTES,
    Publication,
    Waiter,
    cost_bytes,
)
from pumpline.core.protocol.commands import MPUB_MESSAGE_OVERHEAD_BYTES, MPUB_OVERHEAD_BYTES
from pumpline.core.protocol.errors import (
    E_BAD_BODY,
    E_BAD_MESSAGE,
    E_DPUB_FAILED,
    E_MPUB_FAILED,
    E_PUB_FAILED,
)

MESSAGE_BYTES_MAX = 1 << 20  # nsqd's --max-msg-size, unless told otherwise
BODY_BYTES_MAX = 5 << 20  # and its --max-body-size
PENDING_BYTES_MAX = 32 << 20
_PASSING_CODES = frozenset({E_PUB_FAILED, E_DPUB_FAILED, E_MPUB_FAILED})  # a full disk, an exit
_BODY_CODES = frozenset({E_BAD_MESSAGE, E_BAD_BODY})


class Producer:
    """Use it as a context manager, or call `start` and `close`."""

    def __init__(
        self,
        addresses: str | Iterable[str],
        *,
        settings: Settings | None = None,
        spread: bool = False,
        batching: bool = True,
        batch_delay_s: float = 0.0,
        timeout_s: float = 30.0,
        confirm_timeout_s: float = 10.0,
        retry_unconfirmed: bool = True,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        body_bytes_max: int = BODY_BYTES_MAX,
        pending_bytes_max: int = PENDING_BYTES_MAX,
    ) -> None:
        """
        addresses           one nsqd or several: the first that is up is used, the others stand by
        spread              use all that are up, in turn
        batching            send concurrent publishes to a topic as one MPUB
        batch_delay_s       how long to wait for more of them; 0 takes those of a loop iteration
        timeout_s           for a message, retries included
        confirm_timeout_s   for one try; then the connection is given up
        retry_unconfirmed   send again what may have been published already
        message_bytes_max   nsqd's --max-msg-size
        body_bytes_max      nsqd's --max-body-size
        pending_bytes_max   of messages not confirmed yet; beyond it publish waits
        """
        self.addresses = _checked_addresses(addresses)
        if not batch_delay_s >= 0:
            raise ValueError("batch_delay_s must not be negative")
        _check_positive(timeout_s=timeout_s, confirm_timeout_s=confirm_timeout_s)
        _check_positive(message_bytes_max=message_bytes_max, body_bytes_max=body_bytes_max)
        _check_positive(pending_bytes_max=pending_bytes_max)
        self.published = 0  # messages confirmed
        self.retried = 0  # publications sent again
        self.waits = 0  # publishes that had to wait for room
        self._settings = settings or Settings()
        self._spread = spread
        self._batching = batching
        self._batch_delay_s = batch_delay_s
        self._timeout_s = timeout_s
        self._confirm_timeout_s = confirm_timeout_s
        self._retry_unconfirmed = retry_unconfirmed
        self._message_bytes_max = message_bytes_max
        self._body_bytes_max = body_bytes_max
        self._links: list[Link] = []
        self._turn = 0
        self._room = Room(pending_bytes_max)
        self._filling: dict[str, Publication] = {}  # by topic: what may still be added to
        self._again: deque[Publication] = deque()  # to be sent, and not for the first time
        self._queue: deque[Publication] = deque()  # to be sent
        self._pending: dict[Publication, None] = {}  # all that is not settled, the oldest first
        self._scheduled: asyncio.Handle | None = None
        self._is_delayed = False  # what is scheduled
        self._expiry: asyncio.TimerHandle | None = None
        self._changed: asyncio.Event  # a link, or what is pending
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_open = False  # takes messages

    @property
    def connected(self) -> list[str]:
        """The addresses of the nsqds that can be published to now."""
        return [link.address for link in self._links if link.is_ready]

    # -- life ---------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect to all; returns when one is there, raises ConnectError if none can be had."""
        if self._loop is not None:
            raise RuntimeError("the producer was started before")
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._links = [
            Link(address, self._settings, self, confirm_timeout_s=self._confirm_timeout_s)
            for address in self.addresses
        ]
        try:
            while not any(link.is_ready for link in self._links):
                failures = [link.failure for link in self._links if link.failure is not None]
                if len(failures) == len(self._links):
                    if len(failures) == 1:
                        raise failures[0]
                    raise ConnectError("; ".join(map(str, failures)))
                await self._change()
        except BaseException:
            await self._close_links()
            self._loop = None  # it may be tried again
            raise
        self._is_open = True

    async def close(self) -> None:
        """Take no more, wait for what is pending, as long as its time allows, and disconnect."""
        if not self._links:
            return
        self._is_open = False
        try:
            while self._pending:
                await self._change()
        finally:
            await self._close_links()

    async def _close_links(self) -> None:
        self._is_open = False
        links, self._links = self._links, []
        await asyncio.gather(*(link.close() for link in links))
        for handle in (self._scheduled, self._expiry):
            if handle is not None:
                handle.cancel()
        for publication in list(self._pending):
            publication.failure = ConnectionClosed("the producer was closed")
            self._give_up(publication)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # -- publishing ---------------------------------------------------------------------------

    async def publish(self, topic: str, body: Body, *, defer: Delay | None = None) -> None:
        """Publish a message, to be delivered now or after `defer` (seconds or timedelta).

        Raises NotSent, Refused or Unconfirmed; ValueError for what can be no message.
        """
        message = self._checked(topic, body)
        defer_ms = None if defer is None else milliseconds(defer)
        cost = MESSAGE_COST_BYTES + len(message)
        if not self._room.try_take(cost):
            await self._wait_for_room(cost)
        if defer_ms is not None or not self._batching:
            await self._enqueue(topic, [message], cost, defer_ms=defer_ms)
        else:
            await self._add(topic, message)

    async def publish_many(self, topic: str, bodies: Iterable[Body]) -> None:
        """Publish messages by MPUB, in as few commands as nsqd's limits allow.

        Not all or nothing: `confirmed` of the exception is how many are known to be published.
        What it was raised for is the first failure; no more is taken from `bodies` after it. When
        a body can be no message, or `bodies` raises, those before it may have been published.
        """
        waiters: deque[tuple[int, Waiter]] = deque()
        confirmed = 0
        try:
            for chunk in self._chunks(topic, bodies):
                cost = cost_bytes(chunk)
                if not self._room.try_take(cost):
                    await self._wait_for_room(cost)
                waiters.append((len(chunk), self._enqueue(topic, chunk, cost)))
                while waiters and waiters[0][1].done():
                    confirmed += await _outcome(*waiters.popleft())
            while waiters:
                confirmed += await _outcome(*waiters.popleft())
        except PublishError as error:
            for count, waiter in waiters:
                with suppress(PublishError):
                    confirmed += await _outcome(count, waiter)
            error.confirmed = confirmed
            raise
        except BaseException:
            for _, waiter in waiters:
                waiter.cancel()
            raise

    def _checked(self, topic: str, body: Body) -> bytes:
        if not self._is_open:
            raise self._not_open()
        if not isinstance(body, bytes):
            body = bytes_of(body)
        if not body:
            raise ValueError("a message cannot be empty")
        if len(body) > self._message_bytes_max:
            raise ValueError(
                f"a message of {len(body)} bytes, over the limit of {self._message_bytes_max}"
            )
        check_topic(topic)
        return body

    def _chunks(self, topic: str, bodies: Iterable[Body]) -> Iterator[list[bytes]]:
        """What goes into one MPUB each, checked."""
        for block in blocks(bodies, self._body_bytes_max // 2):
            checked = [self._checked(topic, body) for body in block[:1]]
            if self._fits(block):
                yield cast(list[bytes], block)
            else:
                checked += [self._checked(topic, body) for body in block[1:]]
                yield from portions(checked, self._body_bytes_max)

    def _fits(self, block: list[Body]) -> bool:
        """Whether it can go as it is: a few passes of C, instead of a look at each message."""
        if set(map(type, block)) != {bytes}:
            return False
        sizes = list(map(len, block))
        size = MPUB_OVERHEAD_BYTES + sum(sizes) + MPUB_MESSAGE_OVERHEAD_BYTES * len(sizes)
        return (
            min(sizes) > 0
            and max(sizes) <= self._message_bytes_max
            and (size <= self._body_bytes_max)
        )

    async def _wait_for_room(self, cost: int) -> None:
        self.waits += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._room.take(cost)
        except TimeoutError:
            text = f"not sent: no room for {self._timeout_s:g} s, as nothing was confirmed"
            raise NotSent(text) from None
        if not self._is_open:  # it has closed in the meantime: let the next one know
            self._room.give(cost)
            raise self._not_open()

    def _enqueue(
        self, topic: str, bodies: list[bytes], cost: int, *, defer_ms: int | None = None
    ) -> Waiter:
        """A publication of its own."""
        publication = self._new_publication(topic, defer_ms)
        publication.bodies = bodies
        publication.cost_bytes = cost
        waiter = self._new_waiter(publication)
        self._queue.append(publication)
        self._schedule(0.0)
        return waiter

    def _add(self, topic: str, body: bytes) -> Waiter:
        """Into the publication that the topic's concurrent messages share."""
        publication = self._filling.get(topic)
        if publication is not None:
            size = publication.size_bytes + MPUB_MESSAGE_OVERHEAD_BYTES + len(body)
            if size > self._body_bytes_max or len(publication.bodies) >= BATCH_MESSAGES_MAX:
                self._queue.append(publication)
                publication = None
        if publication is None:
            publication = self._filling[topic] = self._new_publication(topic, None)
            self._schedule(0.0 if self._queue else self._batch_delay_s)
        publication.add(body)
        return self._new_waiter(publication)

    def _new_publication(self, topic: str, defer_ms: int | None) -> Publication:
        if not self._is_open:
            raise self._not_open()
        loop = self._loop
        assert loop is not None
        publication = Publication(topic, loop.time() + self._timeout_s, defer_ms)
        self._pending[publication] = None
        if self._expiry is None:
            self._expiry = loop.call_later(self._timeout_s, self._expire)
        return publication

    def _not_open(self) -> Exception:
        if self._loop is None:
            return RuntimeError("the producer is not started: use `async with`, or start()")
        return NotSent("not sent: the producer is closed")

    def _new_waiter(self, publication: Publication) -> Waiter:
        assert self._loop is not None
        waiter: Waiter = self._loop.create_future()
        publication.waiters.append(waiter)
        return waiter

    # -- sending ------------------------------------------------------------------------------

    def _schedule(self, delay_s: float) -> None:
        assert self._loop is not None
        if self._scheduled is not None:
            if delay_s > 0 or not self._is_delayed:
                return
            self._scheduled.cancel()
        self._is_delayed = delay_s > 0
        if self._is_delayed:
            self._scheduled = self._loop.call_later(delay_s, self._dispatch)
        else:
            self._scheduled = self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Send what there is, as long as there is someone to send it to."""
        self._scheduled = None
        used: set[Link] = set()
        while (self._again or self._queue or self._filling) and (link := self._pick()):
            if not self._again and not self._queue:
                self._queue.extend(self._filling.values())
                self._filling.clear()
            publication = (self._again or self._queue).popleft()
            if publication not in self._pending:
                continue  # its time was up
            if not publication.unconfirmed:
                self._room.give(publication.drop_cancelled())
                if not publication.bodies:
                    self._settle(publication)
                    continue
            link.send(publication)
            used.add(link)
        for link in used:
            link.flush()

    def _pick(self) -> Link | None:
        ready = [link for link in self._links if link.is_ready]
        if not ready:
            return None
        self._turn += 1
        return ready[self._turn % len(ready) if self._spread else 0]

    def link_changed(self) -> None:
        self._changed.set()
        if self._pending:
            self._schedule(0.0)

    def answered(self, publication: Publication, failure: Exception | None) -> None:
        if publication not in self._pending:
            return  # its time was up
        if failure is None:
            self.published += len(publication.bodies)
            publication.confirm()
            self._settle(publication)
            return
        publication.failure = failure
        if self._may_go_again(publication, failure):
            self.retried += 1
            self._again.append(publication)
            self._schedule(0.0)
        elif _is_for_one_message(failure) and len(publication.waiters) > 1:
            self._split(publication)
        else:
            self._give_up(publication)

    def _may_go_again(self, publication: Publication, failure: Exception) -> bool:
        """Note what the failure says about the publication, and whether to try once more."""
        if isinstance(failure, ServerError):
            if failure.code not in _PASSING_CODES:
                return False
            if failure.code == E_MPUB_FAILED:
                publication.unconfirmed = True  # the first of its messages may be in
        elif isinstance(failure, ConnectionClosed) and failure.sent:
            publication.unconfirmed = True
        return self._retry_unconfirmed or not publication.unconfirmed

    def _split(self, publication: Publication) -> None:
        """nsqd takes an MPUB or leaves it: one bad message must not take the others with it."""
        alone = publication.split()
        before, self._pending = self._pending, {}
        for each in before:  # in its place: what has the least time left stays in front
            self._pending.update(dict.fromkeys(alone) if each is publication else {each: None})
        self._again.extend(alone)
        self._schedule(0.0)

    def _give_up(self, publication: Publication) -> None:
        publication.fail()
        self._settle(publication)

    def _settle(self, publication: Publication) -> None:
        del self._pending[publication]
        self._room.give(publication.cost_bytes)
        if not self._pending:
            self._changed.set()

    def _expire(self) -> None:
        """Give up what has had its time; what is under way may or may not arrive."""
        assert self._loop is not None
        self._expiry = None
        now_s = self._loop.time()
        for publication in list(self._pending):
            if publication.deadline_s > now_s:
                self._expiry = self._loop.call_at(publication.deadline_s, self._expire)
                return
            if self._filling.get(publication.topic) is publication:
                del self._filling[publication.topic]
            publication.unconfirmed |= publication.under_way
            if publication.failure is None:
                failures = [str(link.failure) for link in self._links if link.failure]
                waited = f"no answer for {self._timeout_s:g} s"
                publication.failure = ConnectError("; ".join(failures) or waited)
            self._give_up(publication)


def _checked_addresses(given: str | Iterable[str]) -> list[str]:
    addresses = [given] if isinstance(given, str) else list(given)
    if not addresses:
        raise ValueError("a producer needs the address of an nsqd")
    for address in addresses:
        parse_address(address)
    return addresses


def _check_positive(**limits: float) -> None:
    for name, value in limits.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive")


async def _outcome(count: int, waiter: Waiter) -> int:
    await waiter
    return count


def _is_for_one_message(failure: Exception) -> bool:
    return isinstance(failure, ServerError) and failure.code in _BODY_CODES
