"""nsqds for the client's tests: real processes, one of each kind for all tests that want it."""

from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.kit.client.owner import Owner
from tests.kit.daemons import Nsqd
from tests.kit.proxy import Proxy

_topics = count()


@pytest.fixture(scope="session")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("client") / "data") as running:
        yield running


@pytest.fixture
def own_nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    """One that the test may kill."""
    with Nsqd(tmp_path / "data") as running:
        yield running


@pytest.fixture
async def proxy(nsqd: Nsqd) -> AsyncIterator[Proxy]:
    async with Proxy(nsqd.tcp_port) as running:
        yield running


@pytest.fixture
def topic() -> str:
    """A name no other test has."""
    return f"client_{next(_topics)}"


@pytest.fixture
async def owner() -> Owner:
    return Owner()
