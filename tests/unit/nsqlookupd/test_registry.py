"""The registry: who has what, who is shown, and what is forgotten when."""

import time

import pytest

from pumpline.nsqlookupd.registry import SLICE_NAMES, Node, NodeIdentity, Registry

INACTIVE_NS = 300
TOMBSTONE_NS = 45


@pytest.fixture
def registry() -> Registry:
    return Registry(inactive_ns=INACTIVE_NS, tombstone_ns=TOMBSTONE_NS)


def join(registry: Registry, name: str, now_ns: int = 0) -> Node:
    identity = NodeIdentity(
        hostname=f"{name}.example",
        broadcast_address=name,
        tcp_port=4150,
        http_port=4151,
        version="1.3.0",
        topology_zone="",
        topology_region="",
    )
    return registry.add_node(f"{name}:50000", identity, now_ns)


def channels(registry: Registry, topic: str) -> list[str]:
    return list(registry.topics[topic].channels)


def producers(registry: Registry, topic: str, now_ns: int = 0) -> list[Node]:
    return registry.producers(registry.topics[topic], now_ns)


# Registering


def test_a_registered_channel_brings_its_topic(registry: Registry) -> None:
    node = join(registry, "a")
    assert registry.register(node, "t", "c")
    assert channels(registry, "t") == ["c"]
    assert producers(registry, "t") == [node]
    assert list(node.topics) == ["t"]


def test_registering_again_adds_nothing(registry: Registry) -> None:
    node = join(registry, "a")
    registry.register(node, "t", "c")
    assert not registry.register(node, "t", "c")
    assert not registry.register(node, "t", "")
    assert registry.register(node, "t", "d")


def test_a_topic_without_channels(registry: Registry) -> None:
    node = join(registry, "a")
    registry.register(node, "t", "")
    assert (channels(registry, "t"), producers(registry, "t")) == ([], [node])


def test_unregistering_a_channel_leaves_the_topic_and_both_names(registry: Registry) -> None:
    node = join(registry, "a")
    registry.register(node, "t", "c")
    assert registry.unregister(node, "t", "c", 0)
    assert (channels(registry, "t"), producers(registry, "t")) == (["c"], [node])


def test_unregistering_a_topic_takes_its_channels_along(registry: Registry) -> None:
    node, other = join(registry, "a"), join(registry, "b")
    for each in (node, other):
        registry.register(each, "t", "c")
    assert registry.unregister(node, "t", "", 0)
    assert producers(registry, "t") == [other]
    assert registry.topics["t"].channels["c"].nodes == [other]
    assert node.topics == {}


@pytest.mark.parametrize(
    ("topic", "channel"), [("no", ""), ("no", "c"), ("t", "no"), ("u", ""), ("u", "c")]
)
def test_unregistering_what_one_does_not_have_changes_nothing(
    registry: Registry, topic: str, channel: str
) -> None:
    node, other = join(registry, "a"), join(registry, "b")
    registry.register(node, "t", "c")
    registry.register(other, "u", "c")
    assert not registry.unregister(node, topic, channel, 0)
    assert producers(registry, "t") == [node]
    assert producers(registry, "u") == [other]


def test_an_ephemeral_channel_goes_with_its_last_node(registry: Registry) -> None:
    node, other = join(registry, "a"), join(registry, "b")
    for each in (node, other):
        registry.register(each, "t", "c#ephemeral")
    registry.unregister(node, "t", "c#ephemeral", 0)
    assert channels(registry, "t") == ["c#ephemeral"]
    registry.unregister(other, "t", "c#ephemeral", 0)
    assert channels(registry, "t") == []


def test_an_ephemeral_topic_goes_with_its_last_node_and_takes_its_channels(
    registry: Registry,
) -> None:
    node = join(registry, "a")
    registry.register(node, "t#ephemeral", "c")
    registry.unregister(node, "t#ephemeral", "", 0)
    assert registry.topics == {}
    assert registry.expire(10 * INACTIVE_NS) == []


def test_a_node_that_leaves_has_nothing_and_leaves_the_names(registry: Registry) -> None:
    node = join(registry, "a")
    registry.register(node, "t", "c")
    registry.register(node, "e#ephemeral", "")
    assert registry.remove_node(node, 0) == 2
    assert list(registry.topics) == ["t", "e#ephemeral"]
    assert producers(registry, "t") == []
    assert registry.active_nodes(0) == []


# Operators


def test_names_can_be_made_before_any_node_has_them(registry: Registry) -> None:
    registry.create_channel("t", "c")
    registry.create_topic("u")
    assert list(registry.topics) == ["t", "u"]
    assert (channels(registry, "t"), channels(registry, "u")) == (["c"], [])


def test_a_deleted_topic_is_gone_until_it_is_registered_again(registry: Registry) -> None:
    node = join(registry, "a")
    registry.register(node, "t", "c")
    assert registry.delete_topic("t")
    assert not registry.delete_topic("t")
    assert (registry.topics, node.topics) == ({}, {})
    assert not registry.unregister(node, "t", "c", 0)
    registry.register(node, "t", "d")
    assert channels(registry, "t") == ["d"]


def test_a_deleted_channel_leaves_its_topic(registry: Registry) -> None:
    node = join(registry, "a")
    registry.register(node, "t", "c")
    assert registry.delete_channel("t", "c")
    assert not registry.delete_channel("t", "c")
    assert not registry.delete_channel("no", "c")
    assert (channels(registry, "t"), producers(registry, "t")) == ([], [node])


# Tombstones


def test_a_tombstone_hides_one_node_of_one_topic_for_its_lifetime(registry: Registry) -> None:
    node, other = join(registry, "a"), join(registry, "b")
    for each in (node, other):
        registry.register(each, "t", "")
        registry.register(each, "u", "")
    assert registry.tombstone("t", "a:4151", 100) == 1
    assert producers(registry, "t", 100) == [other]
    assert producers(registry, "u", 100) == [node, other]
    assert producers(registry, "t", 100 + TOMBSTONE_NS - 1) == [other]
    assert producers(registry, "t", 100 + TOMBSTONE_NS) == [node, other]
    assert registry.active_nodes(100) == [node, other]


def test_a_tombstone_for_nobody_is_none(registry: Registry) -> None:
    node = join(registry, "a")
    registry.register(node, "t", "")
    assert registry.tombstone("t", "a:4150", 0) == 0
    assert registry.tombstone("no", "a:4151", 0) == 0
    assert producers(registry, "t") == [node]


def test_registering_again_does_not_lift_a_tombstone_but_unregistering_does(
    registry: Registry,
) -> None:
    node = join(registry, "a")
    registry.register(node, "t", "c")
    registry.tombstone("t", "a:4151", 0)
    registry.register(node, "t", "c")
    registry.register(node, "t", "d")
    assert producers(registry, "t") == []
    registry.unregister(node, "t", "", 0)
    registry.register(node, "t", "")
    assert producers(registry, "t") == [node]


def test_all_nodes_of_an_address_are_tombstoned(registry: Registry) -> None:
    nodes = [join(registry, "a"), join(registry, "a")]
    for node in nodes:
        registry.register(node, "t", "")
    assert registry.tombstone("t", "a:4151", 0) == 2
    assert producers(registry, "t") == []


# Silence


def test_a_silent_node_is_hidden_until_it_is_heard_again(registry: Registry) -> None:
    node = join(registry, "a")
    registry.register(node, "t", "")
    assert producers(registry, "t", INACTIVE_NS) == [node]
    late_ns = INACTIVE_NS + 1
    assert producers(registry, "t", late_ns) == []
    assert registry.active_nodes(late_ns) == []
    registry.heard(node, late_ns)
    assert producers(registry, "t", late_ns) == [node]
    assert registry.active_nodes(late_ns) == [node]


# Forgetting


def test_names_that_no_node_has_expire(registry: Registry) -> None:
    node = join(registry, "a")
    registry.register(node, "t", "c")
    registry.remove_node(node, 1000)
    assert registry.expire(1000 + INACTIVE_NS) == []
    assert registry.expire(1001 + INACTIVE_NS) == [("t", "c"), ("t", None)]
    assert registry.topics == {}


def test_a_channel_expires_though_its_topic_lives(registry: Registry) -> None:
    node = join(registry, "a")
    registry.register(node, "t", "c")
    registry.register(node, "t", "d")
    registry.unregister(node, "t", "c", 0)
    assert registry.expire(INACTIVE_NS + 1) == [("t", "c")]
    assert channels(registry, "t") == ["d"]


def test_a_name_that_is_registered_in_time_does_not_expire(registry: Registry) -> None:
    node = join(registry, "a")
    registry.register(node, "t", "c")
    registry.remove_node(node, 0)
    registry.register(join(registry, "b"), "t", "c")
    assert registry.expire(10 * INACTIVE_NS) == []
    assert channels(registry, "t") == ["c"]


def test_the_wait_begins_anew_each_time_the_last_node_goes(registry: Registry) -> None:
    for left_ns in (0, 200):
        node = join(registry, "a")
        registry.register(node, "t", "")
        registry.remove_node(node, left_ns)
    assert registry.expire(200 + INACTIVE_NS) == []
    assert registry.expire(201 + INACTIVE_NS) == [("t", None)]


def test_a_silent_node_keeps_its_names(registry: Registry) -> None:
    registry.register(join(registry, "a"), "t", "c")
    assert registry.expire(10 * INACTIVE_NS) == []
    assert channels(registry, "t") == ["c"]


def test_names_made_over_http_never_expire(registry: Registry) -> None:
    registry.create_channel("t", "c")
    node = join(registry, "a")
    registry.register(node, "t", "c")
    registry.register(node, "t", "d")
    registry.remove_node(node, 0)
    assert registry.expire(10 * INACTIVE_NS) == [("t", "d")]
    assert channels(registry, "t") == ["c"]


def test_a_name_about_to_expire_can_be_made_to_stay_over_http(registry: Registry) -> None:
    node = join(registry, "a")
    registry.register(node, "t", "c")
    registry.remove_node(node, 0)
    registry.create_channel("t", "c")
    assert registry.expire(10 * INACTIVE_NS) == []
    assert channels(registry, "t") == ["c"]


def test_a_deleted_name_does_not_expire_a_second_time(registry: Registry) -> None:
    node = join(registry, "a")
    registry.register(node, "t", "c")
    registry.remove_node(node, 0)
    registry.delete_topic("t")
    registry.create_topic("t")
    assert registry.expire(10 * INACTIVE_NS) == []
    assert list(registry.topics) == ["t"]


# Many names


def many(registry: Registry, shape: str, count: int) -> Node:
    """A node with `count` names."""
    node = join(registry, "a")
    for number in range(count - (shape == "channels")):
        if shape == "topics":
            registry.register(node, f"t{number}", "")
        else:
            registry.register(node, "t", f"c{number}")
    return node


def drain(registry: Registry, now_ns: int) -> list[int]:
    """Expire all that there is; how many names went each time."""
    counts = []
    while expired := registry.expire(now_ns):
        counts.append(len(expired))
    return counts


@pytest.mark.parametrize("shape", ["topics", "channels"])
def test_a_node_with_many_names_goes_in_slices_and_is_hidden_at_once(
    registry: Registry, shape: str
) -> None:
    node = many(registry, shape, 3 * SLICE_NAMES)
    last = "t" if shape == "channels" else f"t{3 * SLICE_NAMES - 1}"
    registry.remove_node(node, 0)
    assert node in registry.topics[last].nodes
    assert producers(registry, last) == registry.active_nodes(0) == []
    assert registry.part() and not [registry.part() for _ in range(3)][-1]
    assert node.topics == {} and not any(topic.nodes for topic in registry.topics.values())
    assert drain(registry, INACTIVE_NS + 1) == [SLICE_NAMES] * 3
    assert registry.topics == {}


def test_names_that_change_while_a_node_is_leaving(registry: Registry) -> None:
    node = many(registry, "channels", 2 * SLICE_NAMES)
    registry.remove_node(node, 0)
    late = f"c{2 * SLICE_NAMES - 2}"
    registry.delete_topic("t")
    other = join(registry, "b")
    registry.register(other, "t", late)
    while registry.part():
        pass
    assert drain(registry, 10 * INACTIVE_NS) == []
    assert (producers(registry, "t"), channels(registry, "t")) == ([other], [late])


@pytest.mark.parametrize("shape", ["topics", "channels"])
def test_ten_times_as_many_names_take_about_ten_times_as_long_to_go(shape: str) -> None:
    """CPU time, so that a busy machine does not matter. What was quadratic took a hundred times."""

    def taken_s(count: int) -> float:
        registry = Registry(inactive_ns=INACTIVE_NS, tombstone_ns=TOMBSTONE_NS)
        node = many(registry, shape, count)
        started_s = time.process_time()
        registry.remove_node(node, 0)
        while registry.part():
            pass
        assert sum(drain(registry, INACTIVE_NS + 1)) == count
        return time.process_time() - started_s

    few_s = min(taken_s(8_000) for _ in range(3))
    assert taken_s(80_000) < 40 * few_s
