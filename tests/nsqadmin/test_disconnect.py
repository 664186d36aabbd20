"""Sending one consumer away: on real nsqds, on one that cannot, for admins, and told."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.daemons import RawClient, wait_until
from tests.kit.nsqadmin.process import Nsqadmin, nsqd_flags, running_nsqadmin
from tests.kit.nsqadmin.upstreams import Asked, FakeDaemon
from tests.nsqadmin.conftest import Fleet
from tests.nsqadmin.test_failures import healthy
from tests.nsqadmin.test_page_api import consume, publish


def address(client: RawClient) -> str:
    return "{}:{}".format(*client.socket.getsockname())


def asked(topic: str, client: str, node: str, channel: str = "ch") -> dict[str, Any]:
    target = {"topic": topic, "channel": channel, "client": client}
    return {"action": "disconnect", "targets": [target], "node": node}


def test_its_messages_go_to_another(fleet: Fleet, topic: str) -> None:
    fleet.create(topic, "ch")
    node = fleet.nsqd.http_address
    with consume(fleet.nsqd, topic, "ch") as bad, consume(fleet.nsqd, topic, "ch") as good:
        bad.send_command("RDY 2")
        publish(fleet.nsqd, topic, b"a", b"b")
        assert {bad.read_message().body for _ in range(2)} == {b"a", b"b"}
        told = fleet.admin.post("/api/v1/actions", asked(topic, address(bad), node))
        assert (told["ok"], told["failed"], told["message"]) == (1, 0, "")
        (result,) = told["results"]
        assert (result["topic"], result["channel"]) == (topic, "ch")
        assert result["client"] == address(bad)
        assert result["nodes"] == [{"node": node, "ok": True, "error": "", "in_flight": 2}]
        with pytest.raises((EOFError, ConnectionError)):
            bad.read_frame(60)
        good.send_command("RDY 2")
        assert {good.read_message().body for _ in range(2)} == {b"a", b"b"}
        table = f"table/consumers?topic={topic}&channel=ch"

        def left() -> list[str]:
            return [row["remote_address"] for row in fleet.admin.view(table)["rows"]]

        wait_until(lambda: left() == [address(good)])


def test_whoever_is_not_there_is_told(fleet: Fleet, topic: str) -> None:
    fleet.create(topic, "ch", "other")
    one, two = fleet.nsqds
    with consume(one, topic, "other") as client:
        for node, channel, why in (
            (one, "ch", "404 CLIENT_NOT_FOUND"),  # it is one of another channel
            (two, "other", "404 CLIENT_NOT_FOUND"),  # and of another node
            (one, "nope", "404 CHANNEL_NOT_FOUND: the topic has no such channel"),
        ):
            body = asked(topic, address(client), node.http_address, channel)
            answer = fleet.admin.ask("/api/v1/actions", body)
            assert answer.status == 502
            (result,) = answer.json()["results"]
            told = {"node": node.http_address, "ok": False, "error": why}
            assert result["nodes"] == [told]
        body = asked(topic, address(client), one.http_address, "other")
        assert fleet.admin.ask("/api/v1/actions", body).status == 200
        assert fleet.admin.ask("/api/v1/actions", body).status == 502  # it is gone


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ({"topic": "t", "channel": "c"}, "INVALID_TARGETS"),
        ({"topic": "t", "client": "1.2.3.4:5"}, "INVALID_TARGETS"),
        ({"topic": "t", "channel": "?", "client": "1.2.3.4:5"}, "INVALID_CHANNEL"),
        ({"topic": "?", "channel": "c", "client": "1.2.3.4:5"}, "INVALID_TOPIC"),
        ({"topic": "t", "channel": "c", "client": "1.2.3.4:5"}, "NODE_REQUIRED"),
    ],
)
def test_what_is_asked_must_be_whole(admin: Nsqadmin, target: dict[str, str], code: str) -> None:
    answer = admin.ask("/api/v1/actions", {"action": "disconnect", "targets": [target]})
    assert (answer.status, answer.message) == (400, code)


def go_nsqd(request: Asked) -> tuple[int, str]:
    if request.method == "POST":
        return 404, '{"message":"NOT_FOUND"}'
    return healthy(request)


def test_a_go_nsqd_says_why_it_cannot(tmp_path: Path) -> None:
    with (
        FakeDaemon(go_nsqd) as nsqd,
        running_nsqadmin(tmp_path / "log", *nsqd_flags([nsqd.address])) as admin,
    ):
        admin.knows(nsqd.address)
        for action, more in (
            ("disconnect", {"client": "1.2.3.4:5"}),
            ("delete_hold", {"hold": "h"}),
        ):
            target = {"topic": "orders", "channel": "billing", **more}
            body = {"action": action, "targets": [target], "node": nsqd.address}
            answer = admin.ask("/api/v1/actions", body)
            assert answer.status == 502
            (result,) = answer.json()["results"]
            assert result["nodes"][0]["error"] == "a Go nsqd cannot do this"
            assert answer.message == f"UPSTREAM_ERROR: {nsqd.address}: a Go nsqd cannot do this"


def test_it_is_for_admins_and_the_endpoint_is_told(tmp_path: Path) -> None:
    def ours(request: Asked) -> tuple[int, str]:
        if request.path == "/channel/disconnect":
            return 200, '{"in_flight":1}'
        return healthy(request)

    with (
        FakeDaemon(lambda request: (200, "")) as endpoint,
        FakeDaemon(ours) as nsqd,
        running_nsqadmin(
            tmp_path / "log",
            *nsqd_flags([nsqd.address]),
            "--admin-user=ann",
            f"--notification-http-endpoint=http://{endpoint.address}/",
        ) as admin,
    ):
        admin.knows(nsqd.address)
        body = asked("orders", "1.2.3.4:5", nsqd.address, "billing")
        for headers, code in (
            ({"X-Forwarded-User": "eve"}, "FORBIDDEN"),
            ({"X-Forwarded-User": "ann", "Origin": "https://evil.example"}, "FOREIGN_ORIGIN"),
        ):
            answer = admin.ask("/api/v1/actions", body, headers=headers)
            assert (answer.status, answer.message) == (403, code)
        assert [each for each in nsqd.asked if each.method == "POST"] == []
        answer = admin.ask("/api/v1/actions", body, headers={"X-Forwarded-User": "ann"})
        assert answer.status == 200, json.dumps(answer.json())
        query = {"topic": "orders", "channel": "billing", "client": "1.2.3.4:5"}
        assert [each.query for each in nsqd.asked if each.method == "POST"] == [query]
        wait_until(endpoint.bodies)
        (told,) = endpoint.bodies()
        assert (told["action"], told["user"], told["node"]) == (
            "disconnect_client",
            "ann",
            nsqd.address,
        )
        assert (told["topic"], told["channel"], told["client"]) == tuple(query.values())
