"""Connections that end in the middle of something large, one after the other and at once: nsqd has
no more than 100 MB (`kit/fuzz/watch.py`) more afterwards than before."""

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.kit.certificates import Authority
from tests.kit.daemons import Nsqd, wait_until
from tests.kit.fuzz.watch import GROWTH_BYTES_MAX, Watch
from tests.kit.wire.commands import MAGIC, identify, mpub

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

SENT_BYTES = 400_000_000  # by connections of one kind: four times what may stay
CONNECTIONS_MAX = 2000
WARM_UP = 50  # connections, until caches and buffers are what they stay
AT_ONCE = 3000
PATIENCE_S = 60.0

MPUB = MAGIC + mpub("t", [bytes(100_000)] * 10)[:-1]
IDENTIFY = MAGIC + identify({"user_agent": "x" * 5_000_000})
REQUEST = b"POST /mpub?topic=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
CHUNKS = b"POST /mpub?topic=t HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4f0000\r\n"
TAIL = b"GET /log/tail?topic=t&from=0 HTTP/1.1\r\nHost: localhost\r\n\r\n"

KINDS: dict[str, tuple[str, bytes, int]] = {  # the port, what is sent, and bytes of the answer
    "MPUBs cut off": ("tcp", MPUB, 0),
    "long IDENTIFYs": ("tcp", IDENTIFY, 10),
    "silent clients": ("tcp", MAGIC, 0),
    "bodies cut off": ("http", REQUEST + bytes(999_999), 0),
    "chunks cut off": ("http", CHUNKS + bytes(1_000_000), 0),
    "tails": ("http", TAIL, 4000),
}

HELLO_CUT_OFF = b"\x16\x03\x01\x02\x00\x01"  # the beginning of a TLS handshake
NEGOTIATED = {"feature_negotiation": True}
HALF_OPEN: dict[str, tuple[str, bytes]] = {
    "TLS not begun": ("https", b""),
    "an upgrade to TLS cut off": (
        "tcp",
        MAGIC + identify({**NEGOTIATED, "tls_v1": True}) + HELLO_CUT_OFF,
    ),
    "snappy": ("tcp", MAGIC + identify({**NEGOTIATED, "snappy": True})),
    "an MPUB cut off": ("tcp", MAGIC + mpub("t", [bytes(1000)] * 20)[:-1]),
}


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    identity = Authority(tmp_path_factory.mktemp("certificates")).issue("nsqd")
    flags = [*identity.flags(), "--https-address=127.0.0.1:0"]
    with Nsqd(tmp_path_factory.mktemp("memory") / "data", flags) as daemon:
        with daemon.connect() as client:
            for _ in range(10):
                client.mpub("t", [bytes(1000)] * 1000)
        yield daemon


def port_of(nsqd: Nsqd, name: str) -> int:
    return {"tcp": nsqd.tcp_port, "http": nsqd.http_port}.get(name) or nsqd.listening_port("HTTPS")


def come_and_go(port: int, sent: bytes, answer_bytes: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(sent)
        while answer_bytes > 0:
            answer_bytes -= len(connection.recv(answer_bytes))


@pytest.mark.parametrize("kind", KINDS)
def test_memory_of_connections_that_are_closed(nsqd: Nsqd, kind: str) -> None:
    port_name, sent, answer_bytes = KINDS[kind]
    port = port_of(nsqd, port_name)
    watch = Watch(nsqd)
    for _ in range(WARM_UP):
        come_and_go(port, sent, answer_bytes)
    watch.forgive_growth()
    for _ in range(min(CONNECTIONS_MAX, SENT_BYTES // len(sent))):
        come_and_go(port, sent, answer_bytes)
    watch.check()


@pytest.fixture(scope="module")
def descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * AT_ONCE:
        pytest.skip(f"{2 * AT_ONCE} descriptors are needed, {hard} allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * AT_ONCE), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("kind", HALF_OPEN)
def test_memory_of_many_connections_at_once(descriptors: None, nsqd: Nsqd, kind: str) -> None:
    """What is free of it goes back to the system after a while."""
    port_name, sent = HALF_OPEN[kind]
    address = "127.0.0.1", port_of(nsqd, port_name)
    watch = Watch(nsqd)
    before_bytes = watch.memory_bytes()
    with ExitStack() as open_connections:
        for _ in range(AT_ONCE):
            connection = socket.create_connection(address, timeout=PATIENCE_S)
            open_connections.enter_context(connection).sendall(sent)
    wait_until(lambda: watch.memory_bytes() - before_bytes < GROWTH_BYTES_MAX, 2 * PATIENCE_S)
    watch.check()
