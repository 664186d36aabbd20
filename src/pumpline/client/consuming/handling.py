"""Handlers: functions that are called with messages, and the answers that follow from them.

| the handler               | the message is                             |
|---------------------------|--------------------------------------------|
| returns                   | finished, unless the handler answered it   |
| raises                    | requeued, and the consumer backs off       |
| is cancelled at a stop    | put back at once                           |
| raises a BaseException    | put back at once, and the run ends with it |
|                           | (in a thread: as any other exception)      |

Knows nothing of where messages come from: it is given a function to take the next one with.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable

from pumpline.client.consuming.message import Message, ThreadMessage
from pumpline.client.consuming.threads import Threads

TAKEN_MAX = 256  # messages handled in a row before other tasks of the event loop run

Handler = Callable[[Message], object]
"""A coroutine function, or any other function of a message; its result is ignored."""

Take = Callable[[], Awaitable[Message | None]]
"""The next message; None when there will be no more."""

logger = logging.getLogger("pumpline.client")


class Handling:
    def __init__(self, handler: Handler, *, concurrency: int, threads: bool | None) -> None:
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 (an object with an async __call__)
        )
        if is_async and threads:
            raise ValueError("a coroutine function cannot run in threads")
        self._handler = handler
        self._concurrency = concurrency
        self._is_async = is_async
        self._uses_threads = not is_async if threads is None else threads
        self._tasks: list[asyncio.Task[None]] = []
        self._threads: Threads | None = None

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
        taken = 0
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
                settle(message, error)  # something the handler waited for was cancelled
            except Exception as error:
                settle(message, error)
            except BaseException:  # SystemExit, for example: it ends the run
                message.requeue(0, backoff=False)
                raise
            else:
                if not message.is_answered:
                    message.finish()
            taken += 1
            if taken == TAKEN_MAX:
                taken = 0
                await asyncio.sleep(0)

    async def _run_threads(self, take: Take) -> None:
        threads = Threads(self._handler, count=self._concurrency, on_outcome=settle)
        self._threads = threads
        try:
            while True:
                await threads.room()
                message = await take()
                if message is None:
                    break
                threads.put(message)
            put_back(threads.stop())
            await threads.idle()
        finally:
            put_back(threads.stop())


def settle(message: Message, error: BaseException | None) -> None:
    """Finish or requeue a message after its handler has ended."""
    if error is None:
        is_answered = message.is_passed_on if isinstance(message, ThreadMessage) else False
        if not (is_answered or message.is_answered):
            message.finish()
        return
    logger.error("the handler failed on %r", message, exc_info=error)
    message.requeue()


def put_back(messages: list[Message]) -> None:
    for message in messages:
        message.requeue(0, backoff=False)
