"""On which event loops the tests of the HTTP server run."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What transports do differently is tested on both."""
    factories = {"asyncio": asyncio.new_event_loop}
    if item.path.name in ("test_odd_clients.py", "test_unsent.py", "test_file_stream.py"):
        factories["uvloop"] = uvloop.new_event_loop
    return factories
