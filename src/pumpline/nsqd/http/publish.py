"""Publishing over HTTP: /pub and /mpub.

A text /mpub body is brought into the form of a binary one, which is that of the MPUB command, so
that both take the same way into the topic. Everything is checked before anything is queued, and
`OK` means what it means to a TCP client: written to the log. A publish with a token (`token=…`)
that the topic has had before is answered as the first one was, and nothing is queued.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from itertools import chain

from pumpline.core.messages.publish_tokens import digest_of, is_valid_token
from pumpline.core.protocol.commands import SIZE, mpub_count_max
from pumpline.core.text.names import is_valid_name
from pumpline.log.completion import EXITING, Completion
from pumpline.nsqd.broker import Broker
from pumpline.nsqd.options import BODY_SIZE_MAX
from pumpline.nsqd.queue.backlog import BACKLOG_FULL
from pumpline.nsqd.queue.tick import Tick
from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.queue.topic_state import CLOSED
from pumpline.web.endpoint import Answer, Handler, Settling
from pumpline.web.query import BOOLEANS
from pumpline.web.replies import OK, HttpError, Reply
from pumpline.web.request import Request, printable
from pumpline.web.yielding import Pace

_NS_PER_MS = 1_000_000
_SPLIT_BYTES = 16 * 1024  # of text, split at once: 1 ms if each line is a byte
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)

_LOG = logging.getLogger(__name__)


class PublishEndpoints:
    def __init__(self, broker: Broker) -> None:
        self.draining = broker.draining
        self._broker = broker
        self._last: Published | None = None

    def pub(self, request: Request) -> Answer:
        return self.bind_pub(request)(request)

    def bind_pub(self, request: Request) -> Handler:
        """What publishes the bodies of requests with this head."""
        if request.start == request.end:
            raise HttpError(400, "MSG_EMPTY")
        query = request.query()
        token = _token(query)
        topic = self.topic(query)
        delay_ns = _delay_ns(query, self._broker.options.max_req_timeout_ns)
        return Publisher(self, topic, delay_ns, token).pub

    def add_once(self, topic: Topic, request: Request, delay_ns: int, token: bytes) -> Answer:
        """One message, unless its token was there before."""
        outcome = self._earlier(topic, token)
        if outcome is None:
            buffer, start, end = request.buffer, request.start, request.end
            outcome = topic.publishing.add(buffer, start, end, delay_ns=delay_ns, alone=True)
            topic.publishing.add_token(token)
        return self.published(topic, outcome)

    def check_mpub(self, request: Request) -> None:
        """Before the body is there: is this a topic to publish to?"""
        query = request.query()
        _token(query)
        self.topic(query)

    def mpub(self, request: Request) -> Answer:
        query = request.query()
        topic = self.topic(query)
        if not _is_binary(query):
            return self._mpub_lines(topic, request)
        start, end = request.start, request.end
        count = binary_count(request.buffer, start, end, self._broker.options.max_body_size)
        return self._add_many(topic, query, request.buffer, start + SIZE.size, end, count)

    async def _mpub_lines(self, topic: Topic, request: Request) -> Reply | Settling:
        body = request.buffer[request.start : request.end]
        count, binary = await sized_lines(body, self._broker.options.max_msg_size)
        if not count:
            return OK
        return self._add_many(topic, request.query(), binary, SIZE.size, len(binary), count)

    def _add_many(
        self,
        topic: Topic,
        query: Mapping[str, str],
        buffer: bytearray,
        start: int,
        end: int,
        count: int,
    ) -> Reply | Settling:
        """`count` messages, each with its size before it, unless their token was there before."""
        token = _token(query)
        earlier = self._earlier(topic, token)
        if earlier is None:
            if topic.publishing.add_many(buffer, start, end, count) >= 0:
                raise HttpError(413, "BAD_MESSAGE")
            if token:
                topic.publishing.add_token(token)
        return self.published(topic, earlier or topic.publishing.completion())

    def topic(self, query: Mapping[str, str]) -> Topic:
        """The topic named, created if need be."""
        name = topic_name(query)
        if self._broker.draining.active:
            raise HttpError(503, "EXITING")
        try:
            return self._broker.topics.ensure_provisional(name)
        except OSError as error:
            reason = self._broker.disk.health.failed(error, f"topic {name}")
            raise publish_failure(name, reason) from None

    def _earlier(self, topic: Topic, token: bytes) -> Completion | None:
        """The outcome of an earlier publish with this token, if there was one."""
        try:
            return topic.upkeep.tokens.outcome(token) if token else None
        except OSError as error:
            reason = self._broker.disk.health.failed(error, f"tokens of topic {topic.name}")
            topic.drop_if_unused()
            raise publish_failure(topic.name, reason) from None

    def published(self, topic: Topic, completion: Completion) -> Reply | Settling:
        """The reply to a publish, once its outcome is known: in this tick, as a rule. Publishes of
        a tick to one topic have the same outcome, and so the same reply."""
        if completion.done:
            return publish_reply(topic, completion)
        last = self._last
        if last is None or last.completion is not completion or last.topic is not topic:
            self._last = last = Published(topic, completion, self._broker.tick)
        return last


class Publisher:
    """Publishes what comes with one head, which names a topic."""

    __slots__ = ("_delay_ns", "_draining", "_endpoints", "_token", "_topic")

    def __init__(
        self, endpoints: PublishEndpoints, topic: Topic, delay_ns: int, token: bytes
    ) -> None:
        self._endpoints = endpoints
        self._draining = endpoints.draining
        self._topic = topic
        self._delay_ns = delay_ns
        self._token = token

    def pub(self, request: Request) -> Answer:
        start, end = request.start, request.end
        if start == end:
            raise HttpError(400, "MSG_EMPTY")
        topic = self._topic
        if topic.state is CLOSED or self._draining.active:
            self._topic = topic = self._endpoints.topic(request.query())  # another of that name
        if self._token:
            return self._endpoints.add_once(topic, request, self._delay_ns, self._token)
        outcome = topic.publishing.add(request.buffer, start, end, delay_ns=self._delay_ns)
        return self._endpoints.published(topic, outcome)


class Published(Settling):
    """The outcome of what a topic was given in one tick."""

    __slots__ = ("_tick", "completion", "topic")

    def __init__(self, topic: Topic, completion: Completion, tick: Tick) -> None:
        super().__init__()
        self.completion = completion
        self.topic = topic
        self._tick = tick
        completion.when_done(self._on_done)

    def _on_done(self) -> None:
        self._tick.write(*self.settle(publish_reply(self.topic, self.completion)))


def publish_reply(topic: Topic, completion: Completion) -> Reply:
    return OK if completion.error is None else publish_failure(topic.name, completion.error).reply()


def publish_failure(topic: str, reason: str) -> HttpError:
    """What to answer when a topic did not take a message."""
    _LOG.error("TOPIC(%s): HTTP publish failed - %s", topic, reason)
    if reason == EXITING:
        return HttpError(503, "EXITING")
    code = "BACKLOG_FULL" if reason.startswith(BACKLOG_FULL) else "WRITE_FAILED"
    return HttpError(503, code, details={"detail": reason})


def topic_name(query: Mapping[str, str]) -> str:
    """The topic named, which need not exist."""
    name = query.get("topic")
    if name is None:
        raise HttpError(400, "MISSING_ARG_TOPIC")
    if not is_valid_name(name):
        raise HttpError(400, "INVALID_TOPIC")
    return name


def binary_count(buffer: bytearray, start: int, end: int, body_bytes_max: int) -> int:
    """The number of messages that the binary body in buffer[start:end] says it has."""
    count: int = SIZE.unpack_from(buffer, start)[0] if end - start >= SIZE.size else 0
    if not 0 < count <= mpub_count_max(body_bytes_max):
        raise HttpError(413, "BAD_BODY")
    return count


async def sized_lines(text: bytearray, size_max: int) -> tuple[int, bytearray]:
    """The lines of `text` that are not empty: how many, and a binary body of them."""
    pace = Pace()
    body = bytearray(SIZE.size)
    count = 0
    for piece in whole_lines(text, _SPLIT_BYTES):
        messages = [line for line in piece.split(b"\n") if line]
        sizes = list(map(len, messages))
        if max(sizes, default=0) > size_max:
            raise HttpError(413, "MSG_TOO_BIG")
        if len(body) > BODY_SIZE_MAX:
            raise HttpError(413, "BODY_TOO_BIG")
        body += b"".join(chain.from_iterable(zip(map(SIZE.pack, sizes), messages, strict=True)))
        count += len(messages)
        await pace.breathe()
    SIZE.pack_into(body, 0, count)
    return count, body


def whole_lines(text: bytearray, piece_bytes: int) -> Iterator[bytes]:
    """`text` in pieces that end with a line, of that size at most unless a line is longer."""
    at = 0
    while at < len(text):
        end = text.rfind(b"\n", at, at + piece_bytes) + 1 or text.find(b"\n", at) + 1 or len(text)
        yield bytes(text[at:end])
        at = end


def _token(query: Mapping[str, str]) -> bytes:
    """What is remembered of the publish token, if there is one."""
    text = query.get("token")
    if text is None:
        return b""
    if not is_valid_token(text):
        raise HttpError(400, "INVALID_TOKEN")
    return digest_of(text)


def _is_binary(query: Mapping[str, str]) -> bool:
    value = query.get("binary", "false")
    if value not in BOOLEANS:
        _LOG.warning("deprecated value '%s' used for /mpub binary param", printable(value))
    return BOOLEANS.get(value, True)


def _delay_ns(query: Mapping[str, str], delay_max_ns: int) -> int:
    text = query.get("defer")
    if text is None:
        return 0
    if not _INTEGER.fullmatch(text):
        raise HttpError(400, "INVALID_DEFER")
    delay_ns = int(text) * _NS_PER_MS
    if not 0 <= delay_ns <= delay_max_ns:
        raise HttpError(400, "INVALID_DEFER")
    return delay_ns
