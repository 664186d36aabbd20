"""Handlers: functions that are called with messages, and the answers that follow from them.

| the handler               | the message is                             |
|---------------------------|--------------------------------------------|
| returns                   | finished, unless the handler answered it   |
| raises Retry              | requeued                                   |
| raises Drop               | finished, and the reason is logged         |
| raises anything else      | requeued, and counted for the backoff      |
| is cancelled at a stop    | put back at once                           |
| raises a BaseException    | put back at once, and the run ends with it |
|                           | (in a thread: as any other exception)      |

Knows nothing of where messages come from: it is given a function to take the next one with.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from pumpline.client.around import Around, in_thread, is_coroutine_function, surrounded
from pumpline.client.consuming.message import Message, ThreadMessage
from pumpline.client.consuming.outcomes import Drop, Retry
from pumpline.client.consuming.threads import WAITING_MAX, Threads, not_awaited

TURN_MAX = 256  # messages handled in a row before other tasks of the event loop run
TURN_S = 0.01
LOOK_MAX = 16

Handler = Callable[[Message], object]
"""A coroutine function, or any other function of a message; its result is ignored."""

Take = Callable[[], Awaitable[Message | None]]
"""The next message; None when there will be no more."""

logger = logging.getLogger("pumpline.client")


class HandlerTurns:
    """When handlers let other tasks of the event loop run, and the timer that touches messages:
    after TURN_MAX messages, or when they have blocked the loop for TURN_S. The clock is looked at
    after each message only if one took long, otherwise after up to LOOK_MAX."""

    __slots__ = ("_began_at", "_handled", "_is_blocking", "size")

    def __init__(self) -> None:
        self.size = 1  # messages to handle before the next look
        self._begin()

    def is_over(self) -> bool:
        """Asked after `size` messages: whether to `end` the turn."""
        if time.monotonic() - self._began_at > TURN_S:
            self.size = 1
            if self._is_blocking:
                return True
            self._begin()
            return False
        self._handled += self.size
        self.size = min(2 * self.size, LOOK_MAX)
        return self._handled >= TURN_MAX

    async def end(self) -> None:
        await asyncio.sleep(0)
        if self.size == 1:
            await asyncio.sleep(0)  # asyncio runs a timer that is due after the first
        self._begin()

    def _begin(self) -> None:
        self._handled = 0
        self._began_at = time.monotonic()
        self._is_blocking = True  # until the loop runs something else
        asyncio.get_running_loop().call_soon(self._yielded)

    def _yielded(self) -> None:
        self._is_blocking = False


class Handling:
    def __init__(
        self,
        handler: Handler,
        *,
        concurrency: int,
        threads: bool | None,
        middleware: Sequence[Around[Message]] = (),
        waiting_max: int = WAITING_MAX,
    ) -> None:
        """`waiting_max`: messages that may wait for a thread."""
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        is_async = is_coroutine_function(handler)
        if is_async and threads:
            raise ValueError("a coroutine function cannot run in threads")
        self._uses_threads = not is_async if threads is None else threads
        if middleware:
            handler = _surrounded(handler, middleware, in_threads=self._uses_threads)
        self._handler = handler
        self._concurrency = concurrency
        self._waiting_max = waiting_max
        self._is_async = is_async
        self._tasks: list[asyncio.Task[None]] = []
        self._threads: Threads[Message] | None = None

    @property
    def is_here(self) -> bool:
        """Whether the caller is a handler."""
        if self._threads is not None:
            return self._threads.is_one_of_them()
        try:
            return asyncio.current_task() in self._tasks
        except RuntimeError:  # a thread without an event loop
            return False

    @property
    def message_type(self) -> type[Message]:
        return ThreadMessage if self._uses_threads else Message

    def withdraw_stale(self) -> list[Message]:
        """Stale messages that were taken, and that no thread has begun."""
        return [] if self._threads is None else self._threads.withdraw_stale()

    async def run(self, take: Take) -> None:
        """Until there are no more messages and all are handled."""
        if self._uses_threads:
            await self._run_threads(take)
            return
        async with asyncio.TaskGroup() as tasks:
            work = (self._work(take) for _ in range(self._concurrency))
            self._tasks = [tasks.create_task(each) for each in work]

    async def _work(self, take: Take) -> None:
        handler, is_async = self._handler, self._is_async
        turns, taken = HandlerTurns(), 0
        while (message := await take()) is not None:
            try:
                outcome = handler(message)
                if is_async or (outcome is not None and inspect.isawaitable(outcome)):
                    await outcome  # type: ignore[misc]
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    message.requeue(0, backoff=False)
                    raise
                answer(message, error)  # something the handler waited for was cancelled
            except Exception as error:
                answer(message, error)
            except BaseException:  # SystemExit, for example: it ends the run
                message.requeue(0, backoff=False)
                raise
            else:
                if not message.is_answered:
                    message.finish()
            taken += 1
            if taken >= turns.size:
                taken = 0
                if turns.is_over():
                    await turns.end()

    async def _run_threads(self, take: Take) -> None:
        threads = Threads(
            self._handler,
            count=self._concurrency,
            waiting_max=self._waiting_max,
            on_outcome=answer,
        )
        self._threads = threads
        try:
            while True:
                await threads.room()
                message = await take()
                if message is None:
                    break
                threads.put(message)
            give_back(threads.stop())
            await threads.idle()
        finally:
            give_back(threads.stop())


def answer(message: Message, error: BaseException | None) -> None:
    """Finish or requeue a message after its handler has ended."""
    if error is None:
        is_answered = message.is_passed_on if isinstance(message, ThreadMessage) else False
        if not (is_answered or message.is_answered):
            message.finish()
        return
    if isinstance(error, Retry):
        logger.info("the handler asks for a retry of %r", message)
        message.requeue(error.delay_s, backoff=False)
    elif isinstance(error, Drop):
        logger.warning("the handler dropped %r: %s", message, error.reason)
        message.finish()
    else:
        logger.error("the handler failed on %r", message, exc_info=error)
        log_body(message)
        message.requeue()


def _surrounded(
    handler: Handler, middleware: Sequence[Around[Message]], *, in_threads: bool
) -> Handler:
    async def innermost(message: Message) -> None:
        outcome = handler(message)
        if inspect.isawaitable(outcome):
            if in_threads:
                raise not_awaited(outcome)
            await outcome

    call = surrounded(innermost, middleware)
    return in_thread(call) if in_threads else call


def log_body(message: Message) -> None:
    """Bodies may be confidential, so they are logged at DEBUG only."""
    logger.debug("body of %s: %.1000r", message.id, message.body)


def give_back(messages: list[Message]) -> None:
    for message in messages:
        message.give_back()
