"""Handlers of batches: coroutine functions that are called with several messages at a time.

| the handler           | the messages that it has not answered are |
|-----------------------|--------------------------------------------|
| returns               | finished                                   |
| raises Retry          | requeued                                   |
| raises Drop           | finished, and the reason is logged         |
| raises anything else  | requeued, and counted for the backoff      |
| is cancelled at a stop| put back at once                           |

Knows nothing of where messages come from: it is given a function to take the next batch with.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pumpline.client.consuming.handling import log_body
from pumpline.client.consuming.message import Batch, Message
from pumpline.client.consuming.middleware import is_coroutine_function
from pumpline.client.consuming.outcomes import Drop, Retry

BatchHandler = Callable[[Batch], Awaitable[object]]
TakeBatch = Callable[[int, float], Awaitable[Batch | None]]
"""The next batch, of at most so many messages, filled for so many seconds; None at the end."""

logger = logging.getLogger("pumpline.client")


class BatchHandling:
    message_type: type[Message] = Message

    def __init__(
        self, handler: BatchHandler, *, size_max: int, wait_s: float, concurrency: int
    ) -> None:
        if size_max < 1:
            raise ValueError("a batch has at least 1 message")
        if not wait_s >= 0:
            raise ValueError("wait_s must not be negative")
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        if not is_coroutine_function(handler):
            raise TypeError("a handler of batches is a coroutine function")
        self._handler = handler
        self._size_max = size_max
        self._wait_s = wait_s
        self._concurrency = concurrency
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_here(self) -> bool:
        """Whether the caller is a handler."""
        try:
            return asyncio.current_task() in self._tasks
        except RuntimeError:  # a thread without an event loop
            return False

    def withdraw_stale(self) -> list[Message]:
        """None: a batch that was taken is begun."""
        return []

    async def run(self, take_batch: TakeBatch) -> None:
        """Until there are no more messages and all are handled."""
        async with asyncio.TaskGroup() as tasks:
            work = (self._work(take_batch) for _ in range(self._concurrency))
            self._tasks = [tasks.create_task(each) for each in work]

    async def _work(self, take_batch: TakeBatch) -> None:
        while (batch := await take_batch(self._size_max, self._wait_s)) is not None:
            try:
                await self._handler(batch)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    batch.requeue(0, backoff=False)
                    raise
                settle_batch(batch, error)  # something the handler waited for was cancelled
            except Exception as error:
                settle_batch(batch, error)
            except BaseException:  # SystemExit, for example: it ends the run
                batch.requeue(0, backoff=False)
                raise
            else:
                batch.finish()
            await asyncio.sleep(0)  # a handler that never waits must not keep the event loop


def settle_batch(batch: Batch, error: BaseException) -> None:
    """Answer the messages of a handler that has raised, but for those that it has answered."""
    if isinstance(error, Retry):
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
