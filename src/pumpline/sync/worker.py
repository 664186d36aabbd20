"""What `pumpline.sync.Consumer` and `TopicGroup` have in common: iterations, handlers, the stop.

Workers and iterations that a program leaves unfinished are ended when it exits. Knows the asyncio
workers and the loop's thread; must not know connections.
"""

import asyncio
import atexit
import inspect
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import nullcontext, suppress
from typing import Any, Generic, Self, TypeVar
from weakref import WeakSet

from pumpline.client.around import is_coroutine_function
from pumpline.client.consuming.arguments import ConsumerArguments
from pumpline.client.consuming.hooks import RunHooks
from pumpline.client.consuming.message import Batch, Message
from pumpline.client.consuming.signals import stopping_on_signals
from pumpline.client.consuming.worker import BATCH_SIZE, Worker
from pumpline.sync.loop_thread import FORKED, LoopThread, PerProcess

T = TypeVar("T")
W = TypeVar("W", bound=Worker)
K = TypeVar("K", bound=Callable[[], object])


class ThreadWorker(Generic[W]):
    """Handles messages until it is stopped."""

    def __init__(self, make: Callable[[], W]) -> None:
        """`make` makes an asyncio worker: one in each process that uses this object."""

        async def start() -> W:
            worker = make()
            worker.answer_from_threads()
            worker.start()
            return worker

        make()  # raises here if an argument is wrong
        self._client = PerProcess(start)
        self._hooks = RunHooks()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for messages in hand, unless an exception ended the block that had them."""
        self.stop(timeout_s=None if kind is None else 0)

    def start(self) -> None:
        """Connect in the background. Iterating and `run` do it, too."""
        self._started()

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def messages(self, *, idle_s: float | None = None) -> Iterator[Message]:
        """Iterate over messages, until `stop`, or until none has come for `idle_s` seconds."""
        return _watched(self._messages(idle_s))

    def _messages(self, idle_s: float | None) -> Generator[Message, None, None]:
        process = os.getpid()
        for batch in self._batches(BATCH_SIZE, 0.0, idle_s):
            remaining = iter(batch)
            try:
                for message in remaining:
                    if os.getpid() != process:  # the messages are the parent's
                        raise RuntimeError(FORKED)
                    if message.is_stale:  # it has waited too long while others were handled
                        message.give_back()
                    else:
                        yield message
            finally:
                for message in remaining:  # the caller has stopped iterating
                    message.give_back()

    def batches(
        self, size_max: int = BATCH_SIZE, *, wait_s: float = 0.0, idle_s: float | None = None
    ) -> Iterator[Batch]:
        """Iterate over batches of up to `size_max` messages. A batch has the messages that have
        arrived; `wait_s` is how long it may wait for more."""
        return _watched(self._batches(size_max, wait_s, idle_s))

    def _batches(
        self, size_max: int, wait_s: float, idle_s: float | None
    ) -> Generator[Batch, None, None]:
        owns = self._client.get() is None
        thread, worker = self._started()
        source = worker.batches(size_max, wait_s=wait_s)
        try:
            while (batch := thread.run(_next(source, idle_s))) is not None:
                yield batch
        finally:
            thread.end(source.aclose())
            if owns and (running := self._client.take()):
                thread.end(running[1].stop(timeout_s=0))

    def on_start(self, function: K) -> K:
        """Decorator: `run` calls the function in its own thread, before it connects."""
        self._hooks.on_start.append(_plain(function))
        return function

    def on_stop(self, function: K) -> K:
        """Decorator: `run` calls the function at its end, after the connections are closed."""
        self._hooks.on_stop.append(_plain(function))
        return function

    def run(
        self,
        handler: Callable[[Message], object],
        *,
        concurrency: int = 1,
        signals: bool = True,
    ) -> None:
        """Handle messages in `concurrency` threads, until `stop`, SIGINT or SIGTERM. A message is
        finished when the handler returns, and requeued when it raises."""
        self._run(
            lambda worker: worker.run(handler, concurrency=concurrency, threads=True), signals
        )

    def run_batches(
        self,
        handler: Callable[[Batch], object],
        *,
        size_max: int = BATCH_SIZE,
        wait_s: float = 0.0,
        concurrency: int = 1,
        signals: bool = True,
    ) -> None:
        """As `run`, with a function that is called with a batch of up to `size_max` messages;
        `wait_s` is how long a batch may wait to become full."""
        _plain(handler)
        self._run(
            lambda worker: worker.run_batches(
                handler, size_max=size_max, wait_s=wait_s, concurrency=concurrency
            ),
            signals,
        )

    def _run(self, work: Callable[[W], Any], signals: bool) -> None:
        with self._hooks.around_in_thread():
            thread, worker = self._started()
            try:
                with stopping_on_signals(self.stop_soon) if signals else nullcontext():
                    thread.run(work(worker))
            finally:
                self.stop()

    def stop(self, *, timeout_s: float | None = None) -> None:
        """Take no more messages, wait until those in hand are answered, and close. Handlers call
        `stop_soon` instead: this would wait for them."""
        if (running := self._client.get()) and running[1].is_in_handler:
            raise RuntimeError("a handler cannot wait for its own end: call stop_soon")
        if running := self._client.take():
            thread, worker = running
            thread.run(worker.stop(timeout_s=timeout_s))

    def stop_soon(self) -> None:
        """Begin a stop, and return at once. Handlers and signal handlers may call it."""
        if running := self._client.get():
            thread, worker = running
            thread.loop.call_soon_threadsafe(worker.stop_soon)

    @property
    def in_flight(self) -> int:
        """Messages received and not answered."""
        running = self._client.get()
        return 0 if running is None else running[1].in_flight

    def _started(self) -> tuple[LoopThread, W]:
        _workers.add(self)
        return self._client.started()


_workers: WeakSet[ThreadWorker[Any]] = WeakSet()  # those that were started
_iterations: WeakSet[Generator[Any, None, None]] = WeakSet()  # those that may be unfinished


def _watched(iteration: Generator[T, None, None]) -> Generator[T, None, None]:
    _iterations.add(iteration)
    return iteration


# A child must not end what its parent began; what it begins itself is added again.
os.register_at_fork(after_in_child=_iterations.clear)


@atexit.register
def _stop_all() -> None:
    """Put back the messages of what was not stopped, so that other consumers get them at once."""
    for iteration in list(_iterations):
        with suppress(ValueError):  # a thread is inside it
            iteration.close()
    for worker in list(_workers):
        worker.stop(timeout_s=0)


def kept(arguments: ConsumerArguments) -> ConsumerArguments:
    """The arguments in a form that can be used more than once, by workers without asyncio."""
    given: ConsumerArguments = {**arguments}
    given["middleware"] = tuple(given.get("middleware", ()))
    if callable(giving_up := given.get("giving_up")):
        given["giving_up"] = _in_a_thread(giving_up)
    return given


def _in_a_thread(
    giving_up: Callable[[Message], object],
) -> Callable[[Message], Awaitable[object]]:
    """Call it in a thread: it may block, or publish by this module, which needs the event loop."""

    async def give_up(message: Message) -> object:
        outcome = await asyncio.to_thread(giving_up, message)
        return await outcome if inspect.isawaitable(outcome) else outcome

    return give_up


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    if is_coroutine_function(function):
        raise TypeError("pumpline.sync calls plain functions: use pumpline.client for async ones")
    return function


async def _next(source: AsyncGenerator[Batch, None], idle_s: float | None) -> Batch | None:
    """The next batch; None if there is none, or none in time."""
    try:
        # The time limit is kept in the loop's thread: kept here, a batch could arrive at the very
        # moment the caller gives up, and nobody would have it.
        async with asyncio.timeout(idle_s):
            return await anext(source, None)
    except TimeoutError:
        return None
