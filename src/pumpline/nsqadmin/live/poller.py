"""The poller: asks the whole cluster again and again, once for all browsers.

It asks every 2 s while somebody looks, every 10 s otherwise, and never so often that it takes more
than a tenth of the time. Answers are worked through in short slices, so that the page stays quick
with a million channels. A daemon that does not answer is waited for once. A poll that cannot even
find nodes keeps those it knows.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress

import msgspec

from pumpline.cluster.directory import RegisteredNode, is_host_and_port
from pumpline.cluster.health import ProcessFigures, read_process
from pumpline.cluster.node import ClusterNode
from pumpline.cluster.stats import SeenNode, read_stats
from pumpline.nsqadmin.cluster.directory import ClusterDirectory
from pumpline.nsqadmin.live.rows import NodeRow, TopicRow
from pumpline.nsqadmin.live.silence import SilentDaemons
from pumpline.nsqadmin.live.state import ClusterState, LookupdRow
from pumpline.nsqadmin.live.sums import NodeSum, PolledTopicSum
from pumpline.nsqadmin.live.troubles import find_troubles
from pumpline.web.yielding import Pace

FAST_S = 2.0
SLOW_S = 10.0
ANSWERS_MAX = 8  # held at a time: of a node with 50,000 channels, one has 15 MB
FIRST_S = 1.0  # a request waits for the first poll
SHARE_MAX = 0.1  # of the time, that polls may take
LOOKING_S = 15.0  # after a request, somebody still looks
VITALS_S = 30.0  # between looks at a node's disk

_LOG = logging.getLogger(__name__)


class PollRound(msgspec.Struct):
    """What one poll has found so far."""

    topics: dict[str, PolledTopicSum] = {}
    nodes: dict[str, NodeSum] = {}


class ClusterPoller:
    def __init__(
        self,
        directory: ClusterDirectory,
        state: ClusterState,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.state = state
        self._directory = directory
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()
        self._first = asyncio.Event()
        self._looked_at_s = 0.0
        self._generations: dict[str, tuple[int, int]] = {}  # start time and signature, by node
        self._vitals_at_s: dict[str, float] = {}
        self._silent = SilentDaemons(directory.upstream)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        self._silent.close()
        if self._task is not None:
            self._task.cancel()

    def look(self) -> None:
        """Somebody looks at the figures."""
        self._looked_at_s = time.monotonic()
        self._looked.set()

    async def ready(self) -> None:
        """Wait for the first poll, but not for long: there may be dead nodes."""
        if not self.state.seq:
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_S):
                    await self._first.wait()

    async def _run(self) -> None:
        while True:
            began_s, used_s = time.monotonic(), time.thread_time()
            try:
                await self.poll()
            except Exception:
                _LOG.exception("POLL: failed")
            cost_s = time.thread_time() - used_s
            await self._rest(began_s, cost_s / SHARE_MAX)

    async def _rest(self, began_s: float, at_least_s: float) -> None:
        """Until it is time for the next poll, which is sooner when somebody comes to look."""
        while True:
            now_s = time.monotonic()
            looks = bool(self.state.listeners) or now_s - self._looked_at_s < LOOKING_S
            wait_s = began_s + max(FAST_S if looks else SLOW_S, at_least_s) - now_s
            if wait_s <= 0:
                return
            self._looked.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._looked.wait()
                if looks:  # nothing new in that: sleep on
                    await asyncio.sleep(min(wait_s, 0.2))
            except TimeoutError:
                return

    async def poll(self) -> None:
        """Ask everybody once."""
        known = await self._find_nodes()
        now_s = self._clock()
        found = PollRound()

        room = asyncio.Semaphore(ANSWERS_MAX)

        async def ask(address: str) -> None:
            # One that never answered waits for nobody: many of them cost one timeout.
            async with room if known[address].started_at_ms else nullcontext():
                told = await self._directory.upstream.run(address, read_stats)
                await self._add(found, known[address], told)

        asked = await self._directory.upstream.each(self._silent.answering(known), ask)
        for address, error in asked.errors.items():
            known[address].fail(str(error), now_s)
            self._silent.add(address)
        self._silent.knock([*known, *self._directory.lookupds])
        await self._look_after(known, now_s)
        await self._settle(found, known, now_s)

    async def _add(self, found: PollRound, node: NodeRow, told: SeenNode) -> None:
        signature = self._signature(node.node, told.start_time)
        node.health, node.started_at_ms = told.health, told.start_time * 1000
        node.version = told.version or node.version
        total = NodeSum()
        pace = Pace()
        for topic in told.topics or ():
            total.add(topic)
            row = found.topics.get(topic.topic_name)
            if row is None:
                row = found.topics[topic.topic_name] = PolledTopicSum()
            row.add(topic, node.node, signature)
            await pace.breathe()
        found.nodes[node.node] = total

    async def _settle(self, found: PollRound, nodes: dict[str, NodeRow], now_s: float) -> None:
        """The rows take what was found."""
        state = self.state
        state.at_s = now_s
        pace = Pace()
        rows = {}
        for name, told in found.topics.items():
            row = rows[name] = state.topics.get(name) or TopicRow(name)
            row.settle(told, now_s)
            await pace.breathe()
        state.topics, state.nodes = rows, nodes
        for address, total in found.nodes.items():
            nodes[address].settle(total, now_s, self._generations[address][1])
        state.give_histories()
        state.settle_total()
        state.troubles = await find_troubles(state)
        state.tell()
        self._first.set()

    def _signature(self, address: str, started_s: int) -> int:
        """A number for a node between two of its restarts, for sums to say who is in them."""
        known = self._generations.get(address)
        if known is None or known[0] != started_s:
            known = self._generations[address] = (started_s, random.getrandbits(60))
        return known[1]

    # -- who is there -------------------------------------------------------------------------

    async def _find_nodes(self) -> dict[str, NodeRow]:
        """Rows by address: those that were there, and new ones."""
        if not self._directory.lookupds:
            self.state.lookupds = {}
            return self._rows(self._directory.nsqds)
        state, now_s = self.state, self._clock()
        lookupds = self._directory.lookupds
        state.lookupds = {
            each: state.lookupds.get(each) or LookupdRow(lookupd=each) for each in lookupds
        }
        asked = await self._directory.upstream.each(
            self._silent.answering(lookupds), self._directory.registered
        )
        for lookupd, error in asked.errors.items():
            state.lookupds[lookupd].fail(str(error), now_s)
            self._silent.add(lookupd)
        if not asked.answers:
            return self._rows(state.nodes)
        return self._register(asked.answers)

    def _rows(self, addresses: Iterable[str]) -> dict[str, NodeRow]:
        known = self.state.nodes
        return {address: known.get(address) or NodeRow(address) for address in addresses}

    def _register(self, answers: dict[str, list[RegisteredNode]]) -> dict[str, NodeRow]:
        """Note who is known where."""
        state = self.state
        by_lookupd: dict[str, dict[str, RegisteredNode]] = {}
        for lookupd, nodes in answers.items():
            by_lookupd[lookupd] = {each.address: each for each in nodes}
        every = {address for known in by_lookupd.values() for address in known}
        for lookupd, known in by_lookupd.items():
            row = state.lookupds[lookupd]
            row.answered()
            row.nodes = len(known)
            row.topics = len({topic for each in known.values() for topic in each.topics or ()})
            row.missing = sorted(every - set(known))
        rows = self._rows(sorted(filter(is_host_and_port, every)))
        for address, node in rows.items():
            told = [known[address] for known in by_lookupd.values() if address in known]
            node.hostname, node.version = told[0].hostname, told[0].version
            node.missing_at = [each for each in by_lookupd if address not in by_lookupd[each]]
            node.tombstones = sorted({topic for each in told for topic in each.hidden()})
        return rows

    async def _look_after(self, nodes: dict[str, NodeRow], now_s: float) -> None:
        """Now and then: the disk, and what an nsqd says of itself."""
        due = [
            address
            for address, node in nodes.items()
            if node.ok and now_s - self._vitals_at_s.get(address, 0.0) >= VITALS_S
        ]

        def look(node: ClusterNode) -> tuple[RegisteredNode, ProcessFigures]:
            return node.get_as(RegisteredNode, "/info"), read_process(node)

        upstream = self._directory.upstream
        found = await upstream.each(due, lambda address: upstream.run(address, look))
        self._vitals_at_s |= dict.fromkeys(due, now_s)
        for address, (info, figures) in found.answers.items():
            row = nodes[address]
            row.pumpline, row.hostname = figures.pumpline, info.hostname or row.hostname
            row.disk_free = figures.whole("nsqd_disk_free_bytes")
            row.disk_total = figures.whole("nsqd_disk_bytes")
        for gone in self._vitals_at_s.keys() - nodes.keys():
            del self._vitals_at_s[gone]
        for gone in self._generations.keys() - nodes.keys():
            del self._generations[gone]
