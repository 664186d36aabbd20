"""Publications on their way: batches, sends, retries, and gives up when time is up.

| a publication is in | while                                                               |
|---------------------|---------------------------------------------------------------------|
| `_filling`          | concurrent messages of its topic may still join it                  |
| `_queue`            | it is complete and was never sent                                   |
| `_retries`          | it was sent, failed, and is to be sent again, before what is queued |
| `_only_to`          | it has a publish token and waits for the nsqd that may know it      |
| `_pending`          | its outcome is open: always, from its creation until it is settled  |

nsqds are asked for a connection (`Nsqds.pick`) at the end of a loop iteration, and everything goes
out that they can take. Knows deadlines, what each failure means for a publication, and the byte
budget. Must not know sockets, or what users may pass to `publish`.
"""

import asyncio
import secrets
from collections import deque
from itertools import count

from pumpline.client.errors import ConnectError, ConnectionClosedError, NotSentError, ServerError
from pumpline.client.publishing.bodies import BATCH_MESSAGES_MAX
from pumpline.client.publishing.byte_budget import ByteBudget
from pumpline.client.publishing.limits import check_not_negative, check_positive
from pumpline.client.publishing.message_limit import limit_told, too_big
from pumpline.client.publishing.nsqds import Nsqds
from pumpline.client.publishing.producer_connection import ProducerConnection, no_tokens
from pumpline.client.publishing.publication import Publication, Waiter
from pumpline.core.protocol.commands import MPUB_MESSAGE_OVERHEAD_BYTES
from pumpline.core.protocol.errors import (
    E_BAD_BODY,
    E_BAD_MESSAGE,
    E_DPUB_FAILED,
    E_MPUB_FAILED,
    E_PUB_FAILED,
)

# So much is written before more is encoded: nsqd works on it meanwhile, and the limit of unsent
# output (`is_writable`) is kept.
WRITE_BYTES = 64 << 10

# nsqd may take it later: its disk is full, or it is exiting.
_TEMPORARY_CODES = frozenset({E_PUB_FAILED, E_DPUB_FAILED, E_MPUB_FAILED})
# One message of an MPUB is at fault.
_BODY_CODES = frozenset({E_BAD_MESSAGE, E_BAD_BODY})


class PublishQueue:
    def __init__(
        self,
        nsqds: Nsqds,
        *,
        timeout_s: float,
        batch_delay_s: float,
        body_bytes_max: int,
        pending_bytes_max: int,
        retry_unconfirmed: bool,
        raise_when_down: bool,
        idempotent: bool,
    ) -> None:
        """`idempotent`: each publication gets a publish token."""
        check_not_negative(batch_delay_s=batch_delay_s)
        check_positive(timeout_s=timeout_s)
        check_positive(body_bytes_max=body_bytes_max, pending_bytes_max=pending_bytes_max)
        if idempotent and not retry_unconfirmed:
            raise ValueError("an idempotent producer sends again: retry_unconfirmed cannot be off")
        self.budget = ByteBudget(pending_bytes_max)
        self.published = 0  # messages confirmed
        self.retried = 0  # publications sent again
        self.is_open = False
        self.is_accepting = False  # open; with raise_when_down, also while nsqds may be reached
        self._nsqds = nsqds
        self._timeout_s = timeout_s
        self._batch_delay_s = batch_delay_s
        self._body_bytes_max = body_bytes_max
        self._retry_unconfirmed = retry_unconfirmed
        self._raise_when_down = raise_when_down
        self._is_idempotent = idempotent
        self._token_prefix = ""  # of this producer's tokens, since its start
        self._token_numbers = count()
        self._filling: dict[str, Publication] = {}  # by topic
        self._retries: deque[Publication] = deque()
        self._queue: deque[Publication] = deque()
        self._only_to: dict[str, deque[Publication]] = {}  # by the address of the nsqd
        self._pending: dict[Publication, None] = {}  # the oldest first
        self._scheduled: asyncio.Handle | None = None  # the next `_dispatch`
        self._is_delayed = False  # it waits for more messages to join a batch
        self._expiry: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop

    async def start(self, *, lazy: bool) -> None:
        """Connect; ConnectError if no nsqd can be reached. If `lazy`, in the background."""
        self._loop = asyncio.get_running_loop()
        self._token_prefix = secrets.token_urlsafe(12)
        self._nsqds.begin(on_change=self._nsqds_changed, on_answer=self._answered)
        if not lazy:
            try:
                await self._nsqds.one_up()
            except BaseException:
                await self._disconnect()
                raise
        self.is_open = self.is_accepting = True

    async def close(self) -> None:
        """Accept no more, wait until everything is settled, and disconnect."""
        self.is_open = self.is_accepting = False
        try:
            while self._pending:
                self._idle.clear()
                await self._idle.wait()
        finally:
            await self._disconnect()

    async def _disconnect(self) -> None:
        await self._nsqds.close()
        for handle in (self._scheduled, self._expiry):
            if handle is not None:
                handle.cancel()
        for publication in list(self._pending):
            publication.failure = ConnectionClosedError("the producer was closed")
            self._give_up(publication)

    # -- messages in --------------------------------------------------------------------------

    def put(
        self,
        topic: str,
        bodies: list[bytes],
        cost_bytes: int,
        *,
        defer_ms: int | None = None,
        token: str = "",
    ) -> Waiter:
        """Send these messages as a publication of their own."""
        publication = self._new_publication(topic, defer_ms)
        publication.bodies = bodies
        publication.cost_bytes = cost_bytes
        waiter = self._new_waiter(publication)
        if token:
            publication.token = token
            publication.only_to = self._nsqds.address_for(token)
        if publication.only_to:
            self._send_again(publication)
        else:
            self._queue.append(publication)
        self._schedule(0.0)
        return waiter

    def add(self, topic: str, body: bytes) -> Waiter:
        """Send this message together with the topic's other concurrent messages."""
        publication = self._filling.get(topic)
        if publication is not None:
            size = publication.size_bytes + MPUB_MESSAGE_OVERHEAD_BYTES + len(body)
            if size > self._body_bytes_max or len(publication.bodies) >= BATCH_MESSAGES_MAX:
                self._queue.append(publication)
                publication = None
        if publication is None:
            publication = self._filling[topic] = self._new_publication(topic, None)
            self._schedule(0.0 if self._queue else self._batch_delay_s)
        publication.add(body)
        return self._new_waiter(publication)

    def _new_publication(self, topic: str, defer_ms: int | None) -> Publication:
        if not self.is_open:
            raise NotSentError("not sent: the producer is closed")
        publication = Publication(topic, self._loop.time() + self._timeout_s, defer_ms)
        self._pending[publication] = None
        if self._expiry is None:
            self._expiry = self._loop.call_later(self._timeout_s, self._expire)
        return publication

    def _new_waiter(self, publication: Publication) -> Waiter:
        waiter: Waiter = self._loop.create_future()
        publication.waiters.append(waiter)
        return waiter

    # -- publications out ---------------------------------------------------------------------

    def _schedule(self, delay_s: float) -> None:
        if self._scheduled is not None:
            if delay_s > 0 or not self._is_delayed:
                return
            self._scheduled.cancel()
        self._is_delayed = delay_s > 0
        if self._is_delayed:
            self._scheduled = self._loop.call_later(delay_s, self._dispatch)
        else:
            self._scheduled = self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Send everything that the connected nsqds can take."""
        self._scheduled = None
        used: set[ProducerConnection] = set()
        unwritten_bytes = 0
        for address in list(self._only_to):
            waiting = self._only_to[address]
            while waiting and (nsqd := self._nsqds.ready_at(address)):
                self._send(waiting.popleft(), nsqd, used)
            if not waiting:
                del self._only_to[address]
        while (self._retries or self._queue or self._filling) and (nsqd := self._nsqds.pick()):
            if not self._retries and not self._queue:
                self._queue.extend(self._filling.values())
                self._filling.clear()
            unwritten_bytes += self._send((self._retries or self._queue).popleft(), nsqd, used)
            if unwritten_bytes >= WRITE_BYTES:
                nsqd.flush()
                unwritten_bytes = 0
        for nsqd in used:
            nsqd.flush()

    def _send(
        self, publication: Publication, nsqd: ProducerConnection, used: set[ProducerConnection]
    ) -> int:
        """Returns how many bytes it has given to the connection, roughly."""
        if publication not in self._pending:
            return 0  # its time was up
        if not publication.unconfirmed:
            self.budget.give_back(publication.drop_cancelled())
            if not publication.bodies:
                self._settle(publication)
                return 0
        if 0 < nsqd.message_bytes_max < publication.cost_bytes and not publication.is_fixed:
            self._refuse_larger_than(nsqd.message_bytes_max, publication)
            if publication not in self._pending:
                return 0
        if self._is_idempotent and not publication.token:
            publication.token = f"{self._token_prefix}:{next(self._token_numbers)}"
        if publication.token and not nsqd.takes_tokens:
            publication.failure = no_tokens(nsqd.address)
            self._give_up(publication)
            return 0
        nsqd.send(publication)
        used.add(nsqd)
        return publication.cost_bytes

    def _send_again(self, publication: Publication) -> None:
        """Before what was never sent; a publication with a token waits for its nsqd."""
        if publication.only_to:
            self._only_to.setdefault(publication.only_to, deque()).append(publication)
        else:
            self._retries.append(publication)
        self._schedule(0.0)

    def _nsqds_changed(self) -> None:
        if self._raise_when_down and self.is_open:
            self.is_accepting = not self._nsqds.are_down
            if not self.is_accepting:
                self._give_up_unsent()
        if self._pending:
            self._schedule(0.0)

    def down_error(self) -> ConnectError:
        """Why no nsqd can be reached."""
        return ConnectError("; ".join(map(str, self._nsqds.failures)))

    def _give_up_unsent(self) -> None:
        self._filling.clear()
        for publication in list(self._pending):
            if not publication.under_way:
                publication.failure = publication.failure or self.down_error()
                self._give_up(publication)
        self._forget_settled()

    # -- outcomes -----------------------------------------------------------------------------

    def _answered(self, publication: Publication, failure: Exception | None) -> None:
        if publication not in self._pending:
            return  # its time was up
        if failure is None:
            self.published += len(publication.bodies)
            publication.confirm()
            self._settle(publication)
            return
        publication.failure = failure
        if self._may_retry(publication, failure):
            self.retried += 1
            self._send_again(publication)
        elif (
            _is_about_one_message(failure)
            and len(publication.waiters) > 1
            and not publication.is_fixed
        ):
            self._split(publication, limit_told(failure))
        else:
            self._give_up(publication)

    def _may_retry(self, publication: Publication, failure: Exception) -> bool:
        """Note whether nsqd may have published it; return whether to send it again."""
        if isinstance(failure, ServerError):
            if failure.code not in _TEMPORARY_CODES:
                return False
            if failure.code == E_MPUB_FAILED and not publication.token:
                publication.unconfirmed = True  # NSQ's nsqd may have published its first messages
        elif isinstance(failure, ConnectionClosedError) and failure.sent:
            publication.unconfirmed = True
            if publication.token:
                publication.only_to = publication.sent_to
        return self._retry_unconfirmed or not publication.unconfirmed

    def _refuse_larger_than(self, bytes_max: int, publication: Publication) -> bool:
        """Fail the messages that nsqd would refuse; return whether there were any."""
        large = publication.take_larger_than(bytes_max)
        for each in large:
            each.failure = too_big(max(map(len, each.bodies)), bytes_max)
            each.fail()
            if each is not publication:
                self.budget.give_back(each.cost_bytes)
        if publication in large or not publication.bodies:
            self._settle(publication)
        return bool(large)

    def _split(self, publication: Publication, limit: int) -> None:
        """nsqd refuses a whole MPUB for one bad message. If it names its limit, send the others
        again; if not, send each message alone."""
        if limit and self._refuse_larger_than(limit, publication):
            if publication in self._pending:
                self._send_again(publication)
            return
        alone = publication.split()
        before, self._pending = self._pending, {}
        for each in before:  # at the same place, because `_expire` relies on the order
            self._pending.update(dict.fromkeys(alone) if each is publication else {each: None})
        self._retries.extend(alone)
        self._schedule(0.0)

    def _give_up(self, publication: Publication) -> None:
        publication.fail()
        self._settle(publication)

    def _settle(self, publication: Publication) -> None:
        del self._pending[publication]
        self.budget.give_back(publication.cost_bytes)
        if not self._pending:
            self._idle.set()

    def _expire(self) -> None:
        """Give up publications whose time is up. One that was sent may still be published."""
        self._expiry = None
        now_s = self._loop.time()
        for publication in list(self._pending):
            if publication.deadline_s > now_s:
                self._expiry = self._loop.call_at(publication.deadline_s, self._expire)
                break
            if self._filling.get(publication.topic) is publication:
                del self._filling[publication.topic]
            publication.unconfirmed |= publication.under_way
            if publication.failure is None:
                waited = f"no answer for {self._timeout_s:g} s"
                down = self._nsqds.failures
                publication.failure = self.down_error() if down else ConnectError(waited)
            self._give_up(publication)
        self._forget_settled()

    def _forget_settled(self) -> None:
        """Publications that were given up must not stay in memory while no nsqd can be reached."""
        for waiting in (self._retries, self._queue, *self._only_to.values()):
            while waiting and waiting[0] not in self._pending:
                waiting.popleft()


def _is_about_one_message(failure: Exception) -> bool:
    return isinstance(failure, ServerError) and failure.code in _BODY_CODES
