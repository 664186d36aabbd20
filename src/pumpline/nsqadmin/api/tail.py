"""Messages as they come, from all nodes of a topic in one stream of server-sent events.

Every node is tailed by a task of its own; a browser that is slow slows them down, as what waits for
it is bounded. A node that goes away is told, and tried again.
"""

import asyncio
from collections.abc import AsyncIterator

import msgspec

from pumpline.cluster.log import LogMessage
from pumpline.cluster.node import NodeFailure
from pumpline.nsqadmin.api.bodies import check_topic
from pumpline.nsqadmin.api.events import EVENT_HEADERS, event
from pumpline.nsqadmin.api.messages import BODY_MAX, shown
from pumpline.nsqadmin.api.topic_nodes import TopicNodes, in_words
from pumpline.nsqadmin.cluster.changes import STOCK_NSQD
from pumpline.web.event_stream import EventStream
from pumpline.web.replies import HttpError, Reply, stream_reply
from pumpline.web.request import Request

TAILS_MAX = 50
WAITING_MAX = 256  # events
EVENT_BYTES_MAX = 32 << 20
RETRY_S = 2.0


class GoneMessages(msgspec.Struct):
    """Deleted before they were taken."""

    first: int
    start: int = msgspec.field(name="from", default=0)


class TailEndpoint:
    def __init__(self, nodes: TopicNodes) -> None:
        self._nodes = nodes
        self.tails = 0

    async def open(self, request: Request) -> Reply:
        query = request.query()
        topic = check_topic(query.get("topic", ""))
        nodes = await self._nodes.having(topic, query.get("node", ""))
        if not nodes:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        if self.tails >= TAILS_MAX:
            raise HttpError(503, "TOO_MANY_TAILS")
        tail = MergedTail(self._nodes, topic, query.get("contains", ""))

        def close(stream: EventStream) -> None:
            self.tails -= 1
            tail.close()

        stream = EventStream(tail.events(), on_close=close)
        self.tails += 1
        tail.start(nodes, stream)
        return stream_reply(stream, EVENT_HEADERS)


class MergedTail:
    def __init__(self, nodes: TopicNodes, topic: str, contains: str) -> None:
        self._nodes = nodes
        self._topic = topic
        self._contains = contains
        self._events: asyncio.Queue[bytes] = asyncio.Queue(WAITING_MAX)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, nodes: list[str], stream: EventStream) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._follow(node, stream)) for node in nodes]

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def events(self) -> AsyncIterator[bytes]:
        while True:
            yield b"" if self._events.empty() else self._events.get_nowait()

    async def _follow(self, node: str, stream: EventStream) -> None:
        """Until the browser leaves; goes on after the last message seen."""
        at: int | None = None
        while True:
            query = {"topic": self._topic, "contains": self._contains or None, "from": at}
            try:
                async with self._nodes.upstream.tail(node, "/log/tail", query) as pieces:
                    await self._put(stream, "node", {"node": node, "ok": True, "error": ""})
                    async for name, data in parse_events(pieces):
                        at = await self._pass_on(node, stream, name, data, at)
                error = "it ended the tail"
            except NodeFailure as failure:
                error = in_words(failure)
                if failure.status in (410, 416):
                    at = None  # the log is another one
            except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
                error = "it answers /log/tail as no nsqd does"
            await self._put(stream, "node", {"node": node, "ok": False, "error": error})
            if error == STOCK_NSQD:
                return
            await asyncio.sleep(RETRY_S)

    async def _pass_on(
        self, node: str, stream: EventStream, name: str, data: bytes, at: int | None
    ) -> int | None:
        if name == "message":
            message = msgspec.json.decode(data, type=LogMessage)
            await self._put(stream, "message", shown(cut(message), node))
            return message.offset + 1
        if name == "gone":
            gone = msgspec.json.decode(data, type=GoneMessages)
            told = {"node": node, "from": gone.start, "first": gone.first}
            await self._put(stream, "gone", told)
            return gone.first
        return at

    async def _put(self, stream: EventStream, name: str, data: object) -> None:
        await self._events.put(event(name, data))
        stream.wake()


def cut(message: LogMessage) -> LogMessage:
    """With no more of the body than a list shows."""
    if message.body is not None and len(message.body) > BODY_MAX:
        message.body, message.truncated = message.body[:BODY_MAX], True
    if message.body_base64 is not None and len(message.body_base64) > BODY_MAX:
        message.body_base64, message.truncated = message.body_base64[:BODY_MAX], True
    return message


async def parse_events(pieces: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, bytes]]:
    """Name and data of each server-sent event; ValueError if one is too long."""
    buffer = bytearray()
    async for piece in pieces:
        buffer += piece
        while (end := buffer.find(b"\n\n")) >= 0:
            lines = bytes(buffer[:end]).split(b"\n")
            del buffer[: end + 2]
            fields = dict(line.partition(b": ")[::2] for line in lines if line[:1] != b":")
            if b"data" in fields:
                yield fields.get(b"event", b"message").decode(), fields[b"data"]
        if len(buffer) > EVENT_BYTES_MAX:
            raise ValueError("an event without end")
