"""The publishing verbs: PUB, MPUB, DPUB. Each gets its parameters and where its body begins, and
returns the position after it. This is the long way; `parser` has the short one."""

from typing import TYPE_CHECKING

from pumpline.core.protocol.commands import SIZE, mpub_count_max
from pumpline.core.protocol.errors import (
    E_BAD_BODY,
    E_BAD_MESSAGE,
    E_BAD_TOPIC,
    E_INVALID,
    ProtocolError,
)
from pumpline.core.text.names import go_quote, is_valid_name
from pumpline.nsqd.protocol.arguments import Incomplete, message_body, number, text

if TYPE_CHECKING:  # the parser has the table of these verbs
    from pumpline.nsqd.protocol.parser import Protocol
    from pumpline.nsqd.queue.topic import Topic

_NS_PER_MS = 1_000_000


def pub(protocol: "Protocol", params: list[bytes], buf: bytearray, pos: int, end: int) -> int:
    _require(params, 2, "PUB")
    name = _topic_name(params[1], "PUB")
    body, after = message_body(buf, pos, end, "PUB", protocol.options.max_msg_size)
    topic = _topic(protocol, name, "PUB")
    topic.put(body)
    protocol.connection.reply_published(topic, 1, "PUB")
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
    body, after = message_body(buf, pos, end, "DPUB", options.max_msg_size)
    topic = _topic(protocol, name, "DPUB")
    topic.put(body, delay_ns=delay_ms * _NS_PER_MS)
    protocol.connection.reply_published(topic, 1, "DPUB")
    return after


def mpub(protocol: "Protocol", params: list[bytes], buf: bytearray, pos: int, end: int) -> int:
    _require(params, 2, "MPUB")
    if not is_valid_name(text(params[1])):
        # The code is doubled in NSQ as well, and clients may look for it.
        raise ProtocolError(
            E_BAD_TOPIC, f"E_BAD_TOPIC MPUB topic name {go_quote(params[1])} is not valid"
        )
    topic = _topic(protocol, text(params[1]), "MPUB")
    options = protocol.options
    count, after = mpub_count(buf, pos, end, options.max_body_size)
    messages_at = pos + 2 * SIZE.size
    bad = topic.put_many(buf, messages_at, after, count)
    if bad >= 0:
        raise bad_message(buf, messages_at, after, bad, options.max_msg_size)
    protocol.connection.reply_published(topic, count, "MPUB")
    protocol.remember_publish(b"MPUB " + params[1] + b"\n", topic)
    return after


def mpub_count(buf: bytearray, pos: int, end: int, size_max: int) -> tuple[int, int]:
    """The message count of a whole MPUB body, and the position after the body."""
    if end - pos < SIZE.size:
        raise Incomplete(pos + SIZE.size, f"{E_BAD_BODY} MPUB failed to read body size")
    size = SIZE.unpack_from(buf, pos)[0]
    if size <= 0:
        raise ProtocolError(E_BAD_BODY, f"MPUB invalid body size {size}")
    if size > size_max:
        raise ProtocolError(E_BAD_BODY, f"MPUB body too big {size} > {size_max}")
    if end - pos < 2 * SIZE.size:
        raise Incomplete(pos + 2 * SIZE.size, f"{E_BAD_BODY} MPUB failed to read message count")
    count = SIZE.unpack_from(buf, pos + SIZE.size)[0]
    if not 0 < count <= mpub_count_max(size_max):
        raise ProtocolError(E_BAD_BODY, f"MPUB invalid message count {count}")
    after = pos + SIZE.size + size
    if after > end:
        raise Incomplete(after, lambda: _cut_short(buf, pos + 2 * SIZE.size, end, count))
    return count, after


def _cut_short(buf: bytearray, pos: int, end: int, count: int) -> str:
    """What is wrong with an MPUB body that ends too early."""
    for index in range(count):
        if end - pos < SIZE.size:
            return f"{E_BAD_MESSAGE} MPUB failed to read message({index}) body size"
        pos += SIZE.size + max(SIZE.unpack_from(buf, pos)[0], 0)
        if pos > end:
            break
    return f"{E_BAD_MESSAGE} MPUB failed to read message body"


def bad_message(buf: bytearray, pos: int, end: int, index: int, size_max: int) -> ProtocolError:
    """What is wrong with the message of that index in an MPUB body: `Topic.put_many` refused it."""
    for _ in range(index):
        pos += SIZE.size + SIZE.unpack_from(buf, pos)[0]
    if end - pos < SIZE.size:
        return ProtocolError(E_BAD_MESSAGE, f"MPUB failed to read message({index}) body size")
    size = SIZE.unpack_from(buf, pos)[0]
    if size <= 0:
        return ProtocolError(E_BAD_MESSAGE, f"MPUB invalid message({index}) body size {size}")
    if size > size_max:
        return ProtocolError(E_BAD_MESSAGE, f"MPUB message too big {size} > {size_max}")
    return ProtocolError(E_BAD_MESSAGE, "MPUB failed to read message body")


def _topic(protocol: "Protocol", name: str, verb: str) -> "Topic":
    """The topic to publish to, if the client may."""
    protocol.check_auth(verb, name)
    if protocol.connections.draining:
        raise ProtocolError(f"E_{verb}_FAILED", f"{verb} failed exiting")
    try:
        return protocol.topics.to_publish(name)
    except OSError as error:
        reason = protocol.topics.disk.health.failed(error, f"topic {name}")
        raise ProtocolError(f"E_{verb}_FAILED", f"{verb} failed {reason}") from None


def _require(params: list[bytes], count: int, verb: str) -> None:
    if len(params) < count:
        raise ProtocolError(E_INVALID, f"{verb} insufficient number of parameters")


def _topic_name(raw: bytes, verb: str) -> str:
    name = text(raw)
    if not is_valid_name(name):
        raise ProtocolError(E_BAD_TOPIC, f"{verb} topic name {go_quote(raw)} is not valid")
    return name
