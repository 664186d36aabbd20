"""Functions around a handler: each calls the next one, and sees what that raises.

    async def around(message, call_next):
        ...                        # before
        await call_next(message)   # the handler, or the next function around it
        ...                        # after; what the handler raises passes through here

Around a handler that runs on the event loop they are coroutine functions; around one that runs in
threads they are plain functions, and run in the thread of the handler. Knows no consumer.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from pumpline.client.consuming.message import Message

CallNext = Callable[[Message], Any]
"""Awaitable, if the handler runs on the event loop."""
Around = Callable[[Message, CallNext], object]


def wrapped(handler: CallNext, middleware: Sequence[Around], *, in_threads: bool) -> CallNext:
    """The handler with the functions around it, the first one outermost."""
    for around in middleware:
        if is_coroutine_function(around) == in_threads:
            where, kind = ("in threads", "plain") if in_threads else ("on the event loop", "async")
            text = f"a handler {where} needs {kind} functions as middleware, unlike {around!r}"
            raise TypeError(text)
    call = handler if in_threads else _awaiting(handler)
    for around in reversed(middleware):
        call = _plain_step(around, call) if in_threads else _async_step(around, call)
    return call


def is_coroutine_function(function: object) -> bool:
    """Also an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (an object with an async __call__)
    )


def _awaiting(handler: CallNext) -> CallNext:
    async def call(message: Message) -> None:
        outcome = handler(message)
        if inspect.isawaitable(outcome):
            await outcome

    return call


def _async_step(around: Around, call_next: CallNext) -> CallNext:
    async def call(message: Message) -> None:
        outcome: Any = around(message, call_next)
        await outcome

    return call


def _plain_step(around: Around, call_next: CallNext) -> CallNext:
    return lambda message: around(message, call_next)
