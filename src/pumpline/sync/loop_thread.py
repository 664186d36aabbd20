"""The event loop that the clients of a process share, in a daemon thread, and how a fork treats it.

`LoopThread` runs coroutines for threads that wait. `PerProcess` holds a client that lives on that
loop; in a forked child, where the thread does not exist, it starts a new one. Knows nothing of
producers and consumers but that their sockets must be dropped in a child.

A thread that waits may be interrupted, and a signal handler may use the same client, between any
two instructions. So nobody holds a lock while it waits, and the loop's thread takes no lock that a
waiting thread can hold. `concurrent.futures.Future` would not do: it has a condition, which is left
locked by an interrupt at the wrong moment, and the loop's thread then waits for it for ever.
"""

import asyncio
import inspect
import os
import sys
import threading
import warnings
from _thread import start_new_thread
from collections.abc import Callable, Coroutine
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from pumpline.client.connection.connection import sockets_of

FORKED = "this iteration belongs to the process that began it: begin a new one after a fork"

T = TypeVar("T")


class LoopCall(Generic[T]):
    """A coroutine that the loop runs, and its outcome for all who wait for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]):
        """`work` is called on the loop, after `begin`."""
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False
        self._waiting: list[SimpleQueue[None]] = []  # one for each thread that waits

    def begin(self) -> None:
        """May be called more than once, by a signal handler amid another call of it."""
        self._loop.call_soon_threadsafe(self._begin)

    def wait(self) -> T:
        if self._task is None or not self._task.done():
            woken: SimpleQueue[None] = SimpleQueue()
            self._waiting.append(woken)
            if self._task is None or not self._task.done():  # it may have ended in between
                woken.get()
        assert self._task is not None
        return self._task.result()

    def cancel(self) -> None:
        """Nobody waits any longer."""
        self._is_cancelled = True
        self._loop.call_soon_threadsafe(self._cancel)

    @property
    def has_failed(self) -> bool:
        task = self._task
        return task is not None and task.done() and (task.cancelled() or bool(task.exception()))

    @property
    def has_succeeded(self) -> bool:
        task = self._task
        return task is not None and task.done() and not self.has_failed

    def _begin(self) -> None:
        if self._task is None and not self._is_cancelled:
            self._task = self._loop.create_task(self._work())
            self._task.add_done_callback(self._wake)

    def _wake(self, task: "asyncio.Task[T]") -> None:
        while self._waiting:
            self._waiting.pop().put(None)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            self._work().close()


class LoopThread:
    """Not a `threading.Thread`: starting one takes a lock that the new thread waits for, and so
    does making an event loop. A signal handler that comes at that moment would wait for ever."""

    def __init__(self) -> None:
        made: SimpleQueue[tuple[asyncio.AbstractEventLoop, int] | BaseException] = SimpleQueue()
        start_new_thread(_run_a_loop, (made,))
        outcome = made.get()
        if isinstance(outcome, BaseException):
            raise outcome
        self.loop, self._ident = outcome
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether it runs in this process: a forked child has no copy of the thread."""
        return self._pid == os.getpid()

    def submit(self, work: Coroutine[Any, Any, T]) -> "LoopCall[T]":
        call = LoopCall(self.loop, lambda: work)
        try:
            call.begin()
        except BaseException:
            call.cancel()
            raise
        return call

    def ask(self, work: Coroutine[Any, Any, T]) -> "LoopCall[T]":
        """Submit what the caller is about to wait for; RuntimeError if that would be for ever."""
        try:
            self.check()
            _warn_of_a_loop()
        except BaseException:
            work.close()
            raise
        return self.submit(work)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return result_of(self.ask(work))

    def end(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the clean-up of a generator, in whatever thread and whenever it is collected."""
        if sys.is_finalizing() or not self.is_here:  # the thread does not run any more
            work.close()
        elif threading.get_ident() == self._ident:
            self.submit(work)
        else:
            result_of(self.submit(work))

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)

    def check(self) -> None:
        """Raise if a caller would wait for ever."""
        if not self.is_here:
            raise RuntimeError(FORKED)
        if threading.get_ident() == self._ident:
            raise RuntimeError(
                "called on the event loop of pumpline.sync: it would wait for itself"
            )


def _run_a_loop(
    made: "SimpleQueue[tuple[asyncio.AbstractEventLoop, int] | BaseException]",
) -> None:
    """In the loop's thread, where no signal handler runs."""
    try:
        loop = asyncio.new_event_loop()
    except BaseException as error:  # no descriptors are left, say: the one who waits is told
        made.put(error)
        return
    made.put((loop, threading.get_ident()))
    loop.run_forever()


def _warn_of_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # there is none in this thread, as it should be
        return
    text = "pumpline.sync blocks the event loop that runs in this thread: use pumpline.client there"
    warnings.warn(text, RuntimeWarning, stacklevel=_callers_level())


def _callers_level() -> int:
    """How many calls above the one who asks the user's code is."""
    frame = inspect.currentframe()
    level = 0
    while frame is not None and frame.f_globals.get("__package__") == __package__:
        frame = frame.f_back
        level += 1
    return level


def result_of(call: LoopCall[T]) -> T:
    try:
        return call.wait()
    except BaseException:  # of the call; or KeyboardInterrupt: its caller waits no longer
        call.cancel()
        raise


_thread: LoopThread | None = None
_lock = threading.RLock()  # a signal handler may interrupt the one who has it
_abandoned: list[LoopThread] = []  # kept: closing their loops would disturb the parent's sockets


def loop_thread() -> LoopThread:
    """One per process, made when first needed."""
    with _lock:
        if _thread is None:
            made = LoopThread()
            return _keep(made)
        return _thread


def _keep(made: LoopThread) -> LoopThread:
    global _thread  # noqa: PLW0603
    if _thread is not None:  # a signal handler was quicker
        made.stop()
        return _thread
    _thread = made
    return made


def _after_fork() -> None:
    """In the child: the thread does not exist here. Drop the copies of its sockets, or nsqd would
    not see the parent's connections close."""
    global _thread, _lock  # noqa: PLW0603
    _lock = threading.RLock()
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


class ClientClosedError(Exception):
    """The client was closed for good and cannot be started again."""


class PerProcess(Generic[T]):
    """A client that is started when it is first used, and again in a forked process."""

    def __init__(self, start: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._start = start
        self._starts: dict[int, tuple[LoopThread, LoopCall[T]]] = {}  # by process
        self._is_over = False

    def get(self) -> tuple[LoopThread, T] | None:
        """None if it does not run in this process."""
        begun = self._starts.get(os.getpid())
        return (begun[0], begun[1].wait()) if begun and begun[1].has_succeeded else None

    def take(self, *, for_ever: bool = False) -> tuple[LoopThread, T] | None:
        """Take it out, to end it; `for_ever`: it cannot be started again."""
        self._is_over |= for_ever
        begun = self._starts.pop(os.getpid(), None)
        if begun is None:
            return None
        thread, call = begun
        if not call.has_succeeded:
            thread.check()
            call.begin()
        try:
            return thread, call.wait()
        except Exception:  # it could not start, which those who started it are told
            return None

    def started(self) -> tuple[LoopThread, T]:
        while True:
            if self._is_over:
                raise ClientClosedError
            thread = loop_thread()
            new = (thread, LoopCall(thread.loop, self._start))
            # One step, which no thread and no signal handler comes in between.
            begun = thread, call = self._starts.setdefault(os.getpid(), new)
            if call.has_succeeded:
                return thread, call.wait()
            if begun is not new and call.has_failed:  # of someone who was interrupted
                self._forget(begun)
                continue
            thread.check()
            call.begin()
            try:
                return thread, call.wait()
            except Exception:
                self._forget(begun)
                raise

    def _forget(self, begun: tuple[LoopThread, LoopCall[T]]) -> None:
        with _lock:
            if self._starts.get(os.getpid()) is begun:
                del self._starts[os.getpid()]
