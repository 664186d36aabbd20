"""Closer looks: one topic on each of its nodes, or one node with all it has, up to every second.

All who look at the same thing share a close-up. It ends when nobody has asked for it for a while,
and there cannot be too many. Rates need two looks, so the first has none.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import msgspec

from pumpline.cluster.client import Outcome
from pumpline.cluster.log import LogOffsets, in_ms
from pumpline.cluster.node import NodeFailure
from pumpline.cluster.stats import SeenTopic, read_stats
from pumpline.nsqadmin.cluster.directory import ClusterDirectory, Failed
from pumpline.nsqadmin.live.rows import TopicRow
from pumpline.nsqadmin.live.state import ClusterState
from pumpline.nsqadmin.live.sums import PolledTopicSum
from pumpline.web.replies import HttpError
from pumpline.web.yielding import Pace

EVERY_S = 1.0
SHARE_MAX = 0.1  # of the time, that one may take
KEPT_S = 10.0  # after it was asked for
LOGS_S = 5.0  # between looks at the size of logs
CLOSEUPS_MAX = 100

_LOG = logging.getLogger(__name__)


class LogExtent(msgspec.Struct, kw_only=True):
    """The log of a topic on one node, as the page shows it."""

    first: int
    end: int
    bytes: int
    segments: int
    first_timestamp_ms: int | None
    timestamp_ms: int | None


class Closeup:
    """`look` is called again and again while somebody is interested."""

    def __init__(self, look: Callable[[], Awaitable[None]]) -> None:
        self.seq = 0
        self.at_s = 0.0
        self.error = ""
        self.listeners: set[Callable[[], None]] = set()
        self._look = look
        self._asked_at_s = 0.0
        self._first: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_wanted(self) -> bool:
        return bool(self.listeners) or time.monotonic() - self._asked_at_s < KEPT_S

    async def ready(self) -> None:
        """Somebody asks: wait for the first look, and have others follow."""
        self._asked_at_s = time.monotonic()
        if self._task is None or self._task.done():
            loop = asyncio.get_running_loop()
            self._first = loop.create_future()
            self._task = loop.create_task(self._run(self._first))
        assert self._first is not None
        await asyncio.shield(self._first)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, first: "asyncio.Future[None]") -> None:
        try:
            while self.is_wanted:
                began_s, used_s = time.monotonic(), time.thread_time()
                try:
                    await self._look()
                    self.error = ""
                except (Failed, NodeFailure) as error:
                    self.error = str(error)
                except Exception:
                    _LOG.exception("POLL: a close-up failed")
                self.seq += 1
                if not first.done():
                    first.set_result(None)
                for listener in list(self.listeners):
                    listener()
                cost_s = time.thread_time() - used_s
                took_s = time.monotonic() - began_s
                await asyncio.sleep(max(EVERY_S - took_s, cost_s / SHARE_MAX, 0.1))
        finally:
            if not first.done():
                first.cancel()


class TopicCloseup(Closeup):
    """A topic: `total` over nodes, and `by_node`."""

    def __init__(self, topic: str, directory: ClusterDirectory, state: ClusterState) -> None:
        super().__init__(self._ask)
        self.topic = topic
        self.total: TopicRow | None = None
        self.by_node: dict[str, TopicRow] = {}
        self.errors: dict[str, NodeFailure] = {}
        self.logs: dict[str, LogExtent] = {}  # of our nodes
        self._logs_at_s = 0.0
        self._directory = directory
        self._state = state

    async def _ask(self) -> None:
        known = self._state.topics.get(self.topic)
        nodes = known.on if known is not None else await self._find()
        found = await topic_stats(self._directory, nodes, self.topic)
        now_s = self.at_s = time.time()
        total, rows = PolledTopicSum(), {}
        for node, (told, started_s) in found.answers.items():
            if told is not None:
                own = PolledTopicSum()
                own.add(told, node, started_s)
                total.add(told, node, hash((node, started_s)))
                rows[node] = self.by_node.get(node) or TopicRow(self.topic)
                rows[node].settle(own, now_s)
        self.by_node, self.errors = rows, found.errors
        for known_node in self._state.nodes.values():
            if not known_node.ok:  # it may have the topic: nobody knows
                self.errors.setdefault(known_node.node, NodeFailure(known_node.error))
        if now_s - self._logs_at_s >= LOGS_S:
            self._logs_at_s = now_s
            await self._measure_logs()
        if not rows:
            self.total = None
            return
        self.total = self.total or TopicRow(self.topic)
        self.total.settle(total, now_s)

    async def _measure_logs(self) -> None:
        ours = [node for node in self.by_node if self._is_ours(node)]
        upstream, query = self._directory.upstream, {"topic": self.topic}

        async def measure(node: str) -> LogExtent:
            told = await upstream.get_as(LogOffsets, node, "/log/offsets", query)
            return LogExtent(
                first=told.first,
                end=told.end,
                bytes=told.bytes,
                segments=told.segments,
                first_timestamp_ms=in_ms(told.first_timestamp),
                timestamp_ms=in_ms(told.timestamp),
            )

        self.logs = (await upstream.each(ours, measure)).answers

    def _is_ours(self, node: str) -> bool:
        row = self._state.nodes.get(node)
        return row is not None and row.pumpline is not None

    async def _find(self) -> list[str]:
        """A topic that the poller has not seen yet, or not any more."""
        try:
            return [node.address for node in (await self._directory.topic_nodes(self.topic)).nodes]
        except Failed:
            if any(each.ok for each in self._state.lookupds.values()):
                return []  # they answer, and know nothing of it
            raise


class NodeCloseup(Closeup):
    """All topics of one node."""

    def __init__(self, node: str, directory: ClusterDirectory) -> None:
        super().__init__(self._ask)
        self.node = node
        self.topics: dict[str, TopicRow] = {}
        self._directory = directory

    async def _ask(self) -> None:
        told = await self._directory.upstream.run(self.node, read_stats)
        self.at_s = time.time()
        rows = {}
        pace = Pace()
        for each in told.topics or ():
            own = PolledTopicSum()
            own.add(each, self.node, told.start_time)
            row = rows[each.topic_name] = self.topics.get(each.topic_name) or TopicRow(
                each.topic_name
            )
            row.settle(own, self.at_s)
            await pace.breathe()
        self.topics = rows


class Closeups:
    def __init__(self, directory: ClusterDirectory, state: ClusterState) -> None:
        self._directory = directory
        self._state = state
        self._open: OrderedDict[tuple[str, str], Closeup] = OrderedDict()

    async def topic(self, topic: str) -> TopicCloseup:
        found = self._open.get(("topic", topic))
        if not isinstance(found, TopicCloseup):
            found = TopicCloseup(topic, self._directory, self._state)
        await self._keep(("topic", topic), found)
        return found

    async def node(self, node: str) -> NodeCloseup:
        found = self._open.get(("node", node))
        if not isinstance(found, NodeCloseup):
            found = NodeCloseup(node, self._directory)
        await self._keep(("node", node), found)
        return found

    async def _keep(self, key: tuple[str, str], closeup: Closeup) -> None:
        self._open[key] = closeup
        self._open.move_to_end(key)
        if len(self._open) > CLOSEUPS_MAX:
            unwanted = next((each for each, own in self._open.items() if not own.is_wanted), key)
            self._open.pop(unwanted).close()
            if unwanted == key:
                raise HttpError(503, "TOO_MANY_CLOSEUPS")
        await closeup.ready()

    def close(self) -> None:
        for each in self._open.values():
            each.close()


async def topic_stats(
    directory: ClusterDirectory, nodes: list[str], topic: str
) -> Outcome[str, tuple[SeenTopic | None, int]]:
    """A topic on each of these nodes, None if it is not there; and when the node started."""

    async def ask(node: str) -> tuple[SeenTopic | None, int]:
        told = await directory.upstream.run(node, lambda asked: read_stats(asked, topic))
        own = [each for each in told.topics or () if each.topic_name == topic]
        return (own[0] if own else None), told.start_time

    return await directory.upstream.each(nodes, ask)
