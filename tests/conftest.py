"""For all suites: marks by directory, the order of parallel runs, hypothesis, certificates.

Directories set the marks, so that no file can forget its own. Hypothesis generates the same
examples in every run, and sets no deadline for them.
"""

import gc
import itertools
import logging
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.kit.certificates import Authority, Identity
from tests.kit.groups import Groups

TESTS = Path(__file__).parent
MARKED = ("interop", "crash")
SHORT = ("property", "unit")

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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without garbage collection, which finds nothing to free before the end of this."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for path, of_file in itertools.groupby(items, lambda item: item.path):
        if path.is_relative_to(TESTS) and (top := path.relative_to(TESTS).parts[0]) in MARKED:
            for item in of_file:
                item.add_marker(top)
    if hasattr(config, "workerinput"):
        items.sort(key=_rank)


def pytest_collection_finish() -> None:
    """What was collected stays to the end: without this, each collection of garbage looks at the
    half gigabyte of it again, and the tests that ask for one take a second."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """What a file imported and cached stays, too. The garbage it made is freed first."""
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            gc.collect()
            gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


def _rank(item: pytest.Item) -> int:
    """The longest groups begin first, so that no worker is left with one at the end; last are the
    suites that start no daemons, whose files take a second or two."""
    if "spark" in getattr(item, "fixturenames", ()):
        return 0
    if item.get_closest_marker("slow"):
        return 1
    return 3 if item.path.relative_to(TESTS).parts[0] in SHORT else 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Groups:
    config.option.loadscopereorder = False  # the order is that of _rank
    return Groups(config, log)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command that runs in the test's process sets up logging, and so does Spark. What the next
    test captures must not depend on that. Spark's loggers write every handler's lines as JSON, and
    pytest adds its own handlers to each logger that does not propagate."""
    root, ours = logging.getLogger(), logging.getLogger("pumpline")
    handlers, level, our_level = list(root.handlers), root.level, ours.level
    formatters = [handler.formatter for handler in handlers]
    yield
    root.setLevel(level)
    ours.setLevel(our_level)
    root.handlers[:] = handlers
    for logger in logging.Logger.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.propagate = True
    for handler, formatter in zip(handlers, formatters, strict=True):
        handler.setFormatter(formatter)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def server(authority: Authority) -> Identity:
    return authority.issue("server")
