"""Large batches are written once, to their segment. With --sync-every=1 they are acknowledged after
an fsync of it: all of a log's messages that wait are there, or all in the write-ahead log."""

import errno
import os
from pathlib import Path

import pytest

from pumpline.log.direct_writes import SYNCED_DIRECT_BYTES, SYNCED_LOGS_MAX
from pumpline.log.flusher import RETRY_S, SYNCED_FLUSH_S
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.topic import Topic
from tests.kit.fake_broker import FakeBroker, log_of
from tests.kit.logs import failing_writev
from tests.kit.wal import wal_bytes

LARGE = b"x" * SYNCED_DIRECT_BYTES
EIO = "input/output error"


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    return FakeBroker(tmp_path, Options(sync_every=1))


def topic_of(broker: FakeBroker, name: str = "t") -> Topic:
    topic = broker.founded(name)
    topic.ensure_channel("c")
    return topic


def received(broker: FakeBroker, name: str = "t") -> list[bytes]:
    """What a consumer of the topic gets after a kill, in the order of offsets."""
    _, sink = broker.consume(broker.load()[name].ensure_channel("c"), rdy=100)
    broker.settle()
    return [body for _, _, body in sorted(sink.take())]


def break_fsyncs_of(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """The fsync of paths with this in them fails."""
    whole = os.fsync

    def fsync(fd: int) -> None:
        if part in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        whole(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "fdatasync", fsync)


def test_a_large_batch_is_written_once_and_acknowledged_by_its_fsync(
    broker: FakeBroker, tmp_path: Path
) -> None:
    topic = topic_of(broker)
    _, sink = broker.consume(topic.ensure_channel("c"), rdy=10)
    completion = broker.publish(topic, LARGE)
    assert wal_bytes(tmp_path) == 0
    assert not completion.done and not sink.received and topic.log.end == 0
    broker.settle()
    assert completion.succeeded and len(sink.take()) == 1
    assert received(broker) == [LARGE]


def test_messages_behind_a_direct_write_that_waits_follow_it(
    broker: FakeBroker, tmp_path: Path
) -> None:
    """Else the fsync of the write-ahead log could acknowledge them before it."""
    topic = topic_of(broker)
    completions = [broker.publish(topic, body) for body in (LARGE, b"small", LARGE, b"last")]
    assert wal_bytes(tmp_path) == 0
    broker.settle()
    assert all(each.succeeded for each in completions)
    assert received(broker) == [LARGE, b"small", LARGE, b"last"]


def test_a_large_batch_behind_messages_in_the_wal_follows_them(
    broker: FakeBroker, tmp_path: Path
) -> None:
    topic = topic_of(broker)
    completions = [broker.publish(topic, body) for body in (b"small", LARGE)]
    assert wal_bytes(tmp_path) > len(LARGE)
    broker.settle()
    assert all(each.succeeded for each in completions)
    assert received(broker) == [b"small", LARGE]


def test_acknowledged_messages_of_the_wal_are_written_before_a_large_batch(
    broker: FakeBroker, tmp_path: Path
) -> None:
    topic = topic_of(broker)
    broker.publish(topic, b"small")
    broker.settle()
    before = wal_bytes(tmp_path)
    broker.publish(topic, LARGE)
    assert log_of(topic).written == 2 and log_of(topic).end == 1
    assert wal_bytes(tmp_path) == before
    broker.settle()
    for _ in range(3):
        broker.advance(SYNCED_FLUSH_S)
        broker.settle()
    assert wal_bytes(tmp_path) == 0
    assert received(broker) == [b"small", LARGE]


def test_large_batches_of_many_topics_share_an_fsync(broker: FakeBroker, tmp_path: Path) -> None:
    topics = [topic_of(broker, f"t{number}") for number in range(SYNCED_LOGS_MAX + 3)]
    broker.settle()
    completions = []
    for topic in topics:
        completions.append(topic.publishing.add(LARGE, 0, len(LARGE), alone=True))
    broker.run()
    assert 3 * len(LARGE) < wal_bytes(tmp_path) < 4 * len(LARGE)
    broker.settle()
    assert all(each.succeeded for each in completions)
    for topic in topics:
        assert received(broker, topic.name) == [LARGE]


def test_a_failed_fsync_refuses_what_waits_and_what_was_added_since(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, other = topic_of(broker), topic_of(broker, "other")
    broker.publish(topic, b"first")
    broker.settle()
    with monkeypatch.context() as patch:
        break_fsyncs_of(patch, "/t/")
        refused = [broker.publish(topic, LARGE)]
        broker.threads.work()
        refused.append(broker.publish(topic, b"behind"))
        kept = broker.publish(other, b"kept")
        refused.append(topic.publishing.add(b"added", 0, 5))
        broker.threads.report()
        broker.settle()
    assert [each.error for each in refused] == [EIO] * 3
    assert kept.succeeded
    assert log_of(topic).end == log_of(topic).accepted == 1
    again = broker.publish(topic, LARGE + b"again")
    broker.settle()
    assert again.succeeded
    assert received(broker) == [b"first", LARGE + b"again"]
    assert received(broker, "other") == [b"kept"]


def test_what_was_refused_is_cut_off_at_once(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_of(broker)
    broker.publish(topic, b"first")
    broker.settle()
    with monkeypatch.context() as patch:
        break_fsyncs_of(patch, "/t/")
        refused = broker.publish(topic, LARGE)
        broker.threads.work()
        broker.threads.report()
    assert refused.error == EIO
    assert received(broker) == [b"first"]


def test_acknowledged_messages_survive_an_fsync_that_fails_until_it_succeeds(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may have dropped the pages that it could not write: they are written again."""
    topic = topic_of(broker)
    broker.publish(topic, b"first")
    broker.settle()
    with monkeypatch.context() as patch:
        break_fsyncs_of(patch, "/t/")
        broker.publish(topic, LARGE)
        broker.settle()
        broker.advance(SYNCED_FLUSH_S)
        broker.settle()
    assert log_of(topic).synced == 0
    for _ in range(3):
        broker.advance(max(RETRY_S, SYNCED_FLUSH_S))
        broker.settle()
    assert log_of(topic).synced == log_of(topic).end == 1
    assert received(broker) == [b"first"]


def test_a_full_disk_refuses_a_direct_write_and_not_those_before(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_of(broker)
    waiting = broker.publish(topic, LARGE)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", full)
        refused = broker.publish(topic, LARGE + b"refused")
    broker.settle()
    assert waiting.succeeded and refused.error == "no space left on device"
    assert received(broker) == [LARGE]


def test_what_was_refused_and_could_not_be_cut_off_is_cut_off_when_the_disk_works(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_of(broker)
    broker.publish(topic, b"first")
    broker.settle()
    log_of(topic).flush()
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", failing_writev(len(LARGE) + 150, errno.EIO))
        patch.setattr(os, "write", failing_writev(0, errno.EIO))
        patch.setattr(os, "ftruncate", failing_writev(0, errno.EIO))
        bodies = [LARGE, LARGE]
        refused = [topic.publishing.add(body, 0, len(body), alone=True) for body in bodies]
        broker.run()
    assert [each.error for each in refused] == [EIO, EIO]
    broker.advance(RETRY_S)
    broker.settle()
    assert received(broker) == [b"first"]


def test_a_topic_is_deleted_while_a_direct_write_waits(broker: FakeBroker) -> None:
    topic = topic_of(broker)
    completion = broker.publish(topic, LARGE)
    broker.topics.delete("t")
    again = topic_of(broker)
    broker.settle()
    assert completion.done
    broker.publish(again, b"new")
    broker.settle()
    assert received(broker) == [b"new"]


def test_a_loss_of_power_takes_the_end_of_a_segment_and_spares_the_next(
    tmp_path: Path,
) -> None:
    """What was acknowledged is in the write-ahead log, and a batch that was not is behind it."""
    options = Options(sync_every=1, max_bytes_per_file=200)
    broker = FakeBroker(tmp_path, options)
    topic = topic_of(broker)
    for number in range(8):
        broker.publish(topic, b"%d" % number * 50)
        broker.settle()
    log_of(topic).flush()
    assert len(log_of(topic).segments) > 2
    broker.publish(topic, LARGE)  # in a segment of its own; the fsync has not begun
    broker.run()
    lost = log_of(topic).segments[-2]
    os.truncate(lost.path, 0)
    assert received(broker) == [*(b"%d" % number * 50 for number in range(8)), LARGE]
    assert received(broker) == [*(b"%d" % number * 50 for number in range(8)), LARGE]


def test_a_loss_of_power_takes_pages_in_the_middle_of_a_segment(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, Options(sync_every=1))
    topic = topic_of(broker)
    broker.publish(topic, b"first")
    broker.settle()
    broker.publish(topic, LARGE)
    broker.run()
    path = log_of(topic).segments[-1].path
    with open(path, "r+b") as file:
        file.write(bytes(60))
    assert received(broker) == [b"first", LARGE]


def test_a_flush_that_has_nothing_to_sync_acknowledges_no_direct_write(broker: FakeBroker) -> None:
    """It ends while the fsync of a direct write runs, which began after it."""
    topic, other = topic_of(broker), topic_of(broker, "other")
    broker.publish(topic, LARGE)  # synced by its own fsync
    broker.settle()
    broker.publish(topic, b"small")
    broker.publish(other, b"small")
    broker.settle()
    log = log_of(topic)
    log.flush()
    log.syncing.sync_done(paths := log.syncing.take_dirty(), None)
    assert paths and not log.dirty
    broker.advance(SYNCED_FLUSH_S)  # a flush: there is nothing to sync for `topic`
    flush = len(broker.threads.waiting)
    assert flush == 1
    direct = broker.publish(topic, LARGE)
    broker.threads.work(0)
    broker.threads.report()
    broker.run()
    assert not direct.done and log.end == 2 and log.synced == 2
    broker.settle()
    assert direct.succeeded
