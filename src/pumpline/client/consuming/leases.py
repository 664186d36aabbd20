"""How long the messages of one connection are ours, and what is done about it; one timer for all.

nsqd takes a message back msg_timeout after it was delivered or touched, at the latest
max_msg_timeout after it was delivered. With `auto_touch` the messages that came in one chunk, and
are not answered, are

| when                                              | what                                      |
|---------------------------------------------------|-------------------------------------------|
| half of msg_timeout before nsqd takes them back   | touched, all that are due with one write  |
| 30 % of max_msg_timeout after they were delivered | stale: given back, if nobody has begun    |
|                                                   | them. So a handler has the other 70 %     |
| nsqd has taken them back                          | over: an answer would be too late         |

Without `auto_touch` only the last row applies.

A chunk costs an append and two comparisons when it comes, and the removal from the other end when
it is answered: the timer looks only at chunks that are half a msg_timeout old. Knows no connection
and no handler.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from pumpline.client.consuming.message import AnswerSender, Arrival, Message

WAIT_PART = 0.3  # of max_msg_timeout: by default a handler has 10.5 of 15 minutes
KEPT_MIN = 64  # arrivals, before the answered ones between others are looked for


class ConsumerLeases:
    def __init__(
        self,
        *,
        auto_touch: bool,
        touch: Callable[[list[bytes]], None],
        on_stale: Callable[[], None],
        on_expired: Callable[[int, float], None],
    ) -> None:
        """
        touch       sends TOUCH for these ids
        on_stale    gives back messages of stale arrivals that nobody has begun
        on_expired  so many messages were not answered in time, at this time
        """
        self.timeout_s = self._timeout_max_s = inf
        self._auto_touch = auto_touch
        self._touch = touch
        self._on_stale = on_stale
        self._on_expired = on_expired
        self._loop = asyncio.get_running_loop()
        self._fresh: deque[Arrival] = deque()  # not looked at yet, in order of their next look
        self._aged: list[tuple[float, int, Arrival]] = []  # a heap, by the time of the next look
        self._numbers = count()  # so that no arrivals are compared
        self._kept_max = KEPT_MIN
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    def grant(self, timeout_s: float, timeout_max_s: float) -> None:
        """What nsqd allows on a new connection."""
        self.timeout_s = timeout_s
        self._timeout_max_s = max(timeout_max_s, timeout_s)

    @property
    def wait_max_s(self) -> float:
        """How long a message may wait for a handler."""
        return self._timeout_max_s * WAIT_PART

    def add(self, sender: AnswerSender, message_count: int, now: float) -> Arrival:
        """The arrival of so many messages."""
        arrival = self._new_arrival(sender, message_count, now, now + self._timeout_max_s)
        self._fresh.append(arrival)
        self._watch(arrival)
        return arrival

    def renew(self, message: Message, now: float) -> None:
        """The message was touched by hand: it now expires later than those it came with."""
        old = message._arrival
        old.outstanding -= 1
        arrival = self._new_arrival(old.sender, 1, now, old.ends_at)
        arrival.is_stale = old.is_stale
        arrival.messages = [message]
        message._arrival = arrival
        self._keep(arrival)
        self._watch(arrival)

    def drop_answered(self) -> None:
        """Called after messages were answered: lets go of chunks that came first and are done."""
        fresh = self._fresh
        while fresh and not fresh[0].outstanding:
            fresh.popleft().messages.clear()  # they refer to it: without this, a cycle remains

    def lose(self) -> int:
        """The connection is lost: all are over; returns how many were not answered."""
        lost = 0
        for arrival in (*self._fresh, *(entry[2] for entry in self._aged)):
            lost += arrival.outstanding
            self._end(arrival)
        self._fresh.clear()
        self._aged.clear()
        self._set_timer(inf)
        return lost

    def _new_arrival(
        self, sender: AnswerSender, message_count: int, now: float, ends_at: float
    ) -> Arrival:
        expires_at = min(now + self.timeout_s, ends_at)
        return Arrival(sender, message_count, expires_at=expires_at, ends_at=ends_at)

    def _look_at(self, arrival: Arrival) -> float:
        """When something has to be done about it."""
        if not self._auto_touch:
            return arrival.expires_at
        at = self._touch_at(arrival)
        return at if arrival.is_stale else min(at, self._stale_at(arrival))

    def _touch_at(self, arrival: Arrival) -> float:
        """Its expiry, if nsqd allows no more time."""
        can_be_touched = arrival.expires_at < arrival.ends_at
        return arrival.expires_at - (self.timeout_s / 2 if can_be_touched else 0.0)

    def _stale_at(self, arrival: Arrival) -> float:
        return arrival.ends_at - self._timeout_max_s + self.wait_max_s

    def _keep(self, arrival: Arrival) -> None:
        heappush(self._aged, (self._look_at(arrival), next(self._numbers), arrival))

    def _forget_answered(self) -> None:
        """Chunks that were answered while one before them was not would keep their messages in
        memory. The next such pass comes when as many arrivals were added as this one left."""
        for arrival in (*self._fresh, *(entry[2] for entry in self._aged)):
            if not arrival.outstanding:
                arrival.messages.clear()
        self._fresh = deque(arrival for arrival in self._fresh if arrival.outstanding)
        self._aged = [entry for entry in self._aged if entry[2].outstanding]
        heapify(self._aged)
        self._kept_max = max(KEPT_MIN, 2 * (len(self._fresh) + len(self._aged)))

    # -- time ---------------------------------------------------------------------------------

    def _watch(self, arrival: Arrival) -> None:
        if len(self._fresh) + len(self._aged) > self._kept_max:
            self._forget_answered()
        at = self._look_at(arrival)
        if at < self._timer_at:
            self._set_timer(at)

    def _set_timer(self, at: float) -> None:
        """inf: never."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at == inf else self._loop.call_at(at, self._look)
        self._timer_at = at

    def _look(self) -> None:
        now = max(self._loop.time(), self._timer_at)  # timers fire early by the clock's resolution
        due = self._take_due(now)
        expired = 0
        for arrival in due:
            if now >= arrival.expires_at:
                expired += arrival.outstanding
                self._end(arrival)
        due = [arrival for arrival in due if not arrival.is_over]
        touched = self._extend(due, now) if self._auto_touch else []
        for arrival in due:
            if arrival.outstanding:
                self._keep(arrival)
            else:
                arrival.messages.clear()
        looks = [self._look_at(self._fresh[0])] if self._fresh else []
        looks += [self._aged[0][0]] if self._aged else []
        self._set_timer(min(looks, default=inf))
        if touched:
            self._touch(touched)
        if expired:
            self._on_expired(expired, now)

    def _take_due(self, now: float) -> list[Arrival]:
        due: list[Arrival] = []
        fresh, aged = self._fresh, self._aged
        self.drop_answered()
        while fresh and self._look_at(fresh[0]) <= now:
            due.append(fresh.popleft())
        while aged and aged[0][0] <= now:
            due.append(heappop(aged)[2])
        for arrival in due:
            if not arrival.outstanding:
                arrival.messages.clear()
        return [arrival for arrival in due if arrival.outstanding]

    def _extend(self, due: list[Arrival], now: float) -> list[bytes]:
        """Give back messages that wait for too long; return the ids that are to be touched."""
        fresh = [arrival for arrival in due if not arrival.is_stale]
        for arrival in fresh:
            arrival.is_stale = now >= self._stale_at(arrival)
        if any(arrival.is_stale for arrival in fresh):
            self._on_stale()
        ids: list[bytes] = []
        for arrival in due:
            if arrival.expires_at >= arrival.ends_at or now < self._touch_at(arrival):
                continue
            arrival.expires_at = min(now + self.timeout_s, arrival.ends_at)
            arrival.messages = [
                message
                for message in arrival.messages
                if message._arrival is arrival and not message.is_answered
            ]
            ids += [message._record[2] for message in arrival.messages]
        return ids

    def _end(self, arrival: Arrival) -> None:
        arrival.is_stale = arrival.is_over = True
        arrival.messages.clear()
