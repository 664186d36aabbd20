"""What logs, and the daemon around them, need of an event loop: threads and timers."""

from collections.abc import Callable
from typing import Any

# Runs a job in a thread, then calls back with its result or exception, on the event loop.
Offload = Callable[[Callable[[], Any], Callable[[Any], None]], None]

# Calls back on the event loop after a delay in seconds.
Later = Callable[[float, Callable[[], None]], object]
