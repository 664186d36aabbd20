"""Nodes that fail: what is left is shown, what failed is told, and dead nodes cost one timeout."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit.daemons import wait_until
from tests.kit.nsqadmin.process import Nsqadmin, lookupd_flags, nsqd_flags, running_nsqadmin
from tests.kit.nsqadmin.upstreams import Asked, FakeDaemon, SilentPort, a_node, lookupd_of

STATS = {
    "version": "1.3.0",
    "health": "OK",
    "start_time": 1,
    "topics": [
        {
            "topic_name": "orders",
            "depth": 0,
            "backend_depth": 0,
            "message_count": 3,
            "message_bytes": 9,
            "paused": False,
            "channels": [{"channel_name": "billing", "depth": 3, "message_count": 3}],
        }
    ],
}


def healthy(asked: Asked) -> tuple[int, str]:
    if asked.path == "/stats":
        return 200, json.dumps(STATS)
    if asked.path == "/info":
        port = int(asked.headers["host"].rpartition(":")[2])
        return 200, json.dumps(a_node(port))
    if asked.method == "POST":
        return 200, ""
    return 404, '{"message":"NOT_FOUND"}'


def refusing(asked: Asked) -> tuple[int, str]:
    if asked.method == "POST":
        return 500, '{"message":"INTERNAL_ERROR"}'
    return healthy(asked)


WRITES = [
    ("POST", "/api/topics/orders", {"action": "pause"}),
    ("POST", "/api/topics/orders/billing", {"action": "empty"}),
    ("DELETE", "/api/topics/orders", None),
    ("DELETE", "/api/topics/orders/billing", None),
]


class Cluster(NamedTuple):
    good: FakeDaemon
    admin: Nsqadmin  # of both nodes
    bad_admin: Nsqadmin  # of the one that refuses all changes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    path = tmp_path_factory.mktemp("refusing")
    with (
        FakeDaemon(healthy) as good,
        FakeDaemon(refusing) as bad,
        running_nsqadmin(path / "log", *nsqd_flags([good.address, bad.address])) as admin,
        running_nsqadmin(path / "bad.log", *nsqd_flags([bad.address])) as bad_admin,
    ):
        yield Cluster(good, admin, bad_admin)


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
def test_a_write_that_fails_on_some_nodes_is_a_warning(
    cluster: Cluster, method: str, path: str, body: object
) -> None:
    cluster.good.asked.clear()
    answer = cluster.admin.ask(path, body, method=method)
    said = json.dumps('{"message":"INTERNAL_ERROR"}')
    assert answer.status == 200
    assert answer.message == f"WARNING: got response 500 Internal Server Error {said}"
    assert [each.path for each in cluster.good.asked if each.method == "POST"] != []


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
def test_a_write_that_fails_on_all_nodes_is_an_error(
    cluster: Cluster, method: str, path: str, body: object
) -> None:
    answer = cluster.bad_admin.ask(path, body, method=method)
    said = json.dumps('{"message":"INTERNAL_ERROR"}')
    assert answer.status == 502
    assert answer.message == f"UPSTREAM_ERROR: got response 500 Internal Server Error {said}"


def test_a_topic_is_created_on_nsqds_without_nsqlookupds(tmp_path: Path) -> None:
    with (
        FakeDaemon(healthy) as one,
        FakeDaemon(healthy) as two,
        running_nsqadmin(tmp_path / "log", *nsqd_flags([one.address, two.address])) as admin,
    ):
        assert admin.post("/api/topics", {"topic": "t", "channel": "c"}) == {"message": ""}
        for fake in (one, two):
            told = [(each.path, each.query) for each in fake.asked if each.method == "POST"]
            assert told == [
                ("/topic/create", {"topic": "t"}),
                ("/channel/create", {"topic": "t", "channel": "c"}),
            ]


def test_reads_say_what_failed(tmp_path: Path) -> None:
    with FakeDaemon(healthy) as good, ExitStack() as stack:
        with SilentPort() as gone:
            dead = gone.address
        flags = nsqd_flags([good.address, dead])
        admin = stack.enter_context(running_nsqadmin(tmp_path / "log", *flags))
        expected = f"WARNING: {dead}: connection refused"
        for path in ("/api/topics", "/api/topics/orders", "/api/nodes", "/api/counter"):
            assert admin.get(path)["message"] == expected
        answer = admin.ask("/api/topics/nope")
        assert answer.status == 502
        assert answer.message.startswith("UPSTREAM_ERROR: failed to query any nsqd: ")


def test_twenty_dead_nodes_cost_one_timeout(tmp_path: Path) -> None:
    with ExitStack() as stack:
        good = stack.enter_context(FakeDaemon(healthy))
        silent = [stack.enter_context(SilentPort()) for _ in range(20)]
        ports = [int(each.address.rpartition(":")[2]) for each in silent]
        nodes = [a_node(port, "orders") for port in (good.port, *ports)]
        lookupd = stack.enter_context(FakeDaemon(lookupd_of(*nodes)))
        admin = stack.enter_context(
            running_nsqadmin(
                tmp_path / "log",
                *lookupd_flags([lookupd.address]),
                "--http-client-request-timeout=2s",
            )
        )
        began_s = time.monotonic()
        answer = admin.ask("/api/topics/orders", {"action": "pause"})
        # One after the other they would take 40 s.
        assert time.monotonic() - began_s < 20
        assert answer.status == 200
        assert answer.message.count("no answer within") == 20
        assert [each.path for each in good.asked if each.method == "POST"] == ["/topic/pause"]


def test_the_overview_tells_of_a_node_that_falls_silent(tmp_path: Path) -> None:
    with ExitStack() as stack:
        good = stack.enter_context(FakeDaemon(healthy))
        bad = FakeDaemon(healthy)
        flags = nsqd_flags([good.address, bad.address])
        admin = stack.enter_context(running_nsqadmin(tmp_path / "log", *flags))
        admin.knows(good.address, bad.address)
        assert admin.view("overview")["totals"]["waiting"] == 6
        bad.__exit__()
        wait_until(lambda: admin.view("overview")["totals"]["silent"] == 1)
        told = admin.view("overview")
        (left_out,) = told["left_out"]
        assert left_out["node"] == bad.address
        assert left_out["since_ms"] > 0
        assert told["totals"]["waiting"] == 3  # what is known
        assert told["troubles"][0]["kind"] == "node_silent"
        row = admin.view("table/nodes?filter=silent")["rows"][0]
        assert (row["node"], row["ok"], row["waiting"]) == (bad.address, False, None)
        topic = admin.view("topic?topic=orders")
        assert [(node["node"], node["ok"]) for node in topic["nodes"]] == [
            (good.address, True),
            (bad.address, False),
        ]
        for table in ("topics", "channels"):  # nobody knows what it has
            page = admin.view(f"table/{table}?node={bad.address}")
            assert (page["total"], page["rows"]) == (0, [])
            assert page["message"].startswith("does not answer: ")
        node = admin.view(f"node?node={bad.address}")
        assert (node["node"]["ok"], node["info"]) == (False, None)


def test_an_nsqlookupd_that_does_not_know_a_node_is_told(tmp_path: Path) -> None:
    with FakeDaemon(healthy) as nsqd, ExitStack() as stack:
        knowing = stack.enter_context(FakeDaemon(lookupd_of(a_node(nsqd.port, "orders"))))
        ignorant = stack.enter_context(FakeDaemon(lookupd_of()))
        flags = lookupd_flags([knowing.address, ignorant.address])
        admin = stack.enter_context(running_nsqadmin(tmp_path / "log", *flags))
        admin.knows(nsqd.address)
        troubles = {each["kind"]: each for each in admin.view("overview")["troubles"]}
        assert troubles["missing"]["node"] == nsqd.address
        assert troubles["missing"]["text"] == f"not known at {ignorant.address}"
        assert troubles["no_consumers"]["text"] == "3 messages waiting, no consumer"
        rows = {each["lookupd"]: each for each in admin.view("lookupds")["lookupds"]}
        assert rows[ignorant.address]["missing"] == [nsqd.address]
        assert rows[knowing.address]["missing"] == []


def test_zero_nodes_are_no_error(tmp_path: Path) -> None:
    with (
        FakeDaemon(lookupd_of()) as lookupd,
        running_nsqadmin(tmp_path / "log", *lookupd_flags([lookupd.address])) as admin,
    ):
        assert admin.get("/api/topics") == {"topics": None, "message": ""}
        assert admin.get("/api/nodes") == {"nodes": None, "message": ""}
        wait_until(lambda: admin.view("overview")["seq"])
        assert admin.view("overview")["totals"]["nodes"] == 0
        assert admin.view("table/topics")["rows"] == []
        assert admin.ask("/").status == 200


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "null",
        "[]",
        "{",
        '{"topics":7}',
        '{"topics":[{"topic_name":1}]}',
        "\udcff\udcfe",
        "9" * 99,
    ],
)
def test_answers_that_are_no_nsqds_are_failures_of_that_node(tmp_path: Path, answer: str) -> None:
    def odd(asked: Asked) -> tuple[int, str]:
        return (200, answer) if asked.path == "/stats" else healthy(asked)

    with (
        FakeDaemon(healthy) as good,
        FakeDaemon(odd) as bad,
        running_nsqadmin(tmp_path / "log", *nsqd_flags([good.address, bad.address])) as admin,
    ):
        assert admin.get("/api/topics")["topics"] == ["orders"]
        wait_until(lambda: admin.view("overview")["seq"])
        rows = {row["node"]: row for row in admin.view("table/nodes")["rows"]}
        assert rows[good.address]["ok"]
        assert not rows[bad.address]["ok"] or answer in ("", "null")
        assert "panic" not in admin.log_text()
        assert "POLL: failed" not in admin.log_text()


@pytest.mark.parametrize("who", ["nsqd", "nsqlookupd"])
def test_nobody_waits_again_for_one_that_is_silent(tmp_path: Path, who: str) -> None:
    """It failed once, and then never answers. With a timeout of an hour a poll would never end."""
    never = threading.Event()

    def silent(asked: Asked) -> tuple[int, str]:
        if asked.path in ("/stats", "/nodes"):
            return 500, "{}"
        never.wait()
        return 500, ""

    with FakeDaemon(healthy) as good, FakeDaemon(silent) as bad, ExitStack() as stack:
        stack.callback(never.set)
        lookupd = stack.enter_context(FakeDaemon(lookupd_of(a_node(good.port, "orders"))))
        flags = nsqd_flags([good.address, bad.address])
        if who == "nsqlookupd":
            flags = lookupd_flags([lookupd.address, bad.address])
        flags.append("--http-client-request-timeout=1h")
        admin = stack.enter_context(running_nsqadmin(tmp_path / "log", *flags))
        wait_until(lambda: admin.view("overview")["seq"] >= 3)
        assert [each["error"] for each in admin.view("overview")["left_out"]] == ["500 {}"]
        assert admin.view("topic?topic=orders")["total"]["waiting"] == 3


def test_one_that_was_silent_is_seen_again(tmp_path: Path) -> None:
    with (
        FakeDaemon(lambda asked: (500, "{}")) as nsqd,
        running_nsqadmin(tmp_path / "log", *nsqd_flags([nsqd.address])) as admin,
    ):
        wait_until(lambda: admin.view("overview")["totals"]["silent"] == 1)
        nsqd.answer = healthy
        wait_until(lambda: admin.view("overview")["totals"]["waiting"] == 3)
        assert admin.view("overview")["left_out"] == []


def test_a_topic_that_nobody_could_be_asked_about_is_not_inactive(tmp_path: Path) -> None:
    """Inactive topics are there to be deleted."""

    def forgetful(asked: Asked) -> tuple[int, str]:
        if asked.path == "/topics":
            return 200, '{"topics":["gone","unsure"]}'
        if asked.path == "/lookup" and asked.query["topic"] == "unsure":
            raise ConnectionError
        if asked.path == "/lookup":
            return 404, '{"message":"TOPIC_NOT_FOUND"}'
        return lookupd_of()(asked)

    with (
        FakeDaemon(forgetful) as lookupd,
        running_nsqadmin(tmp_path / "log", *lookupd_flags([lookupd.address])) as admin,
    ):
        assert admin.get("/api/topics?inactive=true")["topics"] == {"gone": None}
        told = admin.view("lookupds?fresh=true")
        assert told["inactive"] == [{"topic": "gone", "channels": []}]


def test_thousands_of_topics_do_not_time_out_in_line(tmp_path: Path) -> None:
    names = [f"topic{number}" for number in range(1000)]

    def full(asked: Asked) -> tuple[int, str]:
        if asked.path == "/topics":
            return 200, json.dumps({"topics": names})
        if asked.path == "/lookup":
            return 200, json.dumps({"producers": [a_node(4151, "x")]})
        return lookupd_of()(asked)

    with (
        FakeDaemon(full) as lookupd,
        running_nsqadmin(tmp_path / "log", *lookupd_flags([lookupd.address])) as admin,
    ):
        assert admin.get("/api/topics?inactive=true") == {"topics": {}, "message": ""}


def test_nodes_whose_addresses_are_none_are_left_out(tmp_path: Path) -> None:
    """What a node says of itself becomes part of a URL."""
    hosts = ["", "evil.example/x?", "a b", "u@h", "h#x", "h\r\nX: y", "%00", "\u2028", "x" * 5000]
    with FakeDaemon(healthy) as good, ExitStack() as stack:
        odd = [
            a_node(good.port, "orders", broadcast_address=host, hostname="<b>", tcp_port=7 + number)
            for number, host in enumerate(hosts)
        ]
        nodes = lookupd_of(*odd[:5], a_node(good.port, "orders"), *odd[5:])
        lookupd = stack.enter_context(FakeDaemon(nodes))
        flags = lookupd_flags([lookupd.address])
        admin = stack.enter_context(running_nsqadmin(tmp_path / "log", *flags))
        admin.knows(good.address)
        assert [row["node"] for row in admin.view("table/nodes")["rows"] if row["ok"]] == [
            good.address
        ]
        told = admin.get("/api/topics/orders")
        assert [node["node"] for node in told["nodes"]] == [good.address]
        assert admin.ask("/api/topics/orders", {"action": "pause"}).status == 200
        assert "panic" not in admin.log_text()
        assert "POLL: failed" not in admin.log_text()
