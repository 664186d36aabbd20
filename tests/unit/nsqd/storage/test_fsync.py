"""Logs are fsynced after so many messages or so long, one sync at a time for each."""

import os
from pathlib import Path

import pytest

from pumpline.log.cursor import Clocks
from pumpline.log.directory import Directory
from pumpline.log.run_mark import SKIPPED
from pumpline.nsqd.options import Options
from pumpline.nsqd.storage.disk import Disk
from pumpline.nsqd.storage.fsync import REST_S, Fsyncs
from tests.kit.logs import Threads, Timers


class Topic:
    """A topic as its syncs see it."""

    def __init__(self) -> None:
        self.unsynced = 0
        self.dirty: list[str] = []
        self.outcomes: list[tuple[list[str], OSError | None]] = []

    def append(self, count: int, path: str) -> None:
        self.unsynced += count
        self.dirty.append(path)

    def take_dirty(self) -> list[str]:
        paths, self.dirty = self.dirty, []
        self.unsynced = 0
        return paths

    def sync_done(self, paths: list[str], error: OSError | None) -> None:
        self.outcomes.append((paths, error))


class Room:
    """Fsyncs of one kind, with a topic."""

    def __init__(self, every: int) -> None:
        self.threads = Threads()
        self.timers = Timers()
        self.topic = Topic()
        self.syncs = Fsyncs(
            every=every, timeout_ns=2_000_000_000, offload=self.threads, later=self.timers
        )

    def append(self, count: int, path: str) -> None:
        self.topic.append(count, path)
        self.syncs.appended(self.topic)


@pytest.fixture(autouse=True)
def fsyncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths that were synced; nothing is opened."""
    done: list[str] = []

    def sync(paths: list[str]) -> None:
        if "broken" in paths:
            raise OSError(5, os.strerror(5))
        done.extend(paths)

    monkeypatch.setattr("pumpline.nsqd.storage.fsync.sync_paths", sync)
    return done


def test_a_sync_follows_so_many_messages(fsyncs: list[str]) -> None:
    room = Room(10)
    room.append(9, "a")
    assert room.threads.waiting == []
    room.append(1, "b")
    assert room.threads.run() == 1
    assert fsyncs == ["a", "b"]
    assert room.topic.outcomes == [(["a", "b"], None)]


def test_a_log_is_synced_before_more_messages_than_a_loss_of_power_skips(
    fsyncs: list[str], tmp_path: Path
) -> None:
    """However large --sync-every is: else ids that were given out could be given out again."""
    threads, topic = Threads(), Topic()
    disk = Disk(
        Directory(str(tmp_path)),
        Options(sync_every=1 << 40, sync_timeout_ns=1 << 60),
        clocks=lambda: Clocks(0, 0),
        offload=threads,
        later=Timers(),
    )
    topic.append(SKIPPED // 2, "a")
    disk.fsyncs.appended(topic)
    assert threads.run() == 1
    assert fsyncs == ["a"]


def test_fewer_messages_are_synced_after_a_while(fsyncs: list[str]) -> None:
    room = Room(10)
    room.append(1, "a")
    room.append(1, "b")
    assert [delay_s for delay_s, _ in room.timers.waiting] == [2.0]
    room.timers.fire()
    assert room.threads.run() == 1
    assert fsyncs == ["a", "b"]
    assert [delay_s for delay_s, _ in room.timers.waiting] == [REST_S]
    room.timers.fire()
    assert room.timers.waiting == []
    room.append(1, "c")
    assert len(room.timers.waiting) == 1


def test_a_timer_finds_nothing_to_do_when_a_sync_came_before_it(fsyncs: list[str]) -> None:
    room = Room(10)
    room.append(1, "a")
    room.append(9, "b")
    room.threads.run()
    room.timers.fire()
    assert room.threads.run() == 0
    assert fsyncs == ["a", "b"]


def test_what_is_appended_during_a_sync_shares_the_next(fsyncs: list[str]) -> None:
    room = Room(1)
    assert room.syncs.group_commit
    room.append(1, "a")
    room.append(1, "b")
    room.append(1, "c")
    assert len(room.threads.waiting) == 1
    room.threads.work()
    room.threads.report()
    assert room.topic.outcomes == [(["a"], None)]
    assert room.threads.run() == 1
    assert room.topic.outcomes == [(["a"], None), (["b", "c"], None)]
    assert fsyncs == ["a", "b", "c"]


def test_few_messages_during_a_sync_wait_for_the_timer(fsyncs: list[str]) -> None:
    room = Room(10)
    room.append(10, "a")
    room.append(1, "b")
    assert room.threads.run() == 1
    room.timers.fire()
    assert room.threads.run() == 1
    assert fsyncs == ["a", "b"]


def test_a_failed_sync_is_reported_with_its_paths_and_the_next_goes_on(fsyncs: list[str]) -> None:
    room = Room(1)
    room.append(1, "broken")
    room.threads.run()
    [(paths, error)] = room.topic.outcomes
    assert paths == ["broken"]
    assert isinstance(error, OSError)
    room.append(1, "a")
    room.threads.run()
    assert room.topic.outcomes[1:] == [(["a"], None)]


def test_a_forgotten_topic_is_not_synced_by_the_timer(fsyncs: list[str]) -> None:
    room = Room(10)
    room.append(1, "a")
    room.syncs.forget(room.topic)
    room.timers.fire()
    assert room.threads.run() == 0
    assert fsyncs == []


def test_topics_are_synced_side_by_side(fsyncs: list[str]) -> None:
    room = Room(1)
    other = Topic()
    other.append(1, "x")
    room.append(1, "a")
    room.syncs.appended(other)
    assert len(room.threads.waiting) == 2
    room.threads.run()
    assert sorted(fsyncs) == ["a", "x"]


def test_a_topic_rests_between_two_syncs(fsyncs: list[str]) -> None:
    room = Room(2)
    room.append(2, "a")
    assert room.threads.run() == 1
    room.append(2, "b")
    assert room.threads.run() == 0
    room.timers.fire()
    assert room.threads.run() == 1
    assert fsyncs == ["a", "b"]


def test_syncs_are_timed_and_failures_counted() -> None:
    room = Room(1)
    room.append(1, "a")
    room.threads.run()
    room.append(1, "broken")
    room.threads.run()
    assert sum(room.syncs.times_s.counts) == 1
    assert room.syncs.failures == 1
