"""Every protocol error: its exact text, and whether the connection outlives it."""

import pytest

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.wire.admin import topic_stats
from tests.kit.wire.commands import dpub, identify, mpub, mpub_body, pub
from tests.kit.wire.error_rows import LIMIT_FLAGS, ROWS, STAYS, Row
from tests.kit.wire.session import OK, Connect
from tests.kit.wire.web import ask

NSQD_FLAGS = LIMIT_FLAGS


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_error_row(row: Row, connect: Connect, topic: str) -> None:
    session = connect()
    session.send(row.send.replace(b"{t}", topic.encode()))
    if row.half_close:
        session.half_close()
    if row.after == STAYS:
        assert session.frames(len(row.frames)) == list(row.frames)
        assert session.request(pub(topic, b"still here")) == OK
    else:
        assert session.until_closed() == list(row.frames)


def test_row_names_are_unique() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_commands_after_a_fatal_error_are_not_run(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    session.send(pub(topic, b"before"), b"BAD\n", pub(topic, b"after"))
    assert session.until_closed() == [OK, (1, b"E_INVALID invalid command BAD")]
    assert topic_stats(nsqd, topic)["message_count"] == 1


def test_fatal_error_leaves_other_connections_alone(connect: Connect, topic: str) -> None:
    bystander, offender = connect(), connect()
    bystander.subscribe(topic, "ch", ready=1)
    offender.send(b"BAD\n")
    offender.until_closed()
    bystander.send(pub(topic, b"x"))
    assert sorted(frame.type for frame in bystander.frames(2)) == [0, 2]


def test_soft_errors_keep_their_place_among_responses(connect: Connect, topic: str) -> None:
    session = connect()
    session.subscribe(topic, "ch")
    unknown = b"FIN 0000000000000000\n"
    session.send(unknown, pub(topic, b"a"), unknown, mpub(topic, [b"b"]), unknown)
    assert [frame.type for frame in session.frames(5)] == [1, 0, 1, 0, 1]


def test_rdy_at_the_limit_is_allowed(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    session.subscribe(topic, "ch", ready=50)
    assert session.before_barrier() == []
    (client,) = nsqd.channel_stats(topic, "ch")["clients"]
    assert client["ready_count"] == 50


def test_mpub_count_at_the_most_a_body_can_hold_is_allowed(connect: Connect, topic: str) -> None:
    assert connect().request(mpub(topic, [b"x"] * 999)) == OK


def test_bodies_at_the_limits_are_allowed(connect: Connect, topic: str) -> None:
    session = connect()
    assert session.request(pub(topic, b"x" * 1000)) == OK
    batch = [b"x" * 995] * 4 + [b"x" * 996]
    assert len(mpub_body(batch)) == 5000
    assert session.request(mpub(topic, batch)) == OK
    assert session.request(identify(b"{}".ljust(5000))) == OK


def test_dpub_delay_at_the_limit_is_allowed(connect: Connect, topic: str) -> None:
    assert connect().request(dpub(topic, 10000, b"x")) == OK


@pytest.mark.deviation
def test_no_client_forges_a_log_line(connect: Connect, nsqd: Nsqd) -> None:
    for line in (b"forged\r[nsqd]\x1b[0m\n", b"forged\xff\x00\x7f\xe2\x80\xa8\n"):
        connect().send(line)
    put = ask(nsqd, "PUT", "/config/nsqlookupd_tcp_addresses", b'["forged\\n[nsqd] x:1"]')
    assert put.status == 200
    assert ask(nsqd, "PUT", "/config/nsqlookupd_tcp_addresses", b"[]").status == 200
    connect().send(b"FORGED " + b"x" * 5000 + b"\n")
    wait_until(lambda: "invalid command FORGED" in nsqd.log_text())
    lines = [line for line in nsqd.log_text().split("\n") if "forged" in line.lower()]
    assert len(lines) >= 4
    assert all(line.startswith("[nsqd] 2") and line.isprintable() for line in lines)
    assert max(map(len, lines)) < 500
