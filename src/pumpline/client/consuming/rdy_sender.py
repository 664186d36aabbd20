"""Sends RDY: runs the RDY pool, the backoff and the pace limit, sans-IO machines, on an event loop.

It is told what was received and answered, keeps the timers of the machines, and calls a connection
back when its RDY has changed. Knows no sockets.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from math import inf

from pumpline.client.consuming.backoff import Backoff, BackoffPhase
from pumpline.client.consuming.pace import PaceLimit
from pumpline.client.consuming.rdy import Credit, RdyPool

logger = logging.getLogger("pumpline.client")


class RdySender:
    def __init__(self, pool: RdyPool, backoff: Backoff) -> None:
        self._pool = pool
        self._backoff = backoff
        self._pace_limit = PaceLimit()
        self._max_in_flight = pool.max_in_flight  # without the pace limit
        self._senders: dict[Credit, Callable[[], None]] = {}
        self._loop = asyncio.get_running_loop()
        self._turn: asyncio.TimerHandle | None = None
        self._turn_at = inf
        self._wait: asyncio.TimerHandle | None = None

    @property
    def is_backing_off(self) -> bool:
        return self._backoff.level > 0

    def add(self, credit: Credit, send_rdy: Callable[[], None]) -> None:
        """`send_rdy` is called whenever the credit's RDY has changed."""
        self._senders[credit] = send_rdy
        now = self._loop.time()
        self._pool.add(credit, now)
        self._pace(now)

    def remove(self, credit: Credit) -> None:
        if self._senders.pop(credit, None) is None:
            return
        now = self._loop.time()
        self._pool.remove(credit, now)
        self._pace(now)

    @property
    def max_in_flight(self) -> int:
        return self._max_in_flight

    def set_max_in_flight(self, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self._share_anew(self._loop.time())

    def slow_down(self, in_hand: int, wait_max_s: float) -> None:
        """Messages have waited for too long. Call it before they are given back, so that nsqd does
        not send them here again."""
        now = self._loop.time()
        self._pace_limit.slow_down(in_hand, wait_max_s=wait_max_s, now=now)
        self._share_anew(now)

    def received(self, credit: Credit, count: int, now: float) -> None:
        self._pool.received(credit, count, now)
        if self._pool.due_at < self._turn_at:
            self._pace(now)

    def answered(self, credit: Credit, count: int, now: float) -> None:
        """Called before the answers are sent, so that no message comes in between."""
        self._pool.answered(credit, count, now)
        if self._pool.due_at < self._turn_at:
            self._pace(now)

    def succeeded(self, count: int, now: float) -> None:
        """So many messages were finished."""
        if self._pace_limit.limit is not None:
            self._count_for_pace(count, now)
        if not self._backoff.is_calm:
            self._step(partial(self._backoff.succeeded, count), now)

    def failed(self, message_id: bytes, now: float) -> None:
        if self._pace_limit.limit is not None:
            self._count_for_pace(1, now)
        self._step(partial(self._backoff.failed, message_id), now)

    def passed(self, now: float) -> None:
        if self._backoff.level:
            self._step(self._backoff.passed, now)

    def stop(self) -> None:
        """No more RDY is sent."""
        for timer in (self._turn, self._wait):
            if timer is not None:
                timer.cancel()
        self._pool.due_at = self._turn_at = -inf  # never less than itself

    def _count_for_pace(self, count: int, now: float) -> None:
        if self._pace_limit.answered(count, now, limit_max=self._max_in_flight):
            self._share_anew(now)

    def _share_anew(self, now: float) -> None:
        limit = self._pace_limit.limit
        most = self._max_in_flight if limit is None else min(limit, self._max_in_flight)
        self._pool.set_max_in_flight(most, now)
        self._pace(now)

    def _step(self, event: Callable[[float], None], now: float) -> None:
        if self._turn_at == -inf:
            return
        backoff = self._backoff
        before = backoff.phase
        event(now)
        if before is BackoffPhase.WAITING or backoff.phase is before:
            return
        if backoff.phase is BackoffPhase.WAITING:
            wait_s = backoff.ends_at - now
            logger.warning("backing off for %.3g s (level %d)", wait_s, backoff.level)
            self._pool.block(now)
            self._wait = self._loop.call_at(backoff.ends_at, self._end_wait)
        else:
            logger.info("backing off is over")
            self._pool.open(now)
        self._pace(now)

    def _end_wait(self) -> None:
        # Timers may be early by the resolution of the clock.
        now = max(self._loop.time(), self._backoff.ends_at)
        self._backoff.elapse(now)
        self._pool.probe(now)
        self._pace(now)

    def _pace(self, now: float) -> None:
        if self._turn_at == -inf:
            return
        for credit in self._pool.changes(now):
            self._senders[credit]()
        due_at = self._pool.due_at
        if due_at != self._turn_at:
            if self._turn is not None:
                self._turn.cancel()
            self._turn = None if due_at == inf else self._loop.call_at(due_at, self._end_turn)
            self._turn_at = due_at

    def _end_turn(self) -> None:
        now = max(self._loop.time(), self._turn_at)
        self._turn = None
        self._turn_at = inf
        self._pace(now)
