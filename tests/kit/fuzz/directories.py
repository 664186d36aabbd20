"""Data directories to be damaged: how they are made, what is in them, and how they are emptied.

A `Template` knows, for each channel, which messages it still has to get and which batch each of
them is in, so that a test can say what must survive.
"""

import asyncio
import shutil
import time
from pathlib import Path
from typing import NamedTuple

from pumpline.core.messages.batches import LogBatch, read_batch
from pumpline.core.messages.publish_tokens import digest_of
from pumpline.log.log import Log
from pumpline.nsqd.broker import Broker
from tests.kit.fuzz import replies
from tests.kit.fuzz.grammar import MAGIC, sized
from tests.kit.fuzz.inprocess import InProcess, Wire
from tests.kit.go_diskqueues import Stored, write_queue

FLAGS = ("--max-bytes-per-file=3000", "--mem-queue-size=5", "--node-id=1")
TOPICS = ("t", "u", "p")  # with two channels; with none; paused
TOKEN_TOPIC = "u"  # whose messages have publish tokens
QUEUES = {"q": b"of the topic", "q:ch": b"of the channel"}  # of Go nsqd, to be imported
COUNT = 60  # messages of a topic
SENTINEL = b"sentinel"
METADATA = "nsqd.dat"
MANIFEST = "topic.json"

_DRAIN_S = 60.0
_READY = 2000
_HOUR_MS = 3_600_000

Channel = tuple[str, str]


class Template(NamedTuple):
    path: Path
    owed: dict[Channel, set[bytes]]
    batches: dict[str, list[tuple[bytes, list[bytes]]]]  # by file: bytes and bodies of each

    def copy_to(self, path: Path) -> None:
        """In place of what is there."""
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.path, path)


def bodies_of_topic(topic: str) -> list[bytes]:
    return [b"%b-%03d " % (topic.encode(), number) + b"x" * 80 for number in range(COUNT)]


def make_template(path: Path, *, crashed: bool) -> Template:
    """A directory with a bit of everything, stopped in order or copied while it was in use."""
    live = path.with_name(path.name + "-live")
    live.mkdir()
    with InProcess(live, FLAGS) as nsqd:
        finished = nsqd.run(_fill(nsqd.broker))
        if crashed:
            shutil.copytree(live, path)
    if not crashed:
        shutil.copytree(live, path)
    for name, body in QUEUES.items():
        write_queue(path, name, [Stored(body + b" %d" % number) for number in range(5)])
    owed = {
        ("t", "c"): set(bodies_of_topic("t")),
        ("t", "d"): set(bodies_of_topic("t")) - finished,
        ("u", "late"): set(bodies_of_topic("u")),
        ("p", "c"): set(bodies_of_topic("p")),
        ("q", "ch"): {body + b" %d" % number for body in QUEUES.values() for number in range(5)},
    }
    segments = sorted((path / "topics").rglob("*.log"))
    batches = {str(file.relative_to(path)): _batches_in(file) for file in segments}
    return Template(path, owed, batches)


def still_owed(template: Template, path: Path) -> dict[Channel, set[bytes]]:
    """What of it is still whole in a damaged copy at `path`."""
    lost: set[bytes] = set()
    for name, batches in template.batches.items():
        file = path / name
        data = file.read_bytes() if file.is_file() else b""
        at = 0
        # A batch that is there twice hides others (see test_found): then none is counted on.
        twice = any(data.count(raw) > 1 for raw, _ in batches)
        for raw, bodies in batches:
            position = data.find(raw, at)
            if position < 0 or twice:
                lost.update(bodies)
            else:
                at = position + len(raw)
    owed = {channel: bodies - lost for channel, bodies in template.owed.items()}
    for file in template.path.glob("q*.diskqueue.*"):
        if not (path / file.name).is_file() or (path / file.name).read_bytes() != file.read_bytes():
            owed["q", "ch"] = set()  # which of them is left is not for here to say
    return owed


async def drain(broker: Broker, topic: str, channel: str) -> list[bytes]:
    """Everything the channel has, finished; the topic and the channel go on if they were paused."""
    broker.topics.ensure(topic).ensure_channel(channel).unpause()
    broker.topics.ensure(topic).unpause()
    wire = Wire(broker)
    await wire.send([MAGIC + b"SUB %b %b\n" % (topic.encode(), channel.encode())])
    await wire.send([b"RDY %d\n" % _READY, b"PUB %b\n" % topic.encode() + sized(SENTINEL)])
    bodies: list[bytes] = []
    deadline_s = time.monotonic() + _DRAIN_S
    state = broker.topics.ensure(topic).ensure_channel(channel)
    while SENTINEL not in bodies or state.depth or state.in_flight_count:
        assert time.monotonic() < deadline_s, (len(bodies), state.depth, state.in_flight_count)
        frames, rest = replies.whole_frames(bytes(wire.received))
        wire.received[:] = rest
        for frame in frames:
            assert frame.type != replies.ERROR, frame
            if frame.type == replies.MESSAGE:
                bodies.append(frame.data[replies.MESSAGE_BYTES_MIN :])
                await wire.send([b"FIN %b\n" % frame.message_id])
        await asyncio.sleep(0 if frames else 0.001)
    await wire.end()
    return [body for body in bodies if body != SENTINEL]


async def _fill(broker: Broker) -> set[bytes]:
    """Topics and channels; what channel d of topic t has finished."""
    for name in ("c", "d"):
        broker.topics.ensure("t").ensure_channel(name)
    broker.topics.ensure("p").ensure_channel("c")
    broker.topics.ensure("p").pause()
    producer = Wire(broker)
    await producer.send([MAGIC])
    for topic in TOPICS:
        bodies = bodies_of_topic(topic)
        if topic == TOKEN_TOPIC:
            await _put_with_tokens(broker, topic, bodies)
            continue
        for at in range(0, COUNT, 3):
            await producer.send([_mpub(topic, bodies[at : at + 3])])
            await _flush(broker, topic)  # each is a batch of the log
    far = b"DPUB t %d\n" % _HOUR_MS + sized(b"far")
    await producer.send([far])
    await producer.end()
    finished = await _finish_some(broker)
    await broker.metadata.persist()
    for topic in TOPICS:
        await _flush(broker, topic)
    while broker.disk.wal.size_bytes:  # else it has what is damaged in the segments
        await asyncio.sleep(0.01)
    return finished


async def _flush(broker: Broker, name: str) -> None:
    log = broker.topics[name].log
    assert isinstance(log, Log)
    while broker.topics.group_commit.shared.lines or broker.topics[name].publishing:
        await asyncio.sleep(0)
    log.flush()


async def _put_with_tokens(broker: Broker, name: str, bodies: list[bytes]) -> None:
    topic = broker.topics.ensure(name)
    for number, body in enumerate(bodies):
        token = digest_of(f"{name}:{number}")
        assert topic.upkeep.tokens.outcome(token) is None
        completion = topic.publishing.add(body, 0, len(body), alone=True)
        topic.publishing.add_token(token)
        while not completion.done:
            await asyncio.sleep(0)
        await _flush(broker, name)
        if number == len(bodies) // 2:
            topic.upkeep.tokens.retiring(topic.log.end)  # so that their file has several records


async def _finish_some(broker: Broker) -> set[bytes]:
    consumer = Wire(broker)
    await consumer.send([MAGIC + b"SUB t d\nRDY %d\n" % (COUNT // 2)])
    while True:
        frames, _ = replies.whole_frames(bytes(consumer.received))
        messages = [frame for frame in frames if frame.type == replies.MESSAGE]
        if len(messages) == COUNT // 2:
            break
        await asyncio.sleep(0.001)
    await consumer.send([b"RDY 0\n"])
    finished = set()
    for number, frame in enumerate(messages):
        verb = (b"FIN %b\n", b"FIN %b\n", b"REQ %b 0\n", b"NOP %b\n")[number % 4]
        await consumer.send([verb % frame.message_id])
        if verb.startswith(b"FIN"):
            finished.add(frame.data[replies.MESSAGE_BYTES_MIN :])
        if number % 10 == 0:
            broker.disk.checkpoints.write_all_now()  # so that the cursor has several records
    await consumer.end()
    broker.disk.checkpoints.write_all_now()
    return finished


def _mpub(topic: str, bodies: list[bytes]) -> bytes:
    whole = len(bodies).to_bytes(4) + b"".join(map(sized, bodies))
    return b"MPUB %b\n" % topic.encode() + sized(whole)


def _batches_in(file: Path) -> list[tuple[bytes, list[bytes]]]:
    data = file.read_bytes()
    found = []
    at = 0
    while at < len(data):
        batch = read_batch(memoryview(data), at)
        found.append((data[at : at + batch.size_bytes], _bodies(batch)))
        at += batch.size_bytes
    return found


def _bodies(batch: LogBatch) -> list[bytes]:
    frames = [bytes(batch.cut(offset, offset + 1)) for offset in range(batch.first, batch.end)]
    return [frame[8 + replies.MESSAGE_BYTES_MIN :] for frame in frames]
