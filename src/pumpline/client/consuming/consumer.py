"""A consumer: the messages of one channel, from every nsqd that has the topic.

Four ways to use it, all with the same guarantees:

    async for message in consumer: ...            # one at a time
    async for batch in consumer.batches(): ...    # many at a time
    await consumer.run(handler, concurrency=10)   # finish on success, requeue on an exception
    await consumer.run_batches(handler)           # the same, many at a time

Joins its parts: `subscriptions` receive messages from nsqds, `inbox` keeps those that nobody has
taken yet, `rdy_sender` says how many more may come, `handling` runs handlers. This file is what
users call, and the order of a start and a stop. Touches no socket itself.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable
from contextlib import nullcontext
from typing import Any, NamedTuple, Self, TypeVar

from pumpline.client.connection.address import list_of_addresses, parse_address
from pumpline.client.connection.handshake import new_compression
from pumpline.client.connection.settings import Settings
from pumpline.client.consuming.backoff import Backoff
from pumpline.client.consuming.batch_handling import BatchHandler, BatchHandling
from pumpline.client.consuming.codec import Decode, new_decode
from pumpline.client.consuming.giving_up import GiverUp
from pumpline.client.consuming.handling import Handler, HandlerTurns, Handling, give_back
from pumpline.client.consuming.hooks import Hook, RunHooks
from pumpline.client.consuming.inbox import Inbox
from pumpline.client.consuming.message import Batch, Message, ThreadMessage
from pumpline.client.consuming.middleware import Around
from pumpline.client.consuming.options import DEAD_LETTER, ConsumerOptions, GivingUp
from pumpline.client.consuming.rdy import RdyPool
from pumpline.client.consuming.rdy_sender import RdySender
from pumpline.client.consuming.signals import stopping_on_signals
from pumpline.client.consuming.subscription import Counters, SubscriptionTerms
from pumpline.client.consuming.subscriptions import Subscriptions
from pumpline.client.discovery import Discovery
from pumpline.client.errors import wrong_name
from pumpline.core.text.names import is_valid_name

MAX_IN_FLIGHT = 25
MAX_ATTEMPTS = 5
ATTEMPTS_WRAP = 65_536  # attempts are 16 bits: no message has so many
BATCH_SIZE = 100

H = TypeVar("H", bound=Handler)
K = TypeVar("K", bound=Hook)


class _Running(NamedTuple):
    """What a consumer has from its start on."""

    rdy_sender: RdySender
    subscriptions: Subscriptions
    task: asyncio.Task[None]


class Consumer:
    """Consumes a channel of a topic. Use it as a context manager (`async with`), iterate over it,
    or call `run` or `run_batches`; an iteration starts the consumer, and stops it at its end."""

    _handled: asyncio.Task[None] | None = None  # the handlers
    _stopping: asyncio.Task[None] | None = None
    _is_owned = False  # an iteration started it, and stops it at its end

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        nsqd: str | Iterable[str] = (),
        lookupd: str | Iterable[str] = (),
        max_in_flight: int = MAX_IN_FLIGHT,
        max_attempts: int = MAX_ATTEMPTS,
        giving_up: GivingUp = DEAD_LETTER,
        auto_touch: bool = True,
        type: Any = None,
        codec: Decode | None = None,
        middleware: Iterable[Around] = (),
        settings: Settings | None = None,
        options: ConsumerOptions | None = None,
    ) -> None:
        """
        nsqd            addresses of nsqds to consume from, besides those that are discovered
        lookupd         HTTP addresses of nsqlookupds that know who has the topic
        max_in_flight   messages not answered yet, over all nsqds; 0 pauses
        max_attempts    a message delivered more often is given up; 0 for never
        giving_up       "dead-letter": publish it to `<topic>.dlq`, then finish it; "drop": finish
                        it; a function: call it with the message, then finish that. A message that
                        cannot be published, or for which the function raises, is requeued
        auto_touch      touch messages until they are answered, or nsqd allows no more
        type            what a body must be, as JSON: a dataclass, a msgspec.Struct, a TypedDict, or
                        another type that msgspec validates; `message.value` is the object. A body
                        that is not valid is given up at once, as `giving_up` says, with the reason
        codec           a function of bytes instead, for `message.value`; ValueError: not valid
        middleware      functions around each call of the handler of `run`
        settings        of each connection: TLS, compression, AUTH, timeouts
        options         delays, backoff, discovery, and the timeout of a stop
        """
        _check_names(topic, channel)
        _check_count("max_in_flight", max_in_flight)
        _check_count("max_attempts", max_attempts)
        self.topic = topic
        self.channel = channel
        self.settings = settings or Settings()
        if self.settings.heartbeat_interval_s < 0:
            raise ValueError("a consumer must have heartbeats: nsqd lets nobody subscribe without")
        self.options = options or ConsumerOptions()
        self.auto_touch = auto_touch
        self.counters = Counters()
        """Numbers of messages since the start."""
        self._nsqds = _checked_addresses(nsqd)
        self._discovery = self._new_discovery(list_of_addresses(lookupd))
        if not self._nsqds and self._discovery is None:
            raise ValueError("a consumer needs the address of an nsqd or of an nsqlookupd")
        self._pool = RdyPool(max_in_flight, interval_s=self.options.redistribute_interval_s)
        self._giver_up = GiverUp(topic, channel, self.settings, giving_up, self.counters)
        self._declared: Handling | None = None  # by the decorator `handler`
        self._handling: Handling | BatchHandling | None = None  # from `run` on
        self._hooks = RunHooks()
        self._middleware = tuple(middleware)
        self._inbox = self._new_inbox(max_attempts, new_decode(type, codec))
        self._running: _Running | None = None  # from its start on

    def _new_inbox(self, max_attempts: int, decode: Decode | None) -> Inbox:
        is_limited = max_attempts and not self._giver_up.keeps_all
        return Inbox(
            attempts_max=max_attempts if is_limited else ATTEMPTS_WRAP,
            give_up=self._giver_up.give_up,
            decode=decode,
            reject=self._giver_up.reject,
        )

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

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for messages in hand, unless an exception ended the block that had them."""
        await self.stop(timeout_s=None if kind is None else 0)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Message]:
        owns = self._own()
        inbox, turns = self._inbox, HandlerTurns()
        ready, attempts_max = inbox.ready, inbox.attempts_max
        try:
            while (message := await inbox.take()) is not None:
                yield message
                # inbox.take() without the call, as long as there are messages at hand.
                for _ in range(min(turns.size - 1, len(ready))):
                    if not ready:
                        break
                    message = ready.popleft()
                    if (
                        message._record[1] <= attempts_max and not message._arrival.is_stale
                    ) or inbox.admits(message):
                        yield message
                if turns.is_over() and ready:
                    await turns.end()
        finally:
            if owns:
                await self.stop(timeout_s=0)

    async def batches(
        self, size_max: int = BATCH_SIZE, *, wait_s: float = 0.0
    ) -> AsyncGenerator[Batch, None]:
        """Iterate over batches of up to `size_max` messages. A batch has the messages that have
        arrived; `wait_s` is how long it may wait for more."""
        if size_max < 1:
            raise ValueError("a batch has at least 1 message")
        owns = self._own()
        try:
            while (batch := await self._inbox.take_batch(size_max, wait_s)) is not None:
                yield batch
                if self._inbox.ready:
                    await asyncio.sleep(0)
        finally:
            if owns:
                await self.stop(timeout_s=0)

    def _own(self) -> bool:
        """Start the consumer if need be; return whether this iteration is to stop it at its end."""
        if self._running is not None:
            if self._is_owned and self._stopping is not None:
                self.start()  # raises: it was stopped
            return False
        self.start()
        self._is_owned = True
        return True

    def handler(self, *, concurrency: int = 1, threads: bool | None = None) -> Callable[[H], H]:
        """Decorator: the handler that `run` calls. Arguments as in `run`."""

        def keep(function: H) -> H:
            self._declared = self._new_handling(function, concurrency, threads)
            return function

        return keep

    def _new_handling(self, handler: Handler, concurrency: int, threads: bool | None) -> Handling:
        middleware = self._middleware
        return Handling(handler, concurrency=concurrency, threads=threads, middleware=middleware)

    def on_start(self, function: K) -> K:
        """Decorator: `run` calls the function, or coroutine function, before it connects."""
        self._hooks.on_start.append(function)
        return function

    def on_stop(self, function: K) -> K:
        """Decorator: `run` calls the function at its end, after the connections are closed."""
        self._hooks.on_stop.append(function)
        return function

    async def run(
        self,
        handler: Handler | None = None,
        *,
        concurrency: int = 1,
        threads: bool | None = None,
        signals: bool = True,
    ) -> None:
        """Handle messages until `stop`, SIGINT or SIGTERM: finish each when the handler returns;
        requeue it when the handler raises. A message that the handler has answered is left alone.

        At most `concurrency` messages are handled at a time. A handler that is no coroutine
        function runs in that many threads; `threads=False` calls it on the event loop instead,
        which is for handlers that never wait. Signals are watched in the main thread, unless
        `signals` is False or the program has handlers for them.
        """
        handling = self._declared
        if handler is not None:
            handling = self._new_handling(handler, concurrency, threads)
        if handling is None:
            raise ValueError("a handler is needed")
        self._handling = handling
        self._inbox.message_type = handling.message_type
        await self._run_handlers(lambda: handling.run(self._inbox.take), signals=signals)

    async def run_batches(
        self,
        handler: BatchHandler,
        *,
        size_max: int = BATCH_SIZE,
        wait_s: float = 0.0,
        concurrency: int = 1,
        signals: bool = True,
    ) -> None:
        """As `run`, with a coroutine function that is called with a batch of up to `size_max`
        messages; `wait_s` is how long a batch may wait to become full. When the handler returns,
        all are finished; when it raises, all are requeued; but for those that it has answered.
        """
        if self._middleware:
            raise ValueError("middleware is for handlers of single messages")
        handling = self._handling = BatchHandling(
            handler, size_max=size_max, wait_s=wait_s, concurrency=concurrency
        )
        await self._run_handlers(lambda: handling.run(self._inbox.take_batch), signals=signals)

    async def _run_handlers(
        self, work: Callable[[], Coroutine[None, None, None]], *, signals: bool
    ) -> None:
        wake = asyncio.get_running_loop().call_soon_threadsafe
        async with self._hooks.around():
            with stopping_on_signals(lambda: wake(self.stop_soon)) if signals else nullcontext():
                await self._handle(work)

    async def _handle(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        self.start()
        try:
            # A cancellation stops the consumer gracefully before it stops the handlers.
            self._handled = asyncio.create_task(work())
            await asyncio.shield(self._handled)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Not this call but the handlers were cancelled, by a stop that waits no longer.
        finally:
            await self.stop()

    def answer_from_threads(self) -> None:
        """Allow messages to be answered from any thread; call it before the start."""
        self._inbox.message_type = ThreadMessage

    def start(self) -> None:
        """Connect in the background; needs a running event loop."""
        if self._stopping is not None:
            raise RuntimeError("a consumer that was stopped does not start again: make a new one")
        if self._running is not None:
            return
        new_compression(self.settings)  # raises here if its library is not installed
        options = self.options
        backoff = Backoff(
            multiplier_s=options.backoff_multiplier_s,
            wait_max_s=options.backoff_max_s,
            jitter=random.random if options.backoff_jitter else None,
        )
        rdy_sender = RdySender(self._pool, backoff)
        subscriptions = Subscriptions(
            SubscriptionTerms(
                topic=self.topic,
                channel=self.channel,
                settings=self.settings,
                options=options,
                auto_touch=self.auto_touch,
                counters=self.counters,
                on_messages=self._inbox.receive,
                on_stale=self._give_back_stale,
            ),
            rdy_sender,
            nsqds=self._nsqds,
            discovery=self._discovery,
        )
        task = asyncio.get_running_loop().create_task(self._run(subscriptions))
        self._running = _Running(rdy_sender, subscriptions, task)

    def stop_soon(self) -> None:
        """Begin a stop, and return at once. Handlers and signal handlers may call it."""
        if self._running is not None:
            self._begin_stop(self._running, self.options.stop_timeout_s)

    async def stop(self, *, timeout_s: float | None = None) -> None:
        """Take no more messages, put back those that nobody has taken, wait until those in hand
        are answered (for options.stop_timeout_s if no time is given), and close. Handlers call
        `stop_soon` instead: this would wait for them."""
        running = self._running
        if running is None:
            return
        if self.is_in_handler:
            raise RuntimeError("a handler cannot wait for its own end: call stop_soon")
        if timeout_s is None:
            timeout_s = self.options.stop_timeout_s
        await asyncio.shield(self._begin_stop(running, timeout_s))
        if not running.task.cancelled() and (error := running.task.exception()) is not None:
            raise error

    @property
    def max_in_flight(self) -> int:
        """How many messages may be unanswered, over all nsqds. Set it to 0 to pause."""
        running = self._running
        return self._pool.max_in_flight if running is None else running.rdy_sender.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        _check_count("max_in_flight", count)
        if self._running is None:
            self._pool.max_in_flight = count
        else:
            self._running.rdy_sender.set_max_in_flight(count)

    @property
    def in_flight(self) -> int:
        """Messages received and not answered."""
        return self._pool.in_flight

    @property
    def connections(self) -> list[str]:
        """The addresses of the nsqds it is subscribed to now."""
        return [] if self._running is None else self._running.subscriptions.connected

    @property
    def is_in_handler(self) -> bool:
        """Whether the caller is a handler of this consumer."""
        return self._handling is not None and self._handling.is_here

    @property
    def is_backing_off(self) -> bool:
        """Whether it receives no messages, or one at a time, because many have failed."""
        return self._running is not None and self._running.rdy_sender.is_backing_off

    @property
    def is_starved(self) -> bool:
        """Whether some connection has 85 % of its RDY in flight: answer what is in hand before
        collecting more."""
        return any(c.in_flight and c.in_flight >= 0.85 * c.rdy for c in self._pool.credits)

    async def _run(self, subscriptions: Subscriptions) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                self._giver_up.tasks = tasks
                await subscriptions.run(tasks)
        finally:
            self._inbox.end()

    def _give_back_stale(self, wait_max_s: float) -> int:
        """Give back stale messages that nobody has begun, and ask for fewer; return how many."""
        stale = self._inbox.withdraw_stale()
        if self._handling is not None:
            stale += self._handling.withdraw_stale()
        if waiting := sum(not message.is_over for message in stale):
            assert self._running is not None  # they came over a connection of it
            self._running.rdy_sender.slow_down(self.in_flight - waiting, wait_max_s)
        give_back(stale)
        return len(stale)

    def _begin_stop(self, running: _Running, timeout_s: float) -> "asyncio.Task[None]":
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(running, timeout_s))
        return self._stopping

    async def _stop(self, running: _Running, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout_s
        running.rdy_sender.stop()
        running.subscriptions.leave()  # before anything is put back: nsqd would send it here again
        self._inbox.end()
        await running.subscriptions.drain(timeout_s)
        if self._handled is not None:
            # A handler may have more to do after its message is answered.
            await asyncio.wait({self._handled}, timeout=max(0, ends_at - loop.time()))
            self._handled.cancel()
            await asyncio.gather(self._handled, return_exceptions=True)
        await running.subscriptions.close()
        running.task.cancel()
        await asyncio.wait({running.task})
        await self._giver_up.close()


def _checked_addresses(given: str | Iterable[str]) -> set[str]:
    addresses = set(list_of_addresses(given))
    for address in addresses:
        parse_address(address)
    return addresses


def _check_names(topic: str, channel: str) -> None:
    for kind, name in (("topic", topic), ("channel", channel)):
        if not isinstance(name, str):
            raise wrong_name(kind, name)
        if not is_valid_name(name):
            raise ValueError(f"{name!r} is not a valid {kind} name")


def _check_count(name: str, count: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"{name} is a whole number, not {type(count).__name__}")
    if count < 0:
        raise ValueError(f"{name} must not be negative")
