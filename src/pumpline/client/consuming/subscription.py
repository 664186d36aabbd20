"""One nsqd of a consumer: connects, subscribes, and connects again when that ends.

Sends the answers to its messages and counts messages in flight; `leases` knows how long they are
ours. Knows nothing of handlers or discovery; messages go to `on_messages` of its terms.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pumpline.client.connection.connection import NsqdConnection
from pumpline.client.consuming.leases import ConsumerLeases
from pumpline.client.consuming.message import Arrival, Message, Record
from pumpline.client.consuming.rdy import RDY_MAX, Credit
from pumpline.client.consuming.rdy_sender import RdySender
from pumpline.client.delay import milliseconds
from pumpline.client.errors import ConnectionClosedError, PumplineError, ServerError
from pumpline.client.repeated_warnings import RepeatedWarnings
from pumpline.client.settings import Settings
from pumpline.core.protocol import commands

RECONNECT_MIN_S = 0.25  # doubles up to RECONNECT_MAX_S with each connection that did not last
RECONNECT_MAX_S = 30.0
FLOOD_FACTOR = 4  # times the highest RDY: with more in flight, nsqd ignores RDY
FLOOD_SPARE = 1000
CLS_TIMEOUT_S = 5.0  # for nsqd to say that no more will come
NOT_BEGUN_MAX = 10_000  # messages that are remembered as given back
STEADY_S = 10.0  # after a connection that lasted so long, pauses start from the minimum

logger = logging.getLogger("pumpline.client")


@dataclass(slots=True)
class Counters:
    """Numbers of a consumer since its start (`Consumer.counters`)."""

    received: int = 0
    """Messages received."""
    finished: int = 0
    """Messages finished."""
    requeued: int = 0
    """Messages requeued, with those that were given back."""
    touched: int = 0
    """Touches sent."""
    expired: int = 0
    """Not answered in time, or answered after the connection was lost."""
    given_back: int = 0
    """Returned before a handler began: they waited too long, or the consumer stopped."""
    given_up: int = 0
    """Messages delivered more than max_attempts times."""
    connects: int = 0
    """Connections opened."""
    refused: int = 0
    """Answers that nsqd did not accept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionTerms:
    """What all subscriptions of a consumer have in common."""

    topic: str
    channel: str
    settings: Settings
    auto_touch: bool
    counters: Counters
    on_messages: Callable[[Arrival, list[Record]], None]
    on_stale: Callable[[float], int]
    """Gives back messages that nobody has begun in so many seconds; returns how many."""


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
        self.topic = terms.topic
        self.channel = terms.channel
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
        self._leases = ConsumerLeases(
            auto_touch=terms.auto_touch,
            touch=self._touch_now,
            on_stale=self._give_back_stale,
            on_expired=self._write_off,
        )
        self._not_begun: dict[bytes, int] = {}  # id: deliveries that were given back
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
        except (ServerError, ConnectionClosedError) as error:
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
                raise ConnectionClosedError(f"nsqd closed the connection: {connection.reason}")
        except BaseException:
            connection.abort(None)
            raise
        granted = connection.negotiated
        self._leases.grant(granted.msg_timeout_ms / 1000, granted.max_msg_timeout_ms / 1000)
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
            self._counters.expired += self._leases.lose()
            self.finished.clear()
            self._answered.set()
        self._ended.set()

    def _say(self, error: Exception | None) -> str:
        text = str(error)
        return text if self.address in text else f"{self.address}: {text}"

    # -- messages and their answers -----------------------------------------------------------

    def _receive(self, connection: NsqdConnection, records: list[Record]) -> None:
        if connection is not self.connection:
            connection.abort(
                ConnectionClosedError("nsqd sent messages before it was asked for any")
            )
            return
        in_flight = self.credit.in_flight + len(records)
        if in_flight > FLOOD_FACTOR * self._rdy_highest + FLOOD_SPARE:
            text = f"nsqd sent {in_flight} messages, and was allowed {self._rdy_highest}"
            connection.abort(ConnectionClosedError(text))
            return
        now = self._loop.time()
        arrival = self._leases.add(self, len(records), now)
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
        self._rdy_sender.succeeded(len(ids), now)
        self._count_answered(len(ids), now)
        if self._not_begun:
            for each in ids:
                self._not_begun.pop(each, None)
        self.connection.write(b"FIN %b\n" % b"\nFIN ".join(ids))
        self.connection.flush()  # this already runs at the end of a loop iteration

    def requeue(self, record: Record, delay_ms: int | None, *, backoff: bool) -> None:
        if self.connection is None:
            return
        now = self._loop.time()
        if delay_ms is None:
            delay_ms = milliseconds(requeue_delay_s(self._terms.settings, record[1]))
        self._counters.requeued += 1
        if backoff:
            self._rdy_sender.failed(record[2], now)
        else:
            self._rdy_sender.passed(now)
        self._count_answered(1, now)
        self.connection.write(commands.req(record[2], delay_ms))

    def touch(self, message: Message) -> None:
        if self.connection is not None:
            self._leases.renew(message, self._loop.time())
            self._counters.touched += 1
            self.connection.write(commands.touch(message._record[2]))

    def not_begun(self, message: Message) -> None:
        """Remember that this delivery of the message was no attempt to handle it."""
        if not message.is_over:
            self._counters.given_back += 1
        message_id = message._record[2]
        count = self._not_begun.pop(message_id, 0) + 1
        if len(self._not_begun) >= NOT_BEGUN_MAX:
            del self._not_begun[next(iter(self._not_begun))]  # given back first
        self._not_begun[message_id] = count

    def deliveries_not_begun(self, record: Record) -> int:
        return self._not_begun.get(record[2], 0)

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

    def _count_answered(self, count: int, now: float) -> None:
        self._rdy_sender.answered(self.credit, count, now)
        self._leases.drop_answered()
        if self._is_leaving:
            self._look_answered()

    def _look_answered(self) -> None:
        if self.credit.in_flight <= 0:
            self._answered.set()

    # -- leases -------------------------------------------------------------------------------

    def _touch_now(self, ids: list[bytes]) -> None:
        if self.connection is not None:
            self._counters.touched += len(ids)
            self.connection.write(b"TOUCH %b\n" % b"\nTOUCH ".join(ids))
            self.connection.flush()  # before a handler can block the event loop

    def _give_back_stale(self) -> None:
        count = self._terms.on_stale(self._leases.wait_max_s)
        if count:
            text = (
                "%s: %d messages waited %g s for a handler, and were given back: "
                "max_in_flight is too large for so slow a handler"
            )
            logger.warning(text, self.address, count, self._leases.wait_max_s)

    def _write_off(self, count: int, now: float) -> None:
        self._counters.expired += count
        text = "%s: %d messages were not answered within %g s, and will be delivered again"
        logger.warning(text, self.address, count, self._leases.timeout_s)
        self._count_answered(count, now)


def requeue_delay_s(settings: Settings, attempts: int) -> float:
    """The delay of a requeue that names none."""
    return min(settings.requeue_delay_s * attempts, settings.requeue_delay_max_s)
