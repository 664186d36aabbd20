"""The protocol over a unix stream socket: an address that is no host:port is a path."""

import socket
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd, RawClient, wait_until
from tests.kit.wire.commands import MAGIC, pub
from tests.kit.wire.session import FRAME_TIMEOUT_S, OK, Session


class UnixClient(RawClient):
    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(FRAME_TIMEOUT_S)
        self.socket.connect(str(path))
        self._received = bytearray()
        self._messages = deque()
        self.send(MAGIC)


class UnixNsqd(Nsqd):
    """An nsqd whose TCP door is a socket file; the later of two addresses given counts."""

    def __init__(self, data_path: Path) -> None:
        self.socket_path = data_path.with_name("s")
        super().__init__(data_path, [f"--tcp-address={self.socket_path}"])

    def listening_port(self, service: str) -> int:
        if service != "TCP":
            return super().listening_port(service)
        wait_until(self.socket_path.exists)
        return 0


@pytest.fixture
def unix_nsqd(tmp_path: Path) -> Iterator[UnixNsqd]:
    with UnixNsqd(tmp_path / "data") as daemon:
        yield daemon


def test_publish_and_consume_over_a_unix_socket(unix_nsqd: UnixNsqd, topic: str) -> None:
    producer = Session(UnixClient(unix_nsqd.socket_path))
    consumer = Session(UnixClient(unix_nsqd.socket_path))
    consumer.subscribe(topic, "ch", ready=2)
    assert producer.request(pub(topic, b"one")) == OK
    assert producer.request(pub(topic, b"two")) == OK
    assert [message.body for message in consumer.messages(2)] == [b"one", b"two"]
    # Two clients without an address each: both must be told apart and counted.
    assert unix_nsqd.channel_stats(topic, "ch")["client_count"] == 1
    status, info = unix_nsqd.http("GET", "/info")
    assert status == 200
    assert b'"tcp_port":-1' in info
    producer.close()
    consumer.close()


def test_error_over_a_unix_socket(unix_nsqd: UnixNsqd) -> None:
    session = Session(UnixClient(unix_nsqd.socket_path))
    session.send(b"BAD\n")
    assert session.until_closed() == [(1, b"E_INVALID invalid command BAD")]
    session.close()
