"""An address of the wrong kind: one sentence says what it is, and what to use."""

import pytest

from pumpline.testing import LocalNsqd, LocalNsqlookupd
from tests.kit.tools.verbs import Pumpline

NSQD_TCP = "this is the TCP port of an nsqd: use its HTTP port, often 4151"
LOOKUPD_TCP = "this is the TCP port of an nsqlookupd: use its HTTP port, often 4161"


@pytest.mark.parametrize("command", [["topics"], ["channels", "orders"], ["pub", "orders", "hi"]])
def test_a_port_of_the_wrong_kind_is_named(pumpline: Pumpline, command: list[str]) -> None:
    with LocalNsqlookupd() as lookupd, LocalNsqd() as nsqd:
        mistakes = [
            ("--lookupd", nsqd.http_address, "this is an nsqd: use --nsqd"),
            ("--lookupd", nsqd.tcp_address, NSQD_TCP),
            ("--lookupd", lookupd.tcp_address, LOOKUPD_TCP),
            ("--nsqd", lookupd.http_address, "this is an nsqlookupd: use --lookupd"),
            ("--nsqd", nsqd.tcp_address, NSQD_TCP),
            ("--nsqd", lookupd.tcp_address, LOOKUPD_TCP),
        ]
        for flag, address, said in mistakes:
            done = pumpline(*command, flag, address)
            assert done.code == 1
            assert f"{address}: {said}" in done.err
            assert "NOT_FOUND" not in done.err


def test_what_an_nsqd_does_not_have_is_no_mistake(pumpline: Pumpline) -> None:
    with LocalNsqd() as nsqd:
        done = pumpline("channels", "orders", "--nsqd", nsqd.http_address)
    assert "use --lookupd" not in done.err
