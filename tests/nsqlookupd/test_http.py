"""The HTTP API: every route, its JSON, its errors and its headers."""

import http.client
import json
from typing import Any

import pytest

from tests.kit.daemons import IO_TIMEOUT_S, Nsqlookupd, wait_until
from tests.kit.nsqlookupd.peer import OK, Peer
from tests.nsqlookupd.conftest import Connect, Get

NSQLOOKUPD_FLAGS = ["--tombstone-lifetime=1h"]

PRODUCER = {
    "hostname": "host",
    "broadcast_address": "node",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
}
NEVER_NS = -6795364578871345152


def post(nsqlookupd: Nsqlookupd, path: str) -> None:
    assert nsqlookupd.http("POST", path) == (200, b"")


def nodes_at(get: Get, address: str) -> list[dict[str, Any]]:
    return [node for node in get("/nodes")["producers"] if node["remote_address"] == address]


def test_ping_and_info(nsqlookupd: Nsqlookupd, get: Get) -> None:
    assert nsqlookupd.http("GET", "/ping") == (200, b"OK")
    assert get("/info") == {"version": "1.3.0"}


@pytest.mark.parametrize("path", ["/topics", "/nodes", "/info", "/lookup", "/nowhere"])
def test_answers_carry_the_header_that_clients_look_for(nsqlookupd: Nsqlookupd, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", nsqlookupd.http_port, timeout=IO_TIMEOUT_S)
    connection.request("GET", path)
    response = connection.getresponse()
    response.read()
    connection.close()
    assert response.headers["X-NSQ-Content-Type"] == "nsq; version=1.0"
    assert response.headers["Content-Type"] == "application/json; charset=utf-8"


def test_lookup_tells_channels_and_producers(connect: Connect, get: Get, topic: str) -> None:
    peer = connect()
    peer.identify()
    peer.register(topic, "c")
    peer.register(topic, "d")
    answer = get(f"/lookup?topic={topic}")
    assert set(answer) == {"channels", "producers"}
    assert sorted(answer["channels"]) == ["c", "d"]
    assert answer["producers"] == [{"remote_address": peer.address, **PRODUCER}]
    assert sorted(get(f"/channels?topic={topic}")["channels"]) == ["c", "d"]
    assert topic in get("/topics")["topics"]


@pytest.mark.deviation
def test_zone_and_region_are_told_if_there_are_any(connect: Connect, get: Get, topic: str) -> None:
    peer = connect()
    peer.identify(topology_zone="z", topology_region="r")
    peer.register(topic)
    (producer,) = get(f"/lookup?topic={topic}")["producers"]
    assert (producer["topology_zone"], producer["topology_region"]) == ("z", "r")


def test_a_node_is_listed_with_its_topics(connect: Connect, get: Get, topic: str) -> None:
    peer = connect()
    peer.identify()
    assert nodes_at(get, peer.address) == [
        {"remote_address": peer.address, **PRODUCER, "tombstones": [], "topics": []}
    ]
    peer.register(topic)
    (node,) = nodes_at(get, peer.address)
    assert (node["topics"], node["tombstones"]) == ([topic], [False])


def test_a_tombstone_hides_a_node_from_lookups_of_one_topic(
    nsqlookupd: Nsqlookupd, connect: Connect, get: Get, topic: str
) -> None:
    peer = connect()
    peer.identify(broadcast_address="grave", http_port=99)
    peer.register(topic)
    peer.register(f"{topic}-other")
    post(nsqlookupd, f"/topic/tombstone?topic={topic}&node=grave:99")
    assert get(f"/lookup?topic={topic}")["producers"] == []
    assert len(get(f"/lookup?topic={topic}-other")["producers"]) == 1
    (node,) = nodes_at(get, peer.address)
    shown = dict(zip(node["topics"], node["tombstones"], strict=True))
    assert shown == {topic: True, f"{topic}-other": False}
    peer.register(topic)
    assert get(f"/lookup?topic={topic}")["producers"] == []
    peer.unregister(topic)
    peer.register(topic)
    assert len(get(f"/lookup?topic={topic}")["producers"]) == 1


def test_topics_and_channels_are_made_and_deleted(
    nsqlookupd: Nsqlookupd, get: Get, topic: str
) -> None:
    post(nsqlookupd, f"/topic/create?topic={topic}")
    assert get(f"/lookup?topic={topic}") == {"channels": [], "producers": []}
    post(nsqlookupd, f"/channel/create?topic={topic}&channel=c")
    assert get(f"/channels?topic={topic}") == {"channels": ["c"]}
    post(nsqlookupd, f"/channel/delete?topic={topic}&channel=c")
    assert get(f"/channels?topic={topic}") == {"channels": []}
    post(nsqlookupd, f"/channel/create?topic={topic}&channel=c")
    post(nsqlookupd, f"/topic/delete?topic={topic}")
    assert nsqlookupd.http("GET", f"/lookup?topic={topic}")[0] == 404
    assert get(f"/channels?topic={topic}") == {"channels": []}


def test_a_deleted_topic_comes_back_when_it_is_registered(
    nsqlookupd: Nsqlookupd, connect: Connect, get: Get, topic: str
) -> None:
    peer = connect()
    peer.identify()
    peer.register(topic, "c")
    post(nsqlookupd, f"/topic/delete?topic={topic}")
    assert nodes_at(get, peer.address)[0]["topics"] == []
    peer.register(topic, "d")
    assert get(f"/lookup?topic={topic}")["channels"] == ["d"]


def test_debug_shows_every_registration(
    nsqlookupd: Nsqlookupd, connect: Connect, get: Get, topic: str
) -> None:
    peer = connect()
    peer.identify(broadcast_address="debugged")
    peer.register(topic, "c")
    post(nsqlookupd, f"/topic/tombstone?topic={topic}&node=debugged:4151")
    keys = get("/debug")
    (of_channel,) = keys[f"channel:{topic}:c"]
    (of_topic,) = keys[f"topic:{topic}:"]
    expected = {**PRODUCER, "broadcast_address": "debugged", "id": peer.address}
    fresh = {"tombstoned": False, "tombstoned_at": NEVER_NS}
    assert of_channel == {**expected, **fresh, "last_update": of_channel["last_update"]}
    assert of_channel in keys["client::"]
    assert of_topic["tombstoned"] is True
    assert of_topic["tombstoned_at"] >= of_topic["last_update"] > 0


def test_debug_leaves_out_names_without_nodes(nsqlookupd: Nsqlookupd, get: Get, topic: str) -> None:
    post(nsqlookupd, f"/channel/create?topic={topic}&channel=c")
    assert not {f"topic:{topic}:", f"channel:{topic}:c"} & set(get("/debug"))


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/lookup", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/lookup?topic=none", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/lookup?topic=", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/lookup?topic=%zz", 400, "INVALID_REQUEST"),
        ("GET", "/channels", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create?topic=a%20b", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/create?topic=", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone?topic=t", 400, "MISSING_ARG_NODE"),
        ("POST", "/channel/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/create?topic=a%20b&channel=c", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/channel/create?topic=t&channel=a%20b", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/delete?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/delete?topic=none&channel=c", 404, "CHANNEL_NOT_FOUND"),
        ("GET", "/topic/create?topic=t", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/lookup?topic=t", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/create_topic?topic=t", 404, "NOT_FOUND"),
    ],
)
def test_errors(nsqlookupd: Nsqlookupd, method: str, path: str, status: int, code: str) -> None:
    answer = nsqlookupd.http(method, path)
    assert (answer[0], json.loads(answer[1])) == (status, {"message": code})


@pytest.mark.parametrize(
    "path", ["/topic/delete?topic=none", "/topic/tombstone?topic=none&node=nobody:1"]
)
def test_what_is_not_there_is_deleted_and_tombstoned_with_success(
    nsqlookupd: Nsqlookupd, path: str
) -> None:
    post(nsqlookupd, path)


@pytest.mark.deviation
def test_a_star_is_no_wildcard(
    nsqlookupd: Nsqlookupd, connect: Connect, get: Get, topic: str
) -> None:
    peer = connect()
    peer.identify()
    peer.register(topic, "c")
    post(nsqlookupd, "/topic/delete?topic=*")
    assert get("/channels?topic=*") == {"channels": []}
    assert get(f"/channels?topic={topic}") == {"channels": ["c"]}


@pytest.mark.deviation
def test_debug_pages(nsqlookupd: Nsqlookupd) -> None:
    assert nsqlookupd.http("GET", "/debug/pprof")[0] == 200
    assert b"nsqlookupd" in nsqlookupd.http("GET", "/debug/pprof/cmdline")[1]
    assert nsqlookupd.http("GET", "/debug/pprof/block")[0] == 404


@pytest.mark.deviation
def test_a_silent_node_is_hidden_and_a_name_that_nobody_has_is_forgotten(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    log_path = tmp_path_factory.mktemp("impatient") / "stderr"
    with Nsqlookupd(log_path, ["--inactive-producer-timeout=300ms"]) as daemon:

        def ask(path: str) -> Any:
            return json.loads(daemon.http("GET", path)[1])

        with Peer(daemon.tcp_port) as peer:
            peer.identify()
            peer.register("t", "c")
            wait_until(lambda: ask("/nodes")["producers"] == [])
            assert ask("/lookup?topic=t") == {"channels": ["c"], "producers": []}
            assert peer.ask("PING") == OK
            assert len(ask("/lookup?topic=t")["producers"]) == 1
        post(daemon, "/topic/create?topic=kept")
        wait_until(lambda: ask("/topics") == {"topics": ["kept"]})
        assert "DB: no nsqd has topic(t) any more, removed" in daemon.log_text()
