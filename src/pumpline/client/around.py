"""The hook for middleware: coroutine functions around a publish, or around the call of a handler.

    async def around(message, call_next):
        ...                        # before
        await call_next(message)   # the handler, or the next function around it
        ...                        # after; what the handler raises passes through here

Around a handler that runs in threads they run in the handler's thread, without an event loop: they
may block, and must await nothing but `call_next`. Knows neither producers nor consumers.
"""

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

CallNext = Callable[[T], Awaitable[object]]
Around = Callable[[T, CallNext[T]], Awaitable[object]]


def surrounded(
    innermost: Callable[[T], Coroutine[Any, Any, None]], middleware: Sequence[Around[T]]
) -> Callable[[T], Coroutine[Any, Any, None]]:
    """The function with others around it, the first one outermost."""
    call = innermost
    for around in reversed(middleware):
        if not is_coroutine_function(around):
            raise TypeError(f"middleware is `async def around(message, call_next)`, not {around!r}")
        call = _step(around, call)
    return call


def in_thread(call: Callable[[T], Coroutine[Any, Any, None]]) -> Callable[[T], None]:
    """A plain function that runs the coroutine to its end, without an event loop."""

    def run(subject: T) -> None:
        coroutine = call(subject)
        try:
            coroutine.send(None)
        except StopIteration:
            return
        coroutine.close()
        raise TypeError("middleware around a handler in threads can await nothing but call_next")

    return run


def is_coroutine_function(function: object) -> bool:
    """Also an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (an object with an async __call__)
    )


def _step(around: Around[T], call_next: CallNext[T]) -> Callable[[T], Coroutine[Any, Any, None]]:
    async def call(subject: T) -> None:
        await around(subject, call_next)

    return call
