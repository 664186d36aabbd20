"""Connections that end in the middle of something large, thousands of them: nsqd has no more than
100 MB (`kit/fuzz/watch.py`) more afterwards than before."""

import socket
from collections.abc import Iterator

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.fuzz.watch import Watch
from tests.kit.wire.commands import MAGIC, identify, mpub

CONNECTIONS = 2000
WARM_UP = 100  # connections, until caches and buffers are what they stay
PATIENCE_S = 60.0

MPUB = MAGIC + mpub("t", [bytes(100_000)] * 10)[:-1]
IDENTIFY = MAGIC + identify({"user_agent": "x" * 5_000_000})
REQUEST = b"POST /mpub?topic=t HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"
CHUNKS = b"POST /mpub?topic=t HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4f0000\r\n"
TAIL = b"GET /log/tail?topic=t&from=0 HTTP/1.1\r\nHost: a\r\n\r\n"

KINDS: dict[str, tuple[str, bytes, int]] = {  # the port, what is sent, and bytes of the answer
    "MPUBs cut off": ("tcp", MPUB, 0),
    "long IDENTIFYs": ("tcp", IDENTIFY, 10),
    "silent clients": ("tcp", MAGIC, 0),
    "bodies cut off": ("http", REQUEST + bytes(999_999), 0),
    "chunks cut off": ("http", CHUNKS + bytes(1_000_000), 0),
    "tails": ("http", TAIL, 4000),
}


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("memory") / "data") as daemon:
        with daemon.connect() as client:
            for _ in range(10):
                client.mpub("t", [bytes(1000)] * 1000)
        yield daemon


def come_and_go(port: int, sent: bytes, answer_bytes: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(sent)
        while answer_bytes > 0:
            answer_bytes -= len(connection.recv(answer_bytes))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_memory_of_connections_that_are_closed(nsqd: Nsqd, kind: str) -> None:
    port_name, sent, answer_bytes = KINDS[kind]
    port = nsqd.tcp_port if port_name == "tcp" else nsqd.http_port
    watch = Watch(nsqd)
    for _ in range(WARM_UP):
        come_and_go(port, sent, answer_bytes)
    watch.forgive_growth()
    for _ in range(CONNECTIONS):
        come_and_go(port, sent, answer_bytes)
    watch.check()
