"""What logs, and the daemon around them, need of an event loop: threads and timers."""

from collections.abc import Callable
from typing import Any, Protocol


class Offload(Protocol):
    """Runs `job` in a thread, then `done` with its result or exception on the event loop."""

    def __call__(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None: ...


class Later(Protocol):
    """Calls `callback` on the event loop after a delay."""

    def __call__(self, delay_s: float, callback: Callable[[], None], /) -> object: ...
