"""One append to the write-ahead log, and with --sync-every=1 one fsync, for all publishes of a
tick. They are acknowledged together, or refused together. What was refused never comes."""

import errno
import os
from pathlib import Path

import pytest

from pumpline.core.text.settings import TopicSettings
from pumpline.log import flusher as flusher_module
from pumpline.log.completion import Completion
from pumpline.log.flusher import FLUSH_S, RETRY_S, SYNCED_FLUSH_S
from pumpline.log.group_commit import DIRECT_BYTES
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.topic import Topic
from tests.kit.fake_broker import NS_PER_S, FakeBroker, log_of
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
    completion = broker.publish(topic, b"first")
    broker.settle()
    assert completion.succeeded
    assert log_of(topic).is_shared
    return topic


def received(broker: FakeBroker, name: str = "t") -> list[bytes]:
    """What a consumer of the topic gets after a kill."""
    _, sink = broker.consume(broker.load()[name].ensure_channel("c"), rdy=100)
    broker.settle()
    return [body for _, _, body in sink.take()]


def add_many(topic: Topic, *bodies: bytes) -> Completion:
    """As an MPUB that has to be looked at."""
    buf = bytearray(b"".join(len(body).to_bytes(4) + body for body in bodies))
    assert topic.publishing.add_many(buf, 0, len(buf), len(bodies)) == -1
    return topic.publishing.completion()


# -- what was acknowledged ------------------------------------------------------------------------


def test_a_message_is_acknowledged_in_its_tick_and_soon_in_its_segment(
    broker: FakeBroker, tmp_path: Path
) -> None:
    topic = quiet_topic(broker)
    completion = broker.pub(topic)
    assert (completion.done, topic.log.end) == (False, 1)  # not before the tick
    broker.run()
    assert (completion.succeeded, topic.log.end, log_of(topic).written) == (True, 2, 0)
    assert wal_bytes(tmp_path) > 0
    broker.advance(FLUSH_S)
    assert (topic.log.end, log_of(topic).written) == (2, 2)
    assert wal_bytes(tmp_path) == 0
    broker.pub(topic)  # and so it goes on
    broker.run()
    assert (topic.log.end, log_of(topic).written) == (3, 2)
    assert wal_bytes(tmp_path) > 0


def test_whoever_asks_finds_all_that_was_acknowledged(broker: FakeBroker) -> None:
    topic = quiet_topic(broker)
    channel = topic.channels["c"]
    for number in range(2, 10):
        broker.pub(topic, b"12345")
        assert (topic.message_count, channel.depth) == (number - 1, number - 1)
        broker.run()
        assert (topic.message_count, channel.depth, topic.log.end) == (number, number, number)
        assert topic.log.message_bytes == 5 * number
        if number % 3 == 0:
            log_of(topic).flush()


@pytest.mark.parametrize("how", ["many", "delayed", "large"])
@pytest.mark.parametrize("sync_every", [2500, 1])
def test_other_publishes_of_a_tick_come_after_small_ones(
    tmp_path: Path, how: str, sync_every: int
) -> None:
    broker = FakeBroker(tmp_path, Options(sync_every=sync_every))
    topic = quiet_topic(broker)
    completions = [broker.pub(topic, b"small")]
    if how == "many":
        completions.append(add_many(topic, b"ab", b"c"))
    elif how == "delayed":
        completions.append(topic.publishing.add(b"later", 0, 5, delay_ns=1))
    else:
        completions.append(broker.pub(topic, bytes(DIRECT_BYTES + 1)))
    completions.append(broker.pub(topic, b"last"))
    broker.settle()
    assert all(completion.succeeded for completion in completions)
    _, sink = broker.consume(topic.channels["c"], rdy=10)
    broker.advance(1)
    offsets_and_bodies = [(offset, body) for offset, _, body in sink.take()]
    assert sorted(offset for offset, _ in offsets_and_bodies) == list(range(topic.log.end))
    in_order = [body for _, body in sorted(offsets_and_bodies)]
    assert in_order[:2] == [b"first", b"small"]
    assert in_order[-1] == b"last"
    broker.advance(60)
    assert sorted(received(broker)) == sorted(in_order)


def test_what_is_large_is_written_once(broker: FakeBroker, tmp_path: Path) -> None:
    topic = quiet_topic(broker)
    before = wal_bytes(tmp_path)
    assert broker.publish(topic, bytes(DIRECT_BYTES)).succeeded
    assert wal_bytes(tmp_path) == before
    assert log_of(topic).written == topic.log.end == 2


def test_what_has_to_be_checked_first_is_not_added_by_a_kernel(broker: FakeBroker) -> None:
    topic = broker.topic("bounded")
    topic.store_settings(TopicSettings(max_depth=2))
    for _ in range(4):
        broker.pub(topic)
        broker.run()
    assert (topic.log.end, topic.publishing.refused_count, log_of(topic).is_shared) == (2, 2, False)
    late = quiet_topic(broker, "bounded late")
    broker.pub(late)
    late.store_settings(TopicSettings(max_depth=2))
    assert (late.log.end, log_of(late).is_shared) == (2, False)
    refused = broker.pub(late)
    broker.run()
    assert refused.error is not None
    ephemeral = broker.topic("e#ephemeral")
    broker.publish(ephemeral, b"m")
    assert not ephemeral.log.is_shared


def test_times_of_a_batch_do_not_decrease_when_the_clock_is_set_back(broker: FakeBroker) -> None:
    topic = quiet_topic(broker)
    broker.advance(0.01)
    broker.pub(topic)
    broker.run()
    broker.clock.wall_set_ns -= NS_PER_S
    broker.pub(topic)
    broker.run()
    broker.pub(topic)
    broker.run()
    log = log_of(topic)
    log.flush()
    assert (log.written, log.ordered_from) == (4, 2)
    for offset in range(4):
        batch = log.in_tail(offset)
        if batch is not None:
            times = [batch.published_ns(each) for each in range(batch.first, batch.end)]
            assert times == sorted(times)


# -- a failed append ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_append_refuses_exactly_the_publishes_of_its_tick(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    small, batched, untouched = (quiet_topic(broker, name) for name in ("small", "batched", "not"))
    before = [broker.pub(topic, b"before") for topic in (small, batched, untouched)]
    broker.run()
    new = broker.topics.ensure_provisional("new")
    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", raising(number))
        refused = [broker.pub(small, b"refused"), add_many(batched, b"refused", b"as well")]
        refused.append(broker.publish(new, b"refused"))
        broker.run()
    after = [broker.pub(topic, b"after") for topic in (small, batched, untouched)]
    broker.run()
    assert all(completion.succeeded for completion in before + after)
    assert [completion.error for completion in refused] == [os.strerror(number).lower()] * 3
    assert "new" not in broker.topics
    for topic in (small, batched, untouched):
        assert (topic.log.end, topic.message_count) == (3, 3)
        _, sink = broker.consume(topic.channels["c"], rdy=10)
        assert [body for _, _, body in sink.take()] == [b"first", b"before", b"after"]
    broker.load()
    for name in ("small", "batched", "not"):
        assert received(broker, name) == [b"first", b"before", b"after"]


def test_a_refused_topic_takes_small_and_large_ones_again(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = quiet_topic(broker)
    bodies = [b"first"]
    for number in range(5):
        with monkeypatch.context() as broken:
            broken.setattr(os, "writev", raising(errno.EIO))
            refused = broker.pub(topic, b"refused")
            broker.run()
        assert refused.error == EIO
        for body in (b"small %d" % number, b"%d" % number * DIRECT_BYTES):
            assert broker.publish(topic, body).succeeded
            bodies.append(body)
    assert received(broker) == bodies


def test_a_failed_append_that_cannot_be_cut_off_lets_nothing_be_lost_behind_it(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = quiet_topic(broker)
    writev = os.writev

    def tear(fd: int, parts: list[bytes]) -> int:
        writev(fd, [b"".join(parts)[:10]])
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", tear)
        broken.setattr(os, "ftruncate", raising(errno.EIO))
        refused = broker.pub(topic, b"refused")
        broker.run()
        assert refused.error == EIO
    taken = broker.pub(topic, b"taken")
    broker.run()
    assert taken.succeeded
    assert received(broker) == [b"first", b"taken"]


def test_a_write_through_that_fails_refuses_what_it_would_have_written(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, other = quiet_topic(broker), quiet_topic(broker, "other")
    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", raising(errno.EIO))
        refused = broker.publish(topic, bytes(DIRECT_BYTES))
        assert (refused.error, topic.log.end) == (EIO, 1)
    accepted = [broker.pub(each, b"second") for each in (topic, other)]
    broker.run()
    assert all(completion.succeeded for completion in accepted)
    assert received(broker) == [b"first", b"second"]


def test_a_full_disk_costs_history_before_a_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = FakeBroker(tmp_path, Options(max_bytes_per_file=1))
    topic = broker.topic()
    consumer, _ = broker.consume(topic.ensure_channel("c"), rdy=5)
    for body in (b"a", b"b"):
        broker.publish(topic, body)
        log_of(topic).flush()
    broker.finish(consumer, 0, 1)
    writev, failures = os.writev, [1]

    def full_once(fd: int, parts: list[bytes]) -> int:
        if failures:
            failures.pop()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return writev(fd, parts)

    monkeypatch.setattr(os, "writev", full_once)
    other = broker.publish(broker.topic("other"), b"c")
    assert other.error is None
    assert log_of(topic).first > 0


# -- with --sync-every=1 --------------------------------------------------------------------------


def test_one_fsync_acknowledges_what_was_published_to_many_topics(
    synced: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [quiet_topic(synced, f"t{number}") for number in range(20)]
    names: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        names.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    completions = [synced.pub(topic) for topic in topics]
    synced.run()
    assert not any(completion.done for completion in completions)
    assert all(topic.log.end == 1 for topic in topics)
    synced.settle()
    assert all(completion.succeeded for completion in completions)
    assert all(topic.log.end == 2 for topic in topics)
    assert len(names) == 1
    assert names[0].startswith("wal-")


def test_a_failed_append_refuses_nothing_that_an_earlier_one_has_waiting(
    synced: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, other = quiet_topic(synced), quiet_topic(synced, "other")
    waiting = [synced.pub(topic, b"second"), add_many(other, b"second", b"third")]
    synced.run()
    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", raising(errno.ENOSPC))
        refused = [synced.pub(topic, b"refused"), add_many(other, b"refused")]
        synced.run()
        assert [completion.error for completion in refused] == [ENOSPC] * 2
    assert not any(completion.done for completion in waiting)
    later = synced.pub(topic, b"third")
    synced.settle()
    assert all(completion.succeeded for completion in (*waiting, later))
    assert (topic.log.end, other.log.end) == (3, 3)
    assert received(synced) == received(synced, "other") == [b"first", b"second", b"third"]


def test_a_failed_fsync_refuses_everything_since_the_last_one(
    synced: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, other = quiet_topic(synced), quiet_topic(synced, "other")
    assert synced.threads.run() == 0
    covered = [synced.pub(topic, b"covered"), synced.pub(other, b"covered")]
    synced.run()
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", raising(errno.EIO))
        synced.threads.work()
    appended = [synced.pub(topic, b"appended"), add_many(other, b"appended")]
    synced.run()
    added = [synced.pub(topic, b"added"), add_many(other, b"added")]
    added.append(topic.publishing.add(b"later", 0, 5, delay_ns=NS_PER_S))
    synced.threads.report()  # before the tick that would have written these
    synced.settle()
    assert {completion.error for completion in covered + appended + added} == {EIO}
    assert (topic.log.end, other.log.end) == (1, 1)
    assert synced.publish(topic, b"second").error is None
    synced.settle()
    assert received(synced) == [b"first", b"second"]
    assert received(synced, "other") == [b"first"]


def test_a_topic_that_is_deleted_meanwhile_takes_nothing_of_others_with_it(
    synced: FakeBroker,
) -> None:
    kept, deleted = quiet_topic(synced, "t"), quiet_topic(synced, "gone")
    completions = [synced.pub(kept, b"second"), synced.pub(deleted, b"lost")]
    synced.run()
    synced.topics.delete("gone")
    again = synced.topic("gone")
    synced.settle()
    assert all(completion.done for completion in completions)
    assert completions[0].succeeded
    assert (again.message_count, log_of(again).is_shared) == (0, False)
    synced.advance(SYNCED_FLUSH_S)
    synced.settle()
    assert log_of(kept).written == 2
    assert received(synced) == [b"first", b"second"]


def test_publishes_wait_while_the_segments_are_far_behind(
    synced: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher_module, "BEHIND_BYTES", 1000)
    topic = quiet_topic(synced)
    synced.settle()
    synced.advance(SYNCED_FLUSH_S)  # a flush has begun; its fsync has not ended
    assert synced.threads.waiting
    bodies = [b"first"]
    completions = []
    for number in range(6):
        bodies.append(b"%d" % number * 400)
        completions.append(synced.pub(topic, bodies[-1]))
        synced.run()
        synced.threads.work(-1)  # the fsync of the write-ahead log, not that of the segments
        if synced.threads.finished:
            synced.threads.report()
        synced.run()
    assert completions[0].succeeded
    assert not completions[-1].done
    for _ in range(5):
        synced.settle()
        synced.advance(SYNCED_FLUSH_S)
    assert all(completion.succeeded for completion in completions)
    assert received(synced) == bodies


# -- a disk that neither syncs nor truncates ------------------------------------------------------


class Broken:
    """A topic with a message that was kept, on a disk that then breaks."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = FakeBroker(path, Options(sync_every=1))
        self.topic: Topic = self.broker.topic()
        self.sink = self.broker.consume(self.topic.ensure_channel("c"), rdy=50)[1]
        self._monkeypatch = monkeypatch
        self._whole = {name: getattr(os, name) for name in ("fsync", "ftruncate")}
        assert self.publish(b"kept") is None

    def publish(self, body: bytes) -> str | None:
        """Why it was refused, if it was."""
        completion = self.broker.publish(self.topic, body)
        self.broker.settle()
        assert completion.done
        return completion.error

    def breaks(self, name: str, code: int) -> None:
        self._monkeypatch.setattr(os, name, raising(code))

    def heals(self, name: str) -> None:
        self._monkeypatch.setattr(os, name, self._whole[name])

    def bodies(self) -> list[bytes]:
        return [body for _, _, body in self.sink.take()]


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Broken:
    """Nothing can be synced or cut, and one publish was refused."""
    broken = Broken(tmp_path, monkeypatch)
    broken.breaks("fsync", errno.EIO)
    broken.breaks("ftruncate", errno.EROFS)
    assert broken.publish(b"refused") == EIO
    return broken


@pytest.mark.parametrize("is_cut", [False, True])
def test_what_was_refused_and_not_cut_off_never_comes(broken: Broken, is_cut: bool) -> None:
    broken.heals("fsync")
    expected = [b"kept"]
    for number in range(20):
        if is_cut and number == 10:
            broken.heals("ftruncate")
        body = b"%d" % number
        if broken.publish(body) is None:
            expected.append(body)
        broken.broker.advance(RETRY_S)
        broken.broker.settle()
    assert len(expected) > 10
    assert broken.bodies() == expected
    assert (broken.topic.log.end, broken.topic.depth) == (len(expected), 0)
    assert received(broken.broker) == expected


def test_what_was_refused_is_not_delivered_by_an_fsync_that_succeeds_later(broken: Broken) -> None:
    broken.heals("fsync")
    for _ in range(10):
        broken.broker.advance(1)
        broken.broker.settle()
    assert broken.bodies() == [b"kept"]
    assert (broken.topic.log.end, broken.topic.depth) == (1, 0)
    assert received(broken.broker) == [b"kept"]


def test_a_topic_of_which_something_was_not_cut_off_can_be_deleted(broken: Broken) -> None:
    broken.broker.topics.delete("t")
    broken.heals("fsync")
    broken.broker.advance(5)
    broken.broker.settle()
    completion = broken.broker.publish(broken.broker.topic(), b"new")
    broken.broker.settle()
    assert completion.error is None
    assert received(broken.broker) == [b"new"]
