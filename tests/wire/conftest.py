"""Fixtures of the wire suite: one daemon a module, names of its own for every test.

A module that needs flags says so in NSQD_FLAGS. Tests of behaviour in which this nsqd differs
from the original on purpose carry the `deviation` marker: deselect them (-m "not deviation") to
check the suite itself against the original.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd, RawClient
from tests.kit.wire.session import Connect, Session

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def nsqd(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nsqd]:
    flags = getattr(request.module, "NSQD_FLAGS", ())
    with Nsqd(tmp_path_factory.mktemp("nsqd") / "data", flags) as daemon:
        yield daemon


@pytest.fixture
def own_nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    """A daemon that a test may stop, kill and restart; not started yet."""
    daemon = Nsqd(tmp_path / "data")
    yield daemon
    if daemon.is_running:
        daemon.kill()


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Opens sessions to the module's daemon, or to the one given; closes them after the test."""
    sessions: list[Session] = []

    def open_session(daemon: Nsqd | None = None, *, magic: bytes = b"  V2") -> Session:
        target: Nsqd = daemon or request.getfixturevalue("nsqd")
        sessions.append(Session(RawClient(target.tcp_port, magic)))
        return sessions[-1]

    yield open_session
    for session in sessions:
        session.close()
