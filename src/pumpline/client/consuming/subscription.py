"""One nsqd of a consumer: connects, subscribes, and connects again when that ends.

Carries the answers of its messages, counts what is in flight, and writes off what was not
answered in time, which nsqd has taken back by then. Knows nothing of handlers or discovery; what
it receives goes to its `Owner`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Protocol

from pumpline.client.connection.connection import Connection
from pumpline.client.connection.settings import Settings
from pumpline.client.consuming.message import Delivery, Message, Record
from pumpline.client.consuming.rdy import RDY_MAX, Credit
from pumpline.client.consuming.rdy_sender import Flow
from pumpline.client.delay import milliseconds
from pumpline.client.errors import ConnectionClosed, PumplineError, ServerError
from pumpline.core.protocol import commands

RECONNECT_MIN_S = 0.25  # doubles up to RECONNECT_MAX_S while nothing comes of it
RECONNECT_MAX_S = 30.0
FLOOD_FACTOR = 4  # times the highest RDY: more in flight than any mishap explains
FLOOD_SPARE = 1000
CLS_TIMEOUT_S = 5.0  # for nsqd to say that no more will come
STEADY_S = 10.0  # a connection that lasted so long was a good one: start from the beginning

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


class Owner(Protocol):
    """What a subscription asks of its consumer."""

    topic: str
    channel: str
    settings: Settings
    counters: Counters
    auto_touch: bool

    def messages_received(self, delivery: Delivery, records: list[Record]) -> None: ...
    def requeue_delay_s(self, attempts: int) -> float: ...
    def connection_ended(self) -> None: ...
    def random(self) -> float: ...


class Subscription:
    def __init__(self, address: str, owner: Owner, flow: Flow) -> None:
        self.address = address
        self.finished: list[bytes] = []
        self.credit = Credit(RDY_MAX)
        self.connection: Connection | None = None  # while subscribed
        self.task: asyncio.Task[None]  # of run
        self._owner = owner
        self._flow = flow
        self._loop = asyncio.get_running_loop()
        self._deliveries: deque[Delivery] = deque()  # the next to be looked at is the first
        self._last: deque[Delivery] = deque()  # those that no touch makes last any longer
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._sweep_at = inf
        self._timeout_s = self._timeout_max_s = inf
        self._ended = asyncio.Event()
        self._answered = asyncio.Event()  # all of it, while leaving
        self._rdy_highest = 0
        self._is_leaving = False
        self._left: asyncio.Future[bytes] | None = None
        self._from_threads: deque[Callable[[], object]] = deque()
        self._is_woken = False

    # -- its life -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled, or has left."""
        pause_s = RECONNECT_MIN_S
        try:
            while True:
                started_at = self._loop.time()
                try:
                    await self._subscribe()
                    await self._ended.wait()
                except PumplineError as error:
                    logger.warning("%s", self._say(error))
                except Exception:  # the root of a task: the other nsqds are to go on
                    logger.exception("%s", self.address)
                if self._is_leaving:
                    return
                self._owner.connection_ended()
                if self._loop.time() - started_at > STEADY_S:
                    pause_s = RECONNECT_MIN_S
                await asyncio.sleep(pause_s * (0.5 + self._owner.random()))
                pause_s = min(pause_s * 2, RECONNECT_MAX_S)
        finally:
            if self.connection is not None:
                self.connection.abort(None)

    def leave(self) -> None:
        """Asks nsqd for no more messages. Those that come before it agrees still come."""
        if not self._is_leaving:
            self._is_leaving = True
            self._flow.remove(self.credit)
            if self.connection is not None:
                self._left = self.connection.request(commands.CLS)

    async def drain(self, timeout_s: float) -> None:
        """Waits until messages in hand are answered, having left."""
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
        owner = self._owner
        connection = await Connection.open(
            self.address,
            owner.settings,
            on_messages=self._receive,
            on_error=self._refuse,
            on_close=self._end,
        )
        try:
            await connection.request(commands.sub(owner.topic, owner.channel))
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
        owner.counters.connects += 1
        logger.info("%s: subscribed to %s/%s", self.address, owner.topic, owner.channel)
        self._flow.add(self.credit, self._send_rdy)

    def _end(self, connection: Connection, reason: Exception | None) -> None:
        if self.connection is connection:
            self.connection = None
            self._flow.remove(self.credit)
            if reason is not None and not self._is_leaving:
                text = "%s; %d messages in flight will be delivered again"
                logger.warning(text, self._say(reason), self.credit.in_flight)
            for deliveries in (self._deliveries, self._last):
                for delivery in deliveries:
                    self._owner.counters.expired += delivery.outstanding
                    delivery.is_over = True
                deliveries.clear()
            self.finished.clear()
            self._sweep_soon(inf)
            self._answered.set()
        self._ended.set()

    def _say(self, error: Exception | None) -> str:
        text = str(error)
        return text if self.address in text else f"{self.address}: {text}"

    # -- messages and their answers -----------------------------------------------------------

    def _receive(self, connection: Connection, records: list[Record]) -> None:
        if connection is not self.connection:
            connection.abort(ConnectionClosed("nsqd sent messages before it was asked for any"))
            return
        in_flight = self.credit.in_flight + len(records)
        if in_flight > FLOOD_FACTOR * self._rdy_highest + FLOOD_SPARE:
            text = f"nsqd sent {in_flight} messages, and was allowed {self._rdy_highest}"
            connection.abort(ConnectionClosed(text))
            return
        now = self._loop.time()
        for deliveries in (self._deliveries, self._last):
            while deliveries and not deliveries[0].outstanding:
                deliveries.popleft()
        delivery = self._new_delivery(len(records), now, now + self._timeout_max_s)
        self._owner.counters.received += len(records)
        self._flow.received(self.credit, len(records), now)
        self._owner.messages_received(delivery, records)

    def _refuse(self, connection: Connection, error: ServerError) -> None:
        """Mostly an answer that came too late, which is no news."""
        self._owner.counters.refused += 1
        logger.log(logging.ERROR if error.fatal else logging.INFO, "%s", self._say(error))

    def flush_soon(self) -> None:
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        ids = self.finished
        if not ids or self.connection is None:
            return
        self.finished = []
        now = self._loop.time()
        self._owner.counters.finished += len(ids)
        self._flow.succeeded(now)
        self._count_answered(len(ids), now)
        self.connection.write(b"FIN %b\n" % b"\nFIN ".join(ids))
        self.connection.flush()  # it is the end of an iteration already

    def requeue(self, record: Record, delay_ms: int | None, *, backoff: bool) -> None:
        if self.connection is None:
            return
        now = self._loop.time()
        if delay_ms is None:
            delay_ms = milliseconds(self._owner.requeue_delay_s(record[1]))
        self._owner.counters.requeued += 1
        if backoff:
            self._flow.failed(now)
        else:
            self._flow.passed(now)
        self._count_answered(1, now)
        self.connection.write(commands.req(record[2], delay_ms))

    def touch(self, message: Message) -> None:
        """The message leaves those it came with, as its time is another now."""
        if self.connection is None:
            return
        old = message._delivery
        old.outstanding -= 1
        message._delivery = self._new_delivery(1, self._loop.time(), old.ends_at)
        if self._owner.auto_touch:
            message._delivery.messages = [message]
        self._send_touch(message)

    def call_from_thread(self, function: Callable[[], object]) -> None:
        # Waking the loop is a system call: once for all that come before it looks.
        self._from_threads.append(function)
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._call_from_threads)

    def _call_from_threads(self) -> None:
        self._is_woken = False  # before looking: what comes from now on wakes it again
        while self._from_threads:
            self._from_threads.popleft()()

    def _new_delivery(self, count: int, now: float, ends_at: float) -> Delivery:
        expires_at = min(now + self._timeout_s, ends_at)
        delivery = Delivery(self, count, expires_at=expires_at, ends_at=ends_at)
        self._keep(delivery)
        look_at = self._look_at(delivery)
        if look_at < self._sweep_at:
            self._sweep_soon(look_at)
        return delivery

    def _count_answered(self, count: int, now: float) -> None:
        self._flow.answered(self.credit, count, now)
        if self._is_leaving:
            self._look_answered()

    def _look_answered(self) -> None:
        if self.credit.in_flight <= 0:
            self._answered.set()

    # -- time ---------------------------------------------------------------------------------

    def _keep(self, delivery: Delivery) -> None:
        """Until it is answered, or its time is up. Each of the two is in order of time by itself:
        nobody may have to wait behind one that has longer."""
        is_last = delivery.expires_at >= delivery.ends_at
        (self._last if is_last else self._deliveries).append(delivery)

    def _look_at(self, delivery: Delivery) -> float:
        """When to touch its messages, or to write them off."""
        if self._owner.auto_touch and delivery.expires_at < delivery.ends_at:
            return delivery.expires_at - self._timeout_s / 2
        return delivery.expires_at

    def _sweep_soon(self, at: float) -> None:
        """At inf, never."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._sweep_timer = None if at == inf else self._loop.call_at(at, self._sweep)
        self._sweep_at = at

    def _sweep(self) -> None:
        now = max(self._loop.time(), self._sweep_at)  # timers may be early by a hair
        expired = self._sweep_some(self._deliveries, now) + self._sweep_some(self._last, now)
        heads = [self._look_at(each[0]) for each in (self._deliveries, self._last) if each]
        self._sweep_soon(min(heads, default=inf))
        if expired:
            self._owner.counters.expired += expired
            text = "%s: %d messages were not answered within %g s, and will be delivered again"
            logger.warning(text, self.address, expired, self._timeout_s)
            self._count_answered(expired, now)

    def _sweep_some(self, deliveries: deque[Delivery], now: float) -> int:
        """How many messages have had their time."""
        expired = 0
        while deliveries:
            delivery = deliveries[0]
            if delivery.outstanding:
                if self._look_at(delivery) > now:
                    break
                if now < delivery.expires_at:
                    self._touch_all(deliveries.popleft(), now)
                    continue
                delivery.is_over = True
                expired += delivery.outstanding
            deliveries.popleft()
        return expired

    def _touch_all(self, delivery: Delivery, now: float) -> None:
        delivery.messages = [m for m in delivery.messages if not m.is_answered]
        delivery.expires_at = min(now + self._timeout_s, delivery.ends_at)
        for message in delivery.messages:
            if message._delivery is delivery:
                self._send_touch(message)
        self._keep(delivery)

    def _send_touch(self, message: Message) -> None:
        assert self.connection is not None
        self._owner.counters.touched += 1
        self.connection.write(commands.touch(message._record[2]))
