"""The publishing verbs: PUB, MPUB, DPUB. Each gets its parameters and where its body begins, and
returns the position after it. This is the long way; `parser` has the short one.

A client that negotiated `publish_tokens` in IDENTIFY may add a publish token as the last parameter:

    PUB <topic> <token>        MPUB <topic> <token>        DPUB <topic> <ms> <token>

A repeat gets the outcome of the first publish with the token, and publishes nothing. From other
clients, further parameters are ignored, as NSQ does.
"""

from typing import TYPE_CHECKING

from pumpline.core.messages.kernels import skip_messages
from pumpline.core.messages.publish_tokens import digest_of, is_valid_token
from pumpline.core.protocol.commands import SIZE, mpub_count_max
from pumpline.core.protocol.errors import (
    E_BAD_BODY,
    E_BAD_MESSAGE,
    E_BAD_TOPIC,
    E_INVALID,
    ProtocolError,
)
from pumpline.core.text.names import go_quote, is_valid_name
from pumpline.log.completion import Completion
from pumpline.nsqd.options import Options
from pumpline.nsqd.protocol.arguments import Incomplete, message_body, number, text
from pumpline.nsqd.queue.topic import Topic

if TYPE_CHECKING:  # it calls the verbs
    from pumpline.nsqd.protocol.parser import Protocol

_NS_PER_MS = 1_000_000


def pub(protocol: "Protocol", params: list[bytes], buf: bytearray, pos: int, end: int) -> int:
    _require(params, 2, "PUB")
    name = _topic_name(params[1], "PUB")
    token = _token(protocol, params, 2)
    start, after = message_body(buf, pos, end, "PUB", protocol.options.max_msg_size)
    topic = _topic(protocol, name, "PUB")
    if token:
        if not _was_published(protocol, topic, token, "PUB"):
            completion = topic.publishing.add(buf, start, after, alone=True)
            _added_with_token(protocol, topic, token, completion, 1, "PUB")
        return after
    if protocol.owned is buf:
        topic.publishing.add_owned(buf, start, after)
        completion = topic.publishing.completion()
    else:
        completion = topic.publishing.add(buf, start, after)
    protocol.connection.outbox.reply_published(topic.name, completion, 1, "PUB")
    protocol.remember_publish(b"PUB " + params[1] + b"\n", topic)
    return after


def dpub(protocol: "Protocol", params: list[bytes], buf: bytearray, pos: int, end: int) -> int:
    _require(params, 3, "DPUB")
    name = _topic_name(params[1], "DPUB")
    options = protocol.options
    delay_ms = number(params[2])
    if delay_ms is None:
        raise ProtocolError(E_INVALID, f"DPUB could not parse timeout {text(params[2])}")
    max_ms = options.max_req_timeout_ns // _NS_PER_MS
    if delay_ms > max_ms:
        raise ProtocolError(E_INVALID, f"DPUB timeout {delay_ms} out of range 0-{max_ms}")
    token = _token(protocol, params, 3)
    start, after = message_body(buf, pos, end, "DPUB", options.max_msg_size)
    topic = _topic(protocol, name, "DPUB")
    delay_ns = delay_ms * _NS_PER_MS
    if token:
        if not _was_published(protocol, topic, token, "DPUB"):
            completion = topic.publishing.add(buf, start, after, delay_ns=delay_ns, alone=True)
            _added_with_token(protocol, topic, token, completion, 1, "DPUB")
        return after
    completion = topic.publishing.add(buf, start, after, delay_ns=delay_ns)
    protocol.connection.outbox.reply_published(topic.name, completion, 1, "DPUB")
    protocol.remember_delayed(b"DPUB " + params[1] + b" ", topic)
    return after


def mpub(protocol: "Protocol", params: list[bytes], buf: bytearray, pos: int, end: int) -> int:
    _require(params, 2, "MPUB")
    if not is_valid_name(text(params[1])):
        # The code is doubled in NSQ as well, and clients may look for it.
        raise ProtocolError(
            E_BAD_TOPIC, f"E_BAD_TOPIC MPUB topic name {go_quote(params[1])} is not valid"
        )
    token = _token(protocol, params, 2)
    topic = _topic(protocol, text(params[1]), "MPUB")
    count = mpub_count(buf, pos, end, protocol.options.max_body_size)
    start = pos + 2 * SIZE.size
    after = protocol.mpub_progress.end_of(buf, start, end, count)
    if token:
        if not _was_published(protocol, topic, token, "MPUB"):
            topic.publishing.add_many(buf, start, after, count)
            completion = topic.publishing.completion()
            _added_with_token(protocol, topic, token, completion, count, "MPUB")
        return after
    topic.publishing.add_many(buf, start, after, count)
    protocol.connection.outbox.reply_published(
        topic.name, topic.publishing.completion(), count, "MPUB"
    )
    protocol.remember_publish(b"MPUB " + params[1] + b"\n", topic)
    return after


def mpub_count(buf: bytearray, pos: int, end: int, size_max: int) -> int:
    """The message count of an MPUB body whose size is at `pos`.

    The size only has to be in range: clients in use leave out the count, or count the messages'
    bodies alone.
    """
    if end - pos < SIZE.size:
        raise Incomplete(pos + SIZE.size, f"{E_BAD_BODY} MPUB failed to read body size")
    size = SIZE.unpack_from(buf, pos)[0]
    if size <= 0:
        raise ProtocolError(E_BAD_BODY, f"MPUB invalid body size {size}")
    if size > size_max:
        raise ProtocolError(E_BAD_BODY, f"MPUB body too big {size} > {size_max}")
    if end - pos < 2 * SIZE.size:
        raise Incomplete(pos + 2 * SIZE.size, f"{E_BAD_BODY} MPUB failed to read message count")
    count: int = SIZE.unpack_from(buf, pos + SIZE.size)[0]
    if not 0 < count <= mpub_count_max(size_max):
        raise ProtocolError(E_BAD_BODY, f"MPUB invalid message count {count}")
    return count


class MpubProgress:
    """How far the messages of an MPUB that is still arriving were looked at, so that no message is
    looked at twice, however small the pieces are in which they come."""

    __slots__ = ("_count", "_end", "_options")

    def __init__(self, options: Options) -> None:
        self._options = options
        self._count = 0  # of whole messages
        self._end = 0  # of these, from the first on

    @property
    def begun(self) -> bool:
        return self._count > 0

    def end_of(self, buf: bytearray, start: int, end: int, count: int) -> int:
        """The position after the `count` messages that begin at `start`, each with its size before
        it. Incomplete if there are fewer, ProtocolError if one is not as it should be."""
        limit = self._options.max_msg_size
        at = start + self._end
        found, at = skip_messages(buf, at, end, count - self._count, limit)
        self._count += found
        self._end = at - start
        if self._count < count:
            self._look_at_next(buf, at, end)
        self._check_total(self._end - SIZE.size * count)
        self._count = self._end = 0
        return at

    def _look_at_next(self, buf: bytearray, at: int, end: int) -> None:
        """Say why the messages end before they are all there."""
        index, limit = self._count, self._options.max_msg_size
        if end - at < SIZE.size:
            what = f"{E_BAD_MESSAGE} MPUB failed to read message({index}) body size"
            raise Incomplete(at + SIZE.size, what)
        size = SIZE.unpack_from(buf, at)[0]
        if size <= 0:
            raise ProtocolError(E_BAD_MESSAGE, f"MPUB invalid message({index}) body size {size}")
        if size > limit:
            raise ProtocolError(E_BAD_MESSAGE, f"MPUB message too big {size} > {limit}")
        self._check_total(self._end - SIZE.size * index + size)
        what = f"{E_BAD_MESSAGE} MPUB failed to read message body"
        raise Incomplete(at + SIZE.size + size, what)

    def _check_total(self, bodies_bytes: int) -> None:
        """The body's size may be wrong, so it does not bound the messages: this does."""
        limit = self._options.max_body_size
        if bodies_bytes > limit:
            raise ProtocolError(E_BAD_BODY, f"MPUB body too big {bodies_bytes} > {limit}")


def _topic(protocol: "Protocol", name: str, verb: str) -> Topic:
    """The topic to publish to, if the client may."""
    protocol.check_auth(verb, name)
    if protocol.connections.draining:
        raise ProtocolError(f"E_{verb}_FAILED", f"{verb} failed exiting")
    try:
        return protocol.topics.ensure_provisional(name)
    except OSError as error:
        reason = protocol.topics.disk.health.failed(error, f"topic {name}")
        raise ProtocolError(f"E_{verb}_FAILED", f"{verb} failed {reason}") from None


def _token(protocol: "Protocol", params: list[bytes], index: int) -> bytes:
    """What is remembered of the publish token, which is params[index]; empty if there is none."""
    if len(params) <= index or not protocol.client_options.publish_tokens:
        return b""
    verb = text(params[0])
    if len(params) > index + 1:
        raise ProtocolError(E_INVALID, f"{verb} invalid number of parameters")
    token = text(params[index])
    if not is_valid_token(token):
        quoted = go_quote(params[index])
        raise ProtocolError(E_INVALID, f"{verb} publish token {quoted} is not valid")
    return digest_of(token)


def _was_published(protocol: "Protocol", topic: Topic, token: bytes, verb: str) -> bool:
    """Whether there was a publish with this token; if so, its outcome is the reply."""
    try:
        earlier = topic.upkeep.tokens.outcome(token)
    except OSError as error:
        reason = protocol.topics.disk.health.failed(error, f"tokens of topic {topic.name}")
        topic.drop_if_unused()
        raise ProtocolError(f"E_{verb}_FAILED", f"{verb} failed {reason}") from None
    if earlier is not None:
        protocol.connection.outbox.reply_repeated(earlier, verb)
    return earlier is not None


def _added_with_token(
    protocol: "Protocol",
    topic: Topic,
    token: bytes,
    completion: Completion,
    count: int,
    verb: str,
) -> None:
    topic.publishing.add_token(token)
    protocol.connection.outbox.reply_published(topic.name, completion, count, verb)


def _require(params: list[bytes], count: int, verb: str) -> None:
    if len(params) < count:
        raise ProtocolError(E_INVALID, f"{verb} insufficient number of parameters")


def _topic_name(raw: bytes, verb: str) -> str:
    name = text(raw)
    if not is_valid_name(name):
        raise ProtocolError(E_BAD_TOPIC, f"{verb} topic name {go_quote(raw)} is not valid")
    return name
