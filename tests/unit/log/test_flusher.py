"""The flusher brings what the write-ahead log has to the segments, and removes nothing before it is
there: whatever the disk refuses, what was acknowledged stays readable and is never lost."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pumpline.log import group_commit as group_commit_module
from pumpline.log.completion import Completion
from pumpline.log.flusher import FLUSH_S, LOGS_AT_ONCE, RETRY_S, SYNCED_FLUSH_S
from pumpline.log.log import State
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.topic import Topic
from tests.kit.fake_broker import FakeBroker, log_of
from tests.kit.wal import raising, wal_bytes

EIO, ENOSPC = "input/output error", "no space left on device"


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    return FakeBroker(tmp_path)


@pytest.fixture
def synced(tmp_path: Path) -> FakeBroker:
    return FakeBroker(tmp_path, Options(sync_every=1))


def quiet_topic(broker: FakeBroker, name: str = "t") -> Topic:
    """One whose next small message is added to a batch that is open."""
    topic = broker.topic(name)
    topic.ensure_channel("c")
    assert outcome(broker, broker.publish(topic, b"first")) is None
    return topic


def outcome(broker: FakeBroker, completion: Completion) -> str | None:
    """The error of a publish, once ticks and threads have run."""
    broker.settle()
    assert completion.done
    return completion.error


def failing_on(call: str, path: str, number: int = errno.EIO) -> Callable[..., object]:
    """A system call that fails for files there alone."""
    whole = getattr(os, call)

    def maybe(fd: int, *rest: object) -> object:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(path):
            raise OSError(number, os.strerror(number))
        return whole(fd, *rest)

    return maybe


def bodies_now(broker: FakeBroker, topic: Topic) -> list[bytes]:
    """What a new consumer of the channel gets; it finishes nothing."""
    channel = topic.channels["c"]
    consumer, sink = broker.consume(channel, rdy=100)
    broker.settle()
    channel.remove(consumer)
    broker.run()
    return [body for _, _, body in sorted(sink.take())]


def received(broker: FakeBroker, name: str = "t") -> list[bytes]:
    """What a consumer of the topic gets after a kill."""
    return bodies_now(broker, broker.load()[name])


# -- when -----------------------------------------------------------------------------------------


def test_many_topics_are_flushed_some_at_a_time(broker: FakeBroker, tmp_path: Path) -> None:
    topics = [quiet_topic(broker, f"t{number}") for number in range(2 * LOGS_AT_ONCE + 50)]
    broker.advance(1)
    completions = [broker.pub(topic) for topic in topics]
    broker.run()
    assert all(completion.succeeded for completion in completions)
    [timer] = [h for h in broker.clock.waiting if h.callback == broker.disk.flusher._on_timer]
    timer.cancel()
    timer.callback()
    flushed = [topic for topic in topics if log_of(topic).written == 2]
    assert len(flushed) == LOGS_AT_ONCE
    assert wal_bytes(tmp_path) > 0  # of those that are still to be flushed
    during = broker.pub(topics[0], b"during")
    broker.run()
    broker.advance(0)
    assert all(log_of(topic).written >= 2 for topic in topics)
    assert during.succeeded
    assert wal_bytes(tmp_path) > 0  # of the last one
    broker.advance(FLUSH_S)
    assert log_of(topics[0]).written == 3
    assert wal_bytes(tmp_path) == 0


def test_a_large_write_ahead_log_is_flushed_before_its_time(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit_module, "WAL_BYTES_MAX", 10_000)
    topic = quiet_topic(broker)
    for _ in range(100):
        broker.pub(topic, bytes(500))
        broker.run()
        assert wal_bytes(tmp_path) <= 11_000
    assert log_of(topic).written > 50


def test_what_came_since_the_flush_began_stays_in_the_write_ahead_log(
    synced: FakeBroker, tmp_path: Path
) -> None:
    topic = quiet_topic(synced)
    synced.advance(SYNCED_FLUSH_S)  # flushed, and no fsync yet
    assert log_of(topic).written == 1
    later = synced.pub(topic, b"second")
    assert outcome(synced, later) is None
    assert log_of(topic).written == 1
    assert wal_bytes(tmp_path) > 0
    synced.advance(SYNCED_FLUSH_S)
    synced.settle()
    assert log_of(topic).written == 2
    assert wal_bytes(tmp_path) == 0


def test_the_write_ahead_log_goes_when_the_segments_are_synced(
    synced: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = quiet_topic(synced)
    names: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        names.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    synced.advance(SYNCED_FLUSH_S)
    assert (log_of(topic).written, log_of(topic).synced) == (1, 0)
    assert wal_bytes(tmp_path) > 0
    synced.settle()
    assert [name for name in names if name.endswith(".log")]
    assert log_of(topic).synced == 1
    assert wal_bytes(tmp_path) == 0


def test_what_is_not_synced_is_not_flushed(synced: FakeBroker) -> None:
    topic = quiet_topic(synced)
    waiting = synced.pub(topic, b"second")
    synced.run()
    log_of(topic).flush()  # as somebody does who reads the files
    assert (log_of(topic).written, topic.log.end) == (1, 1)
    assert outcome(synced, waiting) is None
    log_of(topic).flush()
    assert (log_of(topic).written, topic.log.end) == (2, 2)
    assert received(synced) == [b"first", b"second"]


# -- what cannot be flushed -----------------------------------------------------------------------


def test_a_stuck_log_keeps_its_messages_and_refuses_more_until_it_can_be_flushed(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, other = quiet_topic(broker), quiet_topic(broker, "other")
    broker.advance(1)
    accepted = [broker.pub(topic, b"second"), broker.pub(other, b"second")]
    broker.run()
    log = log_of(topic)
    with monkeypatch.context() as full:
        full.setattr(os, "writev", failing_on("writev", log.directory, errno.ENOSPC))
        broker.advance(FLUSH_S)
        assert (log.state, log.written, log.end) == (State.STUCK, 1, 2)
        assert all(completion.succeeded for completion in accepted)
        assert log_of(other).written == 2
        assert wal_bytes(tmp_path) > 0
        refused = [broker.pub(topic, b"refused")]
        broker.run()
        refused.append(broker.publish(topic, b"refused", b"too"))
        assert [completion.error for completion in refused] == [ENOSPC] * 2
        assert broker.publish(other, b"third").succeeded
        broker.advance(3 * RETRY_S)
        assert (log.state, wal_bytes(tmp_path) > 0) == (State.STUCK, True)
        assert bodies_now(broker, topic) == [b"first", b"second"]
        assert broker.disk.health.error is not None
    broker.advance(2 * RETRY_S)
    assert (log.state, log.written) == (State.OPEN, 2)
    assert wal_bytes(tmp_path) == 0
    assert broker.publish(topic, b"third").succeeded
    assert bodies_now(broker, topic) == [b"first", b"second", b"third"]
    assert received(broker) == received(broker, "other") == [b"first", b"second", b"third"]


def test_a_publish_finds_out_that_a_stuck_log_can_be_flushed(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = quiet_topic(broker)
    with monkeypatch.context() as full:
        full.setattr(os, "writev", raising(errno.ENOSPC))
        broker.advance(FLUSH_S)
        assert log_of(topic).state is State.STUCK
    assert broker.publish(topic, b"second").succeeded
    assert log_of(topic).state is State.OPEN
    assert received(broker) == [b"first", b"second"]


def test_a_kill_loses_nothing_of_a_stuck_log(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = quiet_topic(broker)
    with monkeypatch.context() as full:
        full.setattr(os, "writev", raising(errno.ENOSPC))
        broker.advance(10)
        assert log_of(topic).written == 0
        assert bodies_now(broker, broker.load()["t"]) == [b"first"]  # on the full disk, too
        broker.advance(10)
    assert received(broker) == [b"first"]


def test_a_stuck_log_that_is_deleted_holds_up_nobody(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, _ = quiet_topic(broker), quiet_topic(broker, "other")
    with monkeypatch.context() as full:
        full.setattr(os, "writev", failing_on("writev", log_of(topic).directory))
        broker.advance(FLUSH_S)
        assert wal_bytes(tmp_path) > 0
        broker.topics.delete("t")
        broker.advance(2 * RETRY_S)
    assert wal_bytes(tmp_path) == 0
    assert received(broker, "other") == [b"first"]


# -- what cannot be synced ------------------------------------------------------------------------


def test_a_segment_that_cannot_be_synced_is_written_again_and_loses_nothing(
    synced: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = quiet_topic(synced)
    synced.advance(SYNCED_FLUSH_S)
    synced.settle()
    assert log_of(topic).synced == 1
    for body in (b"second", b"third"):
        assert outcome(synced, synced.pub(topic, body)) is None
    log = log_of(topic)
    path = Path(log.segments[-1].path)
    size_bytes = path.stat().st_size
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", failing_on("fsync", log.directory))
        synced.advance(SYNCED_FLUSH_S)
        synced.settle()
        assert (log.state, log.end, log.synced) == (State.STUCK, 3, 1)
        assert wal_bytes(tmp_path) > 0
        assert bodies_now(synced, topic) == [b"first", b"second", b"third"]
    # As a disk that lost what it could not sync: an fsync that succeeds would prove nothing.
    written = path.read_bytes()
    assert len(written) > size_bytes
    path.write_bytes(written[:size_bytes] + bytes(len(written) - size_bytes))
    synced.advance(2 * RETRY_S)
    synced.settle()
    synced.advance(SYNCED_FLUSH_S)
    synced.settle()
    assert (log.state, log.synced) == (State.OPEN, 3)
    assert path.read_bytes() == written
    assert wal_bytes(tmp_path) == 0
    assert outcome(synced, synced.pub(topic, b"fourth")) is None
    assert received(synced) == [b"first", b"second", b"third", b"fourth"]


def test_a_log_that_cannot_be_synced_refuses_or_keeps_what_comes_meanwhile(
    synced: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = quiet_topic(synced)
    expected = [b"first"]
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", failing_on("fsync", log_of(topic).directory))
        for number in range(10):
            synced.advance(SYNCED_FLUSH_S)
            synced.settle()
            body = b"%d" % number
            if outcome(synced, synced.pub(topic, body)) is None:
                expected.append(body)
        assert wal_bytes(tmp_path) > 0
        assert bodies_now(synced, topic) == expected
        assert received(FakeBroker(tmp_path, synced.options)) == expected
    for _ in range(4):
        synced.advance(SYNCED_FLUSH_S)
        synced.settle()
    assert log_of(topic).synced == topic.log.end == len(expected)
    assert wal_bytes(tmp_path) == 0
    assert received(synced) == expected


def test_another_log_is_synced_though_one_cannot_be(
    synced: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = quiet_topic(synced), quiet_topic(synced, "good")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", failing_on("fsync", log_of(bad).directory))
        synced.advance(SYNCED_FLUSH_S)
        synced.settle()
    assert (log_of(bad).synced, log_of(good).synced) == (0, 1)


# -- a stop ---------------------------------------------------------------------------------------


def test_a_stop_flushes_all(broker: FakeBroker) -> None:
    topics = [quiet_topic(broker, name) for name in ("a", "b")]
    completions = [broker.pub(topic) for topic in topics]
    broker.topics.group_commit.stop()
    assert broker.disk.flusher.flush_all()
    assert all(completion.succeeded for completion in completions)
    assert [log_of(topic).written for topic in topics] == [2, 2]
    broker.publish(topics[0], b"m")
    assert not log_of(topics[0]).is_shared


def test_a_stop_says_that_something_could_not_be_flushed(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = quiet_topic(broker)
    second = broker.pub(topic, b"second")
    broker.run()
    assert second.succeeded
    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", raising(errno.EIO))
        broker.topics.group_commit.stop()
        assert not broker.disk.flusher.flush_all()
    assert wal_bytes(tmp_path) > 0
    assert received(broker) == [b"first", b"second"]
