"""Whatever is done to it, the registry knows what a flat set of registrations knows."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from pumpline.nsqlookupd.registry import Node, NodeIdentity, Registry

INACTIVE_NS = 50
TOMBSTONE_NS = 10
NODE_COUNT = 3

IDENTITY = NodeIdentity(
    hostname="h",
    broadcast_address="b",
    tcp_port=1,
    http_port=2,
    version="1",
    topology_zone="",
    topology_region="",
)
TOPICS = st.sampled_from(["t", "u", "e#ephemeral"])
CHANNELS = st.sampled_from(["", "c", "d", "x#ephemeral"])
STEPS = st.tuples(
    st.sampled_from(["register", "unregister", "leave", "delete", "expire"]),
    st.integers(0, NODE_COUNT - 1),
    TOPICS,
    CHANNELS,
)


class Rows:
    """The model: every registration is a row; a row without a channel is the topic's."""

    def __init__(self) -> None:
        self.rows: set[tuple[str, str, int]] = set()

    def register(self, topic: str, channel: str, node: int) -> None:
        self.rows |= {(topic, channel, node), (topic, "", node)}

    def keep(self, test: Callable[[str, str, int], bool]) -> None:
        self.rows = {row for row in self.rows if test(*row)}

    def nodes(self, topic: str, channel: str) -> set[int]:
        return {n for t, c, n in self.rows if (t, c) == (topic, channel)}


@given(st.lists(STEPS, max_size=60))
def test_the_registry_knows_what_its_rows_know(steps: list[tuple[str, int, str, str]]) -> None:
    registry = Registry(inactive_ns=INACTIVE_NS, tombstone_ns=TOMBSTONE_NS)
    nodes = [registry.add_node(str(n), IDENTITY, 0) for n in range(NODE_COUNT)]
    model = Rows()
    for now_ns, (action, number, topic, channel) in enumerate(steps):
        node = nodes[number]
        if action == "register":
            registry.register(node, topic, channel)
            model.register(topic, channel, number)
        elif action == "unregister":
            had = number in model.nodes(topic, channel)
            assert registry.unregister(node, topic, channel, now_ns) == had
            forget = (topic, channel, number)
            model.keep(lambda t, c, n, f=forget: (t, n) != (f[0], f[2]) or c != f[1] != "")
        elif action == "leave":
            registry.remove_node(node, now_ns)
            nodes[number] = registry.add_node(str(number), IDENTITY, now_ns)
            model.keep(lambda t, c, n, gone=number: n != gone)
        elif action == "delete" and channel:
            registry.delete_channel(topic, channel)
            model.keep(lambda t, c, n, gone=(topic, channel): (t, c) != gone)
        elif action == "delete":
            registry.delete_topic(topic)
            model.keep(lambda t, c, n, gone=topic: t != gone)
        else:
            registry.expire(now_ns * 10)
        assert known(registry, nodes) == model.rows
    registry.expire(1_000_000)
    assert {topic for topic, _, _ in model.rows} == set(registry.topics)


def known(registry: Registry, nodes: list[Node]) -> set[tuple[str, str, int]]:
    """All rows the registry has; the indexes by topic and by node must agree."""
    numbers = {node: number for number, node in enumerate(nodes)}
    assert set(registry.nodes) == set(nodes)
    by_topic = {(t.name, numbers[n]) for t in registry.topics.values() for n in t.nodes}
    by_node = {(name, numbers[n]) for n in nodes for name in n.topics}
    assert by_topic == by_node
    rows = {(topic, "", number) for topic, number in by_topic}
    for topic in registry.topics.values():
        for channel in topic.channels.values():
            rows |= {(topic.name, channel.name, numbers[node]) for node in channel.nodes}
    return rows
