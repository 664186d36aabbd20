"""What nsqlookupd remembers of nodes that went away, on a clock of the test's own."""

from dataclasses import replace

import pytest

from pumpline.nsqlookupd import lost_nodes
from pumpline.nsqlookupd.lost_nodes import LostNodes
from pumpline.nsqlookupd.registry import NodeIdentity

HOUR_NS = 3600 * 10**9
NODE = NodeIdentity(
    hostname="host",
    broadcast_address="node",
    tcp_port=4150,
    http_port=4151,
    version="1.3.0",
    topology_zone="",
    topology_region="",
)


@pytest.fixture
def lost() -> LostNodes:
    return LostNodes(timeout_ns=HOUR_NS)


def leave(lost: LostNodes, *topics: str, node: NodeIdentity = NODE, at_ns: int = 7) -> None:
    lost.arrived(node)
    lost.left(node, topics, at_ns)


def names(lost: LostNodes, topic: str) -> list[str]:
    return [entry.address for entry in lost.of_topic(topic)]


def test_a_node_that_leaves_is_remembered_with_its_topics_and_the_time(lost: LostNodes) -> None:
    leave(lost, "orders", "refunds", "brief#ephemeral")
    (entry,) = lost.of_topic("orders")
    assert (entry.address, entry.http_address, entry.lost_ns) == ("node:4150", "node:4151", 7)
    assert sorted(entry.lasting_topics()) == ["orders", "refunds"]
    assert lost.away() == [entry]
    assert lost.of_topic("others") == []


def test_a_node_that_returns_is_named_until_it_has_registered_the_topic(lost: LostNodes) -> None:
    leave(lost, "orders", "refunds", "deleted")
    lost.arrived(NODE)
    assert lost.away() == []
    assert names(lost, "orders") == names(lost, "refunds") == ["node:4150"]
    lost.registered(NODE, "orders")
    assert names(lost, "orders") == []
    assert names(lost, "refunds") == ["node:4150"]
    lost.heard(NODE)
    assert names(lost, "refunds") == names(lost, "deleted") == []


def test_a_node_that_leaves_before_it_has_registered_all_keeps_its_topics(lost: LostNodes) -> None:
    leave(lost, "orders", "refunds")
    lost.arrived(NODE)
    lost.registered(NODE, "orders")
    lost.left(NODE, ["orders"], 9)
    assert names(lost, "orders") == names(lost, "refunds") == ["node:4150"]
    assert [entry.lost_ns for entry in lost.away()] == [9]


def test_an_old_connection_that_ends_late_does_not_make_a_node_lost(lost: LostNodes) -> None:
    lost.arrived(NODE)
    lost.arrived(NODE)
    lost.left(NODE, ["orders"], 7)
    assert lost.away() == []
    assert names(lost, "orders") == ["node:4150"]  # the new connection may not have said so yet
    lost.heard(NODE)
    assert names(lost, "orders") == []


def test_a_node_with_another_tcp_port_at_the_same_http_port_has_returned(lost: LostNodes) -> None:
    leave(lost, "orders", "refunds")
    moved = replace(NODE, tcp_port=5000)
    lost.arrived(moved)
    lost.registered(moved, "orders")
    assert names(lost, "orders") == []
    assert names(lost, "refunds") == ["node:5000"]
    lost.heard(moved)
    assert lost.all() == []


def test_nodes_are_forgotten_after_a_time(lost: LostNodes) -> None:
    leave(lost, "orders", at_ns=0)
    assert lost.expire(HOUR_NS) == []
    assert [entry.address for entry in lost.expire(HOUR_NS + 1)] == ["node:4150"]
    assert lost.all() == []
    assert lost.dropped["expired"] == 1


@pytest.mark.parametrize("address", ["node:4150", "node:4151"])
def test_a_node_can_be_dismissed_by_either_address(lost: LostNodes, address: str) -> None:
    leave(lost, "orders")
    assert not lost.forget("node:1")
    assert lost.forget(address)
    assert lost.all() == []
    assert not lost.forget(address)


def test_a_topic_that_is_deleted_or_tombstoned_is_not_missed(lost: LostNodes) -> None:
    other = replace(NODE, broadcast_address="other")
    leave(lost, "orders", "refunds")
    leave(lost, "orders", "refunds", node=other)
    lost.forget_topic("orders", "node:4151")
    assert names(lost, "orders") == ["other:4150"]
    lost.forget_topic("refunds")
    assert names(lost, "refunds") == []
    lost.arrived(other)
    lost.registered(other, "orders")
    lost.left(other, ["orders", "kept"], 8, dismissed=["orders"])
    assert names(lost, "orders") == []
    assert names(lost, "kept") == ["other:4150"]


def test_no_node_is_remembered_with_a_timeout_of_zero() -> None:
    lost = LostNodes(timeout_ns=0)
    leave(lost, "orders")
    assert lost.all() == []


def test_of_too_many_nodes_the_oldest_are_forgotten(
    lost: LostNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_nodes, "NODES_MAX", 3)
    for port in range(1, 6):
        leave(lost, "orders", node=replace(NODE, tcp_port=port, http_port=port + 100))
    assert names(lost, "orders") == ["node:3", "node:4", "node:5"]
    assert lost.dropped["limit"] == 2


def test_a_node_with_too_many_topics_is_remembered_for_all(
    lost: LostNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_nodes, "NAMES_MAX", 3)
    leave(lost, "a", "b")
    other = replace(NODE, broadcast_address="other")
    leave(lost, "c", "d", node=other)
    assert names(lost, "a") == ["node:4150", "other:4150"]
    assert names(lost, "never heard of") == ["other:4150"]
    lost.forget("node:4150")
    leave(lost, "e", "f", "g", node=NODE)  # there is room again
    assert names(lost, "a") == ["other:4150"]
    assert names(lost, "g") == ["other:4150", "node:4150"]


def test_long_texts_about_a_node_are_not_kept(lost: LostNodes) -> None:
    leave(lost, "orders", node=replace(NODE, hostname="h" * 10**6, version="v" * 10**6))
    (entry,) = lost.all()
    assert len(entry.identity.hostname) + len(entry.identity.version) < 1000
    leave(lost, "orders", node=replace(NODE, broadcast_address="n" * 256))
    assert lost.all() == [entry]  # no client could connect to that address


def test_entries_of_an_earlier_process_are_taken_over(lost: LostNodes) -> None:
    earlier = LostNodes(timeout_ns=HOUR_NS)
    leave(earlier, "orders", "refunds")
    for entry in earlier.all():
        lost.restore(entry)
    assert names(lost, "orders") == ["node:4150"]
    lost.arrived(NODE)
    lost.registered(NODE, "orders")
    assert names(lost, "orders") == []
