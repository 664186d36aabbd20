"""Verbs against Go nsqd 1.3.0, by answers recorded from it: all that it can do, and a sentence
about the rest."""

import socket
from collections.abc import Iterator

import pytest

from tests.kit.tools.fake_nsqd import FakeNsqd, fake_nsqd
from tests.kit.tools.verbs import Pumpline, Said

STATS = (
    b'{"version":"1.3.0","health":"OK","start_time":1794858911,"topics":[{"topic_name":"orders",'
    b'"channels":[{"channel_name":"billing","depth":1,"backend_depth":0,"in_flight_count":0,'
    b'"deferred_count":0,"message_count":1,"requeue_count":0,"timeout_count":0,"client_count":0,'
    b'"clients":null,"paused":false,"e2e_processing_latency":{"count":0,"percentiles":null}}],'
    b'"depth":0,"backend_depth":0,"message_count":1,"message_bytes":2,"paused":false,'
    b'"e2e_processing_latency":{"count":0,"percentiles":null}}],"producers":null}'
)
INFO = (
    b'{"version":"1.3.0","broadcast_address":"127.0.0.1","hostname":"vm","http_port":35315,'
    b'"tcp_port":%d,"start_time":1794858911,"max_heartbeat_interval":60000000000,'
    b'"max_output_buffer_size":65536,"max_output_buffer_timeout":30000000000,'
    b'"max_deflate_level":6}'
)
EMPTY_WITH_200 = [f"/channel/{verb}" for verb in ("pause", "unpause", "empty", "delete", "create")]


@pytest.fixture
def stock() -> Iterator[FakeNsqd]:
    with fake_nsqd() as server, socket.create_server(("127.0.0.1", 0)) as tcp:
        server.status, server.body = 404, b'{"message":"NOT_FOUND"}'
        server.answers = {
            "/ping": (200, b"OK"),
            "/pub": (200, b"OK"),
            "/stats": (200, STATS),
            "/info": (200, INFO % tcp.getsockname()[1]),
            "/topic/create": (200, b""),
            **dict.fromkeys(EMPTY_WITH_200, (200, b"")),
        }
        yield server


def ask(pumpline: Pumpline, stock: FakeNsqd, command: str) -> Said:
    return pumpline(*command.split(), f"--nsqd={stock.http_address}")


def test_what_it_can_do(pumpline: Pumpline, stock: FakeNsqd) -> None:
    (row,) = ask(pumpline, stock, "channels orders").json()
    assert (row["depth"], row["lag_seconds"], row["hold"]) == (1, None, False)
    for command in (
        "topics",
        "pub orders hi",
        "create orders billing",
        "pause orders billing",
        "unpause orders billing",
        "empty orders billing --yes",
        "delete orders billing --yes",
        "top --once --interval=100ms",
    ):
        assert ask(pumpline, stock, command).code == 0, command


def test_what_it_does_not_have(pumpline: Pumpline, stock: FakeNsqd) -> None:
    assert ask(pumpline, stock, "holds").json() == []
    assert ask(pumpline, stock, "deadletters").json() == []
    said = ask(pumpline, stock, "seek orders billing --to=end --yes")
    assert (said.code, "it cannot seek: it is a stock nsqd" in said.err) == (1, True)
    said = ask(pumpline, stock, "settings orders")
    assert (said.code, "404 NOT_FOUND: it does not know this: a stock nsqd" in said.err) == (
        1,
        True,
    )


def test_the_doctor_judges_it_by_what_it_says(pumpline: Pumpline, stock: FakeNsqd) -> None:
    said = ask(pumpline, stock, "doctor")
    assert [each["check"] for each in said.json()["findings"]] == ["consumers"]


def test_a_publish_token_is_not_lost_in_silence(pumpline: Pumpline, stock: FakeNsqd) -> None:
    """It would take the message and ignore the token."""
    said = ask(pumpline, stock, "pub orders hi --token=shop:1")
    assert (said.code, "knows no publish tokens: it is a stock nsqd" in said.err) == (1, True)
