"""Runs a handler that blocks in a fixed number of threads, and reports outcomes to the event loop.

The loop puts messages in; outcomes come back in the loop's thread, many at a time.
"""

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from pumpline.client.consuming.message import Batch, Message

WAITING_MAX = 256  # messages queued in advance, so that threads and loop seldom wait for each other

W = TypeVar("W", Message, Batch)
"""What a handler is called with."""


class Threads(Generic[W]):
    def __init__(
        self,
        handler: Callable[[W], object],
        *,
        count: int,
        waiting_max: int = WAITING_MAX,
        on_outcome: Callable[[W, BaseException | None], None],
    ) -> None:
        self.backlog_max = count + waiting_max
        self.backlog = 0
        self._handler: Callable[[W], object] = handler
        self._on_outcome: Callable[[W, BaseException | None], None] = on_outcome
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Event()
        self._queue: SimpleQueue[W | None] = SimpleQueue()
        self._outcomes: deque[tuple[W, BaseException | None]] = deque()
        self._is_collecting = False
        self._is_stopped = False
        self._threads = [
            # Daemons: a handler that never returns must not keep the process alive.
            threading.Thread(target=self._work, name=f"pumpline-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def is_one_of_them(self) -> bool:
        """Whether the caller runs in one of these threads."""
        return threading.current_thread() in self._threads

    async def room(self) -> None:
        """Waits until another message may be put."""
        while self.backlog >= self.backlog_max:
            self._room.clear()
            await self._room.wait()

    async def idle(self) -> None:
        """Waits until every message has its outcome."""
        while self.backlog:
            self._room.clear()
            await self._room.wait()

    def put(self, message: W) -> None:
        self.backlog += 1
        self._queue.put(message)

    def stop(self) -> list[W]:
        """Threads end after the message they are at; returns those that were not begun."""
        self._is_stopped = True
        unbegun = self._take_queued()
        self.backlog -= len(unbegun)
        for _ in self._threads:
            self._queue.put(None)
        return unbegun

    def withdraw_stale(self) -> list[W]:
        """Stale messages that no thread has begun; none will begin them."""
        if self._is_stopped:
            return []
        queued = self._take_queued()  # who takes a message from the queue has it alone
        for message in queued:
            if not message.is_stale:
                self._queue.put(message)
        stale = [message for message in queued if message.is_stale]
        self.backlog -= len(stale)
        self._room.set()
        return stale

    def _take_queued(self) -> list[W]:
        queued: list[W] = []
        while True:
            try:
                message = self._queue.get_nowait()
            except Empty:
                return queued
            if message is not None:
                queued.append(message)

    def _work(self) -> None:
        while (message := self._queue.get()) is not None:
            error: BaseException | None = None
            try:
                if message.is_stale:  # it has waited for too long in the queue
                    message.give_back()
                else:
                    outcome = self._handler(message)
                    if outcome is not None and inspect.isawaitable(outcome):
                        raise not_awaited(outcome)
            except BaseException as raised:  # the root of a thread: the loop gets it
                error = raised
            self._outcomes.append((message, error))
            if not self._is_collecting:
                self._is_collecting = True
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:  # the loop is closed
                    return

    def _collect(self) -> None:
        self._is_collecting = False  # first: an outcome that is appended from now on calls again
        while self._outcomes:
            message, error = self._outcomes.popleft()
            self.backlog -= 1
            self._on_outcome(message, error)
        self._room.set()


def not_awaited(outcome: object) -> TypeError:
    """Nobody would run it, and the message would be finished without being handled."""
    if inspect.iscoroutine(outcome):
        outcome.close()
    return TypeError(
        "a handler that runs in threads returned an awaitable: make it a coroutine function"
    )
