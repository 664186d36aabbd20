"""Publish tokens outlive the messages that retention deletes, also when power is lost."""

import os
from pathlib import Path

import pytest

from pumpline.log.publish_tokens import FILE
from pumpline.nsqd.queue.retention import PASS_S, Retention
from tests.kit.fake_broker import FakeBroker, log_of
from tests.kit.publish_tokens import known, names, options, publish_all, restarted


@pytest.mark.parametrize("how", ["retention", "a full disk"])
def test_a_loss_of_power_takes_no_token_of_a_deleted_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It comes right after the messages are deleted."""
    synced: dict[str, int] = {}  # sizes of files
    at_loss: dict[str, int] = {}
    fsync, unlink = os.fsync, os.unlink

    def note_sync(fd: int) -> None:
        fsync(fd)
        synced[os.readlink(f"/proc/self/fd/{fd}")] = os.fstat(fd).st_size

    def note_unlink(path: str) -> None:
        unlink(path)
        at_loss.update(synced)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "unlink", note_unlink)
    broker = FakeBroker(tmp_path, options(retention_time_ns=0, retention_bytes=0))
    topic = broker.topic()
    publish_all(broker, topic, *names(30))
    topic.ensure_channel("c").seek(topic.log.end)
    if how == "retention":
        for _ in range(3):
            Retention(broker.topics).retire_now(topic)
            broker.advance(PASS_S)
            broker.settle()
    else:
        assert topic.upkeep.make_room()
    assert log_of(topic).first == 30
    broker.checkpoint()
    file = os.path.join(log_of(topic).directory, FILE)
    os.truncate(file, at_loss[file])
    _, again = restarted(tmp_path)
    assert known(again, *names(30)) == names(30)


def test_retention_goes_on_while_tokens_come(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, options(retention_time_ns=0, retention_bytes=0))
    topic = broker.topic()
    topic.ensure_channel("c")
    for number in range(5):
        publish_all(broker, topic, *names(30, first=30 * number))
        topic.ensure_channel("c").seek(topic.log.end)
        Retention(broker.topics).run()
    assert log_of(topic).first >= 90
