"""nsqds for the tools' tests: real processes, one for all tests that do not kill it."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd

_topics = count()


@pytest.fixture(scope="session")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("tools") / "data") as running:
        yield running


@pytest.fixture
def own_nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    """One that the test may kill."""
    with Nsqd(tmp_path / "data") as running:
        yield running


@pytest.fixture
def topic() -> str:
    """A name no other test has."""
    return f"tools_{next(_topics)}"
