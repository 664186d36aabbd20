"""Handlers of batches: functions that are called with several messages at a time.

| the handler           | the messages that it has not answered are |
|-----------------------|--------------------------------------------|
| returns               | finished                                   |
| raises Retry          | requeued                                   |
| raises Drop           | finished, and the reason is logged         |
| raises anything else  | requeued, and counted for the backoff      |
| is cancelled at a stop| put back at once; threads cannot be cancelled |

Knows nothing of where messages come from: it is given a function to take the next batch with.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pumpline.client.around import is_coroutine_function
from pumpline.client.consuming.handling import log_body
from pumpline.client.consuming.message import Batch, Message, ThreadMessage
from pumpline.client.consuming.outcomes import Drop, Retry
from pumpline.client.consuming.threads import Threads

BatchHandler = Callable[[Batch], object]
"""A coroutine function, or any other function, which runs in threads."""
TakeBatch = Callable[[int, float], Awaitable[Batch | None]]
"""The next batch, of at most so many messages, filled for so many seconds; None at the end."""

logger = logging.getLogger("pumpline.client")


class BatchHandling:
    def __init__(
        self, handler: BatchHandler, *, size_max: int, wait_s: float, concurrency: int
    ) -> None:
        if size_max < 1:
            raise ValueError("a batch has at least 1 message")
        if not wait_s >= 0:
            raise ValueError("wait_s must not be negative")
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        self._handler = handler
        self._size_max = size_max
        self._wait_s = wait_s
        self._concurrency = concurrency
        self._uses_threads = not is_coroutine_function(handler)
        self._tasks: list[asyncio.Task[None]] = []
        self._threads: Threads[Batch] | None = None

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
        """None: a batch that was taken is begun."""
        return []

    async def run(self, take_batch: TakeBatch) -> None:
        """Until there are no more messages and all are handled."""
        if self._uses_threads:
            await self._run_threads(take_batch)
            return
        async with asyncio.TaskGroup() as tasks:
            work = (self._work(take_batch) for _ in range(self._concurrency))
            self._tasks = [tasks.create_task(each) for each in work]

    async def _work(self, take_batch: TakeBatch) -> None:
        while (batch := await take_batch(self._size_max, self._wait_s)) is not None:
            try:
                await self._handler(batch)  # type: ignore[misc]
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    batch.requeue(0, backoff=False)
                    raise
                answer_batch(batch, error)  # something the handler waited for was cancelled
            except Exception as error:
                answer_batch(batch, error)
            except BaseException:  # SystemExit, for example: it ends the run
                batch.requeue(0, backoff=False)
                raise
            else:
                batch.finish()
            await asyncio.sleep(0)  # a handler that never waits must not keep the event loop

    async def _run_threads(self, take_batch: TakeBatch) -> None:
        threads = self._threads = Threads(
            self._handler, count=self._concurrency, waiting_max=0, on_outcome=answer_batch
        )
        try:
            while True:
                await threads.room()
                batch = await take_batch(self._size_max, self._wait_s)
                if batch is None:
                    break
                threads.put(batch)
            await threads.idle()
        finally:
            for batch in threads.stop():
                batch.give_back()


def answer_batch(batch: Batch, error: BaseException | None) -> None:
    """Answer the messages after their handler has ended, but for those that it has answered."""
    if error is None:
        batch.finish()
    elif isinstance(error, Retry):
        logger.info("the handler asks for a retry of %d messages", len(batch))
        batch.requeue(error.delay_s, backoff=False)
    elif isinstance(error, Drop):
        logger.warning("the handler dropped %d messages: %s", len(batch), error.reason)
        batch.finish()
    else:
        logger.error("the handler failed on %d messages", len(batch), exc_info=error)
        for message in batch:
            log_body(message)
        batch.requeue()
