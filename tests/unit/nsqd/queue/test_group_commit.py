"""Group commit on a disk that neither syncs nor truncates: what was refused never comes back."""

import errno
import os
from pathlib import Path

import pytest

from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.topic import Topic
from tests.kit.fake_broker import FakeBroker, Sink, log_of

EIO, EROFS = "input/output error", "read-only file system"


class Broken:
    """A topic with a message that was kept, on a disk that then breaks."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = FakeBroker(path, Options(sync_every=1))
        self.topic: Topic = self.broker.topic()
        self.sink: Sink = self.broker.consume(self.topic.channel("c"), rdy=50)[1]
        assert self.publish(b"kept") is None
        self._monkeypatch = monkeypatch
        self._whole = {name: getattr(os, name) for name in ("fsync", "ftruncate")}

    def publish(self, body: bytes) -> str | None:
        """Why it was refused, if it was."""
        ticket = self.broker.publish(self.topic, body)
        self.broker.settle()
        assert ticket.done
        return ticket.error

    def breaks(self, name: str, code: int) -> None:
        def fail(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        self._monkeypatch.setattr(os, name, fail)

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


def test_a_log_that_cannot_be_cut_takes_nothing_until_it_is(broken: Broken) -> None:
    broken.heals("fsync")
    assert broken.publish(b"refused, too") == EROFS
    broken.heals("ftruncate")
    broken.broker.advance(1)
    assert broken.publish(b"new") is None
    assert broken.bodies() == [b"kept", b"new"]
    assert log_of(broken.topic).end == 2


def test_what_was_refused_is_not_delivered_by_an_fsync_that_succeeds_later(broken: Broken) -> None:
    broken.heals("fsync")
    for _ in range(10):
        broken.broker.advance(1)
        broken.broker.settle()
    assert broken.bodies() == [b"kept"]
    assert (broken.topic.visible_end, broken.topic.depth) == (1, 0)


def test_what_was_put_when_the_log_is_cut_is_refused(broken: Broken) -> None:
    """Its offsets follow on those that are cut."""
    broken.heals("fsync")
    broken.heals("ftruncate")
    broken.topic.intake.put(b"in between", 0, 10)
    ticket = broken.topic.intake.ticket()
    broken.broker.advance(1)
    broken.broker.settle()
    assert (ticket.done, ticket.error) == (True, EROFS)
    assert broken.publish(b"new") is None
    assert broken.bodies() == [b"kept", b"new"]


def test_a_broker_with_a_log_that_cannot_be_cut_is_not_healthy(broken: Broken) -> None:
    broken.heals("fsync")
    for _ in range(20):
        assert broken.broker.disk.health.error is not None
        broken.broker.advance(0.25)
        broken.broker.settle()
    broken.heals("ftruncate")
    for _ in range(20):
        broken.broker.advance(0.25)
        broken.broker.settle()
    assert broken.broker.disk.health.error is None


def test_a_stop_cuts_the_log_if_it_can(broken: Broken, tmp_path: Path) -> None:
    broken.heals("fsync")
    broken.heals("ftruncate")
    broken.topic.close()
    again = FakeBroker(tmp_path, Options(sync_every=1)).load()["t"]
    assert (again.log.end, again.pumped) == (1, 1)


def test_a_topic_whose_log_cannot_be_cut_can_be_deleted(broken: Broken) -> None:
    broken.broker.topics.delete("t")
    broken.broker.advance(5)
    broken.broker.settle()
    assert broken.broker.publish(broken.broker.topic(), b"new").error is None


def test_a_stop_syncs_what_an_fsync_under_way_may_fail_to_sync(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, Options(sync_every=1))
    topic = broker.topic()
    broker.publish(topic, b"x")
    assert broker.threads.waiting  # it has begun
    assert log_of(topic).segments[-1].path in topic.group_commit.take_all_dirty()


def test_a_log_that_a_stop_could_not_sync_is_synced_on_the_next_start(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path)
    topic = broker.topic()
    broker.publish(topic, b"x")
    log_of(topic).sync_failed(topic.group_commit.take_all_dirty())
    topic.close()
    assert FakeBroker(tmp_path).load()["t"].group_commit.unsynced
