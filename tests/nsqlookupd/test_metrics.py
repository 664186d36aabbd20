"""/metrics: what nsqlookupd knows and did, read with Prometheus' own parsers."""

import http.client
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from tests.kit.daemons import Nsqd, Nsqlookupd, wait_until
from tests.kit.nsqlookupd.fleet import new_nsqd, new_nsqlookupd, post
from tests.kit.nsqlookupd.peer import Peer
from tests.nsqlookupd.conftest import Connect

pytestmark = pytest.mark.deviation

NSQLOOKUPD_FLAGS = ["--tombstone-lifetime=1h", "--max-connections=3"]


def rows(families: Iterable[object]) -> dict[str, float]:
    """`name{label=value,...}` to figure."""
    found = {}
    for family in families:
        for sample in family.samples:  # type: ignore[attr-defined]
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def scrape(daemon: Nsqd | Nsqlookupd, query: str = "") -> dict[str, float]:
    status, body = daemon.http("GET", f"/metrics{query}")
    assert status == 200, body
    return rows(parse_plain(body.decode()))


@pytest.fixture
def forgetful(nsqlookupd: Nsqlookupd) -> Nsqlookupd:
    """With nothing of what other tests have done: nobody is connected, and nothing known."""
    wait_until(lambda: scrape(nsqlookupd)["nsqlookupd_connections"] == 0)
    for topic in json.loads(nsqlookupd.http("GET", "/topics")[1])["topics"]:
        post(nsqlookupd, f"/topic/delete?topic={topic}")
    return nsqlookupd


def test_what_is_registered(forgetful: Nsqlookupd, connect: Connect) -> None:
    nsqlookupd = forgetful
    peers = [connect(), connect()]
    for number, peer in enumerate(peers):
        peer.identify(http_port=number + 1)
        peer.register("t", f"c{number}")
    peers[0].register("u")
    post(nsqlookupd, "/topic/tombstone?topic=t&node=node:1")
    found = scrape(nsqlookupd)
    assert {name: found[f"nsqlookupd_{name}"] for name in ("connections", "nodes", "topics")} == {
        "connections": 2,
        "nodes": 2,
        "topics": 2,
    }
    assert found["nsqlookupd_channels"] == 2
    assert (found["nsqlookupd_registrations"], found["nsqlookupd_tombstones"]) == (3, 1)
    assert found["nsqlookupd_topic_producers{topic=t}"] == 1
    assert found["nsqlookupd_topic_channels{topic=t}"] == 2
    assert found["nsqlookupd_topic_producers{topic=u}"] == 1
    assert found["nsqlookupd_commands_total{command=REGISTER}"] >= 3
    assert found["nsqlookupd_silent_nodes"] == 0
    one = scrape(nsqlookupd, "?topic=u")
    assert "nsqlookupd_topic_producers{topic=t}" not in one
    assert one["nsqlookupd_topic_producers{topic=u}"] == 1


def test_what_went_wrong(nsqlookupd: Nsqlookupd, connect: Connect) -> None:
    before = scrape(nsqlookupd)
    connect().ask("NO")
    wait_until(lambda: scrape(nsqlookupd)["nsqlookupd_connections"] == 0)
    peers = [connect() for _ in range(3)]
    assert [peer.ask("PING") for peer in peers] == [b"OK"] * 3
    refused = connect()
    with suppress(ConnectionResetError):  # it had sent its magic, which nobody read
        assert refused.read_rest() == b""
    found = scrape(nsqlookupd)
    assert found["nsqlookupd_client_errors_total{code=E_INVALID}"] == 1
    assert found["nsqlookupd_refused_connections_total"] == (
        before["nsqlookupd_refused_connections_total"] + 1
    )


def test_the_process_and_its_http_server(nsqlookupd: Nsqlookupd) -> None:
    scrape(nsqlookupd)
    found = scrape(nsqlookupd)
    assert found["process_resident_memory_bytes"] > 1 << 20
    assert found["nsqlookupd_http_replies_total{status=200}"] >= 1
    assert any(name.startswith("nsqlookupd_build_info{") for name in found)
    assert "nsqlookupd_event_loop_delay_seconds_count" in found


def test_openmetrics(nsqlookupd: Nsqlookupd, connect: Connect) -> None:
    peer = connect()
    peer.identify()
    peer.register("o")
    connection = http.client.HTTPConnection("127.0.0.1", nsqlookupd.http_port)
    connection.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text"})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    assert response.headers["Content-Type"].startswith("application/openmetrics-text")
    assert rows(parse_openmetrics(text))["nsqlookupd_topic_producers{topic=o}"] == 1


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[Nsqlookupd, Nsqd]]:
    with (
        new_nsqlookupd(tmp_path / "stderr", ["--inactive-producer-timeout=300ms"]) as lookupd,
        new_nsqd(tmp_path / "data", lookupd.tcp_address) as nsqd,
    ):
        yield lookupd, nsqd


def test_nsqd_tells_whether_its_nsqlookupds_are_there(fleet: tuple[Nsqlookupd, Nsqd]) -> None:
    lookupd, nsqd = fleet
    where = f"{{address={lookupd.tcp_address}}}"

    def connected() -> float:
        return scrape(nsqd)[f"nsqd_lookupd_connected{where}"]

    wait_until(lambda: connected() == 1)
    lookupd.kill()
    wait_until(lambda: connected() == 0)
    assert scrape(nsqd)[f"nsqd_lookupd_failures_total{where}"] >= 1


def test_silent_nodes_and_expired_names(fleet: tuple[Nsqlookupd, Nsqd]) -> None:
    lookupd, nsqd = fleet
    nsqd.stop()
    with Peer(lookupd.tcp_port) as peer:
        peer.identify()
        peer.register("t", "c")
        wait_until(lambda: scrape(lookupd)["nsqlookupd_silent_nodes"] == 1)
        assert scrape(lookupd)["nsqlookupd_topic_producers{topic=t}"] == 0
    wait_until(lambda: scrape(lookupd)["nsqlookupd_expired_names_total"] == 2)
