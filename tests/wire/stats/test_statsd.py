"""statsd gets real packets, with NSQ's keys; what becomes of them never matters to nsqd."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.daemons import COMMAND_VARIABLE, Nsqd, wait_until
from tests.kit.wire.web import ask

PATIENCE_S = 60.0
# NSQ sends what it has over all of the interval but the last second.
INTERVAL = "1200ms" if COMMAND_VARIABLE in os.environ else "200ms"


@pytest.fixture
def statsd() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        udp.settimeout(PATIENCE_S)
        yield udp


def daemon(path: Path, statsd: socket.socket, *flags: str) -> Nsqd:
    address = f"127.0.0.1:{statsd.getsockname()[1]}"
    return Nsqd(
        path / "data",
        [
            f"--statsd-address={address}",
            f"--statsd-interval={INTERVAL}",
            "--broadcast-address=my.host",
            *flags,
        ],
    )


class Received:
    """Gauges as they were last told, counters added up."""

    def __init__(self, udp: socket.socket) -> None:
        self._udp = udp
        self.gauges: dict[str, int] = {}
        self.counters: dict[str, int] = {}
        self.packets: list[bytes] = []

    def until(self, key: str, value: int) -> None:
        """Receives until a figure has reached this value."""
        while self.gauges.get(key) != value and self.counters.get(key) != value:
            packet = self._udp.recv(65536)
            self.packets.append(packet)
            assert packet.endswith(b"\n")
            for line in packet.decode().splitlines():
                name, _, rest = line.partition(":")
                number, _, kind = rest.partition("|")
                if kind == "c":
                    self.counters[name] = self.counters.get(name, 0) + int(number)
                else:
                    assert kind == "g"
                    self.gauges[name] = int(number)


def test_figures_arrive_under_nsqs_keys(tmp_path: Path, statsd: socket.socket) -> None:
    with daemon(tmp_path, statsd) as nsqd, nsqd.connect() as client:
        prefix = f"nsq.my_host_{nsqd.http_port}."
        assert ask(nsqd, "GET", "/config/statsd_prefix").body.decode() == prefix
        topic = f"{prefix}topic.orders"
        received = Received(statsd)
        client.sub("orders", "mail")
        client.publish("orders", b"four")
        received.until(f"{topic}.channel.mail.message_count", 1)
        client.publish("orders", b"four")
        client.publish("orders", b"four")
        received.until(f"{topic}.channel.mail.message_count", 3)
        received.until(f"{topic}.channel.mail.depth", 3)
        client.rdy(2)
        received.until(f"{topic}.channel.mail.in_flight_count", 2)
        assert received.counters[f"{topic}.message_count"] == 3
        assert received.counters[f"{topic}.message_bytes"] == 12
        assert received.gauges[f"{topic}.channel.mail.clients"] == 1
        assert all(len(packet) <= 508 for packet in received.packets)
        names = {name.removeprefix(prefix) for name in (received.gauges | received.counters)}
        assert len(names) == 4 + 8 + 9


def test_memory_ephemeral_ones_and_prefix_can_be_left_out(
    tmp_path: Path, statsd: socket.socket
) -> None:
    flags = ("--statsd-prefix=", "--statsd-mem-stats=false", "--statsd-exclude-ephemeral")
    with daemon(tmp_path, statsd, *flags) as nsqd, nsqd.connect() as client:
        assert ask(nsqd, "GET", "/config/statsd_prefix").body == b""
        client.sub("t", "c#ephemeral")
        client.publish("u#ephemeral", b"x")
        client.publish("t", b"x")
        received = Received(statsd)
        received.until("topic.t.message_count", 1)
        received.until("topic.t.backend_depth", 0)
        names = set(received.gauges | received.counters)
        assert names == {
            f"topic.t.{name}"
            for name in ("message_count", "message_bytes", "depth", "backend_depth")
        }


def test_a_packet_has_the_size_asked_for(tmp_path: Path, statsd: socket.socket) -> None:
    with daemon(tmp_path, statsd, "--statsd-udp-packet-size=8000") as nsqd:
        with nsqd.connect() as client:
            client.sub("t", "c")
        packet = statsd.recv(65536)
        assert 508 < len(packet) <= 8000


@pytest.mark.deviation  # the original says so in other words
@pytest.mark.parametrize("address", ["127.0.0.1:9", "no.such.host.invalid:8125", "nonsense"])
def test_nobody_there_does_no_harm(tmp_path: Path, address: str) -> None:
    flags = [f"--statsd-address={address}", "--statsd-interval=10ms"]
    with Nsqd(tmp_path / "data", flags) as nsqd, nsqd.connect() as client:
        wait_until(lambda: nsqd.log_text().count("STATSD: pushing stats") >= 3)
        client.publish("t", b"x")
        assert "Traceback" not in nsqd.log_text()
