"""Fixtures of the nsqadmin suite: one cluster a module, names of its own for every test."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.kit.daemons import Nsqd, Nsqlookupd
from tests.kit.nsqadmin.process import Nsqadmin, lookupd_flags
from tests.kit.nsqlookupd.fleet import new_nsqd, new_nsqlookupd, post

_numbers = itertools.count(1)


class Fleet(NamedTuple):
    lookupd: Nsqlookupd
    nsqds: list[Nsqd]
    admin: Nsqadmin

    @property
    def nsqd(self) -> Nsqd:
        return self.nsqds[0]

    def create(self, topic: str, *channels: str) -> None:
        """On every nsqd, and known to nsqadmin."""
        for nsqd in self.nsqds:
            post(nsqd, f"/topic/create?topic={topic}")
            for channel in channels:
                post(nsqd, f"/channel/create?topic={topic}&channel={channel}")
        self.admin.knows_topic(topic, nodes=len(self.nsqds))


@pytest.fixture(scope="module")
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """An nsqlookupd, NSQDS nsqds (2) and an nsqadmin with NSQADMIN_FLAGS."""
    path = tmp_path_factory.mktemp("fleet")
    flags = getattr(request.module, "NSQADMIN_FLAGS", ())
    count = getattr(request.module, "NSQDS", 2)
    with new_nsqlookupd(path / "lookupd") as lookupd:
        nsqds = [new_nsqd(path / f"nsqd{n}", lookupd.tcp_address) for n in range(count)]
        admin = Nsqadmin(path / "admin", [*lookupd_flags([lookupd.http_address]), *flags])
        try:
            for nsqd in nsqds:
                nsqd.start()
            with admin:
                admin.knows(*(nsqd.http_address for nsqd in nsqds))
                yield Fleet(lookupd, nsqds, admin)
        finally:
            for nsqd in nsqds:
                if nsqd.is_running:
                    nsqd.stop()


@pytest.fixture
def admin(fleet: Fleet) -> Nsqadmin:
    return fleet.admin


@pytest.fixture
def topic() -> str:
    return f"topic{next(_numbers)}"
