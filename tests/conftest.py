"""Marks tests by the directory they are in, so that no file there can forget it; the same generated
examples on every run, and no deadline for them; certificates for all who want some."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.kit.certificates import Authority, Identity

TESTS = Path(__file__).parent
MARKED_DIRECTORIES = ("interop", "crash")

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(TESTS):
            continue
        top = item.path.relative_to(TESTS).parts[0]
        if top in MARKED_DIRECTORIES:
            item.add_marker(top)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def server(authority: Authority) -> Identity:
    return authority.issue("server")
