"""Functions that `run` calls before the first message and after the last one."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

Hook = Callable[[], Awaitable[object] | object]


class RunHooks:
    def __init__(self) -> None:
        self.on_start: list[Hook] = []
        self.on_stop: list[Hook] = []

    @asynccontextmanager
    async def around(self) -> AsyncIterator[None]:
        """on_start in the order in which they were added; then on_stop in the reverse order, all of
        them, also if something has failed."""
        async with AsyncExitStack() as stack:
            for hook in self.on_stop:
                stack.push_async_callback(_call, hook)
            for hook in self.on_start:
                await _call(hook)
            yield


async def _call(hook: Hook) -> None:
    outcome = hook()
    if inspect.isawaitable(outcome):
        await outcome
