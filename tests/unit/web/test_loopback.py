"""What is sent within one machine is not paced, whatever the system's congestion control is."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from pumpline.web.loopback import unpace

CONGESTION = getattr(socket, "TCP_CONGESTION", None)
NAME_BYTES = 16

pytestmark = pytest.mark.skipif(CONGESTION is None, reason="this system has no TCP_CONGESTION")


def congestion_control(connection: socket.socket) -> str:
    assert CONGESTION is not None
    name = connection.getsockopt(socket.IPPROTO_TCP, CONGESTION, NAME_BYTES)
    return name.rstrip(b"\0").decode()


@pytest.fixture(params=[(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["v4", "v6"])
def connection(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family, host = request.param
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with closing(listener), socket.create_connection(listener.getsockname()[:2]) as connected:
        yield connected


def test_a_connection_within_the_machine_is_not_paced(connection: socket.socket) -> None:
    unpace(connection.fileno(), connection.getpeername()[0])
    assert congestion_control(connection) == "reno"
    os.fstat(connection.fileno())  # it is still open


@pytest.mark.parametrize("host", ["192.0.2.7", "2001:db8::7", "", "somewhere", "/run/nsqd.sock"])
def test_others_stay_as_the_system_has_them(connection: socket.socket, host: str) -> None:
    before = congestion_control(connection)
    unpace(connection.fileno(), host)
    assert congestion_control(connection) == before


def test_an_ipv4_client_of_a_socket_that_takes_both_kinds() -> None:
    try:
        listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    except (OSError, ValueError):
        pytest.skip("this machine has no socket that takes both kinds")
    port = listener.getsockname()[1]
    with closing(listener), socket.create_connection(("127.0.0.1", port)):
        accepted, peer = listener.accept()
        with closing(accepted):
            assert peer[0] == "::ffff:127.0.0.1"
            unpace(accepted.fileno(), peer[0])
            assert congestion_control(accepted) == "reno"


def test_a_socket_that_is_no_tcp_socket_is_left_alone() -> None:
    ours, other = socket.socketpair()
    with closing(ours), closing(other):
        unpace(ours.fileno(), "127.0.0.1")
        ours.sendall(b"x")
        assert other.recv(1) == b"x"
