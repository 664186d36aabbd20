"""A consumer: the messages of one channel, from every nsqd that has the topic.

Three ways to use it, all with the same guarantees:

    async for message in consumer: ...            # one at a time
    async for batch in consumer.batches(): ...    # many at a time
    await consumer.run(handler, concurrency=10)   # finish on success, requeue on an exception

Puts together discovery, subscriptions and flow, and keeps the messages that have come and that
nobody has taken yet (at most max_in_flight). Touches no socket itself.
"""

import asyncio
import inspect
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from itertools import repeat
from typing import Self, TypeVar

from pumpline.client.connection.address import parse_address
from pumpline.client.connection.handshake import new_compression
from pumpline.client.connection.settings import Settings
from pumpline.client.consuming.backoff import Backoff
from pumpline.client.consuming.handling import Handler, Handling, put_back
from pumpline.client.consuming.message import Batch, Delivery, Message, Record, ThreadMessage
from pumpline.client.consuming.options import ConsumerOptions
from pumpline.client.consuming.rdy import Pool
from pumpline.client.consuming.rdy_sender import Flow
from pumpline.client.consuming.subscription import Counters, Subscription
from pumpline.client.discovery import Discovery
from pumpline.core.text.names import is_valid_name

MAX_IN_FLIGHT = 25
MAX_ATTEMPTS = 5
ATTEMPTS_WRAP = 65_536  # attempts are 16 bits: none has so many
POLL_GAP_S = 1.0  # between two polls, however many connections are lost
TAKEN_MAX = 256  # messages taken in a row before others on the event loop get their turn
BATCH_SIZE = 100

GivingUp = Callable[[Message], Awaitable[object] | object]
H = TypeVar("H", bound=Handler)

logger = logging.getLogger("pumpline.client")


class Consumer:
    """Use it as a context manager, or just iterate, which starts it and stops it at the end."""

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        nsqd: str | Iterable[str] = (),
        lookupd: str | Iterable[str] = (),
        max_in_flight: int = MAX_IN_FLIGHT,
        max_attempts: int = MAX_ATTEMPTS,
        giving_up: GivingUp | None = None,
        auto_touch: bool = False,
        settings: Settings | None = None,
        options: ConsumerOptions | None = None,
    ) -> None:
        """
        nsqd            addresses of nsqds to consume from, whoever names them
        lookupd         HTTP addresses of nsqlookupds that know who has the topic
        max_in_flight   messages not answered yet, over all nsqds; 0 pauses
        max_attempts    a message delivered more often is given up, that is: finished; 0 for never
        giving_up       called with a message before it is given up; if it raises, it is requeued
        auto_touch      touch messages until they are answered, or nsqd allows no more
        settings        of each connection: TLS, compression, AUTH, timeouts
        options         the finer points
        """
        _check_names(topic, channel)
        if max_in_flight < 0 or max_attempts < 0:
            raise ValueError("max_in_flight and max_attempts must not be negative")
        self.topic = topic
        self.channel = channel
        self.settings = settings or Settings()
        if self.settings.heartbeat_interval_s < 0:
            raise ValueError("a consumer must have heartbeats: nsqd lets nobody subscribe without")
        self.options = options or ConsumerOptions()
        self.auto_touch = auto_touch
        self.counters = Counters()
        self.random = random.random
        self._nsqds = {nsqd} if isinstance(nsqd, str) else set(nsqd)
        for address in self._nsqds:
            parse_address(address)
        self._discovery = self._new_discovery([lookupd] if isinstance(lookupd, str) else [*lookupd])
        if not self._nsqds and self._discovery is None:
            raise ValueError("a consumer needs the address of an nsqd or of an nsqlookupd")
        self._pool = Pool(max_in_flight, interval_s=self.options.redistribute_interval_s)
        self._attempts_max = max_attempts or ATTEMPTS_WRAP
        self._giving_up = giving_up
        self._handling: Handling | None = None
        self._ready: deque[Message] = deque()  # have come, and nobody has taken them
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._message_type: type[Message] = Message
        self._subscriptions: dict[str, Subscription] = {}
        self._retiring: set[Subscription] = set()
        self._flow: Flow | None = None
        self._main: asyncio.Task[None] | None = None
        self._handled: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup
        self._poll_now = asyncio.Event()
        self._is_over = False  # iterations end
        self._is_owned = False  # by an iteration

    def _new_discovery(self, lookupds: list[str]) -> Discovery | None:
        if not lookupds:
            return None
        options = self.options
        return Discovery(
            self.topic,
            lookupds,
            interval_s=options.poll_interval_s,
            jitter=options.poll_jitter,
            timeout_s=options.poll_timeout_s,
            tls=options.lookupd_tls,
            random=random.random,
        )

    # -- for its users ------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for messages in hand, unless an exception ended the block that had them."""
        await self.stop(timeout_s=None if kind is None else 0)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Message]:
        owns = self._own()
        try:
            while (message := await self._take()) is not None:
                yield message
                # The same without the call, as long as there are messages at hand.
                ready, attempts_max = self._ready, self._attempts_max
                for _ in range(min(TAKEN_MAX, len(ready))):
                    if not ready:
                        break
                    message = ready.popleft()
                    if message._record[1] <= attempts_max and not message._delivery.is_over:
                        yield message
                    else:
                        self._set_aside(message)
                if ready:
                    await asyncio.sleep(0)
        finally:
            if owns:
                await self.stop(timeout_s=0)

    async def batches(
        self, size_max: int = BATCH_SIZE, *, wait_s: float = 0.0
    ) -> AsyncGenerator[Batch, None]:
        """Messages at hand, up to size_max; wait_s is how long a batch may wait to become full."""
        if size_max < 1:
            raise ValueError("a batch has at least 1 message")
        owns = self._own()
        try:
            while (message := await self._take()) is not None:
                batch = Batch([message])
                self._fill(batch, size_max)
                if wait_s and len(batch) < size_max:
                    await self._fill_up(batch, size_max, wait_s)
                yield batch
                if self._ready:
                    await asyncio.sleep(0)
        finally:
            if owns:
                await self.stop(timeout_s=0)

    def _own(self) -> bool:
        """Whether it is the iteration that starts the consumer, and is to stop it at its end."""
        if self._main is not None:
            if self._is_owned and self._stopping is not None:
                self.start()  # which says that it cannot
            return False
        self.start()
        self._is_owned = True
        return True

    def handler(self, *, concurrency: int = 1, threads: bool | None = None) -> Callable[[H], H]:
        """Decorator: the function that `run` gives messages to. See `run`."""

        def keep(function: H) -> H:
            self._handling = Handling(function, concurrency=concurrency, threads=threads)
            return function

        return keep

    async def run(
        self,
        handler: Handler | None = None,
        *,
        concurrency: int = 1,
        threads: bool | None = None,
    ) -> None:
        """Handles messages until `stop`: finishes each when the handler returns, and requeues it,
        backing off, when the handler raises; a message the handler has answered is left alone.

        At most `concurrency` messages are handled at a time. A handler that is no coroutine
        function runs in that many threads; `threads=False` calls it on the event loop instead,
        which is for handlers that never wait.
        """
        if handler is not None:
            self._handling = Handling(handler, concurrency=concurrency, threads=threads)
        if self._handling is None:
            raise ValueError("a handler is needed")
        self._message_type = self._handling.message_type
        self.start()
        try:
            # A cancellation stops the consumer gracefully before it stops the handlers.
            self._handled = asyncio.create_task(self._handling.run(self._take))
            await asyncio.shield(self._handled)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # It was the handlers that were cancelled, as a stop did not wait any longer.
        finally:
            await self.stop()

    def answer_from_threads(self) -> None:
        """Messages are to be answered from any thread; to be called before it is started."""
        self._message_type = ThreadMessage

    def start(self) -> None:
        """Connects in the background; needs a running event loop."""
        if self._stopping is not None:
            raise RuntimeError("a consumer that was stopped does not start again: make a new one")
        if self._main is not None:
            return
        new_compression(self.settings)  # what is not installed is told now, and not to the log
        options = self.options
        backoff = Backoff(
            multiplier_s=options.backoff_multiplier_s,
            wait_max_s=options.backoff_max_s,
            jitter=random.random if options.backoff_jitter else None,
        )
        self._flow = Flow(self._pool, backoff)
        self._main = asyncio.get_running_loop().create_task(self._run())

    def stop_soon(self) -> None:
        """Begins a stop; for handlers, and for signals."""
        if self._main is not None:
            self._begin_stop(self._main, self.options.stop_timeout_s)

    async def stop(self, *, timeout_s: float | None = None) -> None:
        """Takes no more messages, puts back those nobody has taken, waits until those in hand are
        answered (for options.stop_timeout_s if no time is given), and closes. Handlers, for which
        it would wait, call `stop_soon` instead."""
        main = self._main
        if main is None:
            return
        if self.is_in_handler:
            raise RuntimeError("a handler cannot wait for its own end: call stop_soon")
        if timeout_s is None:
            timeout_s = self.options.stop_timeout_s
        await asyncio.shield(self._begin_stop(main, timeout_s))
        if not main.cancelled() and (error := main.exception()) is not None:
            raise error

    @property
    def max_in_flight(self) -> int:
        return self._pool.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        if count < 0:
            raise ValueError("max_in_flight must not be negative")
        if self._flow is None:
            self._pool.max_in_flight = count
        else:
            self._flow.set_max_in_flight(count)

    @property
    def in_flight(self) -> int:
        """Messages received and not answered."""
        return self._pool.in_flight

    @property
    def connections(self) -> list[str]:
        """Addresses of the nsqds it is subscribed to at this moment."""
        return [s.address for s in self._subscriptions.values() if s.connection is not None]

    @property
    def is_in_handler(self) -> bool:
        """Whether the caller is a handler of this consumer."""
        return self._handling is not None and self._handling.is_here

    @property
    def is_backing_off(self) -> bool:
        """Whether it takes fewer messages, or none, as some have failed."""
        return self._flow is not None and self._flow.is_backing_off

    @property
    def is_starved(self) -> bool:
        """Whether some connection has 85 % of its RDY in flight: answer what is in hand before
        collecting more."""
        return any(c.in_flight and c.in_flight >= 0.85 * c.rdy for c in self._pool.credits)

    # -- messages at hand ---------------------------------------------------------------------

    def messages_received(self, delivery: Delivery, records: list[Record]) -> None:
        messages = list(map(self._message_type, repeat(delivery), records))
        if self.auto_touch:
            delivery.messages = messages
        if self._is_over:
            put_back(messages)
        else:
            self._ready += messages
            self._wake()

    async def _take(self) -> Message | None:
        """The next message; None when there will be no more."""
        ready = self._ready
        while ready or await self._wait_ready():
            message = ready.popleft()
            if message._record[1] <= self._attempts_max and not message._delivery.is_over:
                if ready and self._waiters:
                    self._wake()
                return message
            self._set_aside(message)
        return None

    def _fill(self, batch: Batch, size_max: int) -> None:
        while self._ready and len(batch) < size_max:
            message = self._ready.popleft()
            if message._record[1] <= self._attempts_max and not message._delivery.is_over:
                batch.append(message)
            else:
                self._set_aside(message)

    async def _fill_up(self, batch: Batch, size_max: int, wait_s: float) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    while len(batch) < size_max and await self._wait_ready():
                        self._fill(batch, size_max)
        except asyncio.CancelledError:
            self._ready.extendleft(reversed(batch))  # nobody will see this batch
            raise

    async def _wait_ready(self) -> bool:
        """False when there will be no more."""
        while not self._ready:
            if self._is_over:
                return False
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled() and self._ready:
                    self._wake()  # somebody else
                raise
        return True

    def _wake(self) -> None:
        """One of those who wait; it wakes the next if there is more."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _set_aside(self, message: Message) -> None:
        """A message that nobody is to see: nsqd has it again, or it was tried too often."""
        if message._delivery.is_over:
            return
        self.counters.given_up += 1
        logger.warning("giving up %r", message)
        if self._giving_up is None:
            message.finish()
        else:
            self._tasks.create_task(self._give_up(message, self._giving_up))

    async def _give_up(self, message: Message, giving_up: GivingUp) -> None:
        try:
            outcome = giving_up(message)
            if inspect.isawaitable(outcome):
                await outcome
        except Exception:  # a user's function: the message must not be lost by it
            logger.exception("giving_up failed on %r", message)
            message.requeue()
        else:
            message.finish()

    # -- nsqds --------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._follow(set())
                if self._discovery is not None:
                    self._tasks.create_task(self._discover(self._discovery))
                await asyncio.get_running_loop().create_future()  # until it is cancelled
        finally:
            self._end_iterations()

    async def _discover(self, discovery: Discovery) -> None:
        while True:
            self._poll_now.clear()
            await discovery.poll(lambda: self._follow(discovery.nodes))
            self._follow(discovery.nodes)
            with suppress(TimeoutError):
                async with asyncio.timeout(discovery.pause_s()):
                    await self._poll_now.wait()
                    await asyncio.sleep(POLL_GAP_S)

    def _follow(self, nodes: set[str]) -> None:
        """Has a subscription to each of them, and to nobody else."""
        assert self._flow is not None
        wanted = self._nsqds | nodes
        for address in sorted(wanted - self._subscriptions.keys()):
            subscription = Subscription(address, self, self._flow)
            self._subscriptions[address] = subscription
            subscription.task = self._tasks.create_task(subscription.run())
        for address in sorted(self._subscriptions.keys() - wanted):
            logger.info("%s: no nsqlookupd names it any more", address)
            retired = self._subscriptions.pop(address)
            self._retiring.add(retired)
            self._tasks.create_task(self._retire(retired))

    async def _retire(self, subscription: Subscription) -> None:
        subscription.leave()
        await subscription.drain(self.options.stop_timeout_s)
        await subscription.close()
        subscription.task.cancel()
        self._retiring.discard(subscription)

    def connection_ended(self) -> None:
        self._poll_now.set()

    def requeue_delay_s(self, attempts: int) -> float:
        return self.options.requeue_delay_of(attempts)

    # -- the end ------------------------------------------------------------------------------

    def _begin_stop(self, main: "asyncio.Task[None]", timeout_s: float) -> "asyncio.Task[None]":
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(main, timeout_s))
        return self._stopping

    async def _stop(self, main: "asyncio.Task[None]", timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout_s
        if self._flow is not None:
            self._flow.stop()
        subscriptions = [*self._subscriptions.values(), *self._retiring]
        for subscription in subscriptions:
            subscription.leave()  # before anything is put back, or it would come here again
        self._end_iterations()
        await asyncio.gather(*(subscription.drain(timeout_s) for subscription in subscriptions))
        if self._handled is not None:
            # A handler may have more to do after its message is answered.
            await asyncio.wait({self._handled}, timeout=max(0, ends_at - loop.time()))
            self._handled.cancel()
            await asyncio.gather(self._handled, return_exceptions=True)
        await asyncio.gather(*(subscription.close() for subscription in subscriptions))
        main.cancel()
        await asyncio.wait({main})

    def _end_iterations(self) -> None:
        self._is_over = True
        put_back(list(self._ready))
        self._ready.clear()
        while self._waiters:
            self._wake()


def _check_names(topic: str, channel: str) -> None:
    for kind, name in (("topic", topic), ("channel", channel)):
        if not is_valid_name(name):
            raise ValueError(f"{name!r} is not a valid {kind} name")
