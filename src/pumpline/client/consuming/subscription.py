"""One nsqd of a consumer: connects, subscribes, and connects again when that ends.

Sends the answers to its messages, counts messages in flight, and writes off those that were not
answered in time, because nsqd delivers them again. Knows nothing of handlers or discovery; messages
go to `on_messages` of its terms.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf

from pumpline.client.connection.connection import NsqdConnection
from pumpline.client.connection.settings import Settings
from pumpline.client.consuming.message import Arrival, Message, Record
from pumpline.client.consuming.options import ConsumerOptions
from pumpline.client.consuming.rdy import RDY_MAX, Credit
from pumpline.client.consuming.rdy_sender import RdySender
from pumpline.client.delay import milliseconds
from pumpline.client.errors import ConnectionClosed, PumplineError, ServerError
from pumpline.client.repeated_warnings import RepeatedWarnings
from pumpline.core.protocol import commands

RECONNECT_MIN_S = 0.25  # doubles up to RECONNECT_MAX_S with each connection that did not last
RECONNECT_MAX_S = 30.0
FLOOD_FACTOR = 4  # times the highest RDY: with more in flight, nsqd ignores RDY
FLOOD_SPARE = 1000
CLS_TIMEOUT_S = 5.0  # for nsqd to say that no more will come
STEADY_S = 10.0  # after a connection that lasted so long, pauses start from the minimum

logger = logging.getLogger("pumpline.client")


@dataclass(slots=True)
class Counters:
    """Since the consumer started."""

    received: int = 0
    finished: int = 0
    requeued: int = 0
    touched: int = 0
    expired: int = 0
    """Not answered in time, or answered after the connection was lost."""
    given_up: int = 0
    connects: int = 0
    refused: int = 0
    """Answers that nsqd did not accept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionTerms:
    """What all subscriptions of a consumer have in common."""

    topic: str
    channel: str
    settings: Settings
    options: ConsumerOptions
    auto_touch: bool
    counters: Counters
    on_messages: Callable[[Arrival, list[Record]], None]


class Subscription:
    def __init__(
        self,
        address: str,
        terms: SubscriptionTerms,
        rdy_sender: RdySender,
        *,
        on_connection_end: Callable[[], None],
        before_reconnect: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`on_connection_end`: it was lost, or could not be opened, and will be tried again, when
        `before_reconnect` has returned."""
        self.address = address
        self.finished: list[bytes] = []
        self.credit = Credit(RDY_MAX)
        self.connection: NsqdConnection | None = None  # while subscribed
        self.task: asyncio.Task[None]  # of run
        self._terms = terms
        self._counters = terms.counters
        self._rdy_sender = rdy_sender
        self._on_connection_end = on_connection_end
        self._before_reconnect = before_reconnect
        self._loop = asyncio.get_running_loop()
        self._warnings = RepeatedWarnings(logger, self._loop.time)
        self._arrivals: deque[Arrival] = deque()  # in order of expires_at
        self._last: deque[Arrival] = deque()  # those that no touch can extend, in the same order
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._sweep_at = inf
        self._timeout_s = self._timeout_max_s = inf
        self._ended = asyncio.Event()
        self._answered = asyncio.Event()  # all messages, after it has left
        self._rdy_highest = 0
        self._is_leaving = False
        self._left: asyncio.Future[bytes] | None = None
        self._from_threads: deque[Callable[[], object]] = deque()
        self._is_woken = False

    # -- connecting ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Stay subscribed until it is cancelled, or has left."""
        pause_s = RECONNECT_MIN_S
        try:
            while True:
                started_at = self._loop.time()
                try:
                    await self._subscribe()
                    await self._ended.wait()
                except PumplineError as error:
                    self._warnings.warn(self._say(error))
                except Exception:  # the root of a task: the other nsqds must go on
                    logger.exception("%s", self.address)
                if self._is_leaving:
                    return
                self._on_connection_end()
                if self._loop.time() - started_at > STEADY_S:
                    pause_s = RECONNECT_MIN_S
                await asyncio.sleep(pause_s * (0.5 + random.random()))
                pause_s = min(pause_s * 2, RECONNECT_MAX_S)
                if self._before_reconnect is not None:
                    await self._before_reconnect()
        finally:
            if self.connection is not None:
                self.connection.abort(None)

    def leave(self) -> None:
        """Ask nsqd for no more messages. Some may still come before it confirms."""
        if not self._is_leaving:
            self._is_leaving = True
            self._rdy_sender.remove(self.credit)
            if self.connection is not None:
                self._left = self.connection.request(commands.CLS)

    async def drain(self, timeout_s: float) -> None:
        """Having left, wait until messages in hand are answered."""
        if self._left is None:
            return
        try:
            async with asyncio.timeout(CLS_TIMEOUT_S):
                await asyncio.shield(self._left)
            self._look_answered()
            async with asyncio.timeout(timeout_s):
                await self._answered.wait()
        except TimeoutError:
            text = "%s: left with %d messages not answered"
            logger.warning(text, self.address, self.credit.in_flight)
        except (ServerError, ConnectionClosed) as error:
            logger.info("%s", self._say(error))

    async def close(self) -> None:
        if self.connection is not None:
            self._flush()
            await self.connection.close()

    def _send_rdy(self) -> None:
        if self.connection is not None:
            self._rdy_highest = max(self._rdy_highest, self.credit.rdy)
            self.connection.write(commands.rdy(self.credit.rdy))

    async def _subscribe(self) -> None:
        self._ended.clear()
        terms = self._terms
        connection = await NsqdConnection.open(
            self.address,
            terms.settings,
            on_messages=self._receive,
            on_error=self._refuse,
            on_close=self._end,
        )
        try:
            await connection.request(commands.sub(terms.topic, terms.channel))
            if connection.is_closed or self._is_leaving:
                raise ConnectionClosed(f"nsqd closed the connection: {connection.reason}")
        except BaseException:
            connection.abort(None)
            raise
        granted = connection.negotiated
        self._timeout_s = granted.msg_timeout_ms / 1000
        self._timeout_max_s = max(granted.max_msg_timeout_ms / 1000, self._timeout_s)
        self.connection = connection
        self.credit = Credit(max(1, granted.max_rdy_count))
        self._counters.connects += 1
        self._warnings.forget()
        logger.info("%s: subscribed to %s/%s", self.address, terms.topic, terms.channel)
        self._rdy_sender.add(self.credit, self._send_rdy)

    def _end(self, connection: NsqdConnection, reason: Exception | None) -> None:
        if self.connection is connection:
            self.connection = None
            self._rdy_sender.remove(self.credit)
            if reason is not None and not self._is_leaving:
                text = "%s; %d messages in flight will be delivered again"
                logger.warning(text, self._say(reason), self.credit.in_flight)
            for arrivals in (self._arrivals, self._last):
                for arrival in arrivals:
                    self._counters.expired += arrival.outstanding
                    arrival.is_over = True
                arrivals.clear()
            self.finished.clear()
            self._sweep_soon(inf)
            self._answered.set()
        self._ended.set()

    def _say(self, error: Exception | None) -> str:
        text = str(error)
        return text if self.address in text else f"{self.address}: {text}"

    # -- messages and their answers -----------------------------------------------------------

    def _receive(self, connection: NsqdConnection, records: list[Record]) -> None:
        if connection is not self.connection:
            connection.abort(ConnectionClosed("nsqd sent messages before it was asked for any"))
            return
        in_flight = self.credit.in_flight + len(records)
        if in_flight > FLOOD_FACTOR * self._rdy_highest + FLOOD_SPARE:
            text = f"nsqd sent {in_flight} messages, and was allowed {self._rdy_highest}"
            connection.abort(ConnectionClosed(text))
            return
        now = self._loop.time()
        for arrivals in (self._arrivals, self._last):
            while arrivals and not arrivals[0].outstanding:
                arrivals.popleft()
        arrival = self._new_arrival(len(records), now, now + self._timeout_max_s)
        self._counters.received += len(records)
        self._rdy_sender.received(self.credit, len(records), now)
        self._terms.on_messages(arrival, records)

    def _refuse(self, connection: NsqdConnection, error: ServerError) -> None:
        """nsqd sent an error; mostly for an answer that came too late."""
        self._counters.refused += 1
        logger.log(logging.ERROR if error.fatal else logging.INFO, "%s", self._say(error))

    def flush_soon(self) -> None:
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        ids = self.finished
        if not ids or self.connection is None:
            return
        self.finished = []
        now = self._loop.time()
        self._counters.finished += len(ids)
        self._rdy_sender.succeeded(now)
        self._count_answered(len(ids), now)
        self.connection.write(b"FIN %b\n" % b"\nFIN ".join(ids))
        self.connection.flush()  # this already runs at the end of a loop iteration

    def requeue(self, record: Record, delay_ms: int | None, *, backoff: bool) -> None:
        if self.connection is None:
            return
        now = self._loop.time()
        if delay_ms is None:
            delay_ms = milliseconds(self._terms.options.requeue_delay_of(record[1]))
        self._counters.requeued += 1
        if backoff:
            self._rdy_sender.failed(now)
        else:
            self._rdy_sender.passed(now)
        self._count_answered(1, now)
        self.connection.write(commands.req(record[2], delay_ms))

    def touch(self, message: Message) -> None:
        """Give the message an arrival of its own: it expires later than those it came with."""
        if self.connection is None:
            return
        old = message._arrival
        old.outstanding -= 1
        message._arrival = self._new_arrival(1, self._loop.time(), old.ends_at)
        if self._terms.auto_touch:
            message._arrival.messages = [message]
        self._send_touch(message)

    def call_from_thread(self, function: Callable[[], object]) -> None:
        # Waking the loop is a system call, so one wake-up serves all functions queued before it.
        self._from_threads.append(function)
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._call_from_threads)

    def _call_from_threads(self) -> None:
        self._is_woken = False  # first: a function that is appended from now on wakes it again
        while self._from_threads:
            self._from_threads.popleft()()

    def _new_arrival(self, count: int, now: float, ends_at: float) -> Arrival:
        expires_at = min(now + self._timeout_s, ends_at)
        arrival = Arrival(self, count, expires_at=expires_at, ends_at=ends_at)
        self._keep(arrival)
        look_at = self._look_at(arrival)
        if look_at < self._sweep_at:
            self._sweep_soon(look_at)
        return arrival

    def _count_answered(self, count: int, now: float) -> None:
        self._rdy_sender.answered(self.credit, count, now)
        if self._is_leaving:
            self._look_answered()

    def _look_answered(self) -> None:
        if self.credit.in_flight <= 0:
            self._answered.set()

    # -- time ---------------------------------------------------------------------------------

    def _keep(self, arrival: Arrival) -> None:
        """Keep it until it is answered or expires. Each of the two queues is in order of
        expires_at, so a sweep only looks at their heads."""
        is_last = arrival.expires_at >= arrival.ends_at
        (self._last if is_last else self._arrivals).append(arrival)

    def _look_at(self, arrival: Arrival) -> float:
        """When to touch its messages, or to write them off."""
        if self._terms.auto_touch and arrival.expires_at < arrival.ends_at:
            return arrival.expires_at - self._timeout_s / 2
        return arrival.expires_at

    def _sweep_soon(self, at: float) -> None:
        """Sweep at this time; never if it is inf."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._sweep_timer = None if at == inf else self._loop.call_at(at, self._sweep)
        self._sweep_at = at

    def _sweep(self) -> None:
        now = max(self._loop.time(), self._sweep_at)  # timers fire early by the clock's resolution
        expired = self._sweep_some(self._arrivals, now) + self._sweep_some(self._last, now)
        heads = [self._look_at(each[0]) for each in (self._arrivals, self._last) if each]
        self._sweep_soon(min(heads, default=inf))
        if expired:
            self._counters.expired += expired
            text = "%s: %d messages were not answered within %g s, and will be delivered again"
            logger.warning(text, self.address, expired, self._timeout_s)
            self._count_answered(expired, now)

    def _sweep_some(self, arrivals: deque[Arrival], now: float) -> int:
        """Touch or write off what is due; return how many messages were written off."""
        expired = 0
        while arrivals:
            arrival = arrivals[0]
            if arrival.outstanding:
                if self._look_at(arrival) > now:
                    break
                if now < arrival.expires_at:
                    self._touch_all(arrivals.popleft(), now)
                    continue
                arrival.is_over = True
                expired += arrival.outstanding
            arrivals.popleft()
        return expired

    def _touch_all(self, arrival: Arrival, now: float) -> None:
        arrival.messages = [m for m in arrival.messages if not m.is_answered]
        arrival.expires_at = min(now + self._timeout_s, arrival.ends_at)
        for message in arrival.messages:
            if message._arrival is arrival:
                self._send_touch(message)
        self._keep(arrival)

    def _send_touch(self, message: Message) -> None:
        assert self.connection is not None
        self._counters.touched += 1
        self.connection.write(commands.touch(message._record[2]))
