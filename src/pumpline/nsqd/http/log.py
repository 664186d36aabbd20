"""Reading by offset over HTTP: where a topic's log begins and ends, and ranges of it, as they are
in the files.

Reading creates nothing and disturbs nobody. Only what was acknowledged can be read. Looking for
positions, and all else that may wait for a disk, is done in threads.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

from pumpline.core.text.dates import parse_time
from pumpline.log import ranges
from pumpline.log.log import Log
from pumpline.nsqd.broker import Broker
from pumpline.nsqd.http.publish import topic_name
from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.queue.topic_state import CLOSED
from pumpline.web.file_stream import FileStream
from pumpline.web.replies import HttpError, Reply, json_reply, stream_reply
from pumpline.web.request import Request
from pumpline.web.turn_queue import TurnQueue
from pumpline.web.yielding import Pace

RANGE_BYTES_MAX = 256 << 20  # of one answer
OPEN_RANGES_MAX = 64  # whose files are open, while others wait for their turn
STARTED_BYTES = 8
PARTS_MAX = 1024  # of files that one answer names

_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"  # as pyspark_nsq.reading.local has it
_TRIES = 3  # to select segments before they are retired
_OFFSET_END = 1 << 63
_ALL_FILES = 1 << 31

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


class _Asked(NamedTuple):
    """A range of a log; `to` is not beyond what was acknowledged."""

    topic: Topic
    log: Log
    start: int
    to: int
    bytes_max: int


class LogEndpoints:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._turns = TurnQueue(OPEN_RANGES_MAX)
        self._machine = _boot_id()
        self._started = os.urandom(STARTED_BYTES).hex()  # another one after every start

    # -- offsets ------------------------------------------------------------------------------

    async def offsets(self, request: Request) -> Reply:
        query = request.query()
        if "topic" not in query:
            return json_reply(await self._all_offsets())
        topic = self.durable(query)
        if "time" in query:
            return json_reply(await self._offsets_with(topic, parsed_time(query["time"])))
        return json_reply(await self._offsets_of(topic))

    async def _offsets_with(self, topic: Topic, time_ns: int) -> dict[str, object]:
        """The offset of a time, in a log as the other fields describe it: the search is repeated if
        messages were deleted meanwhile, perhaps to make room on a full disk."""
        log = log_of(topic)
        for _ in range(_TRIES):
            first = self.flushed(topic).first
            fields = self._fields(topic)
            offset = await self.offset_at(topic, time_ns)
            if log.first == first:
                break
        return {**fields, "first_timestamp": await self._first_ns(topic), "offset": offset}

    async def _all_offsets(self) -> dict[str, object]:
        pace = Pace()
        topics = []
        for _, topic in sorted(self._broker.topics.items()):
            if topic.ephemeral:
                continue
            try:
                topics.append(await self._offsets_of(topic))
            except HttpError:
                if topic.state is not CLOSED:  # else it was deleted meanwhile
                    raise
            await pace.breathe()
        return {"node": self.node, "timestamp": self.now_ns, "topics": topics}

    async def _offsets_of(self, topic: Topic) -> dict[str, object]:
        return {**self._fields(topic), "first_timestamp": await self._first_ns(topic)}

    def _fields(self, topic: Topic) -> dict[str, object]:
        """Of a log as it is now; `first_timestamp` may have to be read."""
        log = log_of(topic)
        return {
            "node": self.node,
            "topic": topic.name,
            "log": log_id(log),
            "first": log.first,
            "end": topic.log.end,
            "bytes": log.size_bytes,
            "ordered_from": log.ordered_from,
            "segments": len(log.segments),
            "gaps": log.gaps,
            "first_timestamp": 0,
            "timestamp": self.now_ns,
            "started": self._started,
        }

    async def _first_ns(self, topic: Topic) -> int:
        """When the oldest message was published; 0 if there is none."""
        log = log_of(topic)

        def oldest() -> list[ranges.Piece]:
            return ranges.select(log, log.first, topic.log.end, files_max=1).pieces

        def prepare() -> Callable[[], int]:
            pieces = oldest()
            return partial(ranges.begun_ns, log, pieces[0]) if pieces else lambda: 0

        pieces = oldest()
        if not pieces:
            batch = log.in_tail(log.first)
            return 0 if batch is None or log.first == log.end else batch.published_ns(log.first)
        return pieces[0].segment.begun_ns or await self.in_segments(topic, prepare)

    async def offset_at(self, topic: Topic, time_ns: int) -> int:
        """The first offset published at `time_ns` or later; the end if there is none. If the clock
        was set back, it is looked for after that first: see `Log.ordered_from`."""
        log = self.flushed(topic)
        end = log.end

        def prepare(start: int, stop: int) -> Callable[[], int | None]:
            selection = ranges.select(log, start, stop, files_max=_ALL_FILES)
            return partial(ranges.find_time, selection, time_ns, start)

        ordered = min(max(log.first, log.ordered_from), end)
        found = await self.in_segments(topic, lambda: prepare(max(log.first, ordered), end))
        if log.first < ordered and (found is None or found <= ordered):
            before = await self.in_segments(topic, lambda: prepare(log.first, ordered))
            found = found if before is None else before
        return end if found is None else min(found, end)

    async def place(self, topic: Topic, query: Mapping[str, str], *, default: str = "") -> int:
        """The offset that a request names by `offset`, `time` or `to`; it need not be there."""
        given = [name for name in ("offset", "time", "to") if name in query]
        if len(given) > 1:
            raise HttpError(400, "INVALID_PLACE")
        if "offset" in query:
            return number(query, "offset")
        if "time" in query:
            return await self.offset_at(topic, parsed_time(query["time"]))
        to = query.get("to", default)
        if to not in ("beginning", "end"):
            raise HttpError(400, "INVALID_PLACE" if to else "MISSING_PLACE")
        return topic.log.end if to == "end" else topic.log.first

    # -- ranges -------------------------------------------------------------------------------

    async def raw(self, request: Request) -> Reply:
        asked = self._asked(request.query())
        await self._turns.acquire()
        try:
            found = await self._find(asked, ranges.open_range)
        except BaseException:
            self._turns.release()
            raise
        headers = {
            "Content-Type": "application/octet-stream",
            "X-Pumpline-Log": log_id(asked.log),
            "X-Pumpline-From": str(asked.start),
            "X-Pumpline-To": str(found.to),
        }
        stream = FileStream(found.extents, self._turns)
        return stream_reply(stream, headers)

    async def files(self, request: Request) -> Reply:
        """Where a range is, for a reader on this machine that may open the files itself."""
        query = request.query()
        asked = self._asked(query)
        if not self._machine or query.get("machine") != self._machine:
            raise HttpError(409, "OTHER_MACHINE")
        files = await self._find(asked, partial(ranges.find_parts, parts_max=PARTS_MAX))
        return json_reply(
            {
                "log": log_id(asked.log),
                "from": asked.start,
                "to": files[-1].parts[-1].to if files else asked.start,
                "files": [
                    {**file._asdict(), "parts": [part._asdict() for part in file.parts]}
                    for file in files
                ],
            }
        )

    def _asked(self, query: Mapping[str, str]) -> _Asked:
        """What a request for a range says, checked, and cut at what can be seen."""
        topic = self.durable(query)
        log = log_of(topic)
        if "log" in query and query["log"].lower() != log_id(log):
            raise HttpError(409, "LOG_CHANGED", details={"log": log_id(log)})
        start, to = number(query, "from"), number(query, "to")
        bytes_max = min(number(query, "bytes_max", RANGE_BYTES_MAX), RANGE_BYTES_MAX)
        if to < start:
            raise HttpError(400, "INVALID_OFFSET")
        check_offset(topic, start)
        return _Asked(topic, log, start, min(to, topic.log.end), bytes_max)

    async def _find(self, asked: _Asked, find: Callable[..., T]) -> T:
        topic, log, start, to, bytes_max = asked
        self.flushed(topic)

        def prepare() -> Callable[[], T]:
            if start < log.first:
                raise HttpError(410, "OFFSET_GONE", details={"first": log.first})
            selection = ranges.select(log, start, to)
            return partial(find, selection, start, to, bytes_max=bytes_max)

        return await self.in_segments(topic, prepare)

    # -- what they have in common -------------------------------------------------------------

    @property
    def node(self) -> str:
        options = self._broker.options
        return f"{options.broadcast_address}:{options.broadcast_tcp_port}"

    @property
    def now_ns(self) -> int:
        return self._broker.tick.wall_ns

    def durable(self, query: Mapping[str, str]) -> Topic:
        """The topic named, which must have a log on disk."""
        topic = self._broker.topics.get(topic_name(query))
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        if topic.ephemeral:
            raise HttpError(400, "EPHEMERAL_TOPIC")
        return topic

    def flushed(self, topic: Topic) -> Log:
        """The topic's log, with everything that can be read in its segments."""
        log = log_of(topic)
        try:
            log.flush()
        except OSError as error:
            disk = self._broker.disk
            disk.flusher.stuck(log)
            reason = disk.failed(error, f"topic {topic.name}")
            details = {"detail": f"the newest messages are in memory only: {reason}"}
            raise HttpError(503, "FLUSH_FAILED", details=details) from None
        return log

    async def in_segments(self, topic: Topic, prepare: Callable[[], Callable[[], T]]) -> T:
        """The outcome of a job in a thread, which is prepared anew, on the event loop, if segments
        it looked for were retired meanwhile."""
        for _ in range(_TRIES):
            job = prepare()
            try:
                return await asyncio.to_thread(job)
            except FileNotFoundError as error:
                failure: OSError = error
            except OSError as error:
                failure = error
                break
        if topic.state is CLOSED:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        _LOG.error("LOG: cannot read a range: %s", failure)
        raise HttpError(503, "READ_FAILED")


def _boot_id() -> str:
    """What only processes on this machine know, until it is started again; empty if unknown."""
    try:
        with open(_BOOT_ID_PATH, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def log_of(topic: Topic) -> Log:
    assert isinstance(topic.log, Log), "ephemeral topics are refused before"
    return topic.log


def log_id(log: Log) -> str:
    return f"{log.base_id:016x}"


def check_offset(topic: Topic, offset: int) -> None:
    """Whether `offset` is in the topic's log, or at its end."""
    if offset < topic.log.first:
        raise HttpError(410, "OFFSET_GONE", details={"first": topic.log.first})
    if offset > topic.log.end:
        raise HttpError(416, "OFFSET_BEYOND_END", details={"end": topic.log.end})


def number(
    query: Mapping[str, str],
    name: str,
    default: int | None = None,
    *,
    code: str = "INVALID_OFFSET",
) -> int:
    text = query.get(name)
    if text is None:
        if default is None:
            raise HttpError(400, f"MISSING_ARG_{name.upper()}")
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < _OFFSET_END):
        raise HttpError(400, code)
    return int(text)


def parsed_time(text: str) -> int:
    try:
        return parse_time(text)
    except ValueError:
        raise HttpError(400, "INVALID_TIME") from None
