"""A client that closes with messages unread resets its connection: what it had sent before counts.

Its FINs, REQs and publishes are in the server's receive buffer by then, and are carried out,
although nothing can be sent to it any more.
"""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.certificates import Authority, client_context
from tests.kit.daemons import Nsqd, wait_until
from tests.kit.sockets import unsent_bytes
from tests.kit.wire.commands import mpub, rdy, sub
from tests.kit.wire.session import OK, Connect, Session
from tests.kit.wire.upgraded import PackedSocket, upgrade

LARGE_BYTES = 20_000
MESSAGES = 1_000
FINISHED = 400
TIMES = 4

LAYERS: dict[str, dict[str, object]] = {
    "plain": {},
    "deflate": {"deflate": True},
    "snappy": {"snappy": True},
    "TLS": {"tls": True},
    "TLS and deflate": {"tls": True, "deflate": True},
}


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    directory = tmp_path_factory.mktemp("reset")
    server = Authority(directory).issue("server")
    with Nsqd(directory / "data", [*server.flags(), "--https-address=127.0.0.1:0"]) as daemon:
        yield daemon
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.log_text()


def opened(connect: Connect, layers: str) -> Session:
    session = connect()
    wishes = dict(LAYERS[layers])
    tls = client_context() if wishes.pop("tls", False) else None
    if tls is not None or wishes:
        upgrade(session, tls=tls, **wishes)
    return session


def close(session: Session) -> None:
    """When all that was sent has left this end."""
    packed = session.raw.socket
    sock: socket.socket = packed.wire if isinstance(packed, PackedSocket) else packed
    wait_until(lambda: not unsent_bytes(sock))
    session.close()


def unfinished(nsqd: Nsqd, topic: str) -> int:
    """Messages that wait when the consumer is gone; NSQ keeps those it had until they time out."""

    def left() -> dict[str, Any] | None:
        counters = nsqd.channel_stats(topic, "ch")
        return counters if not counters["clients"] else None

    counters = wait_until(left)
    return int(counters["depth"] + counters["in_flight_count"])


@pytest.mark.parametrize("layers", LAYERS)
def test_fins_sent_just_before_the_close_count(
    nsqd: Nsqd, connect: Connect, topic: str, layers: str
) -> None:
    bodies = [bytes([number % 251]) * LARGE_BYTES for number in range(100)]
    for attempt in range(TIMES):
        name = f"{topic}-{attempt}"
        publisher = connect()
        for _ in range(MESSAGES // 100):
            assert publisher.request(mpub(name, bodies)) == OK
        consumer = opened(connect, layers)
        assert consumer.request(sub(name, "ch")) == OK
        consumer.send(rdy(MESSAGES))
        for _ in range(FINISHED // 20):
            consumer.finish(*consumer.messages(20))
        close(consumer)
        assert unfinished(nsqd, name) == MESSAGES - FINISHED
