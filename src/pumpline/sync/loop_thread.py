"""The event loop that the clients of a process share, in a daemon thread, and how a fork treats it.

`LoopThread` runs coroutines for threads that wait. `PerProcess` holds a client that lives on that
loop; in a forked child, where the thread does not exist, it starts a new one. Knows nothing of
producers and consumers but that their sockets must be dropped in a child.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from typing import Any, Generic, TypeVar

from pumpline.client.connection.connection import sockets_of

T = TypeVar("T")


class LoopThread:
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
        return result_of(self.submit(work))

    def end(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the clean-up of a generator, in whatever thread and whenever it is collected."""
        if sys.is_finalizing():  # the thread does not run any more
            work.close()
        elif threading.current_thread() is self._thread:
            self.submit(work)
        else:
            self.run(work)


def result_of(future: "Future[T]", timeout_s: float | None = None) -> T:
    try:
        return future.result(timeout_s)
    except TimeoutError:
        raise
    except BaseException:  # for example KeyboardInterrupt: the caller does not wait any longer
        future.cancel()
        raise


_thread: LoopThread | None = None
_lock = threading.Lock()
_abandoned: list[LoopThread] = []  # kept: closing their loops would disturb the parent's sockets


def loop_thread() -> LoopThread:
    global _thread  # noqa: PLW0603 - one per process, made when first needed
    with _lock:
        if _thread is None:
            _thread = LoopThread()
        return _thread


def _after_fork() -> None:
    """In the child: the thread does not exist here. Drop the copies of its sockets, or nsqd would
    not see the parent's connections close."""
    global _thread, _lock  # noqa: PLW0603
    _lock = threading.Lock()
    if _thread is not None:
        # dup2 instead of close: the abandoned objects may close the same numbers again later.
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in sockets_of(_thread.loop):
            with suppress(OSError):
                os.dup2(nothing, descriptor)
        os.close(nothing)
        _abandoned.append(_thread)
        _thread = None


os.register_at_fork(after_in_child=_after_fork)


class ClientClosed(Exception):
    """The client was closed for good and cannot be started again."""


class PerProcess(Generic[T]):
    """A client that is started when it is first used, and again in a forked process."""

    def __init__(self, start: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._start = start
        self._pid = 0
        self._starting = threading.RLock()
        self._running: tuple[LoopThread, T] | None = None
        self._is_over = False

    def get(self) -> tuple[LoopThread, T] | None:
        """None if it does not run in this process."""
        return self._running if self._pid == os.getpid() else None

    def take(self, *, for_ever: bool = False) -> tuple[LoopThread, T] | None:
        """Take it out, to end it; `for_ever`: it cannot be started again."""
        with self._lock_here():
            self._is_over |= for_ever
            running, self._running = self._running, None
            return running

    def started(self) -> tuple[LoopThread, T]:
        with self._lock_here():
            if self._is_over:
                raise ClientClosed
            if self._running is None:
                thread = loop_thread()
                self._running = (thread, thread.run(self._start()))
            return self._running

    def _lock_here(self) -> AbstractContextManager[object]:
        with _lock:
            if self._pid != os.getpid():  # new, or the parent's
                self._pid = os.getpid()
                self._starting = threading.RLock()
                self._running = None
            return self._starting
