"""SIGINT and SIGTERM while `run` handles messages: the first one stops all consumers that run.

Signals belong to the main thread, so nothing happens in others. A handler that the program has
installed itself is left alone. After the first signal the former handlers are back: a second one
acts as it would without this.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM)


_stops: list[Callable[[], object]] = []
_before: dict[signal.Signals, Any] = {}  # the handlers that are replaced


@contextmanager
def stopping_on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """`stop` is called between any two instructions of the main thread, so it must only ask."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _stops.append(stop)
    if not _before:
        _install()
    try:
        yield
    finally:
        _stops.remove(stop)
        if not _stops:
            _restore()


def _install() -> None:
    for number in NUMBERS:
        former = signal.getsignal(number)
        if _is_default(former):
            _before[number] = former
            signal.signal(number, _on_signal)


def _restore() -> None:
    for number, former in _before.items():
        if signal.getsignal(number) is _on_signal:
            signal.signal(number, former)
    _before.clear()


def _on_signal(number: int, frame: object) -> None:
    _restore()
    for stop in list(_stops):
        stop()


def _is_default(handler: Any) -> bool:
    """Python's own, or that of `asyncio.run`."""
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    function = getattr(handler, "func", None)
    return isinstance(getattr(function, "__self__", None), asyncio.Runner)
