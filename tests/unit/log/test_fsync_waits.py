"""What is published while an fsync runs, with --sync-every=1: it shares the next append and the
next fsync, with its own publish time."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pumpline.log import flusher as flusher_module
from pumpline.log import group_commit as group_commit_module
from pumpline.log.flusher import SYNCED_FLUSH_S
from pumpline.log.wal import WriteAheadLog
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.topic import Topic
from tests.kit.fake_broker import NS_PER_S, FakeBroker, log_of


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    return FakeBroker(tmp_path, Options(sync_every=1))


@pytest.fixture
def appends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of parts of each append to the write-ahead log."""
    calls: list[int] = []
    append: Callable[..., int] = WriteAheadLog.append

    def counted(wal: WriteAheadLog, parts: list[bytes | memoryview]) -> int:
        calls.append(len(parts))
        return append(wal, parts)

    monkeypatch.setattr(WriteAheadLog, "append", counted)
    return calls


def idle_topic(broker: FakeBroker, name: str = "t") -> Topic:
    topic = broker.topic(name)
    topic.ensure_channel("c")
    broker.publish(topic, b"first")
    broker.settle()
    assert log_of(topic).is_shared
    return topic


def published_ns(topic: Topic) -> list[int]:
    """The publish time of each message of the log, in memory or on disk."""
    log = log_of(topic)
    log.flush()
    reader = log.reader(lambda: None)
    times = []
    for offset in range(log.first, log.end):
        batch = reader.batch(offset)
        assert batch is not None
        times.append(batch.published_ns(offset))
    return times


def test_small_messages_of_many_ticks_share_an_append(
    broker: FakeBroker, appends: list[int]
) -> None:
    topic, other = idle_topic(broker), idle_topic(broker, "other")
    appends.clear()
    running = broker.pub(topic, b"runs")
    broker.run()
    waiting = []
    for each in (topic, other, topic, other):
        waiting.append(broker.pub(each, b"waits"))
        broker.run()
    assert len(appends) == 1 and not running.done
    broker.threads.work()
    broker.threads.report()  # the fsync has ended: the next append follows at once
    assert running.succeeded
    assert len(appends) == 2 and not any(each.done for each in waiting)
    broker.settle()
    assert all(each.succeeded for each in waiting)
    assert len(appends) == 2


def test_a_large_record_does_not_wait(
    broker: FakeBroker, appends: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that what is held in memory and is in no file has a bound."""
    monkeypatch.setattr(group_commit_module, "RECORD_BYTES", 100)
    topic = idle_topic(broker)
    broker.pub(topic)
    broker.run()
    appends.clear()
    for _ in range(2):
        broker.pub(topic, b"x" * 50)
        broker.run()
    assert not appends
    broker.pub(topic)
    broker.run()
    assert len(appends) == 1


def test_messages_that_wait_have_their_own_publish_times(broker: FakeBroker) -> None:
    topic = idle_topic(broker)
    expected = [broker.clock.wall_ns()]
    for _ in range(3):
        broker.clock.passed_ns += NS_PER_S
        expected.append(broker.clock.wall_ns())
        broker.pub(topic)
        broker.run()
    broker.settle()
    assert published_ns(topic) == expected


def test_the_clock_is_set_back_while_messages_wait(broker: FakeBroker) -> None:
    """Publish times never decrease within a batch: a search by time relies on that."""
    topic = idle_topic(broker)
    broker.pub(topic)
    broker.run()
    broker.pub(topic)
    broker.run()
    broker.clock.wall_set_ns = -10 * NS_PER_S
    completion = broker.pub(topic)
    broker.run()
    broker.settle()
    assert completion.succeeded
    log = log_of(topic)
    log.flush()
    times = published_ns(topic)
    assert times[3] == times[0] - 10 * NS_PER_S
    assert log.ordered_from == 3


def test_a_run_of_publishes_after_the_clock_was_set_back(broker: FakeBroker) -> None:
    topic = idle_topic(broker)
    broker.pub(topic)
    broker.clock.wall_set_ns = -10 * NS_PER_S
    broker.run()
    line = b"PUB t\n"
    run = bytearray((line + (4).to_bytes(4) + b"last") * 2)
    after, number, completion = topic.publishing.add_run(run, 0, len(run), line)
    broker.settle()
    assert (after, number, completion.succeeded) == (len(run), 2, True)
    assert len(published_ns(topic)) == 4


def test_batches_that_wait_for_the_segments_have_their_own_publish_times(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher_module, "BEHIND_BYTES", -1)
    topic = idle_topic(broker)
    broker.advance(SYNCED_FLUSH_S)  # a flush has begun: its fsync runs
    assert broker.disk.flusher.is_behind
    expected = [broker.clock.wall_ns() - NS_PER_S]
    for _ in range(2):
        expected.append(broker.clock.wall_ns())
        completion = broker.publish(topic, b"m")
        assert not completion.done
        broker.clock.passed_ns += NS_PER_S
    broker.settle()
    assert published_ns(topic) == expected


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_topic_is_deleted_while_its_messages_wait(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, is_behind: bool
) -> None:
    monkeypatch.setattr(flusher_module, "BEHIND_BYTES", -1 if is_behind else 64 << 20)
    kept, deleted = idle_topic(broker, "kept"), idle_topic(broker, "deleted")
    broker.pub(kept)
    broker.run()
    broker.advance(SYNCED_FLUSH_S)
    completions = [broker.pub(kept), broker.pub(deleted)]
    broker.run()
    broker.topics.delete("deleted")
    broker.settle()
    assert completions[0].succeeded
    assert all(each.done for each in completions)
    assert log_of(kept).end == 3
