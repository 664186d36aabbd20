"""On which event loops the tests of the HTTP server run."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Odd clients meet both."""
    factories = {"asyncio": asyncio.new_event_loop}
    if item.path.name == "test_odd_clients.py":
        factories["uvloop"] = uvloop.new_event_loop
    return factories
