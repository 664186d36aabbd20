"""The nodes that went away: which topics they had, and since when. Pure: time is an argument.

A reader of logs must know them: without them, the rows of a node that is away are missing from its
result without notice. Consumers of NSQ do not ask for them.

| event                           | the entry of the node                                     |
|---------------------------------|-----------------------------------------------------------|
| its last connection ends        | is made, with its topics except tombstoned ones           |
| it identifies itself again      | stays, as `returned`, until the node has registered       |
| it registers a topic            | loses that topic                                          |
| its first PING after that       | ends: the node does not have the topics that are left     |
| a topic is tombstoned or        | loses that topic                                          |
| deleted here                    |                                                           |
| `forget`, or after `timeout_ns` | ends                                                      |

nsqds ping after they have registered all topics. A node is known by its broadcast address and TCP
port; one that comes back with another TCP port is known by its HTTP port.

Memory is bounded, whoever registers: over NODES_MAX the oldest entry ends, and a node whose topics
do not fit into NAMES_MAX is remembered for every topic, which is never too few.

Times are nanoseconds of the wall clock: entries outlive the process (`node_memory`).
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from pumpline.core.text.names import is_ephemeral
from pumpline.nsqlookupd.registry import NodeIdentity

NODES_MAX = 1000
NAMES_MAX = 250_000  # topics of all entries: 40 MB at most
ADDRESS_CHARS_MAX = 255  # of a host name
TEXT_CHARS_MAX = 255  # of each other text about a node

EXPIRED = "expired"
DISMISSED = "dismissed"
OVER_LIMIT = "limit"
DROP_REASONS = (EXPIRED, DISMISSED, OVER_LIMIT)

Place = tuple[str, int]
"""Broadcast address and TCP port."""


@dataclass(slots=True, eq=False)
class LostNode:
    identity: NodeIdentity
    lost_ns: int
    topics: set[str] = field(default_factory=set)
    any_topic: bool = False  # its topics were too many to remember
    returned: bool = False  # it is connected, and may not have registered all its topics yet

    @property
    def address(self) -> str:
        """How readers name a node: its TCP address."""
        return f"{self.identity.broadcast_address}:{self.identity.tcp_port}"

    @property
    def http_address(self) -> str:
        return f"{self.identity.broadcast_address}:{self.identity.http_port}"

    def had(self, topic: str) -> bool:
        return self.any_topic or topic in self.topics

    def lasting_topics(self) -> list[str]:
        """An ephemeral topic ends with its node."""
        return [topic for topic in self.topics if not is_ephemeral(topic)]


class LostNodes:
    def __init__(self, *, timeout_ns: int) -> None:
        """With a timeout of 0, no node is remembered."""
        self.timeout_ns = timeout_ns
        self.dropped = Counter[str](dict.fromkeys(DROP_REASONS, 0))  # entries, by reason
        self.revision = 0  # changes with everything that `node_memory` saves
        self._entries: dict[Place, LostNode] = {}  # oldest first
        self._names = 0  # topics in all entries
        self._connections: Counter[Place] = Counter()

    # What nodes do

    def arrived(self, identity: NodeIdentity) -> None:
        """A node has identified itself."""
        self.revision += 1
        place = _place(identity)
        self._connections[place] += 1
        moved = [e for e in self._entries.values() if _has_new_tcp_port(e.identity, identity)]
        for entry in moved:
            self._drop(entry)
            self._add(replace(entry, identity=_bounded(identity)))
        if (known := self._entries.get(place)) is not None:
            known.returned = True

    def left(
        self,
        identity: NodeIdentity,
        topics: Iterable[str],
        now_ns: int,
        *,
        dismissed: Collection[str] = (),
    ) -> None:
        """A connection of a node has ended."""
        self.revision += 1
        place = _place(identity)
        self._connections[place] -= 1
        # A second connection of the node may not have registered all its topics yet.
        is_connected = self._connections[place] > 0
        if not is_connected:
            del self._connections[place]
        if not self.timeout_ns or len(identity.broadcast_address) > ADDRESS_CHARS_MAX:
            return
        entry = LostNode(_bounded(identity), now_ns, returned=is_connected)
        before = self._entries.get(place)
        if before is not None:
            self._drop(before)
            entry.any_topic = before.any_topic
            entry.topics = before.topics
        entry.topics.update(topics)
        entry.topics.difference_update(dismissed)
        self._add(entry)

    def registered(self, identity: NodeIdentity, topic: str) -> None:
        self.revision += 1
        if self._entries and (entry := self._entries.get(_place(identity))) is not None:
            self._lose(entry, topic)

    def unregistered(self) -> None:
        self.revision += 1

    def heard(self, identity: NodeIdentity) -> None:
        """The node has sent a PING."""
        if self._entries and (entry := self._entries.get(_place(identity))) is not None:
            self.revision += 1
            self._drop(entry)

    # What operators do

    def forget(self, address: str) -> bool:
        """Drop the entry of a TCP or HTTP address; whether there was one."""
        meant = [e for e in self._entries.values() if address in (e.address, e.http_address)]
        for entry in meant:
            self._drop(entry, DISMISSED)
            self.revision += 1
        return bool(meant)

    def forget_topic(self, topic: str, http_address: str | None = None) -> None:
        """The topic was deleted, or tombstoned for the node of that HTTP address."""
        for entry in self._entries.values():
            if http_address in (None, entry.http_address) and topic in entry.topics:
                self._lose(entry, topic)
                self.revision += 1

    # Time, and the process before this one

    def expire(self, now_ns: int) -> list[LostNode]:
        """Drop the entries whose time has passed, and return them."""
        old = [
            entry
            for entry in self._entries.values()
            if not entry.returned and now_ns - entry.lost_ns > self.timeout_ns
        ]
        for entry in old:
            self._drop(entry, EXPIRED)
            self.revision += 1
        return old

    def restore(self, entry: LostNode) -> None:
        """Take over an entry of the process before this one."""
        if self.timeout_ns and len(entry.identity.broadcast_address) <= ADDRESS_CHARS_MAX:
            before = self._entries.get(_place(entry.identity))
            if before is not None:
                self._drop(before)
            self._add(replace(entry, identity=_bounded(entry.identity), returned=False))

    # What readers ask

    def of_topic(self, topic: str) -> list[LostNode]:
        """The nodes that had the topic; those that are connected again and have not registered it
        yet, too."""
        return [entry for entry in self._entries.values() if entry.had(topic)]

    def away(self) -> list[LostNode]:
        """The nodes that are not connected."""
        return [entry for entry in self._entries.values() if not entry.returned]

    def all(self) -> list[LostNode]:
        return list(self._entries.values())

    def _add(self, entry: LostNode) -> None:
        if self._names + len(entry.topics) > NAMES_MAX:
            entry.topics, entry.any_topic = set(), True
        self._names += len(entry.topics)
        self._entries[_place(entry.identity)] = entry
        if len(self._entries) > NODES_MAX:
            self._drop(next(iter(self._entries.values())), OVER_LIMIT)

    def _drop(self, entry: LostNode, reason: str = "") -> None:
        del self._entries[_place(entry.identity)]
        self._names -= len(entry.topics)
        if reason:
            self.dropped[reason] += 1

    def _lose(self, entry: LostNode, topic: str) -> None:
        if topic in entry.topics:
            entry.topics.remove(topic)
            self._names -= 1


def _place(identity: NodeIdentity) -> Place:
    return identity.broadcast_address, identity.tcp_port


def _has_new_tcp_port(before: NodeIdentity, now: NodeIdentity) -> bool:
    return (
        before.http_port == now.http_port
        and before.broadcast_address == now.broadcast_address
        and before.tcp_port != now.tcp_port
    )


def _bounded(identity: NodeIdentity) -> NodeIdentity:
    """IDENTIFY takes texts of up to 1 MiB."""
    return replace(
        identity,
        hostname=identity.hostname[:TEXT_CHARS_MAX],
        version=identity.version[:TEXT_CHARS_MAX],
        topology_zone=identity.topology_zone[:TEXT_CHARS_MAX],
        topology_region=identity.topology_region[:TEXT_CHARS_MAX],
    )
