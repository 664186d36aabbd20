"""Fixtures of commands: pumpline itself, and nsqds to try it on."""

from collections.abc import Iterator

import pytest

from pumpline.testing import LocalNsqd, LocalNsqlookupd
from tests.kit.daemons import wait_until
from tests.kit.tools.verbs import Fleet, Pumpline

VARIABLES = ("PUMPLINE_NSQD", "PUMPLINE_LOOKUPD", "PUMPLINE_TOKEN_FILE", "PUMPLINE_CONTEXT")


@pytest.fixture
def pumpline(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Pumpline:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    return Pumpline(capsys)


@pytest.fixture
def nsqd(monkeypatch: pytest.MonkeyPatch, pumpline: Pumpline) -> Iterator[LocalNsqd]:
    """The one that is asked when no flag says otherwise."""
    with LocalNsqd() as daemon:
        monkeypatch.setenv("PUMPLINE_NSQD", daemon.http_address)
        yield daemon


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch, pumpline: Pumpline) -> Iterator[Fleet]:
    """Two nsqds that an nsqlookupd knows, which is asked when no flag says otherwise."""
    with LocalNsqlookupd() as lookupd:
        flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
        with LocalNsqd(flag) as one, LocalNsqd(flag) as two:
            wait_until(lambda: lookupd.get("/nodes").count(b'"http_port"') == 2)
            monkeypatch.setenv("PUMPLINE_LOOKUPD", lookupd.http_address)
            yield Fleet(lookupd, one, two)
