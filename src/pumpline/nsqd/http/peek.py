"""Looking into a log over HTTP: peek, for a page of messages, and tail, for those to come.

Neither disturbs a channel, and both are bounded: a page reads a limited part of the log, returns a
limited number of messages, and says where the next page begins. A page of a channel shows the
messages that the channel has not finished, and their state.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping

import msgspec

from pumpline.core.messages.frame import ID_BYTES
from pumpline.core.messages.ids import offset_of
from pumpline.log.messages import Filter, LoggedMessage, LookLimits
from pumpline.nsqd.http.log import LogEndpoints, check_offset, log_id, log_of, number, parsed_time
from pumpline.nsqd.http.message_json import MessagePieces, MessageState
from pumpline.nsqd.http.pages import PAGE_BYTES_MAX, LogLooks, Look, PageStream
from pumpline.nsqd.queue.channel import Channel
from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.queue.topic_state import CLOSED
from pumpline.web.event_stream import SIGN_OF_LIFE, EventStream
from pumpline.web.query import BOOLEANS
from pumpline.web.replies import JSON_HEADERS, HttpError, Reply, stream_reply
from pumpline.web.request import Request

LIMIT = 20  # messages of a page, if not asked otherwise
LIMIT_MAX = 1000
TAILS_MAX = 100  # connections
TAIL_LIMITS = LookLimits(messages_max=1000, body_bytes_max=256 << 10)  # that a tail has in memory
DISK_RETRY_S = 1.0  # of a tail, after a look that failed
OFFSET_DIGITS = 19
EVENT_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}

WAITING = "waiting"
IN_FLIGHT = "in_flight"
DEFERRED = "deferred"
REQUEUED = "requeued"


class PeekEndpoints:
    def __init__(self, log: LogEndpoints) -> None:
        self._log = log
        self._looks = LogLooks(log)
        self.tails = 0

    async def peek(self, request: Request) -> Reply:
        query = request.query()
        topic = self._log.durable(query)
        channel = _channel(topic, query)
        asked = await self._asked(topic, channel, query)
        body_max = number(query, "body_max", PAGE_BYTES_MAX, code="INVALID_BODY_MAX")
        turns = self._looks.turns
        await turns.acquire()
        try:
            page = await self._looks.page(topic, asked)
            states = {} if channel is None else _states(channel, page.messages)
        except BaseException:
            turns.release()
            raise
        head = msgspec.json.encode(
            {
                "topic": topic.name,
                "log": log_id(log_of(topic)),
                "first": topic.log.first,
                "end": topic.log.end,
                "messages": [],
            }
        )
        stream = PageStream(
            self._looks,
            topic,
            asked,
            page,
            states=states,
            body_max=body_max,
            head=head.removesuffix(b"]}"),
            tail=b'],"next":%d}' % page.next,
        )
        try:
            whole = await stream.whole()
        except BaseException:
            stream.close()
            raise
        if whole is None:
            return Reply(stream=stream, headers=JSON_HEADERS)
        stream.close()
        return Reply(body=whole, headers=JSON_HEADERS)

    def tail(self, request: Request) -> Reply:
        """Messages as they come, as server-sent events."""
        query = request.query()
        topic = self._log.durable(query)
        last = request.header("Last-Event-ID")
        if last.isascii() and last.isdigit() and len(last) < OFFSET_DIGITS:
            start = min(int(last) + 1, topic.log.end)  # a client that comes back
        else:
            start = number(query, "from", topic.log.end)
            check_offset(topic, start)
        if self.tails >= TAILS_MAX:
            raise HttpError(503, "TOO_MANY_TAILS")
        events = self._events(topic, start, Filter(_bytes(query.get("contains", ""))))

        def close(closed: EventStream) -> None:
            self.tails -= 1
            topic.unwatch(closed.wake)

        stream = EventStream(events, on_close=close)
        self.tails += 1
        topic.watch(stream.wake)
        return stream_reply(stream, EVENT_HEADERS)

    async def _events(self, topic: Topic, at: int, wanted: Filter) -> AsyncIterator[bytes]:
        """What a tail is sent, piece by piece; empty while there is nothing."""
        while topic.state is not CLOSED:
            if at < topic.log.first:
                yield event("gone", msgspec.json.encode({"from": at, "first": topic.log.first}))
                at = topic.log.first
            if at >= topic.log.end:
                yield b""
                continue
            try:
                async with self._looks.turns:
                    looked = await self._looks.look(topic, at, topic.log.end, wanted, TAIL_LIMITS)
            except HttpError:  # the disk, or the topic just went
                await asyncio.sleep(DISK_RETRY_S)
                yield SIGN_OF_LIFE
                continue
            at = looked.to
            pieces = MessagePieces(
                looked.messages,
                states={},
                body_max=PAGE_BYTES_MAX,
                opening=lambda message: b"id: %d\ndata: " % message.offset,
                closing=b"\n\n",
            )
            del looked
            while not pieces.is_over:
                yield await asyncio.to_thread(pieces.next)
        yield event("end", b"{}")

    async def _asked(self, topic: Topic, channel: Channel | None, query: Mapping[str, str]) -> Look:
        newest = _boolean(query, "newest")
        limit = min(number(query, "limit", LIMIT, code="INVALID_LIMIT"), LIMIT_MAX)
        first, end = topic.log.first, topic.log.end
        without = []
        if channel is not None:
            first = max(first, channel.delivery.low)
            without = channel.delivery.finished.spans()
        if "id" in query:
            raw = _bytes(query["id"])
            if len(raw) != ID_BYTES or not raw.isalnum():
                raise HttpError(400, "INVALID_ID")
            offset = offset_of(raw, topic.log.base_id)
            first, end = max(first, offset), min(end, offset + 1)
        elif "from" in query:
            offset = number(query, "from")
            check_offset(topic, offset)
            first, end = (first, offset) if newest else (max(first, offset), end)
        elif "time" in query:
            offset = await self._log.offset_at(topic, parsed_time(query["time"]))
            first, end = (first, offset) if newest else (max(first, offset), end)
        wanted = Filter(_bytes(query.get("contains", "")), without)
        return Look(first, max(end, first), newest, limit, wanted)


def _states(channel: Channel, messages: list[LoggedMessage]) -> dict[int, MessageState]:
    """The states of messages in a channel, by offset."""
    delivery = channel.delivery
    offsets = {message.offset for message in messages}
    deferred = channel.deferred(offsets)
    in_flight: set[int] = set()
    for consumer in channel.consumers:
        in_flight |= offsets & consumer.leases.deadlines.keys()
    states: dict[int, MessageState] = {}
    for message in messages:
        offset = message.offset
        due = deferred.get(offset)
        if due is not None:
            states[offset] = MessageState(DEFERRED, due.attempts, due.due_ns)
            continue
        if offset in in_flight:
            state = IN_FLIGHT
        else:
            state = REQUEUED if offset < delivery.next else WAITING
        default = 0 if offset >= delivery.next else 1
        attempts = delivery.attempts.get(offset, default)
        states[offset] = MessageState(state, attempts, 0)
    return states


def event(name: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _channel(topic: Topic, query: Mapping[str, str]) -> Channel | None:
    if "channel" not in query:
        return None
    channel = topic.channels.get(query["channel"])
    if channel is None:
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    return channel


def _boolean(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "false")
    if value not in BOOLEANS:
        raise HttpError(400, f"INVALID_{name.upper()}")
    return BOOLEANS[value]
