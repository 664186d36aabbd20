"""Addresses: read as given, written as one word."""

import pytest

from pumpline.core.text.addresses import is_path, join_address, split_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:4150", "127.0.0.1", 4150),
        (":4150", "", 4150),
        ("host:0", "host", 0),
        ("[::1]:65535", "::1", 65535),
        ("::1:1", "::1", 1),
    ],
)
def test_host_and_port(text: str, host: str, port: int) -> None:
    assert split_address(text) == (host, port)
    assert not is_path(text)


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:-1", "host:65536", "h:١"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an <addr>:<port>"):
        split_address(text)


@pytest.mark.parametrize("text", ["/run/nsqd.sock", "nsqd.sock", "a:b", ""])
def test_whatever_does_not_end_in_a_port_is_a_path(text: str) -> None:
    assert is_path(text)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (("127.0.0.1", 1), "127.0.0.1:1"),
        (("::1", 1, 0, 0), "[::1]:1"),
        ("/run/nsqd.sock", "/run/nsqd.sock"),
        (None, ""),
    ],
)
def test_names_of_sockets_are_shown(name: object, shown: str) -> None:
    assert join_address(name) == shown
