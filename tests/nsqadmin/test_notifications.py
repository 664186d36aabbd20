"""Every change is told to an endpoint, and an endpoint that fails changes nothing."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.daemons import wait_until
from tests.kit.nsqadmin.process import Nsqadmin, lookupd_flags, running_nsqadmin
from tests.kit.nsqadmin.upstreams import FakeDaemon, SilentPort, a_node, lookupd_of
from tests.nsqadmin.test_failures import healthy

BODY = {"topic": "orders"}


@contextmanager
def told_admin(path: Path, endpoint: str) -> Iterator[tuple[Nsqadmin, str]]:
    with (
        FakeDaemon(healthy) as nsqd,
        FakeDaemon(lookupd_of(a_node(nsqd.port, "orders"))) as lookupd,
        running_nsqadmin(
            path / "log",
            *lookupd_flags([lookupd.address]),
            f"--notification-http-endpoint={endpoint}",
        ) as admin,
    ):
        admin.knows(nsqd.address)
        yield admin, nsqd.address


@pytest.mark.parametrize(
    ("method", "path", "body", "actions"),
    [
        ("POST", "/api/topics", {"topic": "orders"}, ["create_topic"]),
        (
            "POST",
            "/api/topics",
            {"topic": "orders", "channel": "ch"},
            ["create_topic", "create_channel"],
        ),
        ("POST", "/api/topics/orders", {"action": "pause"}, ["pause_topic"]),
        ("POST", "/api/topics/orders", {"action": "unpause"}, ["unpause_topic"]),
        ("POST", "/api/topics/orders", {"action": "empty"}, ["empty_topic"]),
        ("POST", "/api/topics/orders/ch", {"action": "pause"}, ["pause_channel"]),
        ("POST", "/api/topics/orders/ch", {"action": "empty"}, ["empty_channel"]),
        ("DELETE", "/api/topics/orders", None, ["delete_topic"]),
        ("DELETE", "/api/topics/orders/ch", None, ["delete_channel"]),
        (
            "POST",
            "/api/v1/actions",
            {
                "action": "pause",
                "targets": [{"topic": "orders"}, {"topic": "orders", "channel": "ch"}],
            },
            ["pause_topic", "pause_channel"],
        ),
    ],
)
def test_changes_are_told(
    tmp_path: Path, method: str, path: str, body: object, actions: list[str]
) -> None:
    with (
        FakeDaemon(lambda asked: (200, "")) as endpoint,
        told_admin(tmp_path, f"http://{endpoint.address}/hook?a=b") as (admin, _),
    ):
        headers = {"X-Forwarded-User": "ann", "User-Agent": "tests/1"}
        assert admin.ask(path, body, method=method, headers=headers).status == 200
        wait_until(lambda: len(endpoint.bodies()) == len(actions))
        for told, action in zip(endpoint.bodies(), actions, strict=True):
            assert told["action"] == action
            assert told["topic"] == "orders"
            assert told.get("channel", "") == ("ch" if action.endswith("channel") else "")
            assert (told["user"], told["user_agent"]) == ("ann", "tests/1")
            assert told["via"] == socket.gethostname()
            assert told["url"] == f"http://127.0.0.1:{admin.http_port}{path}"
            assert told["remote_ip"].startswith("127.0.0.1:")
            assert told["timestamp"] > 1_700_000_000
            assert "node" not in told
        assert endpoint.asked[-1].path == "/hook"


def test_a_tombstone_is_told_with_its_node(tmp_path: Path) -> None:
    with (
        FakeDaemon(lambda asked: (200, "")) as endpoint,
        told_admin(tmp_path, f"http://{endpoint.address}/") as (admin, node),
    ):
        assert admin.ask(f"/api/nodes/{node}", BODY, method="DELETE").status == 200
        wait_until(endpoint.bodies)
        (told,) = endpoint.bodies()
        assert (told["action"], told["node"]) == ("tombstone_topic_producer", node)
        assert "user" not in told


def test_the_name_of_basic_authentication_is_told_as_nsq_does(tmp_path: Path) -> None:
    with (
        FakeDaemon(lambda asked: (200, "")) as endpoint,
        told_admin(tmp_path, f"http://{endpoint.address}/") as (admin, _),
    ):
        for value in ("Basic Ym9iOnB3", "Basic ///", "Bearer x"):
            admin.ask("/api/topics", BODY, headers={"Authorization": value})
        wait_until(lambda: len(endpoint.bodies()) == 3)
        assert [told.get("user") for told in endpoint.bodies()] == ["bob", None, None]


@pytest.mark.parametrize("kind", ["refused", "silent", "failing", "no URL"])
def test_an_endpoint_that_fails_changes_nothing(tmp_path: Path, kind: str) -> None:
    with SilentPort() as silent, FakeDaemon(lambda asked: (500, "")) as failing:
        with SilentPort() as gone:
            refused = gone.address
        endpoints = {
            "refused": f"http://{refused}/",
            "silent": f"http://{silent.address}/",
            "failing": f"http://{failing.address}/",
            "no URL": "no url",
        }
        with told_admin(tmp_path, endpoints[kind]) as (admin, _):
            for _ in range(3):
                assert admin.ask("/api/topics", BODY).status == 200
            wait_until(lambda: "NOTIFY: create_topic of orders" in admin.log_text())
            assert admin.ask("/ping").status == 200
            assert admin.stop() == 0
