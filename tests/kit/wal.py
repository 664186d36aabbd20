"""Topics of a fake broker whose messages are in the write-ahead log, and what is in its files."""

import os
from collections.abc import Callable
from pathlib import Path

from pumpline.core.messages.batches import LogBatch
from pumpline.log.completion import Completion
from pumpline.log.unflushed import read_records
from pumpline.log.wal import number_in
from pumpline.nsqd.queue.topic import Topic
from tests.kit.fake_broker import FakeBroker


def topic_of(broker: FakeBroker, name: str = "t") -> Topic:
    topic = broker.topic(name)
    topic.ensure_channel("c")
    return topic


def succeed(broker: FakeBroker, *completions: Completion) -> None:
    broker.settle()
    assert [completion.error for completion in completions] == [None] * len(completions)
    assert all(completion.done for completion in completions)


def publish(broker: FakeBroker, topic: Topic, *bodies: bytes) -> None:
    """Each in a tick of its own."""
    for body in bodies:
        succeed(broker, broker.pub(topic, body))


def wal_files(path: Path) -> list[Path]:
    return sorted(file for file in path.glob("wal-*") if number_in(file.name) is not None)


def wal_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in wal_files(path))


def records_in(path: Path) -> list[LogBatch]:
    return [record for file in wal_files(path) for record in read_records(str(file)).records]


def bodies_of(broker: FakeBroker, name: str = "t") -> list[bytes]:
    """What a consumer of the topic gets."""
    channel = broker.topics[name].channels["c"]
    consumer, sink = broker.consume(channel, rdy=1000)
    broker.settle()
    channel.remove(consumer)
    broker.run()
    return [body for _, _, body in sorted(sink.take())]


def raising(number: int) -> Callable[..., int]:
    """A system call that always fails."""

    def call(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    return call
