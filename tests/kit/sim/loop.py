"""An event loop on a virtual clock: time passes when nothing is left to do, and only then.

A round of the loop is an iteration of uvloop: timers that are due, then the callbacks that were
asked for before, then what sockets received. So a timer can run between a read and the callback
that the read has asked for, such as nsqd's tick. In nature that needs a timer that is due just
then. Here it is common, as the loop lets some timers run *early*, in front of callbacks that wait:
those that promise nothing about time (`may_be_early`), and the jobs of threads.

Threads do not exist: a job for a thread runs as one callback, later, and its outcome arrives later
still; how much later the seed says. A kill ends the loop between two callbacks, or inside one (see
`disk`): then nothing of it goes on.

It is an `asyncio.AbstractEventLoop`, with what nsqd uses of it. Knows nothing of nsqd.
"""

import asyncio
import contextvars
import heapq
import inspect
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

STEADY_NS = 5_000 * 10**9
WALL_NS = 1_700_000_000 * 10**9
STEP_NS = 1_000  # that a round of callbacks takes
ROUNDS_MAX = 400_000  # of one `run`: more is a loop that never ends
EARLY = 0.5  # of the rounds after a read begin with a timer that is not due yet

Waiting = list[tuple[int, int, "VirtualHandle"]]  # a heap: when, a number, what to call


class Killed(BaseException):
    """The process is dead; nothing may catch this and go on."""


class Stuck(Exception):
    """The loop is busy without end."""


class VirtualClock:
    """Both clocks of the machine. They outlive the processes."""

    def __init__(self) -> None:
        self.passed_ns = 0
        self.wall_set_ns = 0  # by how much the wall clock was set forward

    def steady_ns(self) -> int:
        return STEADY_NS + self.passed_ns

    def wall_ns(self) -> int:
        return WALL_NS + self.passed_ns + self.wall_set_ns


class VirtualHandle:
    """A callback that was asked for."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "may_be_early", "when_ns")

    def __init__(
        self,
        when_ns: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        self.when_ns = when_ns
        self.callback = callback
        self.args = args
        self.context = context
        self.is_cancelled = False
        self.may_be_early = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_ns / 1e9


class VirtualLoop(asyncio.AbstractEventLoop):
    def __init__(self, clock: VirtualClock, chance: random.Random) -> None:
        self.clock = clock
        self.chance = chance
        self.is_dead = False
        self.kill_after = -1  # callbacks; below 0: not by this loop
        self.thread_delay_s = 0.02  # a job begins within that time
        self.faults: list[str] = []  # exceptions that nobody took
        self.listen: Callable[..., Any] | None = None  # makes servers; the network sets it
        # Which timers may run before they are due; the machine sets it.
        self.may_be_early: Callable[[Callable[..., object]], bool] = lambda callback: False
        self._ready: deque[VirtualHandle] = deque()
        self._timers: Waiting = []
        self._reads: Waiting = []  # what sockets will receive
        self._has_read = False  # in the last round
        self._numbers = itertools.count()

    # -- running ------------------------------------------------------------------------------

    def run(self, seconds: float, until: Callable[[], object] | None = None) -> None:
        """Let so much time pass, or less if `until` becomes true, or the process dies."""
        end_ns = self.clock.passed_ns + round(seconds * 1e9)
        asyncio._set_running_loop(self)  # for event loops, says its documentation
        try:
            for _ in range(ROUNDS_MAX):
                if self.is_dead or (until is not None and until()):
                    return
                if not self._ready:
                    first = [each[0][0] for each in (self._timers, self._reads) if each]
                    due_ns = min(first, default=end_ns + 1)
                    if due_ns > end_ns:
                        self.clock.passed_ns = max(end_ns, self.clock.passed_ns)
                        return
                    self.clock.passed_ns = max(self.clock.passed_ns, due_ns)
                self._round()
            raise Stuck(f"{ROUNDS_MAX} rounds in {seconds} s")
        finally:
            asyncio._set_running_loop(None)

    def _round(self) -> None:
        self.clock.passed_ns += STEP_NS
        if self._has_read and self._ready and self.chance.random() < EARLY:
            self._call_early()
        self._call_due(self._timers)
        for _ in range(len(self._ready)):
            self._call(self._ready.popleft())
        self._has_read = self._call_due(self._reads)

    def _call_early(self) -> None:
        """Run a timer now that would be due later: the next one, or any."""
        waiting = [
            each for each in self._timers if each[2].may_be_early and not each[2].is_cancelled
        ]
        if waiting:
            next_one = self.chance.random() < 0.5
            _, _, handle = min(waiting) if next_one else self.chance.choice(waiting)
            self._call(handle)
            handle.cancel()  # it must not run again

    def _call_due(self, waiting: Waiting) -> bool:
        """Run what is due; return whether anything was."""
        due = []
        while waiting and waiting[0][0] <= self.clock.passed_ns:
            due.append(heapq.heappop(waiting)[2])
        for handle in due:
            self._call(handle)
        return bool(due)

    def _call(self, handle: VirtualHandle) -> None:
        if handle.is_cancelled or self.is_dead:
            return
        if self.kill_after == 0:
            self.is_dead = True
            return
        self.kill_after -= 1
        try:
            if handle.context is None:
                handle.callback(*handle.args)
            else:
                handle.context.run(handle.callback, *handle.args)
        except Killed:
            self.is_dead = True
        except Exception as error:
            self.faults.append(f"{type(error).__name__}: {error} in {handle.callback}")

    def complete(self, work: Coroutine[Any, Any, Any], limit_s: float = 60.0) -> Any:
        """The outcome of a coroutine; Killed if the process dies before it is done."""
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(work)
        finally:
            asyncio._set_running_loop(None)
        self.run(limit_s, task.done)
        if self.is_dead:
            raise Killed
        if not task.done():
            raise Stuck(f"not done after {limit_s} s: {work}")
        return task.result()

    def bury(self) -> None:
        """The process is dead: forget its tasks, without running anything of them."""
        self.is_dead = True
        for task in asyncio.all_tasks(self):
            close(task.get_coro())
        self._ready.clear()
        self._timers.clear()
        self._reads.clear()

    # -- asyncio.AbstractEventLoop ---------------------------------------------------------------

    def time(self) -> float:
        return self.clock.steady_ns() / 1e9

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> VirtualHandle:
        handle = VirtualHandle(self.clock.steady_ns(), callback, args, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> VirtualHandle:
        """A thread does not wait for the loop: it asks before the callbacks that wait did."""
        handle = self.call_soon(callback, *args, context=context)
        self._ready.rotate(1)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> VirtualHandle:
        if delay <= 0:  # as uvloop does: it comes after the callbacks that were asked for before
            return self.call_soon(callback, *args, context=context)
        passed_ns = self.clock.passed_ns + round(delay * 1e9)
        handle = self._at(self._timers, passed_ns, callback, args, context)
        handle.may_be_early = self.may_be_early(callback)
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> VirtualHandle:
        return self._at(self._timers, self._passed_ns(when), callback, args, context)

    def read_at(self, when: float, callback: Callable[..., object], *args: Any) -> None:
        """At this time a socket receives something."""
        self._at(self._reads, self._passed_ns(when), callback, args, None)

    def just_before_timer(self, until: float) -> float | None:
        """When a socket has to receive something so that the next timer runs before what the read
        asks for; None if no timer is due until then."""
        while self._timers and self._timers[0][2].is_cancelled:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        when = (STEADY_NS + self._timers[0][0] - STEP_NS * 3 // 2) / 1e9
        return when if self.time() < when < until else None

    def _passed_ns(self, when: float) -> int:
        return max(round(when * 1e9) - STEADY_NS, self.clock.passed_ns)

    def _at(
        self,
        waiting: Waiting,
        passed_ns: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> VirtualHandle:
        handle = VirtualHandle(STEADY_NS + passed_ns, callback, args, context)
        heapq.heappush(waiting, (passed_ns, next(self._numbers), handle))
        return handle

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> Any:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        future = self.create_future()

        def done(result: Any) -> None:
            if not future.cancelled():
                if isinstance(result, BaseException):
                    future.set_exception(result)
                else:
                    future.set_result(result)

        self.offload(lambda: func(*args), done)
        return future

    def offload(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `job` some time later, and `done` with its outcome some time after that."""

        def run() -> None:
            try:
                result = job()
            except Killed:
                raise
            except Exception as error:
                result = error
            self._in_thread(0.001, done, result)

        self._in_thread(self.thread_delay_s, run)

    def _in_thread(self, within_s: float, callback: Callable[..., object], *args: Any) -> None:
        passed_ns = self.clock.passed_ns + round(self.chance.random() * within_s * 1e9)
        self._at(self._timers, passed_ns, callback, args, None).may_be_early = True

    async def create_server(self, protocol_factory: Any, **how: Any) -> Any:  # type: ignore[override]
        assert self.listen is not None
        return self.listen(protocol_factory, how["sock"])

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self.faults.append(f"{context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return self.is_dead


def close(coroutine: Any) -> None:
    """End a coroutine. One that has not begun may have been given others, which then never will."""
    inner: list[Any] = []
    if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == "CORO_CREATED":
        inner = [each for each in coroutine.cr_frame.f_locals.values() if inspect.iscoroutine(each)]
    with suppress(BaseException):  # it may be in the middle of something that needs the disk
        coroutine.close()
    for each in inner:
        close(each)


class VirtualThreads:
    """In place of a ThreadPoolExecutor; its jobs run on the loop that made it."""

    def __init__(self, count: int, thread_name_prefix: str = "") -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop

    def submit(self, job: Callable[[], Any]) -> "Future[Any]":
        future: Future[Any] = Future()

        def done(result: Any) -> None:
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        self._loop.offload(job, done)
        return future

    def shutdown(self) -> None:
        pass
