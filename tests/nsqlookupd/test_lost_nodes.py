"""nsqlookupd remembers nsqds that were killed or stopped, for those who ask with `lost=true`."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.daemons import Nsqd, Nsqlookupd, wait_until
from tests.kit.nsqlookupd.fleet import get, new_nsqd, new_nsqlookupd, post
from tests.kit.nsqlookupd.peer import Peer
from tests.nsqlookupd.conftest import Connect

TOPIC = "orders"


@pytest.fixture
def lookupd(tmp_path: Path) -> Iterator[Nsqlookupd]:
    flags = (f"--data-path={tmp_path}/lookupd-data", "--tombstone-lifetime=1h")
    with new_nsqlookupd(tmp_path / "stderr", flags) as daemon:
        yield daemon


@pytest.fixture
def nsqd(tmp_path: Path, lookupd: Nsqlookupd) -> Iterator[Nsqd]:
    with new_nsqd(tmp_path / "data", lookupd.tcp_address) as node:
        post(node, f"/topic/create?topic={TOPIC}")
        wait_until(lambda: len(asked(lookupd)["producers"]) == 1)
        yield node


def asked(lookupd: Nsqlookupd, topic: str = TOPIC) -> dict[str, Any]:
    answer: dict[str, Any] = get(lookupd, f"/lookup?topic={topic}&lost=true")
    return {"producers": [], "lost": [], **answer}


def lost(lookupd: Nsqlookupd, topic: str = TOPIC) -> list[tuple[str, int]]:
    return [
        (node["broadcast_address"], node["http_port"]) for node in asked(lookupd, topic)["lost"]
    ]


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_node_that_went_away_is_remembered_until_it_returns(
    lookupd: Nsqlookupd, nsqd: Nsqd, end: str
) -> None:
    assert asked(lookupd)["lost"] == []
    port = nsqd.http_port
    before_ns = time.time_ns()
    getattr(nsqd, end)()
    wait_until(lambda: asked(lookupd)["producers"] == [])
    (node,) = asked(lookupd)["lost"]
    assert before_ns <= node["lost_at"] <= time.time_ns()
    assert (node["broadcast_address"], node["http_port"]) == ("127.0.0.1", port)
    assert get(lookupd, "/nodes?lost=true") == {
        "producers": [],
        "lost": [{**node, "topics": [TOPIC]}],
    }
    nsqd.restart()
    wait_until(lambda: len(asked(lookupd)["producers"]) == 1)
    assert asked(lookupd)["lost"] == []
    wait_until(lambda: get(lookupd, "/nodes?lost=true")["lost"] == [])


def test_clients_that_do_not_ask_for_lost_nodes_get_the_replies_of_nsq(
    lookupd: Nsqlookupd, nsqd: Nsqd
) -> None:
    nsqd.kill()
    wait_until(lambda: lost(lookupd) != [])
    assert get(lookupd, f"/lookup?topic={TOPIC}") == {"channels": [], "producers": []}
    assert get(lookupd, "/nodes") == {"producers": []}
    assert lookupd.http("GET", "/lookup?topic=none&lost=true")[0] == 404


def test_a_topic_that_was_deleted_on_the_node_is_not_missed(
    lookupd: Nsqlookupd, nsqd: Nsqd
) -> None:
    post(nsqd, "/topic/create?topic=kept")
    wait_until(lambda: len(asked(lookupd, "kept")["producers"]) == 1)
    post(nsqd, f"/topic/delete?topic={TOPIC}")
    wait_until(lambda: asked(lookupd)["producers"] == [])
    nsqd.stop()
    wait_until(lambda: lost(lookupd, "kept") != [])
    assert lost(lookupd) == []


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_an_nsqlookupd_that_restarts_remembers_the_nodes(
    lookupd: Nsqlookupd, nsqd: Nsqd, end: str, tmp_path: Path
) -> None:
    saved = tmp_path / "lookupd-data" / "nsqlookupd.nodes.json"
    port = nsqd.http_port
    wait_until(lambda: saved.exists() and TOPIC in saved.read_text())
    getattr(lookupd, end)()
    nsqd.kill()
    lookupd.restart()
    assert lost(lookupd) == [("127.0.0.1", port)]
    nsqd.restart()
    wait_until(lambda: len(asked(lookupd)["producers"]) == 1)
    assert lost(lookupd) == []


def test_a_damaged_file_is_put_aside(lookupd: Nsqlookupd, tmp_path: Path) -> None:
    saved = tmp_path / "lookupd-data" / "nsqlookupd.nodes.json"
    lookupd.kill()
    saved.write_text('{"format":1,"nodes":[{')
    lookupd.restart()
    assert get(lookupd, "/nodes?lost=true")["lost"] == []
    assert saved.with_name(f"{saved.name}.bad").exists()


def test_a_lost_node_can_be_forgotten(lookupd: Nsqlookupd, nsqd: Nsqd) -> None:
    address = nsqd.http_address
    path = f"/node/forget?node={address}"
    assert lookupd.http("POST", path) == (404, b'{"message":"NODE_NOT_FOUND"}')
    nsqd.kill()
    wait_until(lambda: lost(lookupd) != [])
    post(lookupd, path)
    assert lost(lookupd) == []
    _, metrics = lookupd.http("GET", "/metrics")
    assert b"nsqlookupd_lost_nodes 0" in metrics
    assert b'nsqlookupd_lost_nodes_dropped_total{reason="dismissed"} 1' in metrics


@pytest.mark.parametrize("is_away", [True, False])
def test_a_tombstone_dismisses_a_node_of_one_topic(
    lookupd: Nsqlookupd, nsqd: Nsqd, is_away: bool
) -> None:
    post(nsqd, "/topic/create?topic=kept")
    wait_until(lambda: len(asked(lookupd, "kept")["producers"]) == 1)
    path = f"/topic/tombstone?topic={TOPIC}&node={nsqd.http_address}"
    if not is_away:
        post(lookupd, path)
    nsqd.kill()
    wait_until(lambda: lost(lookupd, "kept") != [])
    if is_away:
        post(lookupd, path)
    assert lost(lookupd) == []
    assert lost(lookupd, "kept") != []


def test_a_node_that_identifies_itself_is_named_until_it_has_registered(
    nsqlookupd: Nsqlookupd, connect: Connect, topic: str
) -> None:
    def named() -> list[int]:
        _, body = nsqlookupd.http("GET", f"/lookup?topic={topic}&lost=true")
        answer = json.loads(body)
        return [node["tcp_port"] for key in ("producers", "lost") for node in answer.get(key, ())]

    def leave(peer: Peer) -> None:
        peer.close()
        wait_until(lambda: peer.address not in nsqlookupd.http("GET", "/nodes")[1].decode())

    first = connect()
    first.identify(tcp_port=9, http_port=10)
    first.register(topic)
    leave(first)
    assert named() == [9]
    second = connect()
    second.identify(tcp_port=9, http_port=10)
    assert named() == [9]
    second.register(topic)
    assert named() == [9]
    second.ask("PING")
    assert named() == [9]
