"""Looking into a log over HTTP: peek, for a page of messages, and tail, for those to come.

Neither disturbs a channel, and both are bounded: a look goes over so many bytes and gives back so
many messages, then says where to go on. A page of a channel shows what it has not finished, and in
what state.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from pumpline.core.messages.frame import ID_BYTES
from pumpline.core.messages.ids import offset_of
from pumpline.log import ranges
from pumpline.log.messages import Filter, LoggedMessage, Looked, look
from pumpline.nsqd.http.log import LogEndpoints, check_offset, log_id, log_of, number, parsed_time
from pumpline.nsqd.queue.channel import Channel
from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.queue.topic_state import CLOSED
from pumpline.web.event_stream import SIGN_OF_LIFE, EventStream
from pumpline.web.query import BOOLEANS
from pumpline.web.replies import HttpError, Reply, json_reply, stream_reply
from pumpline.web.request import Request

LIMIT = 20  # messages of a page, if not asked otherwise
LIMIT_MAX = 1000
PAGE_BYTES_MAX = 8 << 20  # of bodies; one message at least
SCAN_BYTES_MAX = 64 << 20  # of the log, looked over for one page
CHUNK_BYTES = 1 << 20
TAILS_MAX = 100  # connections
DISK_RETRY_S = 1.0  # of a tail, after a look that failed
OFFSET_DIGITS = 19
EVENT_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}

WAITING = "waiting"
IN_FLIGHT = "in_flight"
DEFERRED = "deferred"
REQUEUED = "requeued"


class Shown(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message as JSON."""

    offset: int
    id: str
    timestamp: int
    attempts: int
    bytes: int
    state: str = ""  # only of a channel's
    deferred_until: int = 0
    body: str | None = None
    body_base64: str | None = None
    truncated: bool = False


class Page(NamedTuple):
    messages: list[LoggedMessage]
    next: int


class Look(NamedTuple):
    """What a request wants to see."""

    start: int
    to: int
    newest: bool
    limit: int
    wanted: Filter


class PeekEndpoints:
    def __init__(self, log: LogEndpoints) -> None:
        self._log = log
        self.tails = 0

    async def peek(self, request: Request) -> Reply:
        query = request.query()
        topic = self._log.durable(query)
        channel = _channel(topic, query)
        wanted = await self._asked(topic, channel, query)
        body_max = number(query, "body_max", PAGE_BYTES_MAX, code="INVALID_BODY_MAX")
        page = await self._page(topic, wanted)
        states = _states(channel, page.messages) if channel is not None else {}
        return json_reply(
            {
                "topic": topic.name,
                "log": log_id(log_of(topic)),
                "first": topic.log.first,
                "end": topic.log.end,
                "messages": [shown(each, body_max, states) for each in page.messages],
                "next": page.next,
            }
        )

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
                looked = await self.look(topic, at, topic.log.end, wanted)
            except HttpError:  # the disk, or the topic just went
                await asyncio.sleep(DISK_RETRY_S)
                yield SIGN_OF_LIFE
                continue
            at = looked.to
            for message in looked.messages:
                data = msgspec.json.encode(shown(message, PAGE_BYTES_MAX, {}))
                yield b"id: %d\ndata: %b\n\n" % (message.offset, data)
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

    async def _page(self, topic: Topic, asked: Look) -> Page:
        return await (self._newest(topic, asked) if asked.newest else self._oldest(topic, asked))

    async def _oldest(self, topic: Topic, asked: Look) -> Page:
        found: list[LoggedMessage] = []
        at = asked.start
        room = Room(asked.limit)
        while at < asked.to and room.is_left:
            looked = await self.look(topic, at, asked.to, asked.wanted)
            room.looked(looked)
            at = looked.to
            for message in looked.messages:
                if not room.takes(message):
                    return Page(found, message.offset)
                found.append(message)
        return Page(found, at)

    async def _newest(self, topic: Topic, asked: Look) -> Page:
        """Go down in steps of about a chunk, each of which is read upwards."""
        found: list[LoggedMessage] = []
        at = asked.to
        room = Room(asked.limit)
        size_bytes = max(log_of(topic).size_bytes, 1)
        step = max(CHUNK_BYTES * (topic.log.end - topic.log.first) // size_bytes, 1)
        while at > asked.start and room.is_left:
            low = max(asked.start, at - step)
            looked = await self.look(topic, low, at, asked.wanted)
            room.looked(looked)
            if looked.to < at:  # the messages here are larger
                step = max(step // 4, 1)
                continue
            at = low
            for message in reversed(looked.messages):
                if not room.takes(message):
                    return Page(found, message.offset + 1)
                found.append(message)
        return Page(found, at)

    async def look(self, topic: Topic, start: int, to: int, wanted: Filter) -> Looked:
        log = self._log.flushed(topic)

        def prepare() -> Callable[[], Looked]:
            at = max(start, log.first)  # what was retired since is passed over
            if at >= to:
                return lambda: Looked([], to, 0)
            selection = ranges.select(log, at, to)
            return partial(look, selection, at, to, bytes_max=CHUNK_BYTES, wanted=wanted)

        return await self._log.in_segments(topic, prepare)


class Room:
    """What may yet be looked at, and given back."""

    def __init__(self, messages: int) -> None:
        self._messages = messages
        self._page_bytes = PAGE_BYTES_MAX
        self._scan_bytes = SCAN_BYTES_MAX
        self._empty = True

    @property
    def is_left(self) -> bool:
        return self._messages > 0 and self._scan_bytes > 0 and self._page_bytes > 0

    def looked(self, looked: Looked) -> None:
        self._scan_bytes -= max(looked.size_bytes, 1)

    def takes(self, message: LoggedMessage) -> bool:
        """Whether there is room for one more; the first one always finds some."""
        if self._messages <= 0 or (len(message.body) > self._page_bytes and not self._empty):
            return False
        self._messages -= 1
        self._page_bytes -= len(message.body)
        self._empty = False
        return True


def shown(
    message: LoggedMessage, body_max: int, states: "dict[int, tuple[str, int, int]]"
) -> Shown:
    state, attempts, due_ns = states.get(message.offset, ("", 1, message.due_ns))
    entry = Shown(
        offset=message.offset,
        id=message.id,
        timestamp=message.timestamp_ns,
        attempts=attempts,
        bytes=len(message.body),
        state=state,
        deferred_until=due_ns,
        truncated=len(message.body) > body_max,
    )
    try:
        text = message.body.decode()
        entry.body = (
            text if not entry.truncated else message.body[:body_max].decode("utf-8", "ignore")
        )
    except UnicodeDecodeError:
        entry.body_base64 = base64.b64encode(message.body[:body_max]).decode()
    return entry


def _states(channel: Channel, messages: list[LoggedMessage]) -> "dict[int, tuple[str, int, int]]":
    """Where the messages of a channel are: state, attempts so far, due time."""
    delivery = channel.delivery
    offsets = {message.offset for message in messages}
    due_ns = channel.due_dates(offsets)
    in_flight: set[int] = set()
    for consumer in channel.consumers:
        in_flight |= offsets & consumer.leases.deadlines.keys()
    states: dict[int, tuple[str, int, int]] = {}
    for message in messages:
        offset = message.offset
        if offset in due_ns:
            state = DEFERRED
        elif offset in in_flight:
            state = IN_FLIGHT
        else:
            state = REQUEUED if offset < delivery.next else WAITING
        default = 0 if offset >= delivery.next else 1
        attempts = delivery.attempts.get(offset, default)
        states[offset] = state, attempts, due_ns.get(offset, 0)
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
