"""Rounds of a fuzz test: with fixed seeds in the suite, with fresh ones and a time limit in soak.

Every test here takes `rounds` and calls it with a function of a random generator. Two tests come of
it: `fixed` plays the seeds in the module's SEEDS, `fresh` (marked soak) plays new ones until its
share of FUZZ_SECONDS is over. A failure names its seed; FUZZ_SEED plays that one and no other.
"""

import os
import random
import secrets
import time
from collections.abc import Callable, Iterator

import pytest

SECONDS_VARIABLE = "FUZZ_SECONDS"
SECONDS_DEFAULT = 600.0
SEED_VARIABLE = "FUZZ_SEED"
SEED_BITS = 32
SHARE_S_MAX = 240.0  # of one test: pytest cuts off what takes 600 s

FIXED, FRESH = "fixed", "fresh"

Play = Callable[[random.Random], None]

_fresh_tests = pytest.StashKey[int]()


class Rounds:
    def __init__(self, seeds: Iterator[int]) -> None:
        self._seeds = seeds
        self.count = 0

    def __call__(self, play: Play) -> None:
        for seed in self._seeds:
            self.count += 1
            try:
                play(random.Random(seed))
            except BaseException as error:
                error.add_note(f"seed {seed}: again with {SEED_VARIABLE}={seed}")
                raise


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "rounds" in metafunc.fixturenames:
        fresh = pytest.param(FRESH, marks=pytest.mark.soak)
        metafunc.parametrize("rounds", [FIXED, fresh], indirect=True)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fresh rounds share the time; those that were not selected want none."""
    session.config.stash[_fresh_tests] = sum(map(_is_fresh, session.items))


def _is_fresh(item: pytest.Item) -> bool:
    return (
        isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and (item.callspec.params.get("rounds") == FRESH)
    )


@pytest.fixture
def rounds(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Iterator[Rounds]:
    given = os.environ.get(SEED_VARIABLE)
    if given:
        yield Rounds(iter([int(given)]))
        return
    if request.param == FIXED:
        yield Rounds(iter(request.module.SEEDS))
        return
    first = secrets.randbits(SEED_BITS)
    total_s = float(os.environ.get(SECONDS_VARIABLE) or SECONDS_DEFAULT)
    share_s = min(total_s / request.config.stash[_fresh_tests], SHARE_S_MAX)
    played = Rounds(_fresh_seeds(first, share_s))
    yield played
    with capsys.disabled():
        print(f"\n{request.node.name}: {played.count} rounds, seeds from {first} on")


def _fresh_seeds(first: int, seconds: float) -> Iterator[int]:
    """At least one seed."""
    end_s = time.monotonic() + seconds
    seed = first
    while seed == first or time.monotonic() < end_s:
        yield seed
        seed += 1
