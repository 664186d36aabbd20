"""Several topics and one handler: consumers that share max_in_flight and stop together.

Each topic has a consumer of its own. Takers get messages by weight: of two topics that both have
messages waiting, one with weight 4 gets four turns for each turn of one with weight 1, so a lighter
topic is slower and never starves (smooth weighted round robin). max_in_flight is divided by weight
among the topics that have messages; each other topic has 1, so that a message of it is noticed.

Knows consumers and their inboxes; must not know connections.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import Unpack

from pumpline.client.connection.address import list_of_addresses
from pumpline.client.consuming.arguments import ConsumerArguments
from pumpline.client.consuming.batch_handling import TakeBatch
from pumpline.client.consuming.consumer import MAX_IN_FLIGHT, Consumer
from pumpline.client.consuming.handling import Take
from pumpline.client.consuming.message import Batch, Message
from pumpline.client.consuming.worker import Worker

SHARE_INTERVAL_S = 1.0  # a topic that has run dry lends its share after so long
SETTLE_S = 0.1  # messages that nsqd sent before it was told of a smaller share arrive within this
WEIGHT_MAX = 1000


class _Member:
    """One topic."""

    def __init__(self, consumer: Consumer, weight: int) -> None:
        self.consumer = consumer
        self.inbox = consumer._inbox
        self.weight = weight
        self.turn = 0  # the topic with the most has the next turn
        self.is_busy = True
        self.share_before = 0  # if it was lowered a moment ago

    @property
    def held(self) -> int:
        """What it may have in flight, or has."""
        return max(self.consumer.max_in_flight, self.consumer.in_flight, self.share_before)


class TopicGroup(Worker):
    """Consumes a channel of several topics with one handler. Use it as a context manager
    (`async with`), iterate over it, or call `run` or `run_batches`; an iteration starts the group,
    and stops it at its end. A batch may have messages of several topics."""

    _waiting_max = 0  # what waits in a queue of threads cannot be overtaken
    _is_started = False
    _is_stopping = False

    def __init__(
        self,
        topics: Mapping[str, int] | Iterable[str],
        channel: str,
        *,
        nsqd: str | Iterable[str] = (),
        lookupd: str | Iterable[str] = (),
        **options: Unpack[ConsumerArguments],
    ) -> None:
        """
        topics          names with their weights, whole numbers from 1 on; or names alone, all with
                        the same weight
        channel         the channel's name, the same for each topic
        nsqd, lookupd   as in `Consumer`
        options         as in `Consumer`; max_in_flight and middleware are those of the whole group
        """
        weights = _checked_weights(topics)
        super().__init__(options.get("middleware", ()))
        options["middleware"] = ()
        self._max_in_flight = options.get("max_in_flight", MAX_IN_FLIGHT)
        nsqds, lookupds = list_of_addresses(nsqd), list_of_addresses(lookupd)
        self._members = [
            _Member(
                Consumer(
                    topic,
                    channel,
                    nsqd=nsqds,
                    lookupd=lookupds,
                    **options,
                ),
                weight,
            )
            for topic, weight in weights.items()
        ]
        self._check_max_in_flight(self._max_in_flight)
        for member in self._members:
            member.inbox.on_change = self._wake
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Message]:
        owns = self._own()
        try:
            while (message := await self._take()) is not None:
                yield message
        finally:
            if owns:
                await self.stop(timeout_s=0)

    def _takers(self) -> tuple[Take, TakeBatch]:
        return self._take, self._take_batch

    @property
    def _has_more(self) -> bool:
        return any(member.inbox.ready for member in self._members)

    def _use(self, message_type: type[Message]) -> None:
        for member in self._members:
            member.inbox.message_type = message_type

    def _await_at_stop(self, handled: "asyncio.Task[None]") -> None:
        for member in self._members:
            member.consumer._await_at_stop(handled)

    def start(self) -> None:
        """Connect in the background; needs a running event loop."""
        for member in self._members:
            member.consumer.start()
        if not self._is_started:
            self._is_started = True
            self._share_again()

    def stop_soon(self) -> None:
        """Begin a stop of all topics, and return at once. Handlers may call it."""
        self._is_stopping = self._is_started
        for member in self._members:
            member.consumer.stop_soon()

    async def stop(self, *, timeout_s: float | None = None) -> None:
        """Stop all topics together, as `Consumer.stop` does. Handlers call `stop_soon` instead."""
        self._check_caller()
        self._is_stopping = self._is_started
        if self._timer is not None:
            self._timer.cancel()
        stops = (member.consumer.stop(timeout_s=timeout_s) for member in self._members)
        for outcome in await asyncio.gather(*stops, return_exceptions=True):
            if outcome is not None:
                raise outcome

    @property
    def consumers(self) -> dict[str, Consumer]:
        """The consumer of each topic, for its counters and connections."""
        return {member.consumer.topic: member.consumer for member in self._members}

    @property
    def max_in_flight(self) -> int:
        """How many messages may be unanswered, over all topics. Set it to 0 to pause."""
        return self._max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        self._check_max_in_flight(count)
        self._max_in_flight = count
        if self._is_started:
            self._share()

    @property
    def in_flight(self) -> int:
        """Messages received and not answered, of all topics."""
        return sum(member.consumer.in_flight for member in self._members)

    # -- messages -----------------------------------------------------------------------------

    async def _take(self) -> Message | None:
        """The next message, by weight; None when a topic has no more: then all of them stop."""
        while not any(member.inbox.is_over for member in self._members):
            if (message := self._take_now()) is not None:
                return message
            if not any(member.inbox.ready for member in self._members):
                self._changed.clear()
                await self._changed.wait()
        return None

    async def _take_batch(self, size_max: int, wait_s: float) -> Batch | None:
        """Messages at hand, by weight, up to size_max; wait_s is how long it may wait to become
        full."""
        message = await self._take()
        if message is None:
            return None
        batch = Batch([message])
        while len(batch) < size_max and (message := self._take_now()) is not None:
            batch.append(message)
        if wait_s and len(batch) < size_max:
            await self._fill_up(batch, size_max, wait_s)
        return batch

    async def _fill_up(self, batch: Batch, size_max: int, wait_s: float) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    while len(batch) < size_max and (message := await self._take()) is not None:
                        batch.append(message)
        except asyncio.CancelledError:
            batch.give_back()  # nobody will get this batch
            raise

    def _take_now(self) -> Message | None:
        ready = [member for member in self._members if member.inbox.ready]
        if not ready:
            return None
        for member in ready:
            member.turn += member.weight
        first = max(ready, key=lambda member: member.turn)
        first.turn -= sum(member.weight for member in ready)
        return first.inbox.take_now()

    def _wake(self) -> None:
        """A topic has new messages, or will have no more."""
        self._changed.set()
        if any(member.inbox.ready and not member.is_busy for member in self._members):
            self._share()

    # -- max_in_flight ------------------------------------------------------------------------

    def _share(self) -> None:
        """Divide max_in_flight among the topics; they never have more than that together."""
        if self._is_stopping:
            return
        members, total = self._members, self._max_in_flight
        for member in members:
            member.is_busy = bool(member.inbox.ready or member.consumer.in_flight)
        busy = [member for member in members if member.is_busy] or members
        weights = sum(member.weight for member in busy)
        left = total - (len(members) - len(busy))
        shares = {
            member: max(1, left * member.weight // weights) if member in busy else 1
            for member in members
        }
        while sum(shares.values()) > total:  # rounded up, for light topics
            largest = max(shares, key=lambda member: shares[member])
            shares[largest] -= 1
        is_settled = True
        for member, share in shares.items():
            if share < member.consumer.max_in_flight:
                member.share_before = max(member.share_before, member.consumer.max_in_flight)
                member.consumer.max_in_flight = share
                is_settled = False
        for member, share in shares.items():
            others = sum(each.held for each in members if each is not member)
            room = min(share, total - others)  # the rest when the others have answered theirs
            if room > member.consumer.max_in_flight:
                member.consumer.max_in_flight = room
            is_settled = is_settled and room >= share
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        wait_s = SHARE_INTERVAL_S if is_settled else SETTLE_S
        self._timer = loop.call_later(wait_s, self._share_again)

    def _share_again(self) -> None:
        for member in self._members:
            member.share_before = 0
        self._share()

    def _check_max_in_flight(self, count: int) -> None:
        if not isinstance(count, int) or isinstance(count, bool):
            raise TypeError(f"max_in_flight is a whole number, not {type(count).__name__}")
        if count < 0:
            raise ValueError("max_in_flight must not be negative")
        if 0 < count < len(self._members):
            text = f"max_in_flight {count} is too small for {len(self._members)} topics"
            raise ValueError(f"{text}: each needs 1")


def _checked_weights(topics: Mapping[str, int] | Iterable[str]) -> dict[str, int]:
    if isinstance(topics, str | bytes) or not isinstance(topics, Iterable):
        kind = type(topics).__name__
        raise TypeError(f"topics are a list of names, or names with weights, not {kind}")
    names = list(topics)
    if not names:
        raise ValueError("a group needs a topic")
    if len(set(names)) < len(names):
        raise ValueError("a topic is there twice")
    weights = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(names, 1)
    for name, weight in weights.items():
        if not isinstance(weight, int) or isinstance(weight, bool):
            raise TypeError(f"the weight of {name!r} is a whole number, not {weight!r}")
        if not 1 <= weight <= WEIGHT_MAX:
            raise ValueError(f"the weight of {name!r} is not in 1-{WEIGHT_MAX}")
    return weights
