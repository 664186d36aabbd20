"""Marks tests by the directory they are in, so that no file there can forget it; the same generated
examples on every run, and no deadline for them; certificates for all who want some."""

import os
import signal
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.kit.certificates import Authority, Identity

TESTS = Path(__file__).parent
MARKED_DIRECTORIES = ("interop", "crash")
SINGLY = ("interop", "crash", "docs")  # tests that share nothing, and take seconds each
SPARK_WORKERS = 2

# A shell lets what it starts in the background ignore this, and with it every daemon we start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    max_examples=100,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "search", settings.get_profile("ci"), derandomize=False, max_examples=1500, print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(TESTS):
            continue
        top = item.path.relative_to(TESTS).parts[0]
        if top in MARKED_DIRECTORIES:
            item.add_marker(top)
        if (group := group_of(item, top)) and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(group))
    if hasattr(config, "workerinput"):
        items.sort(key=_rank)


def group_of(item: pytest.Item, top: str) -> str:
    """Tests of one group run in one worker, one after the other; "" is a test of its own.

    Tests of one file share daemons. All tests that need Spark share two sessions, which take
    10 s each to start.
    """
    path = item.path.relative_to(TESTS).as_posix()
    if "spark" in getattr(item, "fixturenames", ()):
        return f"spark-{1 + zlib.crc32(path.encode()) % SPARK_WORKERS}"
    return "" if top in SINGLY else path


def _rank(item: pytest.Item) -> int:
    """The longest groups begin first, so that no worker is left with one at the end."""
    if "spark" in getattr(item, "fixturenames", ()):
        return 0
    return 1 if item.get_closest_marker("slow") else 2


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def server(authority: Authority) -> Identity:
    return authority.issue("server")
