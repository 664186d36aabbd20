"""The client without asyncio: for scripts, threads, and workers of Spark or a web server.

    with Producer("127.0.0.1:4150") as producer:
        producer.publish("orders", b"...")

    for message in Consumer("orders", "billing", nsqd="127.0.0.1:4150").messages(idle_s=5):
        ...
        message.finish()

The clients of `pumpline.client` do the work, on an event loop in a thread that all of a process's
share; a call waits here for what happens there. Blocking sockets of their own would be a second
implementation of batches, failover, credit and backoff, and could not do one thing at all: answer
nsqd's heartbeats while the caller is busy with a message, without which nsqd drops a consumer
after a minute. The price is two switches of threads a call, some 0.1 ms, which `publish_many`, and
messages that come by the batch, do not pay for each message.

Objects may be shared by threads: what several publish at the same time goes out as one MPUB. They
survive a fork: the child, which has no such thread, drops its copies of the sockets and connects
anew when it first uses them. What was under way in the parent stays the parent's.
"""

import asyncio
import atexit
import os
import sys
import threading
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from typing import Any, Generic, Self, TypedDict, TypeVar, Unpack
from weakref import WeakSet

from pumpline import client
from pumpline.client.connection.connection import sockets_of
from pumpline.client.connection.settings import Settings
from pumpline.client.consuming.consumer import BATCH_SIZE
from pumpline.client.consuming.message import Batch, Message
from pumpline.client.consuming.subscription import Counters
from pumpline.client.delay import Delay
from pumpline.client.errors import NotSent, PublishError
from pumpline.client.publishing.bodies import Body, blocks
from pumpline.client.publishing.producer import BODY_BYTES_MAX

__all__ = ["Batch", "Consumer", "ConsumerArguments", "Message", "Producer", "ProducerOptions"]

CHUNKS_UNDER_WAY_MAX = 4  # of publish_many: enough that neither thread waits for the other

T = TypeVar("T")


class _LoopThread:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="pumpline", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "called on the event loop of pumpline.sync: it would wait for itself"
            )
        return _result(self.submit(work))

    def end(self, work: Coroutine[Any, Any, None]) -> None:
        """For what ends a generator, wherever and whenever that is collected."""
        if sys.is_finalizing():  # the thread runs no more
            work.close()
        elif threading.current_thread() is self._thread:
            self.submit(work)
        else:
            self.run(work)


def _result(future: "Future[T]", timeout_s: float | None = None) -> T:
    try:
        return future.result(timeout_s)
    except TimeoutError:
        raise
    except BaseException:  # a KeyboardInterrupt: nobody will wait for it any more
        future.cancel()
        raise


_thread: _LoopThread | None = None
_lock = threading.Lock()
_abandoned: list[_LoopThread] = []  # by forks: closing their loops would disturb the parent's


def _loop_thread() -> _LoopThread:
    global _thread  # noqa: PLW0603 - one a process, made by who needs it first
    with _lock:
        if _thread is None:
            _thread = _LoopThread()
        return _thread


def _after_fork() -> None:
    """In the child: the thread is not here, and nsqd must not wait for copies of its sockets."""
    global _thread, _lock  # noqa: PLW0603
    _lock = threading.Lock()
    if _thread is not None:
        # Not closed: objects that nobody ends here would close the numbers a second time.
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in sockets_of(_thread.loop):
            with suppress(OSError):
                os.dup2(nothing, descriptor)
        os.close(nothing)
        _abandoned.append(_thread)
        _thread = None


os.register_at_fork(after_in_child=_after_fork)


class _Over(Exception):
    """What is not to be started again was asked for."""


class _PerProcess(Generic[T]):
    """A client that is started when it is first used, and anew in a process that was forked."""

    def __init__(self, start: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._start = start
        self._pid = 0
        self._starting = threading.RLock()
        self._running: tuple[_LoopThread, T] | None = None
        self._is_over = False

    def get(self) -> tuple[_LoopThread, T] | None:
        """None if it does not run in this process."""
        return self._running if self._pid == os.getpid() else None

    def take(self, *, for_ever: bool = False) -> tuple[_LoopThread, T] | None:
        """The same, for who ends it; `for_ever`: it is not to be started again."""
        with self._lock_here():
            self._is_over |= for_ever
            running, self._running = self._running, None
            return running

    def started(self) -> tuple[_LoopThread, T]:
        with self._lock_here():
            if self._is_over:
                raise _Over
            if self._running is None:
                thread = _loop_thread()
                self._running = (thread, thread.run(self._start()))
            return self._running

    def _lock_here(self) -> AbstractContextManager[object]:
        with _lock:
            if self._pid != os.getpid():  # new, or a copy of what the parent had
                self._pid = os.getpid()
                self._starting = threading.RLock()
                self._running = None
            return self._starting


class ProducerOptions(TypedDict, total=False):
    """Those of `pumpline.client.Producer`."""

    settings: Settings | None
    spread: bool
    batching: bool
    batch_delay_s: float
    timeout_s: float
    confirm_timeout_s: float
    retry_unconfirmed: bool
    message_bytes_max: int
    body_bytes_max: int
    pending_bytes_max: int


class Producer:
    """As `pumpline.client.Producer`: the same options, calls and exceptions."""

    def __init__(self, addresses: str | Iterable[str], **options: Unpack[ProducerOptions]) -> None:
        given = [addresses] if isinstance(addresses, str) else list(addresses)
        client.Producer(given, **options)  # wrong ones are told now

        async def start() -> client.Producer:
            producer = client.Producer(given, **options)
            await producer.start()
            return producer

        self._client = _PerProcess(start)
        self._body_bytes_max = options.get("body_bytes_max", BODY_BYTES_MAX)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Connect; ConnectError if no nsqd can be had. The first publish does it, too."""
        self._started()

    def close(self) -> None:
        """Wait for what is pending, and disconnect."""
        if running := self._client.take(for_ever=True):
            thread, producer = running
            thread.run(producer.close())

    def publish(self, topic: str, body: Body, *, defer: Delay | None = None) -> None:
        """Publish a message, and return when nsqd has confirmed it."""
        thread, producer = self._started()
        thread.run(producer.publish(topic, body, defer=defer))

    def publish_many(self, topic: str, bodies: Iterable[Body]) -> None:
        """Publish messages by MPUB. They are taken from `bodies` in this thread.

        `confirmed` of the exception is how many are known to be published, if it fails.
        """
        thread, producer = self._started()
        under_way: deque[tuple[int, Future[None]]] = deque()
        confirmed = 0
        try:
            for chunk in blocks(bodies, self._body_bytes_max // 2):
                under_way.append((len(chunk), thread.submit(producer.publish_many(topic, chunk))))
                if len(under_way) == CHUNKS_UNDER_WAY_MAX:
                    confirmed += _count(under_way)
            while under_way:
                confirmed += _count(under_way)
        except PublishError as error:
            error.confirmed += confirmed
            while under_way:
                try:
                    error.confirmed += _count(under_way)
                except PublishError as another:
                    error.confirmed += another.confirmed
            raise
        except BaseException:
            for _, future in under_way:
                future.cancel()
            raise

    @property
    def connected(self) -> list[str]:
        """The addresses of the nsqds that can be published to now."""
        running = self._client.get()
        return [] if running is None else running[1].connected

    @property
    def published(self) -> int:
        """Messages confirmed, since it connected in this process."""
        running = self._client.get()
        return 0 if running is None else running[1].published

    def _started(self) -> tuple[_LoopThread, client.Producer]:
        try:
            return self._client.started()
        except _Over:
            raise NotSent("not sent: the producer is closed") from None


class ConsumerArguments(TypedDict, total=False):
    """Those of `pumpline.client.Consumer`."""

    max_in_flight: int
    max_attempts: int
    giving_up: Callable[[Message], object] | None
    auto_touch: bool
    settings: Settings | None
    options: client.ConsumerOptions | None


class Consumer:
    """As `pumpline.client.Consumer`: the same options, and messages with the same methods."""

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        nsqd: str | Iterable[str] = (),
        lookupd: str | Iterable[str] = (),
        **options: Unpack[ConsumerArguments],
    ) -> None:
        nsqds = [nsqd] if isinstance(nsqd, str) else list(nsqd)
        lookupds = [lookupd] if isinstance(lookupd, str) else list(lookupd)

        if (giving_up := options.get("giving_up")) is not None:
            options["giving_up"] = _in_a_thread(giving_up)

        def make() -> client.Consumer:
            return client.Consumer(topic, channel, nsqd=nsqds, lookupd=lookupds, **options)

        async def start() -> client.Consumer:
            consumer = make()
            consumer.answer_from_threads()
            consumer.start()
            return consumer

        make()  # wrong ones are told now
        self._client = _PerProcess(start)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for messages in hand, unless an exception ended the block that had them."""
        self.stop(timeout_s=None if kind is None else 0)

    def start(self) -> None:
        """Connect in the background. Iterating and `run` do it, too."""
        self._started()

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def messages(self, *, idle_s: float | None = None) -> Iterator[Message]:
        """Messages as they come, until `stop`, or until none has come for idle_s seconds."""
        return _watched(self._messages(idle_s))

    def _messages(self, idle_s: float | None) -> Generator[Message, None, None]:
        for batch in self._batches(BATCH_SIZE, 0.0, idle_s):
            remaining = iter(batch)
            try:
                for message in remaining:
                    if not message.is_over:  # it may have waited too long for those before it
                        yield message
            finally:
                for message in remaining:  # whoever iterates has had enough
                    message.requeue(0, backoff=False)

    def batches(
        self, size_max: int = BATCH_SIZE, *, wait_s: float = 0.0, idle_s: float | None = None
    ) -> Iterator[Batch]:
        """Messages at hand, up to size_max; wait_s is how long a batch may wait to become full."""
        return _watched(self._batches(size_max, wait_s, idle_s))

    def _batches(
        self, size_max: int, wait_s: float, idle_s: float | None
    ) -> Generator[Batch, None, None]:
        owns = self._client.get() is None
        thread, consumer = self._started()
        source = consumer.batches(size_max, wait_s=wait_s)
        try:
            while (batch := thread.run(_next(source, idle_s))) is not None:
                yield batch
        finally:
            thread.end(source.aclose())
            if owns and (running := self._client.take()):
                thread.end(running[1].stop(timeout_s=0))

    def run(self, handler: Callable[[Message], object], *, concurrency: int = 1) -> None:
        """Handle messages, in so many threads, until `stop`: finish each when the handler returns,
        requeue it and back off when it raises."""
        thread, consumer = self._started()
        try:
            thread.run(consumer.run(handler, concurrency=concurrency, threads=True))
        finally:
            self.stop()

    def stop(self, *, timeout_s: float | None = None) -> None:
        """Take no more messages, wait until those in hand are answered, and close. Handlers, for
        which it would wait, call `stop_soon` instead."""
        if (running := self._client.get()) and running[1].is_in_handler:
            raise RuntimeError("a handler cannot wait for its own end: call stop_soon")
        if running := self._client.take():
            thread, consumer = running
            thread.run(consumer.stop(timeout_s=timeout_s))

    def stop_soon(self) -> None:
        """Begin to; for handlers and signals."""
        if running := self._client.get():
            thread, consumer = running
            thread.loop.call_soon_threadsafe(consumer.stop_soon)

    @property
    def counters(self) -> Counters:
        """Since it was started; all 0 while it is not running."""
        running = self._client.get()
        return Counters() if running is None else running[1].counters

    @property
    def connections(self) -> list[str]:
        """Addresses of the nsqds it is subscribed to at this moment."""
        running = self._client.get()
        return [] if running is None else running[1].connections

    @property
    def in_flight(self) -> int:
        """Messages received and not answered."""
        running = self._client.get()
        return 0 if running is None else running[1].in_flight

    def _started(self) -> tuple[_LoopThread, client.Consumer]:
        _consumers.add(self)
        return self._client.started()


_consumers: WeakSet[Consumer] = WeakSet()  # that were started
_iterations: WeakSet[Generator[Any, None, None]] = WeakSet()  # that may not be at their end


def _watched(iteration: Generator[T, None, None]) -> Generator[T, None, None]:
    _iterations.add(iteration)
    return iteration


@atexit.register
def _stop_all() -> None:
    """What nobody stopped gives its messages back, instead of letting others wait for them."""
    for iteration in list(_iterations):
        with suppress(ValueError):  # a thread is in the middle of it
            iteration.close()
    for consumer in list(_consumers):
        consumer.stop(timeout_s=0)


def _in_a_thread(giving_up: Callable[[Message], object]) -> Callable[[Message], Awaitable[object]]:
    """It may block, and publish, for which the event loop is needed that it would hold up."""

    async def give_up(message: Message) -> object:
        return await asyncio.to_thread(giving_up, message)

    return give_up


async def _next(source: AsyncGenerator[Batch, None], idle_s: float | None) -> Batch | None:
    """The next batch; None if there is none, or none in time."""
    try:
        # In the loop's own thread, or a batch could come as it is given up, and be nobody's.
        async with asyncio.timeout(idle_s):
            return await anext(source, None)
    except TimeoutError:
        return None


def _count(under_way: "deque[tuple[int, Future[None]]]") -> int:
    """How many messages the oldest of them has published."""
    count, future = under_way.popleft()
    _result(future)
    return count
