"""The names of this machine, and where they matter."""

import socket
from pathlib import Path

import pytest

from pumpline.web.hosts import answers_any_host, loopback_names, own_hosts
from pumpline.web.sockets import ListeningSockets

HOSTS_FILE = """
127.0.0.1 localhost
127.0.1.1\tnode-7.example node-7  # as Debian writes it
::1 ip6-localhost ip6-loopback
# 127.0.0.1 commented.example
10.0.0.1 other.example
no-address names.example
127.0.0.1
"""


def test_names_that_the_hosts_file_gives_to_loopback_addresses(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(HOSTS_FILE, encoding="ascii")
    names = "localhost node-7.example node-7 ip6-localhost ip6-loopback"
    assert loopback_names(str(path)) == names.split()
    assert loopback_names(str(tmp_path / "absent")) == []


def test_own_hosts() -> None:
    own = own_hosts("told.example", "")
    for host in (socket.gethostname(), "TOLD.example.:80", "a.localhost", "::1", "[::1]:80"):
        assert own.has(host), host
    for host in ("", "example", "evil.told.example", "1.2.3", "0x7f000001", "2130706433"):
        assert not own.has(host), host


@pytest.mark.parametrize(
    ("address", "told", "any_host"),
    [
        ("127.0.0.1:0", [], False),
        ("localhost:0", [], False),
        ("127.0.0.1:0", ["a"], False),
        ("0.0.0.0:0", [], True),
        (":0", [], True),
        ("0.0.0.0:0", ["a"], False),
        ("{path}", ["a"], True),
    ],
)
def test_where_any_name_is_answered(
    tmp_path: Path, address: str, told: list[str], any_host: bool
) -> None:
    address = address.format(path=tmp_path / "socket")
    sockets = ListeningSockets("test", {"HTTP": address}, unix_allowed=True)
    try:
        assert answers_any_host(sockets.by_name["HTTP"], told) is any_host
    finally:
        sockets.close()
