"""Pages of messages: found in a log, and sent as JSON piece by piece.

Finding and encoding are done in threads. LOOKS_MAX pages have their messages in memory at once, and
the others wait for their turn. A page keeps its turn while its client takes the pieces. When the
client does not, the page drops its messages and gives its turn to the next; it reads them again
when the client has taken what was sent. So a client that does not read costs one piece of JSON and
the offsets of its page.

Knows topics and their logs; must not know parameters of requests.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from pumpline.core.messages.spans import back_from
from pumpline.log import ranges
from pumpline.log.messages import Filter, LoggedMessage, Looked, LookLimits, look
from pumpline.nsqd.http.log import LogEndpoints, log_of
from pumpline.nsqd.http.message_json import MessagePieces, MessageState, PiecePlace
from pumpline.nsqd.queue.topic import Topic
from pumpline.web.replies import HttpError
from pumpline.web.stream_sink import StreamSink
from pumpline.web.turn_queue import TurnQueue

PAGE_BYTES_MAX = 8 << 20  # of bodies; one message at least
SCAN_BYTES_MAX = 64 << 20  # of the log, that are read for one page
CHUNK_BYTES = 1 << 20  # of the log, read at once
LOOKS_MAX = 4  # pages and tails that have messages in memory, at once
STALL_S = 0.02  # after which a client that takes nothing loses its turn

States = Mapping[int, MessageState]


class Look(NamedTuple):
    """Which messages of [start, to) are wanted, and how many."""

    start: int
    to: int
    newest: bool
    limit: int
    wanted: Filter


class Page(NamedTuple):
    messages: list[LoggedMessage]
    next: int


class LogLooks:
    """Reads messages of logs, for pages and tails."""

    def __init__(self, log: LogEndpoints) -> None:
        self.turns = TurnQueue(LOOKS_MAX)
        self._log = log

    async def page(self, topic: Topic, asked: Look) -> Page:
        """Call it with a turn."""
        return await (self._newest(topic, asked) if asked.newest else self._oldest(topic, asked))

    async def _oldest(self, topic: Topic, asked: Look) -> Page:
        found: list[LoggedMessage] = []
        at = asked.start
        room = PageRoom(asked.limit)
        while at < asked.to and room.is_left:
            looked = await self.look(topic, at, asked.to, asked.wanted, room.limits)
            room.looked(looked)
            at = looked.to
            for message in looked.messages:
                if not room.takes(message):
                    return Page(found, message.offset)
                found.append(message)
        return Page(found, at)

    async def _newest(self, topic: Topic, asked: Look) -> Page:
        found: list[LoggedMessage] = []
        at = asked.to
        room = PageRoom(asked.limit)
        step = self._step(topic)
        while at > asked.start and room.is_left:
            low = max(asked.start, back_from(topic.log.gaps, at, step))
            looked = await self.look(topic, low, at, asked.wanted, room.limits, newest=True)
            room.looked(looked)
            if looked.to < at:  # the messages here are larger
                step = max(step // 4, 1)
                continue
            at = looked.start
            for message in looked.messages:
                if not room.takes(message):
                    return Page(found, message.offset + 1)
                found.append(message)
        return Page(found, at)

    async def again(self, topic: Topic, asked: Look, offsets: list[int]) -> list[LoggedMessage]:
        """The first messages at `offsets`, which are those of a page that was `asked` for, in its
        order. OSError if they cannot be read any more. Call it with a turn."""
        first, last = offsets[0], offsets[-1]
        limits = LookLimits(len(offsets), CHUNK_BYTES)
        step = self._step(topic) if asked.newest else last - first + 1
        try:
            while True:
                low, high = first, last
                if asked.newest:
                    low, high = max(last, back_from(topic.log.gaps, first + 1, step)), first
                looked = await self.look(
                    topic, low, high + 1, asked.wanted, limits, newest=asked.newest
                )
                if looked.messages or step == 1 or not asked.newest:
                    break
                step = max(step // 4, 1)  # as in `_newest`
        except HttpError as error:
            raise OSError(f"topic {topic.name}: {error}") from None
        messages = looked.messages
        if not messages or [each.offset for each in messages] != offsets[: len(messages)]:
            raise OSError(f"topic {topic.name}: offset {first} was deleted while it was being sent")
        return messages

    def _step(self, topic: Topic) -> int:
        """Messages in about a chunk. Going down, each step is read upwards."""
        size_bytes = max(log_of(topic).size_bytes, 1)
        count = topic.log.count(topic.log.first, topic.log.end)
        return max(CHUNK_BYTES * count // size_bytes, 1)

    async def look(
        self,
        topic: Topic,
        start: int,
        to: int,
        wanted: Filter,
        limits: LookLimits,
        *,
        newest: bool = False,
    ) -> Looked:
        log = self._log.flushed(topic)

        def prepare() -> Callable[[], Looked]:
            at = max(start, log.first)  # what was retired since is passed over
            if at >= to:
                return lambda: Looked([], start, to, 0)
            selection = ranges.select(log, at, to)
            return partial(
                look,
                selection,
                at,
                to,
                bytes_max=CHUNK_BYTES,
                wanted=wanted,
                limits=limits,
                newest=newest,
            )

        return await self._log.in_segments(topic, prepare)


class PageRoom:
    """What a page may still read and return."""

    def __init__(self, messages: int) -> None:
        self._messages = messages
        self._page_bytes = PAGE_BYTES_MAX
        self._scan_bytes = SCAN_BYTES_MAX
        self._empty = True

    @property
    def is_left(self) -> bool:
        return self._messages > 0 and self._scan_bytes > 0 and self._page_bytes > 0

    @property
    def limits(self) -> LookLimits:
        return LookLimits(self._messages, CHUNK_BYTES)

    def looked(self, looked: Looked) -> None:
        self._scan_bytes -= max(looked.size_bytes, 1)

    def takes(self, message: LoggedMessage) -> bool:
        """Whether there is room for one more. The first one always has room."""
        if self._messages <= 0 or (len(message.body) > self._page_bytes and not self._empty):
            return False
        self._messages -= 1
        self._page_bytes -= len(message.body)
        self._empty = False
        return True


class PageStream:
    """The JSON of a page as the body of a reply. Has a turn from the start; `close` ends it."""

    endless = False

    def __init__(
        self,
        looks: LogLooks,
        topic: Topic,
        asked: Look,
        page: Page,
        *,
        states: States,
        body_max: int,
        head: bytes,
        tail: bytes,
    ) -> None:
        """`head` and `tail` enclose the messages."""
        self._looks = looks
        self._topic = topic
        self._asked = asked
        self._offsets = [message.offset for message in page.messages]
        self._states = states
        self._body_max = body_max
        self._unsent = head
        self._tail = tail
        self._at = PiecePlace(0)  # in `_offsets`: where the messages in memory begin
        self._pieces: MessagePieces | None = None  # of these messages
        self._has_turn = True
        self._encode(page.messages)

    @property
    def length_bytes(self) -> None:
        return None

    async def whole(self) -> bytes | None:
        """All of it, if it is one piece."""
        await self._next()
        return self._unsent if self._is_over else None

    async def send(self, sink: StreamSink) -> None:
        while self._unsent:
            sink.expect(len(self._unsent))
            sink.put(self._unsent)
            self._unsent = b""
            if not await sink.room(STALL_S):
                self._park()
                await sink.room()
            sink.rest()
            if not self._is_over:
                await self._next()

    def close(self) -> None:
        self._park()

    @property
    def _is_over(self) -> bool:
        return self._place.message == len(self._offsets)

    @property
    def _place(self) -> PiecePlace:
        """Where the next piece begins."""
        if self._pieces is None:
            return self._at
        index, body_at = self._pieces.place
        return PiecePlace(self._at.message + index, body_at)

    async def _next(self) -> None:
        """Add a piece to `_unsent`, and the end after the last."""
        if not self._is_over:
            if self._pieces is None or self._pieces.is_over:
                await self._read_again()
            assert self._pieces is not None
            self._unsent += await asyncio.to_thread(self._pieces.next)
        if self._is_over:
            self._unsent += self._tail

    async def _read_again(self) -> None:
        """Have messages in memory, from where the next piece begins."""
        self._park()
        await self._looks.turns.acquire()
        self._has_turn = True
        offsets = self._offsets[self._at.message :]
        self._encode(await self._looks.again(self._topic, self._asked, offsets))

    def _encode(self, messages: list[LoggedMessage]) -> None:
        first = self._offsets[0] if self._offsets else 0
        self._pieces = MessagePieces(
            messages,
            states=self._states,
            body_max=self._body_max,
            opening=lambda message: b"" if message.offset == first else b",",
            body_at=self._at.body_at,
        )

    def _park(self) -> None:
        """Drop the messages, and give up the turn."""
        self._at, self._pieces = self._place, None
        if self._has_turn:
            self._has_turn = False
            self._looks.turns.release()
