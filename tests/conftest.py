"""For all suites: marks by directory, groups for parallel runs, hypothesis settings, certificates.

Directories set the marks, so that no file can forget its own. Hypothesis generates the same
examples in every run, and sets no deadline for them.
"""

import itertools
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.kit.certificates import Authority, Identity

TESTS = Path(__file__).parent
MARKED_DIRECTORIES = ("interop", "crash")
# With xdist, tests of one group run in one worker, one after the other: those of one file, which
# share daemons, and those with a Spark session, of which there are two, because each takes 10 s to
# start. Tests in these directories share little, and take seconds each: any worker takes any.
SINGLY = ("interop", "crash", "docs")
SPARK_SESSIONS = 2

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
    for path, group in itertools.groupby(items, lambda item: item.path):
        if path.is_relative_to(TESTS):
            _mark(list(group), path.relative_to(TESTS))
    # One after the other to each session, so that both have as much to do.
    for number, item in enumerate(filter(_needs_spark, items)):
        item.add_marker(pytest.mark.xdist_group(f"spark-{number % SPARK_SESSIONS}"))
    if hasattr(config, "workerinput"):
        items.sort(key=_rank)


def _mark(items: list[pytest.Item], path: Path) -> None:
    """What all tests of one file get."""
    top = path.parts[0]
    for item in items:
        if top in MARKED_DIRECTORIES:
            item.add_marker(top)
        if top not in SINGLY and not _needs_spark(item):
            item.add_marker(pytest.mark.xdist_group(path.as_posix()))


def _needs_spark(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ())


def _rank(item: pytest.Item) -> int:
    """The longest groups begin first, so that no worker is left with one at the end."""
    if _needs_spark(item):
        return 0
    return 1 if item.get_closest_marker("slow") else 2


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def server(authority: Authority) -> Identity:
    return authority.issue("server")
