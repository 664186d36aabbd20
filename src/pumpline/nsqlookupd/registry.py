"""The registry: which nodes have which topics and channels. Pure: no I/O, and time is an argument.

| key                 | made by                          | goes                                    |
|---------------------|----------------------------------|-----------------------------------------|
| node                | IDENTIFY                         | with its connection                     |
| topic               | REGISTER t, REGISTER t c, HTTP   | by HTTP; by UNREGISTER if ephemeral and |
|                     |                                  | the last; or when it expires            |
| channel of a topic  | REGISTER t c, HTTP               | the same, and with its topic            |

A key made by a node expires when no node has had it for `inactive_ns`. One made over HTTP stays
until it is deleted over HTTP. The nodes of a channel are always among those of its topic.

A tombstone hides one node of one topic from lookups for `tombstone_ns`; it goes when the node
unregisters the topic. A node that has not been heard of for `inactive_ns` is hidden everywhere.

Times are nanoseconds of any monotonic clock. Finding the nodes of a topic takes as many steps as it
has nodes, whatever else is registered.

Two things are done in slices of `SLICE_NAMES`, as a node may have 100,000 names. A node that leaves
is hidden at once, and taken out of its topics by `part`. Names only expire in `expire`. The cost of
a slice is what it drops, however many names there are.
"""

import sys
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from pumpline.core.text.names import is_ephemeral

SLICE_NAMES = 1000  # topics and channels handled at once: 1 to 2 ms

_NEVER_NS = -1 << 63
_DONE = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """What a node says of itself."""

    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    topology_zone: str
    topology_region: str


@dataclass(slots=True, eq=False)
class Node:
    """An nsqd that is connected."""

    remote_address: str
    identity: NodeIdentity
    heard_ns: int
    topics: "dict[str, RegisteredTopic]" = field(default_factory=dict)
    shown: bytes = b""  # its entry in answers, cached here by `http`
    tombstoned: set[str] = field(default_factory=set)  # topics that were, at some time

    @property
    def http_address(self) -> str:
        """How operators name it in a tombstone."""
        return f"{self.identity.broadcast_address}:{self.identity.http_port}"


@dataclass(slots=True, eq=False)
class RegisteredChannel:
    name: str
    pinned: bool = False  # made over HTTP: does not expire
    nodes: list[Node] = field(
        default_factory=list
    )  # a list takes a third of a set's memory, and is searched rarely


@dataclass(slots=True, eq=False)
class RegisteredTopic:
    name: str
    pinned: bool = False
    nodes: dict[Node, int | None] = field(default_factory=dict)  # when it was tombstoned
    channels: dict[str, RegisteredChannel] = field(default_factory=dict)


Key = tuple[str, str | None]
"""A topic, or a channel of it."""


class Registry:
    def __init__(self, *, inactive_ns: int, tombstone_ns: int) -> None:
        self.inactive_ns = inactive_ns
        self.tombstone_ns = tombstone_ns
        self.nodes: dict[Node, None] = {}  # in order of arrival
        self.topics: dict[str, RegisteredTopic] = {}
        # Keys that may expire, oldest first, and since when. Not a dict: to find the first entry of
        # one, Python steps over all those deleted before it, and 100,000 names took 4 s to expire.
        self._orphans: OrderedDict[Key, int] = OrderedDict()
        self._leaving: deque[Iterator[None]] = deque()  # each takes one node out of its topics

    # What nodes do

    def add_node(self, remote_address: str, identity: NodeIdentity, now_ns: int) -> Node:
        node = Node(remote_address, identity, now_ns)
        self.nodes[node] = None
        return node

    def remove_node(self, node: Node, now_ns: int) -> int:
        """The node is gone; returns how many topics it had. `part` does what is left to do."""
        count = len(node.topics)
        self.nodes.pop(node, None)
        node.heard_ns = _NEVER_NS  # hidden, though some topics may still have it
        self._leaving.append(self._leave(node, now_ns))
        self.part()
        return count

    def part(self) -> bool:
        """Take nodes that are gone out of some of their topics; whether there is more to do."""
        for _ in range(SLICE_NAMES):
            if not self._leaving:
                return False
            if next(self._leaving[0], _DONE) is _DONE:
                self._leaving.popleft()
        return bool(self._leaving)

    def heard(self, node: Node, now_ns: int) -> None:
        node.heard_ns = now_ns

    def register(self, node: Node, topic_name: str, channel_name: str) -> bool:
        """`channel_name` may be empty. Whether this node did not have all of it before."""
        topic = self._topic(topic_name)
        is_new = node not in topic.nodes  # then it has no channel of it, either
        if is_new:
            topic.nodes[node] = None
            node.topics[topic.name] = topic  # its own name: one string for all nodes
        if channel_name:
            channel = self._channel(topic, channel_name)
            if is_new or node not in channel.nodes:
                channel.nodes.append(node)
                return True
        return is_new

    def unregister(self, node: Node, topic_name: str, channel_name: str, now_ns: int) -> bool:
        """Without a channel, the topic and all its channels. Whether the node had it."""
        topic = self.topics.get(topic_name)
        if topic is None:
            return False
        if channel_name:
            channel = topic.channels.get(channel_name)
            if channel is None or node not in channel.nodes:
                return False
            self._part_channel(node, topic, channel, now_ns)
            if not channel.nodes and is_ephemeral(channel_name):
                self._drop_channel(topic, channel_name)
            return True
        if node not in topic.nodes:
            return False
        for _ in self._part(node, topic, now_ns):
            pass
        if not topic.nodes and is_ephemeral(topic_name):
            self._drop_topic(topic)
        return True

    # What operators do

    def create_topic(self, topic_name: str) -> None:
        self._topic(topic_name).pinned = True

    def create_channel(self, topic_name: str, channel_name: str) -> None:
        topic = self._topic(topic_name)
        topic.pinned = True
        self._channel(topic, channel_name).pinned = True

    def delete_topic(self, topic_name: str) -> bool:
        """Whether there was one."""
        topic = self.topics.get(topic_name)
        if topic is not None:
            self._drop_topic(topic)
        return topic is not None

    def delete_channel(self, topic_name: str, channel_name: str) -> bool:
        """Whether there was one."""
        topic = self.topics.get(topic_name)
        if topic is None or channel_name not in topic.channels:
            return False
        self._drop_channel(topic, channel_name)
        return True

    def tombstone(self, topic_name: str, http_address: str, now_ns: int) -> int:
        """Hide the nodes of that address from lookups of the topic; returns how many."""
        topic = self.topics.get(topic_name)
        meant = [node for node in topic.nodes if node.http_address == http_address] if topic else []
        for node in meant:
            node.topics[topic_name].nodes[node] = now_ns
            node.tombstoned.add(topic_name)
        return len(meant)

    # What anybody asks

    def producers(self, topic: RegisteredTopic, now_ns: int) -> list[Node]:
        """The nodes of the topic that consumers should connect to."""
        oldest_ns = now_ns - self.inactive_ns
        return [
            node
            for node, tombstoned_ns in topic.nodes.items()
            if node.heard_ns >= oldest_ns
            and (tombstoned_ns is None or not self.is_hidden(tombstoned_ns, now_ns))
        ]

    def active_nodes(self, now_ns: int) -> list[Node]:
        return [node for node in self.nodes if self.is_active(node, now_ns)]

    def is_active(self, node: Node, now_ns: int) -> bool:
        return now_ns - node.heard_ns <= self.inactive_ns

    def hidden_topics(self, node: Node, now_ns: int) -> list[str]:
        """The topics for which the node is tombstoned now."""
        return [
            name
            for name in node.tombstoned
            if (topic := node.topics.get(name)) and self.is_hidden(topic.nodes[node], now_ns)
        ]

    def is_hidden(self, tombstoned_ns: int | None, now_ns: int) -> bool:
        return tombstoned_ns is not None and now_ns - tombstoned_ns < self.tombstone_ns

    # Keys that nobody has

    def expire(self, now_ns: int) -> list[Key]:
        """Drop keys that no node has had for too long, and return them. If they are SLICE_NAMES,
        there may be more."""
        expired: list[Key] = []
        while self._orphans and len(expired) < SLICE_NAMES:
            key, since_ns = next(iter(self._orphans.items()))
            if now_ns - since_ns <= self.inactive_ns:
                break
            expired.append(key)
            topic_name, channel_name = key
            if channel_name is None:
                self._drop_topic(self.topics[topic_name])
            else:
                self._drop_channel(self.topics[topic_name], channel_name)
        return expired

    def _topic(self, name: str) -> RegisteredTopic:
        """The topic, created if need be; it does not expire, as the caller adds a node or a pin."""
        if self._orphans:
            self._orphans.pop((name, None), None)
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = RegisteredTopic(name)
        return topic

    def _channel(self, topic: RegisteredTopic, name: str) -> RegisteredChannel:
        if self._orphans:
            self._orphans.pop((topic.name, name), None)
        channel = topic.channels.get(name)
        if channel is None:
            name = sys.intern(name)  # topics tend to have channels of the same names
            channel = topic.channels[name] = RegisteredChannel(name)
        return channel

    def _leave(self, node: Node, now_ns: int) -> Iterator[None]:
        """Remove the node from all its topics, a name at a time."""
        for topic in list(node.topics.values()):
            yield from self._part(node, topic, now_ns)

    def _part(self, node: Node, topic: RegisteredTopic, now_ns: int) -> Iterator[None]:
        """Remove the node from all channels of the topic and from the topic, a name at a time.
        What is dropped meanwhile has no nodes any more."""
        for channel in list(topic.channels.values()):
            if node in channel.nodes:
                self._part_channel(node, topic, channel, now_ns)
            yield
        if node in topic.nodes:
            del topic.nodes[node]
            del node.topics[topic.name]
            if not topic.nodes and not topic.pinned:
                self._orphans[topic.name, None] = now_ns
        yield

    def _part_channel(
        self, node: Node, topic: RegisteredTopic, channel: RegisteredChannel, now_ns: int
    ) -> None:
        channel.nodes.remove(node)
        if not channel.nodes and not channel.pinned:
            self._orphans[topic.name, channel.name] = now_ns

    def _drop_topic(self, topic: RegisteredTopic) -> None:
        for channel_name in list(topic.channels):
            self._drop_channel(topic, channel_name)
        for node in topic.nodes:
            del node.topics[topic.name]
        topic.nodes.clear()
        del self.topics[topic.name]
        self._orphans.pop((topic.name, None), None)

    def _drop_channel(self, topic: RegisteredTopic, name: str) -> None:
        topic.channels.pop(name).nodes.clear()
        self._orphans.pop((topic.name, name), None)
