"""All clients that are connected over TCP: who is let in, who left and why.

`Connections` is also what the connections share: the topics, the options, the tick, and one buffer
to receive into, and the line for turns. It knows no sockets and no commands.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pumpline.nsqd.protocol.turns import Turns
from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.queue.topics import Topics

if TYPE_CHECKING:  # a connection and the set of all of them know each other
    from pumpline.nsqd.protocol.connection import Connection

RECEIVE_BYTES = 256 * 1024
UNANSWERED_BYTES_MAX = 4 << 20  # of publishes of one client that wait for an fsync: then it waits
UNANSWERED_BYTES_ALL = 64 << 20  # of all clients: then each of them waits

_LOG = logging.getLogger(__name__)


class Connections:
    def __init__(self, topics: Topics, loop: asyncio.AbstractEventLoop) -> None:
        self.topics = topics
        self.options = topics.options
        self.tick = topics.tick
        self.loop = loop
        self.turns = Turns(loop.call_soon)
        self.received = bytearray(RECEIVE_BYTES)  # parsed before anybody else receives
        self.pub_topics: dict[bytes, Topic] = {}  # lines of PUBs that anybody may send -> topic
        topics.observers.append(self)
        self.draining = False  # publishes and subscriptions are refused
        self.refused_count = 0  # over --max-connections
        self.dropped: Counter[str] = Counter()  # given up, by the reason; see `heartbeat`
        self.errors: Counter[str] = Counter()  # that ended a connection, by their code
        self._connections: dict[Connection, None] = {}

    @property
    def unanswered_bytes_max(self) -> int:
        """How much a client may publish before it has to wait for answers."""
        is_flooded = self.topics.group_commit.unsynced_bytes > UNANSWERED_BYTES_ALL
        return 0 if is_flooded else UNANSWERED_BYTES_MAX

    def __iter__(self) -> "Iterator[Connection]":
        return iter(tuple(self._connections))

    def __len__(self) -> int:
        return len(self._connections)

    def admit(self, connection: "Connection") -> bool:
        """Take in a new connection, unless there are too many."""
        limit = self.options.max_connections
        if limit and len(self._connections) >= limit:
            self.refused_count += 1
            _LOG.error("TCP: refused client(%s): limit of %d reached", connection.peer, limit)
            return False
        self._connections[connection] = None
        return True

    def dismiss(self, connection: "Connection") -> None:
        """A connection is closed; it need not have been admitted."""
        self._connections.pop(connection, None)

    def registration_changed(self, topic: str, channel: str | None) -> None:
        """A topic came or went: what its PUBs are for is not known any more."""
        if channel is None:
            self.pub_topics.pop(b"PUB %b\n" % topic.encode(), None)

    def drain(self) -> None:
        """Refuse publishes and subscriptions from now on."""
        self.draining = True
        self.pub_topics.clear()
        self.topics.group_commit.stop()
        for connection in self:
            connection.protocol.forget_publish()

    def close(self) -> None:
        """Close every connection at once."""
        for connection in self:
            connection.close()
