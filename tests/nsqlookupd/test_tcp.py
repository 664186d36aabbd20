"""Registering over TCP: replies, errors, and what becomes of a connection that ends."""

import socket
import struct

import pytest

from tests.kit.daemons import Nsqlookupd, wait_until
from tests.kit.nsqlookupd.peer import OK, Peer, identify
from tests.nsqlookupd.conftest import Connect, Get

NSQLOOKUPD_FLAGS = ["--broadcast-address=lookup.example"]


def addresses(get: Get, topic: str) -> list[str]:
    return [producer["remote_address"] for producer in get(f"/lookup?topic={topic}")["producers"]]


def test_identify_is_answered_with_the_daemons_own_addresses(
    nsqlookupd: Nsqlookupd, connect: Connect
) -> None:
    peer = connect()
    peer.send(identify())
    assert peer.read_reply().decode() == (
        f'{{"broadcast_address":"lookup.example","hostname":"{socket.gethostname()}",'
        f'"http_port":{nsqlookupd.http_port},"tcp_port":{nsqlookupd.tcp_port},"version":"1.3.0"}}'
    )


def test_a_registered_channel_is_found(connect: Connect, get: Get, topic: str) -> None:
    peer = connect()
    peer.identify()
    peer.register(topic, "c")
    assert get(f"/lookup?topic={topic}")["channels"] == ["c"]
    assert addresses(get, topic) == [peer.address]


def test_commands_sent_at_once_are_answered_in_order(connect: Connect) -> None:
    peer = connect()
    peer.send(b"PING\n" + identify() + b"REGISTER a b\nPING\nUNREGISTER a\n")
    assert peer.read_reply() == OK
    assert peer.read_reply().startswith(b"{")
    assert [peer.read_reply() for _ in range(3)] == [OK, OK, OK]


def test_unregistering_a_channel_keeps_the_node_on_the_topic(
    connect: Connect, get: Get, topic: str
) -> None:
    peer = connect()
    peer.identify()
    peer.register(topic, "c")
    peer.unregister(topic, "c")
    assert addresses(get, topic) == [peer.address]
    peer.unregister(topic)
    assert addresses(get, topic) == []
    assert get(f"/channels?topic={topic}") == {"channels": ["c"]}


def test_a_closed_connection_takes_its_node_away(connect: Connect, get: Get, topic: str) -> None:
    peer = connect()
    peer.identify()
    peer.register(topic, "c")
    peer.close()
    wait_until(lambda: addresses(get, topic) == [])
    assert get(f"/lookup?topic={topic}") == {"channels": ["c"], "producers": []}


def test_an_error_takes_the_node_away_before_the_client_hangs_up(
    connect: Connect, get: Get, topic: str
) -> None:
    peer = connect()
    peer.identify()
    peer.register(topic)
    assert peer.ask("NO") == b"E_INVALID invalid command NO"
    assert addresses(get, topic) == []
    assert peer.read_rest() == b""


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"REGISTER t c\n", b"E_INVALID client must IDENTIFY"),
        (b"\xff\n", b"E_INVALID invalid command \xff"),
        pytest.param(
            b"IDENTIFY\n" + struct.pack(">i", -1),
            b"E_BAD_BODY IDENTIFY invalid body size -1",
            marks=pytest.mark.deviation,
        ),
        pytest.param(
            b"IDENTIFY\n" + struct.pack(">i", 2**31 - 1),
            b"E_BAD_BODY IDENTIFY body too big 2147483647 > 1048576",
            marks=pytest.mark.deviation,
        ),
        pytest.param(b"x" * 4096, b"E_INVALID line too long > 4096", marks=pytest.mark.deviation),
        (identify(tcp_port=0), b"E_BAD_BODY IDENTIFY missing fields"),
    ],
)
def test_an_error_is_sent_and_ends_the_connection_and_nothing_else(
    connect: Connect, data: bytes, error: bytes
) -> None:
    bystander, peer = connect(), connect()
    peer.send(data)
    assert peer.read_reply() == error
    assert peer.read_rest() == b""
    assert bystander.ask("PING") == OK


@pytest.mark.deviation
def test_an_error_is_seen_by_a_client_that_goes_on_sending(connect: Connect) -> None:
    peer = connect()
    peer.send(b"IDENTIFY\n" + struct.pack(">i", 8 * 1024 * 1024) + b"x" * (1024 * 1024))
    assert peer.read_reply().startswith(b"E_BAD_BODY IDENTIFY body too big 8388608 >")


def test_another_protocol_is_refused(connect: Connect) -> None:
    peer = connect(magic=b"  V2")
    assert peer.read_reply() == b"E_BAD_PROTOCOL"
    assert peer.read_rest() == b""


def test_a_body_cut_short_is_told_to_a_client_that_still_listens(connect: Connect) -> None:
    peer = connect()
    peer.send(b"IDENTIFY\n\0\0\0\5{}")
    peer.finish()
    assert peer.read_reply() == b"E_BAD_BODY IDENTIFY failed to read body"
    assert peer.read_rest() == b""


def test_a_half_closed_connection_gets_its_replies_and_ends(connect: Connect) -> None:
    peer = connect()
    peer.send(b"PING\nPING\nPIN")
    peer.finish()
    assert [peer.read_reply(), peer.read_reply(), peer.read_rest()] == [OK, OK, b""]


def test_many_replies_that_nobody_reads_do_not_stop_others(connect: Connect) -> None:
    deaf, other = connect(), connect()
    deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.socket.settimeout(0.5)
    with pytest.raises(TimeoutError):  # it is no longer read from
        for _ in range(10_000):
            deaf.send(b"PING\n" * 2000)
    assert other.ask("PING") == OK


@pytest.mark.deviation
def test_what_strangers_send_stays_on_one_log_line(
    nsqlookupd: Nsqlookupd, connect: Connect
) -> None:
    connect().ask("forged\r[nsqlookupd]\x1b[0m")
    peer = connect()
    peer.identify(version="1\nforged")
    lines = wait_until(
        lambda: [line for line in nsqlookupd.log_text().split("\n") if "forged" in line]
    )
    assert all(line.startswith("[nsqlookupd] 2") and line.isprintable() for line in lines)


@pytest.mark.deviation
def test_connections_over_the_limit_are_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    log_path = tmp_path_factory.mktemp("limited") / "stderr"
    with (
        Nsqlookupd(log_path, ["--max-connections=1"]) as daemon,
        Peer(daemon.tcp_port) as first,
    ):
        assert first.ask("PING") == OK
        with pytest.raises((EOFError, ConnectionError)), Peer(daemon.tcp_port) as second:
            second.ask("PING")
        assert "refused client(" in daemon.log_text()
        first.close()

        def admitted() -> bool:
            try:
                with Peer(daemon.tcp_port) as third:
                    return third.ask("PING") == OK
            except (EOFError, ConnectionError):
                return False

        assert wait_until(admitted)
