"""The orderly end: by signal and over HTTP, with clients that are in the middle of something."""

import asyncio
import json
import signal
import socket
from pathlib import Path

import pytest

from pumpline.nsqd.claim import Claim
from pumpline.nsqd.options import Options
from pumpline.nsqd.server import Server
from tests.kit.daemons import ErrorFrame, Nsqd, Nsqlookupd, RawClient, RawMessage, wait_until
from tests.kit.wire.open_nsqd import OpenNsqd
from tests.kit.wire.web import ask

pytestmark = pytest.mark.deviation

LONG = "--drain-timeout=60s"


def busy_consumer(nsqd: Nsqd, *bodies: bytes) -> tuple[RawClient, list[RawMessage]]:
    """A consumer, and what it has in flight."""
    client = nsqd.connect()
    client.mpub("t", bodies)
    client.sub("t", "c")
    client.rdy(len(bodies))
    return client, [client.read_message() for _ in bodies]


def is_draining(nsqd: Nsqd) -> bool:
    return ask(nsqd, "GET", "/ready").status == 503


def begin(nsqd: Nsqd) -> None:
    nsqd.process.send_signal(signal.SIGTERM)
    wait_until(lambda: is_draining(nsqd))


def test_ready_while_all_is_well(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data") as nsqd:
        answer = ask(nsqd, "GET", "/ready")
        assert (answer.status, answer.body) == (200, b"OK")
        assert "GET /ready" not in nsqd.log_text()


def test_consumer_may_finish_what_it_has_and_then_the_daemon_ends(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", [LONG]) as nsqd:
        client, (first, second) = busy_consumer(nsqd, b"a", b"b")
        begin(nsqd)
        assert ask(nsqd, "GET", "/ready").body == b"NOK - draining"
        assert ask(nsqd, "GET", "/ping").body == b"OK"
        client.fin(first.id)
        wait_until(lambda: nsqd.channel_stats("t", "c")["in_flight_count"] == 1)
        client.fin(second.id)
        assert nsqd.process.wait(20) == 0
        client.close()
        assert "DRAIN: 2 messages in flight, waiting up to 1m0s" in nsqd.log_text()
        nsqd.restart()
        assert nsqd.channel_stats("t", "c")["depth"] == 0


def test_nothing_new_is_delivered_and_requeued_messages_stay(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", [LONG]) as nsqd:
        client, (first, second) = busy_consumer(nsqd, b"a", b"b")
        with nsqd.connect() as producer:
            producer.publish("t", b"later")
        begin(nsqd)
        client.rdy(10)
        client.req(first.id)
        client.fin(second.id)
        assert nsqd.process.wait(20) == 0
        with pytest.raises(EOFError):
            client.read_message()
        client.close()
        nsqd.restart()
        with nsqd.connect() as again:
            again.sub("t", "c")
            again.rdy(10)
            messages = [again.read_message() for _ in range(2)]
        assert {(m.body, m.attempts) for m in messages} == {(b"a", 2), (b"later", 1)}


@pytest.mark.parametrize("known", [True, False])
def test_an_open_http_connection_is_refused_new_work_too(tmp_path: Path, known: bool) -> None:
    request = b"POST /pub?topic=%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"
    with Nsqd(tmp_path / "data", [LONG]) as nsqd:
        client, (message,) = busy_consumer(nsqd, b"a")
        with socket.create_connection(("127.0.0.1", nsqd.http_port), 10) as raw:
            raw.sendall(request % b"u")
            assert raw.recv(1000).startswith(b"HTTP/1.1 200 ")
            begin(nsqd)
            raw.sendall(request % (b"u" if known else b"new"))
            refusal = raw.recv(1000)
            assert refusal.startswith(b"HTTP/1.1 503 ")
            assert b"EXITING" in refusal
        stats = {topic["topic_name"]: topic["message_count"] for topic in nsqd.stats()["topics"]}
        assert stats == {"t": 1, "u": 1}
        client.fin(message.id)
        assert nsqd.process.wait(20) == 0
        client.close()


def test_new_work_is_refused_everywhere(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", [LONG]) as nsqd:
        client, _ = busy_consumer(nsqd, b"a")
        verbs = {
            "PUB": lambda each: each.publish("t", b"x"),
            "MPUB": lambda each: each.mpub("t", [b"x"]),
            "DPUB": lambda each: each.publish("t", b"x", defer_ms=5),
            "SUB": lambda each: each.sub("t", "c"),
        }
        idle = {verb: nsqd.connect() for verb in verbs}
        for each in idle.values():
            each.publish("u", b"x")  # so that its connection knows the topic
        begin(nsqd)
        for verb, work in verbs.items():
            with idle[verb], pytest.raises(ErrorFrame) as raised:
                work(idle[verb])
            assert str(raised.value) == f"E_{verb}_FAILED {verb} failed exiting"
        for target in ("/pub?topic=t", "/mpub?topic=t"):
            answer = ask(nsqd, "POST", target, b"x")
            assert (answer.status, answer.code) == (503, "EXITING")
        with pytest.raises(ConnectionRefusedError):
            nsqd.connect()
        client.close()
        assert nsqd.process.wait(20) == 0
        assert "Traceback" not in nsqd.log_text()


def test_pipelined_publishes_are_all_answered(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", [LONG]) as nsqd:
        client, _ = busy_consumer(nsqd, b"a")
        with nsqd.connect() as producer:
            producer.publish("u", b"x")
            begin(nsqd)
            producer.send(b"PUB u\n\0\0\0\1x" * 3)
            with pytest.raises(ErrorFrame, match="E_PUB_FAILED PUB failed exiting"):
                producer.read_response()
            with pytest.raises(EOFError):
                producer.read_response()
        client.close()
        assert nsqd.process.wait(20) == 0


def test_time_runs_out(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", ["--drain-timeout=100ms"]) as nsqd:
        client, _ = busy_consumer(nsqd, b"a")
        assert nsqd.stop() == 0
        client.close()
        assert "DRAIN: 1 messages are still in flight" in nsqd.log_text()
        nsqd.restart()
        assert nsqd.channel_stats("t", "c")["depth"] == 1


def test_no_time_is_nsqs_way(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", ["--drain-timeout=0"]) as nsqd:
        client, _ = busy_consumer(nsqd, b"a")
        assert nsqd.stop() == 0
        client.close()
        assert "waiting up to" not in nsqd.log_text()


def test_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", ["--drain-timeout=1h"]) as nsqd:
        client, _ = busy_consumer(nsqd, b"a")
        begin(nsqd)
        nsqd.process.send_signal(signal.SIGINT)
        assert nsqd.process.wait(20) == 0
        client.close()
        assert "SIGINT received again, stopping at once" in nsqd.log_text()


def test_idle_daemon_ends_at_once(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", ["--drain-timeout=1h"]) as nsqd:
        with nsqd.connect() as client:
            client.sub("t", "c")
            assert nsqd.stop() == 0
        assert "DRAIN" not in nsqd.log_text()


def test_drain_over_http(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data") as nsqd:
        client, (message,) = busy_consumer(nsqd, b"a")
        assert ask(nsqd, "POST", "/drain?timeout=soon").code == "INVALID_TIMEOUT"
        assert ask(nsqd, "POST", "/drain?timeout=-1s").code == "INVALID_TIMEOUT"
        assert ask(nsqd, "GET", "/drain").status == 405
        assert not is_draining(nsqd)
        answer = ask(nsqd, "POST", "/drain?timeout=1h")
        assert answer.json() == {"in_flight": 1, "timeout": "1h0m0s"}
        assert is_draining(nsqd)
        assert ask(nsqd, "POST", "/drain").json()["in_flight"] == 1
        nsqd.process.send_signal(signal.SIGTERM)  # of a supervisor that asked for the drain
        wait_until(lambda: "SIGTERM received, stopping" in nsqd.log_text())
        assert is_draining(nsqd)
        client.fin(message.id)
        assert nsqd.process.wait(20) == 0
        client.close()


def own_address() -> str:
    """An address of this machine that is not the loopback's; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


@pytest.mark.parametrize("guarded", [False, True])
async def test_drain_from_afar_needs_a_token(tmp_path: Path, guarded: bool) -> None:
    address = own_address()
    if not address or address.startswith("127."):
        pytest.skip("this machine has no other address")
    tokens = tmp_path / "tokens"
    tokens.write_text("0123456789abcdef")
    options = Options(
        data_path=str(tmp_path),
        tcp_address="127.0.0.1:0",
        http_address=f"{address}:0",
        http_token_file=str(tokens) if guarded else "",
    )
    server = Server(options, Claim(options))
    await server.start()
    try:
        assert server.broker is not None
        reader, writer = await asyncio.open_connection(address, server.ports.http)
        head = "POST /drain HTTP/1.0\r\nAuthorization: Bearer 0123456789abcdef\r\n\r\n"
        writer.write(head.encode())
        status = (await reader.read()).split()[1]
        writer.close()
        assert status == (b"200" if guarded else b"403")
        assert server.broker.draining.active is guarded
    finally:
        await server.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "203.0.113.9"},
        {"x-forwarded-for": ""},
        {"Forwarded": "for=203.0.113.9"},
        {"X-Real-IP": "203.0.113.9"},
        {"Via": "1.1 proxy"},
    ],
    ids=str,
)
def test_drain_through_a_proxy_is_refused(nsqd: Nsqd, headers: dict[str, str]) -> None:
    answer = ask(nsqd, "POST", "/drain", headers=headers)
    assert (answer.status, answer.code) == (403, "FORBIDDEN")
    assert not is_draining(nsqd)


def test_drain_under_another_name_is_refused(tmp_path: Path) -> None:
    with OpenNsqd(tmp_path / "data") as nsqd:
        for host in ("evil.example", "evil.example:4151"):
            answer = ask(nsqd, "POST", "/drain", headers={"Host": host})
            assert (answer.status, answer.code) == (403, "FORBIDDEN")
        assert not is_draining(nsqd)


@pytest.mark.parametrize("host", ["localhost", "[::1]:1", "127.0.0.1", socket.gethostname()])
def test_drain_from_this_machine(tmp_path: Path, host: str) -> None:
    with Nsqd(tmp_path / "data") as nsqd:
        assert ask(nsqd, "POST", "/drain", headers={"Host": host}).status == 200
        assert nsqd.process.wait(20) == 0


async def test_starting_is_not_ready(tmp_path: Path) -> None:
    options = Options(data_path=str(tmp_path), tcp_address="127.0.0.1:0", http_address="")
    server = Server(options, Claim(options))
    await server.start()
    assert server.broker is not None
    assert server.broker.unready() is None
    server.broker.serving = False
    assert server.broker.unready() == "starting"
    await server.close()


def test_lookupds_are_told_first(tmp_path: Path) -> None:
    with Nsqlookupd(tmp_path / "lookupd.stderr") as lookupd:

        def producers() -> int:
            return len(json.loads(lookupd.http("GET", "/nodes")[1])["producers"])

        flags = [LONG, f"--lookupd-tcp-address={lookupd.tcp_address}"]
        with Nsqd(tmp_path / "data", flags) as nsqd:
            client, (message,) = busy_consumer(nsqd, b"a")
            wait_until(lambda: producers() == 1)
            begin(nsqd)
            wait_until(lambda: producers() == 0)
            client.fin(message.id)
            assert nsqd.process.wait(20) == 0
            client.close()


def test_failing_disk_is_not_ready(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data") as nsqd:
        with nsqd.connect() as client:
            client.publish("t", b"x")
        blocked = nsqd.data_path / "topics" / "u"
        blocked.write_bytes(b"a file in the way")
        assert ask(nsqd, "POST", "/pub?topic=u", b"x").status == 503
        answer = ask(nsqd, "GET", "/ready")
        assert (answer.status, answer.body[:22]) == (503, b"NOK - failed to write ")
        blocked.unlink()
        wait_until(lambda: ask(nsqd, "GET", "/ready").status == 200)
