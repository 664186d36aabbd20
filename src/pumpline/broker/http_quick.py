"""The short way of `POST /pub`: what `web.shortcut` gives plain requests to that publish.

Publishers that keep a connection open send the same head again and again, so what it says is found
out once. The messages of a tick are answered when they are in the log, those of one connection in
one write. A message costs a quarter of what it costs by way of `http_publish`, which takes all
that is not plain: other parameters, topics that cannot be had, sizes over the limit.
"""

import re
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from pumpline.broker.http_publish import publish_failure
from pumpline.web.replies import OK, Reply
from pumpline.web.shortcut import Shortcut, Take

if TYPE_CHECKING:
    from pumpline.broker.broker import Broker
    from pumpline.broker.tick import Tick
    from pumpline.broker.ticket import Ticket
    from pumpline.broker.topic import Topic

_QUERY = re.compile(r"topic=([.a-zA-Z0-9_-]{1,64})")


class QuickPublish:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._publishers: WeakValueDictionary[Topic, Publisher] = WeakValueDictionary()

    def choose(self, query: str, body_bytes: int) -> Take | None:
        """What publishes the bodies of requests with this query."""
        plain = _QUERY.fullmatch(query)
        if plain is None or not 0 < body_bytes <= self._broker.options.max_msg_size:
            return None
        if self._broker.draining.active:
            return None
        try:
            topic = self._broker.topic(plain[1])
        except OSError:
            return None
        publisher = self._publishers.get(topic)
        if publisher is None:
            self._publishers[topic] = publisher = Publisher(self._broker, topic)
        return publisher.take


class Publisher:
    """Publishes to one topic, from as many connections as like to."""

    def __init__(self, broker: "Broker", topic: "Topic") -> None:
        self._draining = broker.draining
        self._tick = broker.services.tick
        self._topic = topic
        self._published: Published | None = None  # the last

    def take(self, body: bytes) -> "Published | None":
        topic = self._topic
        if topic.exiting or self._draining.active:
            return None
        topic.put(body)
        ticket = topic.ticket()
        if self._published is None or self._published.ticket is not ticket:
            self._published = Published(topic, ticket, self._tick)
        return self._published


class Published:
    """The outcome of what a topic was given in one tick."""

    __slots__ = ("_tick", "_topic", "_waiting", "done", "ticket")

    def __init__(self, topic: "Topic", ticket: "Ticket", tick: "Tick") -> None:
        self.ticket = ticket
        self.done = False
        self._topic = topic
        self._tick = tick
        self._waiting: list[Shortcut] = []
        ticket.wait(self._settled)

    def wait(self, connection: Shortcut) -> None:
        self._waiting.append(connection)

    def reply(self) -> Reply:
        if self.ticket.error is not None:
            raise publish_failure(self._topic, self.ticket.error)
        return OK

    def _settled(self) -> None:
        self.done = True
        for connection in self._waiting:
            self._tick.write(connection)
