"""Publishes to one or several nsqds.

    async with Producer("127.0.0.1:4150") as producer:
        await producer.publish("orders", b"...")

`publish` returns when an nsqd has confirmed the message. Concurrent publishes to a topic are sent
as one MPUB; `publish_many` is the better call for many messages at hand.

Every message has a limited time (`timeout_s`). Within it, a message that failed is sent again, to
any nsqd that is up. A message that was sent and not answered is sent again, too, unless
`retry_unconfirmed` is off: nsqd may then have it twice, since NSQ promises at least once. When the
time is up, the exception says what is known: NotSentError, RefusedError or UnconfirmedError.

With `idempotent`, every publish has a publish token, so nsqd stores it once, however often it is
sent. `token` gives a publish a token of the caller's. Both need pumpline's nsqd.

Memory is bounded by `pending_bytes_max`: beyond it, `publish` waits.

This file checks what users pass in; `publish_queue` sends it, over the connections of `nsqds`.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Literal, Self, cast

from pumpline.client.around import Around, surrounded
from pumpline.client.connection.address import list_of_addresses, parse_address
from pumpline.client.delay import Delay, milliseconds
from pumpline.client.errors import NotSentError, PublishError, less_certain, wrong_name
from pumpline.client.publishing.bodies import (
    Body,
    blocks,
    bytes_of,
    check_token,
    check_topic,
    json_body,
    portions,
    taken_whole,
)
from pumpline.client.publishing.codec import Encode, new_encode
from pumpline.client.publishing.limits import check_positive
from pumpline.client.publishing.nsqds import Nsqds
from pumpline.client.publishing.outgoing import Outgoing
from pumpline.client.publishing.publication import MESSAGE_COST_BYTES, Waiter
from pumpline.client.publishing.publish_queue import PublishQueue
from pumpline.client.settings import Settings
from pumpline.core.messages.kernels import body_bytes
from pumpline.core.protocol.commands import MPUB_MESSAGE_OVERHEAD_BYTES, MPUB_OVERHEAD_BYTES

MESSAGE_BYTES_MAX = 1 << 20  # nsqd's --max-msg-size, unless told otherwise
BODY_BYTES_MAX = 5 << 20  # and its --max-body-size
PENDING_BYTES_MAX = 32 << 20

WhenDown = Literal["wait", "raise"]


class Producer:
    """Publishes messages. Use it as a context manager, or call `start` and `close`."""

    waits: int = 0
    """The number of publishes that had to wait because of `pending_bytes_max`."""

    _is_started = False

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
        idempotent: bool = False,
        lazy: bool = False,
        when_down: WhenDown = "wait",
        codec: Encode | None = None,
        middleware: Iterable[Around[Outgoing]] = (),
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        body_bytes_max: int = BODY_BYTES_MAX,
        pending_bytes_max: int = PENDING_BYTES_MAX,
    ) -> None:
        """
        addresses           one nsqd or several: the first that is up is used, the others stand by
        settings            TLS, compression, AUTH, timeouts of connections
        spread              use all that are up, in turn
        batching            send concurrent publishes to a topic as one MPUB
        batch_delay_s       how long to wait for more of them; 0 takes those of a loop iteration
        timeout_s           for a message, retries included
        confirm_timeout_s   for one try; then the connection is given up
        retry_unconfirmed   send again what may have been published already
        idempotent          give each publish a token, so that sending it again stores it once
        lazy                start without waiting for a connection: nsqd may come up later
        when_down           "wait" for an nsqd, or "raise" NotSentError, while none can be reached
        codec               a function from values to bytes, for publish_value; JSON by default
        middleware          coroutine functions around each call of publish and publish_many
        message_bytes_max   nsqd's --max-msg-size
        body_bytes_max      nsqd's --max-body-size
        pending_bytes_max   of messages not confirmed yet; beyond it publish waits
        """
        check_positive(message_bytes_max=message_bytes_max)
        self._encode = new_encode(codec)
        self._surround(tuple(middleware))
        self._batching, self._lazy, self._timeout_s = batching, lazy, timeout_s
        self._message_bytes_max, self._body_bytes_max = message_bytes_max, body_bytes_max
        self._nsqds = Nsqds(
            _checked_addresses(addresses),
            settings or Settings(),
            spread=spread,
            confirm_timeout_s=confirm_timeout_s,
            needs_tokens=idempotent,
        )
        self._queue = PublishQueue(
            self._nsqds,
            timeout_s=timeout_s,
            batch_delay_s=batch_delay_s,
            body_bytes_max=body_bytes_max,
            pending_bytes_max=pending_bytes_max,
            retry_unconfirmed=retry_unconfirmed,
            raise_when_down=_raises(when_down),
            idempotent=idempotent,
        )

    @property
    def addresses(self) -> list[str]:
        """The addresses of all its nsqds."""
        return self._nsqds.addresses

    @property
    def connected(self) -> list[str]:
        """The addresses of the nsqds that can be published to now."""
        return self._nsqds.connected

    @property
    def published(self) -> int:
        """The number of messages that were confirmed."""
        return self._queue.published

    @property
    def retried(self) -> int:
        """The number of commands that were sent again after a failure."""
        return self._queue.retried

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
        """Connect to all; return when one is up, raise ConnectError if none can be reached. A lazy
        producer returns at once, and connects in the background."""
        if self._is_started:
            raise RuntimeError("the producer was started before")
        self._is_started = True
        try:
            await self._queue.start(lazy=self._lazy)
        except BaseException:
            self._is_started = False  # it may be tried again
            raise

    async def close(self) -> None:
        """Accept no more, wait for pending messages, within their time, and disconnect."""
        if self._nsqds.is_started:
            await self._queue.close()

    async def publish(
        self, topic: str, body: Body, *, defer: Delay | None = None, token: str | None = None
    ) -> None:
        """Publish a message, to be delivered now or after `defer` (seconds or timedelta).

        With a `token`, 1 to 64 characters of `A-Z a-z 0-9 . _ : -`, the topic stores the message
        once, however often it is published with that token, by whatever process. If there are
        several nsqds, the token decides which one stores it; the others do not stand by for it.

        Raises NotSentError, RefusedError or UnconfirmedError; ValueError if the body cannot be a
        message, or the token cannot be one.
        """
        message = self._checked(topic, body)
        if token is not None:
            check_token(token)
        defer_ms = None if defer is None else milliseconds(defer)
        cost = MESSAGE_COST_BYTES + len(message)
        if not self._queue.budget.try_take(cost):
            await self._wait_for_budget(cost)
        if defer_ms is not None or token is not None or not self._batching:
            await self._queue.put(topic, [message], cost, defer_ms=defer_ms, token=token or "")
        else:
            await self._queue.add(topic, message)

    async def publish_json(
        self, topic: str, value: object, *, defer: Delay | None = None, token: str | None = None
    ) -> None:
        """Publish a value as JSON. ValueError or TypeError if it cannot be JSON; NaN cannot."""
        await self.publish(topic, json_body(value), defer=defer, token=token)

    async def publish_value(
        self, topic: str, value: object, *, defer: Delay | None = None, token: str | None = None
    ) -> None:
        """Publish a value as the `codec` encodes it, by default as JSON: a dataclass, a
        msgspec.Struct, or what else msgspec encodes. A consumer with `type` gets it as
        `message.value`. What the codec raises is raised here, and nothing is published."""
        await self.publish(topic, self._encode(value), defer=defer, token=token)

    async def publish_many(
        self, topic: str, bodies: Iterable[Body], *, token: str | None = None
    ) -> None:
        """Publish messages by MPUB, in as few commands as nsqd's limits allow.

        With a `token`, as in `publish`, they are stored together, once, or not at all. They must
        fit into one MPUB then (`body_bytes_max`), or ValueError is raised and none is published.

        Without one, not all or nothing: `confirmed` of the exception is how many are known to be
        published. The exception is the first failure, or UnconfirmedError if any of the messages
        may have been published; no more is taken from `bodies` after it. When a body cannot be a
        message, or `bodies` raises, messages before it may have been published.
        """
        budget, put = self._queue.budget, self._queue.put
        waiters: deque[tuple[int, Waiter]] = deque()
        confirmed = 0
        try:
            for chunk, size in self._chunks(topic, bodies, token):
                cost = size + MESSAGE_COST_BYTES * len(chunk)
                if not budget.try_take(cost):
                    await self._wait_for_budget(cost)
                waiters.append((len(chunk), put(topic, chunk, cost, token=token or "")))
                while waiters and waiters[0][1].done():
                    confirmed += await _outcome(*waiters.popleft())
            while waiters:
                confirmed += await _outcome(*waiters.popleft())
        except PublishError as first:
            error = first
            for count, waiter in waiters:
                try:
                    confirmed += await _outcome(count, waiter)
                except PublishError as another:
                    error = less_certain(error, another)
            error.confirmed = confirmed
            raise error from error.__cause__
        except BaseException:
            for _, waiter in waiters:
                waiter.cancel()
            raise

    def _surround(self, middleware: tuple[Around[Outgoing], ...]) -> None:
        """Replace the methods of this producer. Without middleware they are as fast as before; one
        more coroutine for each publish would cost 6 %."""
        if not middleware:
            return
        plain_publish, plain_publish_many = self.publish, self.publish_many

        async def innermost(outgoing: Outgoing) -> None:
            bodies = outgoing.bodies
            token = outgoing.token
            if isinstance(bodies, tuple) and len(bodies) == 1:
                await plain_publish(outgoing.topic, bodies[0], defer=outgoing.defer, token=token)
            elif outgoing.defer is not None:
                raise ValueError("only one message at a time can be deferred")
            else:
                await plain_publish_many(outgoing.topic, bodies, token=token)

        call = surrounded(innermost, middleware)

        async def publish(
            topic: str, body: Body, *, defer: Delay | None = None, token: str | None = None
        ) -> None:
            await call(Outgoing(topic, (body,), defer, token))

        async def publish_many(
            topic: str, bodies: Iterable[Body], *, token: str | None = None
        ) -> None:
            await call(Outgoing(topic, bodies, token=token))

        self.publish = publish  # type: ignore[method-assign]
        self.publish_many = publish_many  # type: ignore[method-assign]

    def _checked(self, topic: str, body: Body) -> bytes:
        if not self._queue.is_accepting:
            raise self._not_accepting()
        if type(body) is not bytes:
            body = bytes_of(body)
        if not body:
            raise ValueError("a message cannot be empty")
        if not isinstance(topic, str):
            raise wrong_name("topic", topic)
        if len(body) > self._message_bytes_max:
            raise ValueError(
                f"a message of {len(body)} bytes, over the limit of {self._message_bytes_max}"
            )
        check_topic(topic)
        return body

    def _chunks(
        self, topic: str, bodies: Iterable[Body], token: str | None
    ) -> Iterator[tuple[list[bytes], int]]:
        """Checked messages and the bytes of their bodies, as many at a time as fit into one MPUB;
        all of them if they have a token."""
        if token is not None:
            check_token(token)
            whole = taken_whole(bodies, self._body_bytes_max)
            if whole:
                checked = [self._checked(topic, body) for body in whole]
                yield checked, sum(map(len, checked))
            return
        for block in blocks(bodies, self._body_bytes_max // 2):
            checked = [self._checked(topic, body) for body in block[:1]]
            size = body_bytes(block, self._message_bytes_max)
            overhead = MPUB_OVERHEAD_BYTES + MPUB_MESSAGE_OVERHEAD_BYTES * len(block)
            if size >= 0 and overhead + size <= self._body_bytes_max:
                yield cast(list[bytes], block), size
                continue
            checked += [self._checked(topic, body) for body in block[1:]]
            for portion in portions(checked, self._body_bytes_max):
                yield portion, sum(map(len, portion))

    async def _wait_for_budget(self, cost: int) -> None:
        self.waits += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._queue.budget.take(cost)
        except TimeoutError:
            text = f"not sent: no room for {self._timeout_s:g} s, as nothing was confirmed"
            raise NotSentError(text) from None
        if not self._queue.is_accepting:  # closed in the meantime; the next in line must learn it
            self._queue.budget.give_back(cost)
            raise self._not_accepting()

    def _not_accepting(self) -> Exception:
        if not self._is_started:
            return RuntimeError("the producer is not started: use `async with`, or start()")
        if not self._queue.is_open:
            return NotSentError("not sent: the producer is closed")
        cause = self._queue.down_error()
        error = NotSentError(f"not sent: {cause}")
        error.__cause__ = cause
        return error


def _checked_addresses(given: str | Iterable[str]) -> list[str]:
    addresses = list_of_addresses(given)
    if not addresses:
        raise ValueError("a producer needs the address of an nsqd")
    for address in addresses:
        parse_address(address)
    return addresses


def _raises(when_down: WhenDown) -> bool:
    if when_down not in ("wait", "raise"):
        raise ValueError(f"when_down is 'wait' or 'raise', not {when_down!r}")
    return when_down == "raise"


async def _outcome(count: int, waiter: Waiter) -> int:
    await waiter
    return count
