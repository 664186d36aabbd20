"""One nsqd for all interop tests, and a fresh client process for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.interop.client_process import ClientProcess, missing_requirement

NAME_CHARS_MAX = 64  # of a topic


@pytest.fixture(scope="session")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("nsqd") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def impatient_nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """Has a default message timeout of 1 s, for the client that cannot ask for one."""
    data_path = tmp_path_factory.mktemp("impatient_nsqd") / "data"
    with Nsqd(data_path, ["--msg-timeout=1s"]) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest, client_name: str) -> str:
    behaviour = request.function.__name__.removeprefix("test_")
    return f"{client_name}.{behaviour}"[:NAME_CHARS_MAX]


@pytest.fixture
def client(client_name: str, nsqd: Nsqd, tmp_path: Path) -> Iterator[ClientProcess]:
    yield from _running(client_name, nsqd, tmp_path)


@pytest.fixture
def impatient_client(
    client_name: str, impatient_nsqd: Nsqd, tmp_path: Path
) -> Iterator[ClientProcess]:
    yield from _running(client_name, impatient_nsqd, tmp_path)


def _running(client_name: str, nsqd: Nsqd, tmp_path: Path) -> Iterator[ClientProcess]:
    if reason := missing_requirement(client_name):
        pytest.skip(reason)
    process = ClientProcess(client_name, nsqd.tcp_address, tmp_path / "client.stderr")
    try:
        yield process
    finally:
        process.kill()
