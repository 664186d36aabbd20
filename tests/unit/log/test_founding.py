"""New topics with --sync-every=1: their directories are on the disk before an answer, and topics
that are there do not wait for that."""

import errno
import os
from pathlib import Path

import pytest

from pumpline.log import founding as founding_module
from pumpline.log.flusher import SYNCED_FLUSH_S
from pumpline.nsqd.options import Options
from tests.kit.fake_broker import FakeBroker


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    return FakeBroker(tmp_path, Options(sync_every=1))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The paths of each sync of new topics, relative to their directory."""
    calls: list[list[str]] = []
    sync_paths = founding_module.sync_paths

    def noted(paths: list[str]) -> None:
        calls.append(["/".join(path.rsplit("/", 2)[1:]) for path in paths])
        sync_paths(paths)

    monkeypatch.setattr(founding_module, "sync_paths", noted)
    return calls


def test_the_first_answer_comes_after_the_directories_are_synced(
    broker: FakeBroker, synced: list[list[str]]
) -> None:
    completion = broker.publish(broker.topic(), b"first")
    assert not completion.done and not synced
    broker.settle()
    assert completion.succeeded
    assert "t/topic.json" in synced[0]
    assert broker.publish(broker.topic(), b"second")
    broker.settle()
    assert len(synced) == 1


def test_a_topic_that_is_there_does_not_wait_for_new_ones(broker: FakeBroker) -> None:
    old = broker.topic("old")
    broker.publish(old, b"first")
    broker.settle()
    new = [broker.publish(broker.topic(f"new{number}"), b"m") for number in range(20)]
    completion = broker.publish(old, b"second")
    broker.threads.work(-1)  # the fsync of the write-ahead log, not that of the directories
    broker.threads.report()
    assert completion.succeeded
    assert not any(each.done for each in new)
    broker.settle()
    assert all(each.succeeded for each in new)


def test_topics_that_are_new_while_others_are_synced_share_a_sync(
    broker: FakeBroker, synced: list[list[str]]
) -> None:
    completions = [broker.publish(broker.topic(f"t{number}"), b"m") for number in range(30)]
    broker.settle()
    assert all(each.succeeded for each in completions)
    assert len(synced) == 2


def test_all_that_waited_is_in_the_order_it_came(broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.ensure_channel("c")
    for body in (b"one", b"two", b"three"):
        broker.publish(topic, body)
        broker.clock.passed_ns += 1000
    broker.settle()
    _, sink = broker.consume(broker.load()["t"].ensure_channel("c"), rdy=10)
    broker.settle()
    assert [body for _, _, body in sink.take()] == [b"one", b"two", b"three"]


def test_a_sync_that_fails_refuses_the_messages_and_leaves_no_topic(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = broker.topic("old")
    broker.publish(old, b"first")
    broker.settle()

    def fail(paths: list[str]) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(founding_module, "sync_paths", fail)
        refused = broker.publish(broker.topics.ensure_provisional("new"), b"m")
        kept = broker.publish(old, b"second")
        broker.settle()
    assert refused.error == "input/output error"
    assert kept.succeeded
    assert "new" not in broker.topics
    again = broker.publish(broker.topics.ensure_provisional("new"), b"m")
    broker.settle()
    assert again.succeeded


def test_a_topic_is_deleted_while_its_first_message_waits(broker: FakeBroker) -> None:
    completion = broker.publish(broker.topic(), b"first")
    broker.topics.delete("t")
    broker.settle()
    assert completion.error == "exiting"
    broker.advance(SYNCED_FLUSH_S)
    broker.settle()
    assert "t" not in broker.load()


def test_nsqd_stops_while_a_first_message_waits(broker: FakeBroker) -> None:
    completion = broker.publish(broker.topic(), b"first")
    broker.topics.group_commit.stop()
    broker.topics.group_commit.close()
    assert completion.error == "exiting"
    broker.settle()
