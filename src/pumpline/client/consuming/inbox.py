"""Messages that have arrived and that nobody has taken yet; at most max_in_flight of them.

Takers wait here in turn. A message that is no longer good is never handed out: one that waited for
too long is given back, and one with too many attempts goes to `give_up`. Knows nothing of
connections; messages come by `receive`.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import repeat

from pumpline.client.consuming.codec import Decode
from pumpline.client.consuming.handling import give_back
from pumpline.client.consuming.message import Arrival, Batch, Message, Record


class Inbox:
    def __init__(
        self,
        *,
        attempts_max: int,
        give_up: Callable[[Message], None],
        decode: Decode | None = None,
        reject: Callable[[Message, Exception], None] | None = None,
    ) -> None:
        """Messages that `decode` raises for go to `reject`, and to no taker."""
        self.message_type: type[Message] = Message
        self.ready: deque[Message] = deque()
        self.attempts_max = attempts_max
        self.is_over = False  # no more messages will be handed out
        self.on_change: Callable[[], None] | None = None  # for takers that do not wait here
        self._give_up = give_up
        self._decode = decode
        self._reject = reject
        self._waiters: deque[asyncio.Future[None]] = deque()

    def receive(self, arrival: Arrival, records: list[Record]) -> None:
        messages = list(map(self.message_type, repeat(arrival), records))
        arrival.messages = messages
        if self.is_over:
            give_back(messages)
        else:
            self.ready += messages if self._decode is None else self._decoded(messages)
            self._wake()
            if self.on_change is not None:
                self.on_change()

    def _decoded(self, messages: list[Message]) -> list[Message]:
        assert self._decode is not None and self._reject is not None
        valid: list[Message] = []
        for message in messages:
            try:
                message.decoded = self._decode(message.body)
            except Exception as error:  # of a user's codec: the message must not be lost by it
                self._reject(message, error)
            else:
                valid.append(message)
        return valid

    async def take(self) -> Message | None:
        """The next message; None when there will be no more."""
        ready = self.ready
        while ready or await self._wait():
            message = ready.popleft()
            if (
                message._record[1] <= self.attempts_max and not message._arrival.is_stale
            ) or self.admits(message):
                if ready and self._waiters:
                    self._wake()
                return message
        return None

    def take_now(self) -> Message | None:
        """The next message, if one is at hand."""
        while self.ready:
            message = self.ready.popleft()
            if (
                message._record[1] <= self.attempts_max and not message._arrival.is_stale
            ) or self.admits(message):
                return message
        return None

    async def take_batch(self, size_max: int, wait_s: float) -> Batch | None:
        """Messages at hand, up to size_max; wait_s is how long it may wait to become full."""
        message = await self.take()
        if message is None:
            return None
        batch = Batch([message])
        self._fill(batch, size_max)
        if wait_s and len(batch) < size_max:
            await self._fill_up(batch, size_max, wait_s)
        return batch

    def admits(self, message: Message) -> bool:
        """Whether to hand out a message that is stale or has many attempts; if not, it is given
        back or given up. Deliveries that this consumer has not begun are no attempts."""
        record, arrival = message._record, message._arrival
        if arrival.is_stale:
            message.give_back()
            return False
        if record[1] - arrival.sender.deliveries_not_begun(record) <= self.attempts_max:
            return True
        self._give_up(message)
        return False

    def withdraw_stale(self) -> list[Message]:
        """Stale messages that nobody has taken; they are not handed out any more."""
        stale = [message for message in self.ready if message.is_stale]
        if stale:
            others = [message for message in self.ready if not message.is_stale]
            self.ready.clear()  # iterations hold this very deque
            self.ready += others
        return stale

    def end(self) -> None:
        """Hand out no more, and put back what nobody has taken."""
        self.is_over = True
        give_back(list(self.ready))
        self.ready.clear()
        while self._waiters:
            self._wake()
        if self.on_change is not None:
            self.on_change()

    def _fill(self, batch: Batch, size_max: int) -> None:
        while self.ready and len(batch) < size_max:
            message = self.ready.popleft()
            if (
                message._record[1] <= self.attempts_max and not message._arrival.is_stale
            ) or self.admits(message):
                batch.append(message)

    async def _fill_up(self, batch: Batch, size_max: int, wait_s: float) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    while len(batch) < size_max and await self._wait():
                        self._fill(batch, size_max)
        except asyncio.CancelledError:
            self.ready.extendleft(reversed(batch))  # nobody will get this batch
            raise

    async def _wait(self) -> bool:
        """Wait for a message; False when there will be no more."""
        while not self.ready:
            if self.is_over:
                return False
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled() and self.ready:
                    self._wake()  # another one, in place of this one
                raise
        return True

    def _wake(self) -> None:
        """Wake one taker; it wakes the next one if there are more messages."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
