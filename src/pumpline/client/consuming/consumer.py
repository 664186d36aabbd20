"""A consumer: the messages of one channel, from every nsqd that has the topic.

Four ways to use it, all with the same guarantees:

    async for message in consumer: ...            # one at a time
    async for batch in consumer.batches(): ...    # many at a time
    await consumer.run(handler, concurrency=10)   # finish on success, requeue on an exception
    await consumer.run_batches(handler)           # the same, many at a time

Joins its parts: `subscriptions` receive messages from nsqds, `inbox` keeps those that nobody has
taken yet, `rdy_sender` says how many more may come, `worker` runs handlers. This file has the order
of a start and a stop. Touches no socket itself.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple

from pumpline.client.around import Around
from pumpline.client.connection.address import list_of_addresses, parse_address
from pumpline.client.connection.handshake import new_compression
from pumpline.client.consuming.arguments import DEAD_LETTER, GivingUp
from pumpline.client.consuming.backoff import Backoff
from pumpline.client.consuming.batch_handling import TakeBatch
from pumpline.client.consuming.codec import Decode, new_decode
from pumpline.client.consuming.giving_up import GiverUp
from pumpline.client.consuming.handling import HandlerTurns, Take, give_back
from pumpline.client.consuming.inbox import Inbox
from pumpline.client.consuming.message import Message
from pumpline.client.consuming.rdy import RdyPool
from pumpline.client.consuming.rdy_sender import RdySender
from pumpline.client.consuming.subscription import Counters, SubscriptionTerms
from pumpline.client.consuming.subscriptions import Subscriptions
from pumpline.client.consuming.worker import Worker
from pumpline.client.discovery import Discovery
from pumpline.client.errors import wrong_name
from pumpline.client.settings import Settings
from pumpline.core.text.names import is_valid_name

MAX_IN_FLIGHT = 25
MAX_ATTEMPTS = 5
ATTEMPTS_WRAP = 65_536  # attempts are 16 bits: no message has so many


class _Running(NamedTuple):
    """What a consumer has from its start on."""

    rdy_sender: RdySender
    subscriptions: Subscriptions
    task: asyncio.Task[None]


class Consumer(Worker):
    """Consumes a channel of a topic. Use it as a context manager (`async with`), iterate over it,
    or call `run` or `run_batches`; an iteration starts the consumer, and stops it at its end."""

    _handled: asyncio.Task[None] | None = None  # the handlers
    _stopping: asyncio.Task[None] | None = None

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
        middleware: Iterable[Around[Message]] = (),
        settings: Settings | None = None,
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
        middleware      coroutine functions around each call of the handler of `run`
        settings        TLS, compression, AUTH, timeouts, delays, backoff, discovery
        """
        super().__init__(middleware)
        _check_names(topic, channel)
        _check_count("max_in_flight", max_in_flight)
        _check_count("max_attempts", max_attempts)
        self.topic = topic
        self.channel = channel
        self.settings = settings or Settings()
        if self.settings.heartbeat_interval_s < 0:
            raise ValueError("a consumer must have heartbeats: nsqd lets nobody subscribe without")
        self.auto_touch = auto_touch
        self.counters = Counters()
        """Numbers of messages since the start."""
        self._nsqds = _checked_addresses(nsqd)
        self._discovery = self._new_discovery(list_of_addresses(lookupd))
        if not self._nsqds and self._discovery is None:
            raise ValueError("a consumer needs the address of an nsqd or of an nsqlookupd")
        self._pool = RdyPool(max_in_flight, interval_s=self.settings.redistribute_interval_s)
        self._giver_up = GiverUp(topic, channel, self.settings, giving_up, self.counters)
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
        settings = self.settings
        return Discovery(
            self.topic,
            lookupds,
            interval_s=settings.poll_interval_s,
            jitter=settings.poll_jitter,
            timeout_s=settings.poll_timeout_s,
            tls=settings.lookupd_tls,
            random=random.random,
        )

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

    @property
    def _is_started(self) -> bool:
        return self._running is not None

    @property
    def _is_stopping(self) -> bool:
        return self._stopping is not None

    def _takers(self) -> tuple[Take, TakeBatch]:
        return self._inbox.take, self._inbox.take_batch

    @property
    def _has_more(self) -> bool:
        return bool(self._inbox.ready)

    def _use(self, message_type: type[Message]) -> None:
        self._inbox.message_type = message_type

    def _await_at_stop(self, handled: "asyncio.Task[None]") -> None:
        self._handled = handled

    def start(self) -> None:
        """Connect in the background; needs a running event loop."""
        if self._stopping is not None:
            raise RuntimeError("a consumer that was stopped does not start again: make a new one")
        if self._running is not None:
            return
        new_compression(self.settings)  # raises here if its library is not installed
        settings = self.settings
        backoff = Backoff(
            multiplier_s=settings.backoff_multiplier_s,
            wait_max_s=settings.backoff_max_s,
            jitter=random.random if settings.backoff_jitter else None,
        )
        rdy_sender = RdySender(self._pool, backoff)
        subscriptions = Subscriptions(
            SubscriptionTerms(
                topic=self.topic,
                channel=self.channel,
                settings=settings,
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
            self._begin_stop(self._running, self.settings.stop_timeout_s)

    async def stop(self, *, timeout_s: float | None = None) -> None:
        """Take no more messages, put back those that nobody has taken, wait until those in hand
        are answered (for settings.stop_timeout_s if no time is given), and close. Handlers call
        `stop_soon` instead: this would wait for them."""
        running = self._running
        if running is None:
            return
        self._check_caller()
        if timeout_s is None:
            timeout_s = self.settings.stop_timeout_s
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
