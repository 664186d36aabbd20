"""The short way of `POST /pub` and of binary `/mpub`: what `web.shortcut` gives plain requests to
that publish.

Publishers that keep a connection open send the same head again and again, so what it says is found
out once. The messages of a tick are answered when they are in the log, those of one connection in
one write. A message costs a quarter of what it costs by way of `http_publish`, which takes all
that is not plain: other parameters, topics that cannot be had, sizes over the limit. So does a
`/mpub` that has something wrong with it, or a token that came before.
"""

import re
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from pumpline.core.messages.publish_tokens import digest_of
from pumpline.core.protocol.commands import SIZE
from pumpline.nsqd.http.publish import binary_count, publish_failure
from pumpline.web.replies import OK, HttpError, Reply
from pumpline.web.shortcut import Shortcut, Take, TakeLarge

if TYPE_CHECKING:
    from pumpline.nsqd.broker import Broker
    from pumpline.nsqd.queue.outcome import Ticket
    from pumpline.nsqd.queue.tick import Tick
    from pumpline.nsqd.queue.topic import Topic

_QUERY = re.compile(r"topic=([.a-zA-Z0-9_-]{1,64})")
_MANY_QUERY = re.compile(
    r"topic=([.a-zA-Z0-9_-]{1,64})&binary=true(?:&token=([A-Za-z0-9._:-]{1,64}))?"
)


class QuickPublish:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._publishers: WeakValueDictionary[Topic, Publisher] = WeakValueDictionary()

    def choose(self, query: str, body_bytes: int) -> Take | None:
        """What publishes the bodies of requests with this query."""
        plain = _QUERY.fullmatch(query)
        if plain is None or not 0 < body_bytes <= self._broker.options.max_msg_size:
            return None
        topic = _topic(self._broker, plain[1])
        if topic is None:
            return None
        publisher = self._publishers.get(topic)
        if publisher is None:
            self._publishers[topic] = publisher = Publisher(self._broker, topic)
        return publisher.take


class Publisher:
    """Publishes to one topic, from as many connections as like to."""

    def __init__(self, broker: "Broker", topic: "Topic") -> None:
        self._draining = broker.draining
        self._tick = broker.tick
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


class QuickPublishMany:
    """Of `/mpub`, where each request has a token of its own."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def choose(self, query: str, body_bytes: int) -> TakeLarge | None:
        """What publishes the body of a request with this query."""
        plain = _MANY_QUERY.fullmatch(query)
        if plain is None or not 0 < body_bytes <= self._broker.options.max_body_size:
            return None
        topic = _topic(self._broker, plain[1])
        if topic is None:
            return None
        token = digest_of(plain[2]) if plain[2] else b""
        many = Many(self._broker, topic, token)
        return TakeLarge(many.take, many.take_room)


class Many:
    """One body of many messages for a topic."""

    def __init__(self, broker: "Broker", topic: "Topic", token: bytes) -> None:
        self._broker = broker
        self._topic = topic
        self._token = token

    def take(self, body: bytes) -> "Published | None":
        return self.take_room(bytearray(body), len(body))

    def take_room(self, room: bytearray, size_bytes: int) -> "Published | None":
        topic, token = self._topic, self._token
        if topic.exiting or self._broker.draining.active or token in topic.tokens:
            return None
        options = self._broker.options
        try:
            count = binary_count(room, size_bytes, options.max_body_size)
            if token:
                topic.tokens.prepare()
        except (HttpError, OSError):
            return None  # the long way finds the same, and says so
        if topic.put_many(room, SIZE.size, size_bytes, count) >= 0:
            return None  # nothing was put
        if token:
            topic.tokens.put(token)
        return Published(topic, topic.ticket(), self._broker.tick)


def _topic(broker: "Broker", name: str) -> "Topic | None":
    """The topic of that name, created if need be, if it may be published to."""
    if broker.draining.active:
        return None
    try:
        return broker.topics.topic(name)
    except OSError:
        return None


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
