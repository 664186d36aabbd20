"""Topics and channels as in the broker, on a real data directory, but with time, threads and ticks
that move only when the test says so."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TypeVar

from pumpline.core.messages.frame import MESSAGE_OVERHEAD_BYTES
from pumpline.log.completion import Completion
from pumpline.log.directory import Directory
from pumpline.log.files import FilePool
from pumpline.log.log import Log
from pumpline.log.scheduling import Offload
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.channel import Channel
from pumpline.nsqd.queue.consumer import Buffer, ChannelConsumer
from pumpline.nsqd.queue.tick import Tick
from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.queue.topics import Topics
from pumpline.nsqd.queue.topology import Locality
from pumpline.nsqd.storage.disk import Disk
from tests.kit.logs import BASE_ID, Threads

BASE_STEP = 1 << 40  # from the first message id of a topic to that of the next
T = TypeVar("T")

NS_PER_S = 1_000_000_000
WALL_NS = 1_700_000_000 * NS_PER_S
STEADY_NS = 5_000 * NS_PER_S
MSG_TIMEOUT_NS = 60 * NS_PER_S
ROOM_BYTES = 1 << 20


class Handle:
    def __init__(self, due_ns: int, callback: Callable[[], None]) -> None:
        self.due_ns = due_ns
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """Both clocks, and the timers that depend on them."""

    def __init__(self) -> None:
        self.passed_ns = 0
        self.wall_set_ns = 0  # by how much the wall clock was set forward
        self._timers: list[Handle] = []

    def steady_ns(self) -> int:
        return STEADY_NS + self.passed_ns

    def wall_ns(self) -> int:
        return WALL_NS + self.passed_ns + self.wall_set_ns

    def later(self, delay_s: float, callback: Callable[[], None], /) -> Handle:
        handle = Handle(self.passed_ns + round(delay_s * NS_PER_S), callback)
        self._timers.append(handle)
        return handle

    def forget_timers(self) -> None:
        self._timers.clear()

    @property
    def waiting(self) -> list[Handle]:
        self._timers = [each for each in self._timers if not each.cancelled]
        return sorted(self._timers, key=lambda each: each.due_ns)

    def advance(self, seconds: float, after_each: Callable[[], None]) -> None:
        """Let time pass; timers run when they are due, in order."""
        until_ns = self.passed_ns + round(seconds * NS_PER_S)
        while (waiting := self.waiting) and waiting[0].due_ns <= until_ns:
            self._timers.remove(waiting[0])
            self.passed_ns = max(self.passed_ns, waiting[0].due_ns)
            waiting[0].callback()
            after_each()
        self.passed_ns = until_ns


class Sink:
    """A connection that keeps what it is sent: (offset, attempts, body) of each message."""

    def __init__(self) -> None:
        self.output_room_bytes = ROOM_BYTES
        self.received: list[tuple[int, int, bytes]] = []
        self.closed = False

    def send_messages(self, data: Buffer) -> None:
        raw = bytes(data)
        self.output_room_bytes -= len(raw)
        while raw:
            size = 4 + int.from_bytes(raw[:4], "big")
            offset = (int(raw[18:MESSAGE_OVERHEAD_BYTES], 16) - BASE_ID) % BASE_STEP
            attempts = int.from_bytes(raw[16:18], "big")
            self.received.append((offset, attempts, raw[MESSAGE_OVERHEAD_BYTES:size]))
            raw = raw[size:]

    send_last = send_messages

    def close(self) -> None:
        self.closed = True

    def take(self) -> list[tuple[int, int, bytes]]:
        """What came since the last call."""
        taken, self.received = self.received, []
        return taken


class KnownIds(Topics):
    """Topics with known message ids: those of the first begin at BASE_ID."""

    bases: Iterator[int]

    def _new_base_id(self) -> int:
        return next(self.bases)


class FakeBroker:
    def __init__(
        self, path: Path, options: Options | None = None, *, offload: Offload | None = None
    ) -> None:
        """`offload` instead of threads that run when the test says so."""
        self.options = options or Options()
        self.clock = Clock()
        self.threads = Threads()
        self._path = path
        self._offload = offload
        self._soon: list[Callable[[], None]] = []
        self._bases = count(BASE_ID, BASE_STEP)  # they say to which topic a message belongs
        self.tick = Tick(
            self._soon.append,
            later=self.clock.later,
            steady_clock=self.clock.steady_ns,
            wall_clock=self.clock.wall_ns,
        )
        self._open()

    def _open(self) -> None:
        self.disk = Disk(
            Directory(str(self._path)),
            self.options,
            clocks=self.tick.read_clocks,
            offload=self._offload or self.threads,
            later=self.clock.later,
            files=FilePool(16),
        )
        self.topics = KnownIds(self.options, self.tick, self.disk)
        self.topics.bases = self._bases

    def topic(self, name: str = "t") -> Topic:
        """The topic of that name, new if need be."""
        return self.topics.ensure(name)

    def founded(self, name: str = "t") -> Topic:
        """As `topic`, one whose directory is synced: its first message does not wait for that."""
        topic = self.topics.ensure(name)
        log_of(topic).founding = []
        return topic

    def load(self) -> Topics:
        """What a broker finds in the directory after this one was killed."""
        self.clock.forget_timers()
        self.threads.forget()
        self._soon.clear()
        self._open()
        self.topics.load()
        self.run()
        return self.topics

    def publish(self, topic: Topic, *bodies: bytes, delay_ns: int = 0) -> Completion:
        """In one batch of the topic."""
        for body in bodies:
            topic.publishing.add(body, 0, len(body), delay_ns=delay_ns, alone=True)
        completion = topic.publishing.completion()
        self.run()
        return completion

    def pub(self, topic: Topic, body: bytes = b"m") -> Completion:
        """As a PUB does: in the open batch if there is one. Neither ticks nor threads run."""
        return topic.publishing.add(body, 0, len(body))

    def consume(
        self,
        channel: Channel,
        *,
        rdy: int,
        msg_timeout_ns: int = MSG_TIMEOUT_NS,
        sample_rate: int = 0,
        locality: Locality = Locality.GLOBAL,
    ) -> tuple[ChannelConsumer, Sink]:
        sink = Sink()
        consumer = ChannelConsumer(
            channel,
            sink,
            msg_timeout_ns=msg_timeout_ns,
            sample_rate=sample_rate,
            locality=locality,
        )
        channel.add(consumer)
        self.ready(consumer, rdy)
        return consumer, sink

    def ready(self, consumer: ChannelConsumer, rdy: int) -> None:
        consumer.rdy = rdy
        consumer.channel.offer(consumer)
        self.run()

    def finish(self, consumer: ChannelConsumer, *offsets: int) -> None:
        for offset in offsets:
            consumer.channel.finish_one(consumer, offset)
        self.run()

    def run(self) -> None:
        """Ticks, until there is nothing more to do at this moment."""
        while self._soon:
            self._soon.pop(0)()

    def settle(self) -> None:
        """Threads and ticks, until neither has anything to do."""
        self.run()
        while self.threads.run():
            self.run()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds, self.run)

    def checkpoint(self) -> None:
        """Everything that changed goes to the cursor files."""
        self.advance(0.1)
        self.threads.run()


def log_of(topic: Topic) -> Log:
    """Of one that is on disk."""
    assert isinstance(topic.log, Log)
    return topic.log


async def turns_during(work: Awaitable[T]) -> tuple[T, int]:
    """The outcome of some work, and how often others had the event loop meanwhile."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count_turns())
    outcome = await work
    other.cancel()
    return outcome, turns
