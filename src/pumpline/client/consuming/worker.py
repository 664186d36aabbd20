"""What consumers and groups of topics have in common: handlers, batches, hooks, signals, `with`.

A worker takes messages from somewhere and runs handlers on them until it is stopped. Knows nothing
of topics and connections: a subclass says how messages are taken, and how a start and a stop go.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import nullcontext
from typing import Any, Self, TypeVar

from pumpline.client.around import Around
from pumpline.client.consuming.batch_handling import BatchHandler, BatchHandling, TakeBatch
from pumpline.client.consuming.handling import Handler, Handling, Take
from pumpline.client.consuming.hooks import Hook, RunHooks
from pumpline.client.consuming.message import Batch, Message, ThreadMessage
from pumpline.client.consuming.signals import stopping_on_signals
from pumpline.client.consuming.threads import WAITING_MAX

BATCH_SIZE = 100

H = TypeVar("H", bound=Handler)
K = TypeVar("K", bound=Hook)


class Worker(ABC):
    """Handles messages until it is stopped."""

    _waiting_max = WAITING_MAX  # messages that may wait for a thread of a handler
    _is_owned = False  # an iteration started it, and stops it at its end

    def __init__(self, middleware: Iterable[Around[Message]]) -> None:
        self._middleware = tuple(middleware)
        self._hooks = RunHooks()
        self._declared: Handling | None = None  # by the decorator `handler`
        self._handling: Handling | BatchHandling | None = None  # from `run` on

    @abstractmethod
    def start(self) -> None:
        """Connect in the background; needs a running event loop."""

    @abstractmethod
    def stop_soon(self) -> None:
        """Begin a stop, and return at once. Handlers and signal handlers may call it."""

    @abstractmethod
    async def stop(self, *, timeout_s: float | None = None) -> None:
        """Take no more messages, and close when those in hand are answered."""

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Messages received and not answered."""

    @property
    @abstractmethod
    def _is_started(self) -> bool: ...

    @property
    @abstractmethod
    def _is_stopping(self) -> bool: ...

    @abstractmethod
    def _takers(self) -> tuple[Take, TakeBatch]:
        """How the next message is taken, and the next batch."""

    @property
    @abstractmethod
    def _has_more(self) -> bool:
        """Whether a message is at hand."""

    @abstractmethod
    def _use(self, message_type: type[Message]) -> None:
        """Make messages of this type from now on."""

    @abstractmethod
    def _await_at_stop(self, handled: "asyncio.Task[None]") -> None:
        """A stop waits for this task, which runs the handlers."""

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for messages in hand, unless an exception ended the block that had them."""
        await self.stop(timeout_s=None if kind is None else 0)

    async def batches(
        self, size_max: int = BATCH_SIZE, *, wait_s: float = 0.0
    ) -> AsyncGenerator[Batch, None]:
        """Iterate over batches of up to `size_max` messages. A batch has the messages that have
        arrived; `wait_s` is how long it may wait for more."""
        if size_max < 1:
            raise ValueError("a batch has at least 1 message")
        owns = self._own()
        _, take_batch = self._takers()
        try:
            while (batch := await take_batch(size_max, wait_s)) is not None:
                yield batch
                if self._has_more:
                    await asyncio.sleep(0)  # otherwise the next one is waited for
        finally:
            if owns:
                await self.stop(timeout_s=0)

    def handler(self, *, concurrency: int = 1, threads: bool | None = None) -> Callable[[H], H]:
        """Decorator: the handler that `run` calls. Arguments as in `run`."""

        def keep(function: H) -> H:
            self._declared = self._new_handling(function, concurrency, threads)
            return function

        return keep

    def on_start(self, function: K) -> K:
        """Decorator: `run` calls the function, or coroutine function, before it connects."""
        self._hooks.on_start.append(function)
        return function

    def on_stop(self, function: K) -> K:
        """Decorator: `run` calls the function at its end, after the connections are closed."""
        self._hooks.on_stop.append(function)
        return function

    async def run(
        self,
        handler: Handler | None = None,
        *,
        concurrency: int = 1,
        threads: bool | None = None,
        signals: bool = True,
    ) -> None:
        """Handle messages until `stop`, SIGINT or SIGTERM: finish each when the handler returns;
        requeue it when the handler raises. A message that the handler has answered is left alone.

        At most `concurrency` messages are handled at a time. A handler that is no coroutine
        function runs in that many threads; `threads=False` calls it on the event loop instead,
        which is for handlers that never wait. Signals are watched in the main thread, unless
        `signals` is False or the program has handlers for them.
        """
        handling = self._declared
        if handler is not None:
            handling = self._new_handling(handler, concurrency, threads)
        if handling is None:
            raise ValueError("a handler is needed")
        take, _ = self._takers()
        await self._run_handlers(handling, lambda: handling.run(take), signals=signals)

    async def run_batches(
        self,
        handler: BatchHandler,
        *,
        size_max: int = BATCH_SIZE,
        wait_s: float = 0.0,
        concurrency: int = 1,
        signals: bool = True,
    ) -> None:
        """As `run`, with a function that is called with a batch of up to `size_max` messages;
        `wait_s` is how long a batch may wait to become full. When the handler returns, all are
        finished; when it raises, all are requeued; but for those that it has answered.
        """
        if self._middleware:
            raise ValueError("middleware is for handlers of single messages")
        handling = BatchHandling(handler, size_max=size_max, wait_s=wait_s, concurrency=concurrency)
        _, take_batch = self._takers()
        await self._run_handlers(handling, lambda: handling.run(take_batch), signals=signals)

    def answer_from_threads(self) -> None:
        """Allow messages to be answered from any thread; call it before the start."""
        self._use(ThreadMessage)

    @property
    def is_in_handler(self) -> bool:
        """Whether the caller is a handler."""
        return self._handling is not None and self._handling.is_here

    def _check_caller(self) -> None:
        if self.is_in_handler:
            raise RuntimeError("a handler cannot wait for its own end: call stop_soon")

    def _own(self) -> bool:
        """Start if need be; return whether this iteration is to stop it at its end."""
        if self._is_started:
            if self._is_owned and self._is_stopping:
                self.start()  # raises: it was stopped
            return False
        self.start()
        self._is_owned = True
        return True

    def _new_handling(self, handler: Handler, concurrency: int, threads: bool | None) -> Handling:
        return Handling(
            handler,
            concurrency=concurrency,
            threads=threads,
            middleware=self._middleware,
            waiting_max=self._waiting_max,
        )

    async def _run_handlers(
        self,
        handling: Handling | BatchHandling,
        work: Callable[[], Coroutine[Any, Any, None]],
        *,
        signals: bool,
    ) -> None:
        self._handling = handling
        if handling.message_type is not Message:
            self._use(handling.message_type)
        wake = asyncio.get_running_loop().call_soon_threadsafe
        async with self._hooks.around():
            with stopping_on_signals(lambda: wake(self.stop_soon)) if signals else nullcontext():
                await self._handle(work)

    async def _handle(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.start()
        try:
            # A cancellation stops the worker gracefully before it stops the handlers.
            handled = asyncio.create_task(work())
            self._await_at_stop(handled)
            await asyncio.shield(handled)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Not this call but the handlers were cancelled, by a stop that waits no longer.
        finally:
            await self.stop()
