"""Fixtures of the lookup suite: one daemon a module, names of its own for every test.

A module that needs flags says so in NSQLOOKUPD_FLAGS. Tests of behaviour in which this nsqlookupd
differs from the original on purpose carry the `deviation` marker.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.kit.daemons import Nsqlookupd
from tests.kit.nsqlookupd.peer import MAGIC, Peer

_numbers = itertools.count(1)

Connect = Callable[..., Peer]
Get = Callable[[str], Any]


@pytest.fixture(scope="module")
def nsqlookupd(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nsqlookupd]:
    flags = getattr(request.module, "NSQLOOKUPD_FLAGS", ())
    with Nsqlookupd(tmp_path_factory.mktemp("nsqlookupd") / "stderr", flags) as daemon:
        yield daemon


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


@pytest.fixture
def connect(nsqlookupd: Nsqlookupd) -> Iterator[Connect]:
    """Opens connections to the module's daemon, and closes them after the test."""
    peers: list[Peer] = []

    def open_peer(magic: bytes = MAGIC) -> Peer:
        peers.append(Peer(nsqlookupd.tcp_port, magic))
        return peers[-1]

    yield open_peer
    for peer in peers:
        peer.close()


@pytest.fixture
def get(nsqlookupd: Nsqlookupd) -> Get:
    """What a GET answers, which must be JSON of a success."""

    def ask(path: str) -> Any:
        status, body = nsqlookupd.http("GET", path)
        assert status == 200, (path, status, body)
        return json.loads(body)

    return ask
