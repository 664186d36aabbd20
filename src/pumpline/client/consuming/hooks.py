"""Functions that `run` calls before the first message and after the last one."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager

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

    @contextmanager
    def around_in_thread(self) -> Iterator[None]:
        """The same for plain functions, without an event loop."""
        with ExitStack() as stack:
            for hook in self.on_stop:
                stack.callback(hook)
            for hook in self.on_start:
                hook()
            yield


async def _call(hook: Hook) -> None:
    outcome = hook()
    if inspect.isawaitable(outcome):
        await outcome
