"""What NSQ's own tests of nsqadmin assert, on our daemons."""

import json
import socket

import pytest

from tests.kit.daemons import wait_until
from tests.kit.nsqadmin.process import Nsqadmin
from tests.kit.nsqlookupd.fleet import post
from tests.nsqadmin.conftest import Fleet

NSQDS = 1


def test_ping(admin: Nsqadmin) -> None:
    answer = admin.ask("/ping")
    assert (answer.status, answer.body) == (200, b"OK")


def test_topics_have_a_topic(fleet: Fleet, topic: str) -> None:
    fleet.create(topic)
    answer = fleet.admin.get("/api/topics")
    assert topic in answer["topics"]
    assert answer["topics"] == sorted(answer["topics"])
    assert answer["message"] == ""


def test_a_new_topic_has_zeros(fleet: Fleet, topic: str) -> None:
    fleet.create(topic)
    told = fleet.admin.get(f"/api/topics/{topic}")
    assert (told["node"], told["topic_name"], told["paused"]) == ("*", topic, False)
    for name in ("depth", "memory_depth", "backend_depth", "message_count"):
        assert told[name] == 0
    (node,) = told["nodes"]
    assert (node["node"], node["hostname"]) == (fleet.nsqd.http_address, socket.gethostname())


def test_a_new_channel_has_zeros(fleet: Fleet, topic: str) -> None:
    fleet.create(topic, "ch")
    told = fleet.admin.get(f"/api/topics/{topic}/ch")
    assert (told["topic_name"], told["channel_name"], told["clients"]) == (topic, "ch", None)
    for name in told:
        if name.endswith(("_count", "depth")):
            assert told[name] == 0


def test_nodes_has_the_node(fleet: Fleet, topic: str) -> None:
    fleet.create(topic)
    (node,) = fleet.admin.get("/api/nodes")["nodes"]
    assert node["hostname"] == socket.gethostname()
    assert node["broadcast_address"] == "127.0.0.1"
    assert (node["tcp_port"], node["http_port"]) == (fleet.nsqd.tcp_port, fleet.nsqd.http_port)
    assert (node["version"], node["out_of_date"]) == ("1.3.0", False)
    assert {"topic": topic, "tombstoned": False} in node["topics"]
    (remote,) = node["remote_addresses"]
    assert remote == f"{fleet.lookupd.http_address}/{node['remote_address']}"


def test_a_node_has_its_topics(fleet: Fleet, topic: str) -> None:
    fleet.create(topic)
    told = fleet.admin.get(f"/api/nodes/{fleet.nsqd.http_address}")
    assert told["node"] == fleet.nsqd.http_address
    (own,) = [each for each in told["topics"] if each["topic_name"] == topic]
    assert (own["depth"], own["message_count"], own["channels"]) == (0, 0, [])
    assert (told["total_messages"], told["total_clients"]) == (
        sum(each["message_count"] for each in told["topics"]),
        0,
    )


def test_create_a_topic(admin: Nsqadmin, topic: str) -> None:
    assert admin.post("/api/topics", {"topic": topic}) == {"message": ""}
    assert topic in admin.get("/api/topics")["topics"]


def test_create_a_topic_and_channel(admin: Nsqadmin, topic: str) -> None:
    assert admin.post("/api/topics", {"topic": topic, "channel": "ch"}) == {"message": ""}
    assert admin.get("/api/topics?inactive=true")["topics"][topic] == ["ch"]


def test_tombstone_a_node(fleet: Fleet, topic: str) -> None:
    fleet.create(topic)
    path = f"/api/nodes/{fleet.nsqd.http_address}"
    answer = fleet.admin.ask(path, {"topic": topic}, method="DELETE")
    assert (answer.status, answer.json()) == (200, {"message": ""})
    assert not fleet.nsqd.stats(topic)["topics"]


def test_delete_a_topic(fleet: Fleet, topic: str) -> None:
    fleet.create(topic)
    answer = fleet.admin.ask(f"/api/topics/{topic}", method="DELETE")
    assert (answer.status, answer.json()) == (200, {"message": ""})
    assert not fleet.nsqd.stats(topic)["topics"]
    assert topic not in (fleet.admin.get("/api/topics")["topics"] or ())


def test_delete_a_channel(fleet: Fleet, topic: str) -> None:
    fleet.create(topic, "ch")
    wait_until(lambda: b'"ch"' in fleet.lookupd.http("GET", f"/channels?topic={topic}")[1])
    answer = fleet.admin.ask(f"/api/topics/{topic}/ch", method="DELETE")
    assert (answer.status, answer.json()) == (200, {"message": ""})
    assert fleet.nsqd.channel_stats(topic, "ch") == {}


@pytest.mark.parametrize("channel", ["", "/ch"])
def test_pause_and_unpause(fleet: Fleet, topic: str, channel: str) -> None:
    fleet.create(topic, "ch")
    path = f"/api/topics/{topic}{channel}"
    for action, paused in (("pause", True), ("unpause", False)):
        assert fleet.admin.post(path, {"action": action}) == {"message": ""}
        assert fleet.admin.get(path)["paused"] is paused


@pytest.mark.parametrize("channel", ["", "/ch"])
def test_empty(fleet: Fleet, topic: str, channel: str) -> None:
    fleet.create(topic, *["ch"] * bool(channel))
    post(fleet.nsqd, f"/pub?topic={topic}", b"1234")
    path = f"/api/topics/{topic}{channel}"
    wait_until(lambda: fleet.admin.get(path)["depth"] == 1)
    assert fleet.admin.post(path, {"action": "empty"}) == {"message": ""}
    assert fleet.admin.get(path)["depth"] == 0


def test_the_counter(fleet: Fleet, topic: str) -> None:
    fleet.create(topic, "ch")
    post(fleet.nsqd, f"/pub?topic={topic}", b"one")
    node = fleet.nsqd.http_address
    wait_until(
        lambda: (
            fleet.admin.get("/api/counter")["stats"].get(f"{topic}:ch:{node}")
            == {"node": node, "topic_name": topic, "channel_name": "ch", "message_count": 1}
        )
    )


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/api/topics", b"", 400, "EOF"),
        ("POST", "/api/topics", b"{", 400, "unexpected EOF"),
        ("POST", "/api/topics", b'{"topic":"a b"}', 400, "INVALID_TOPIC"),
        ("POST", "/api/topics", b'{"topic":"a","channel":"b c"}', 400, "INVALID_CHANNEL"),
        ("POST", "/api/topics/a", b"", 400, "EOF"),
        ("POST", "/api/topics/a", b'{"action":"x"}', 400, "INVALID_ACTION"),
        ("POST", "/api/topics/a/b", b"{}", 400, "INVALID_ACTION"),
        ("DELETE", "/api/nodes/x", b"", 400, "INVALID_BODY"),
        ("DELETE", "/api/nodes/x", b"{", 400, "INVALID_BODY"),
        ("DELETE", "/api/nodes/x", b'{"topic":"a b"}', 400, "INVALID_TOPIC"),
        ("GET", "/api/nodes/x", b"", 404, "NODE_NOT_FOUND"),
        ("GET", "/api/graphite", b"", 400, "INVALID_ARG_METRIC"),
        ("GET", "/api/graphite?metric=rate", b"", 400, "INVALID_ARG_TARGET"),
        ("GET", "/nope", b"", 404, "NOT_FOUND"),
        ("GET", "/render", b"", 404, "NOT_FOUND"),
        ("PUT", "/api/topics", b"", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/ping", b"", 405, "METHOD_NOT_ALLOWED"),
    ],
)
def test_what_cannot_be_done(
    admin: Nsqadmin, method: str, path: str, body: bytes, status: int, message: str
) -> None:
    answer = admin.ask(path, body, method=method)
    assert (answer.status, answer.message) == (status, message)
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"


def test_a_topic_that_nobody_knows_is_an_upstream_error(admin: Nsqadmin) -> None:
    said = json.dumps('{"message":"TOPIC_NOT_FOUND"}')
    expected = f"UPSTREAM_ERROR: failed to query any nsqlookupd: got response 404 Not Found {said}"
    for method, body in (("GET", None), ("DELETE", None), ("POST", {"action": "pause"})):
        answer = admin.ask("/api/topics/unknown", body, method=method)
        assert (answer.status, answer.message) == (502, expected)


def test_paths_that_are_almost_right(admin: Nsqadmin) -> None:
    answer = admin.ask("/topics/")
    assert (answer.status, answer.headers["location"]) == (301, "/topics")
    assert admin.ask("/ping", method="OPTIONS").status == 200


# -- config ----------------------------------------------------------------------------------------


def test_config_get(fleet: Fleet) -> None:
    admin = fleet.admin
    address = fleet.lookupd.http_address
    assert admin.ask("/config/nsqlookupd_http_addresses").body == f'["{address}"]'.encode()
    assert admin.ask("/config/log_level").body == b"2"
    assert admin.ask("/config/http_client_request_timeout").body == b"5000000000"
    assert admin.ask("/config/admin_users").body == b"[]"
    assert admin.ask("/config/acl_http_header").body == b"X-Forwarded-User"
    answer = admin.ask("/config/nope")
    assert (answer.status, answer.message) == (400, "INVALID_OPTION")


def test_config_put(fleet: Fleet) -> None:
    admin = fleet.admin
    path = "/config/nsqlookupd_http_addresses"
    two = json.dumps([fleet.lookupd.http_address, "127.0.0.1:4161"], separators=(",", ":"))
    for addresses in (two.encode(), f'["{fleet.lookupd.http_address}"]'.encode()):
        answer = admin.ask(path, addresses, method="PUT")
        assert (answer.status, answer.body) == (200, addresses)
        assert admin.ask(path).body == addresses
    assert admin.ask("/config/log_level", b"fatal", method="PUT").body == b"5"
    assert admin.ask("/config/log_level", b"info", method="PUT").body == b"2"


@pytest.mark.parametrize(
    ("option", "value", "status", "message"),
    [
        ("log_level", b"bad", 400, "INVALID_VALUE"),
        ("nsqlookupd_http_addresses", b"x", 400, "INVALID_VALUE"),
        ("nsqlookupd_http_addresses", b"", 413, "INVALID_VALUE"),
        ("nsqlookupd_http_addresses", b"x" * ((1 << 20) + 1), 413, "INVALID_VALUE"),
        ("http_address", b"x", 400, "INVALID_OPTION"),
    ],
)
def test_config_that_cannot_be_put(
    admin: Nsqadmin, option: str, value: bytes, status: int, message: str
) -> None:
    answer = admin.ask(f"/config/{option}", value, method="PUT")
    assert (answer.status, answer.message) == (status, message)
