"""Fixtures of the crash suite: daemons that are killed when the test ends, and seeds.

Seeds are fixed, so that a run can be repeated; PUMPLINE_CRASH_SEED replaces them with another.
The seed is part of a test's name, and so of every report of its failure.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kit.crash.killable_nsqd import KillableNsqd

SEED_VARIABLE = "PUMPLINE_CRASH_SEED"

NewNsqd = Callable[..., KillableNsqd]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        given = os.environ.get(SEED_VARIABLE)
        seeds = [int(given)] if given else getattr(metafunc.module, "SEEDS", (1,))
        metafunc.parametrize("seed", seeds, ids=lambda seed: f"seed={seed}")


@pytest.fixture
def new_nsqd(tmp_path: Path) -> Iterator[NewNsqd]:
    """Makes daemons on the test's own data directory; not started yet."""
    with ExitStack() as stack:

        def make(*flags: str, data_path: Path | None = None) -> KillableNsqd:
            nsqd = KillableNsqd(data_path or tmp_path / "data", flags)
            stack.callback(nsqd.__exit__)
            return nsqd

        yield make
