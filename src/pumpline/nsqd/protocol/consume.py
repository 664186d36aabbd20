"""The consuming verbs: SUB, RDY, FIN, REQ, TOUCH, CLS. Each gets its parameters and the position
after its line, which it returns: none has a body."""

from typing import TYPE_CHECKING

from pumpline.core.messages.frame import ID_BYTES
from pumpline.core.messages.ids import offset_of
from pumpline.core.protocol.errors import (
    E_BAD_CHANNEL,
    E_BAD_TOPIC,
    E_FIN_FAILED,
    E_INVALID,
    E_REQ_FAILED,
    E_SUB_FAILED,
    E_TOUCH_FAILED,
    ProtocolError,
)
from pumpline.core.protocol.frames import CLOSE_WAIT, OK
from pumpline.core.text.names import go_quote, is_valid_name
from pumpline.nsqd.protocol.arguments import (
    STATE_CLOSING,
    STATE_INIT,
    STATE_SUBSCRIBED,
    number,
    text,
)
from pumpline.nsqd.queue.consumer import ChannelConsumer, ChannelError
from pumpline.nsqd.queue.topic import NameTaken
from pumpline.nsqd.queue.topology import locality_of

if TYPE_CHECKING:  # it calls the verbs
    from pumpline.nsqd.protocol.parser import Protocol

_NS_PER_MS = 1_000_000
_INT64_MAX = (1 << 63) - 1


def sub(protocol: "Protocol", params: list[bytes], buf: bytearray, pos: int, end: int) -> int:
    client = protocol.client_options
    if protocol.state != STATE_INIT:
        raise ProtocolError(E_INVALID, "cannot SUB in current state")
    if client.heartbeat_ms <= 0:
        raise ProtocolError(E_INVALID, "cannot SUB with heartbeats disabled")
    if len(params) < 3:
        raise ProtocolError(E_INVALID, "SUB insufficient number of parameters")
    topic_name, channel_name = text(params[1]), text(params[2])
    if not is_valid_name(topic_name):
        raise ProtocolError(E_BAD_TOPIC, f"SUB topic name {go_quote(params[1])} is not valid")
    if not is_valid_name(channel_name):
        raise ProtocolError(E_BAD_CHANNEL, f"SUB channel name {go_quote(params[2])} is not valid")
    protocol.check_auth("SUB", topic_name, channel_name)
    if protocol.connections.draining:
        raise ProtocolError(E_SUB_FAILED, "SUB failed exiting")
    try:
        channel = protocol.topics.ensure(topic_name).ensure_channel(channel_name)
    except OSError as error:
        reason = protocol.topics.disk.health.failed(error, f"channel {channel_name}")
        raise ProtocolError(E_SUB_FAILED, f"SUB failed {reason}") from None
    except NameTaken:
        raise ProtocolError(
            E_BAD_CHANNEL, f"SUB channel name {go_quote(params[2])} is that of a hold"
        ) from None
    limit = protocol.options.max_channel_consumers
    if limit and len(channel.consumers) >= limit:
        raise ProtocolError(
            E_SUB_FAILED,
            f"SUB failed consumers for {topic_name}:{channel_name} exceeds limit of {limit}",
        )
    consumer = ChannelConsumer(
        channel,
        protocol.connection.outbox,
        msg_timeout_ns=client.msg_timeout_ms * _NS_PER_MS,
        sample_rate=client.sample_rate,
        locality=locality_of(client.topology_zone, client.topology_region, protocol.options),
    )
    channel.add(consumer)
    protocol.connection.consumer = consumer
    protocol.state = STATE_SUBSCRIBED
    protocol.connection.outbox.reply(OK)
    return pos


def rdy(protocol: "Protocol", params: list[bytes], buf: bytearray, pos: int, end: int) -> int:
    consumer = protocol.connection.consumer
    if protocol.state == STATE_CLOSING or (consumer is not None and consumer.closing):
        return pos
    if consumer is None:
        raise ProtocolError(E_INVALID, "cannot RDY in current state")
    count = number(params[1]) if len(params) > 1 else 1
    if count is None:
        raise ProtocolError(E_INVALID, f"RDY could not parse count {text(params[1])}")
    limit = protocol.options.max_rdy_count
    if count > limit:
        # Go prints the count as the signed number it became.
        shown = count if count <= _INT64_MAX else count - (1 << 64)
        raise ProtocolError(E_INVALID, f"RDY count {shown} out of range 0-{limit}")
    consumer.rdy = count
    consumer.channel.offer(consumer)
    return pos


def fin(protocol: "Protocol", params: list[bytes], buf: bytearray, pos: int, end: int) -> int:
    consumer, raw, offset = _message(protocol, params, "FIN", 2)
    try:
        consumer.channel.finish_one(consumer, offset)
    except ChannelError as error:
        raise ProtocolError(E_FIN_FAILED, f"FIN {text(raw)} failed {error}") from None
    return pos


def req(protocol: "Protocol", params: list[bytes], buf: bytearray, pos: int, end: int) -> int:
    consumer, raw, offset = _message(protocol, params, "REQ", 3)
    delay_ms = number(params[2])
    if delay_ms is None:
        raise ProtocolError(E_INVALID, f"REQ could not parse timeout {text(params[2])}")
    delay_ns = min(delay_ms * _NS_PER_MS, protocol.options.max_req_timeout_ns)
    try:
        consumer.channel.requeue_one(consumer, offset, delay_ns)
    except ChannelError as error:
        raise ProtocolError(E_REQ_FAILED, f"REQ {text(raw)} failed {error}") from None
    return pos


def touch(protocol: "Protocol", params: list[bytes], buf: bytearray, pos: int, end: int) -> int:
    consumer, raw, offset = _message(protocol, params, "TOUCH", 2)
    try:
        consumer.channel.touch_one(consumer, offset)
    except ChannelError as error:
        raise ProtocolError(E_TOUCH_FAILED, f"TOUCH {text(raw)} failed {error}") from None
    return pos


def cls(protocol: "Protocol", params: list[bytes], buf: bytearray, pos: int, end: int) -> int:
    consumer = protocol.connection.consumer
    if consumer is None or protocol.state != STATE_SUBSCRIBED:
        raise ProtocolError(E_INVALID, "cannot CLS in current state")
    consumer.stop()
    protocol.state = STATE_CLOSING
    protocol.connection.outbox.reply(CLOSE_WAIT)
    return pos


def _message(
    protocol: "Protocol", params: list[bytes], verb: str, count: int
) -> tuple[ChannelConsumer, bytes, int]:
    """Who speaks, and the message meant: its id as sent, and its offset (-1: none of ours)."""
    consumer = protocol.connection.consumer
    if consumer is None:
        raise ProtocolError(E_INVALID, f"cannot {verb} in current state")
    if len(params) < count:
        raise ProtocolError(E_INVALID, f"{verb} insufficient number of params")
    raw = params[1]
    if len(raw) != ID_BYTES:
        raise ProtocolError(E_INVALID, "invalid message ID")
    return consumer, raw, offset_of(raw, consumer.channel.topic.log.base_id)
