"""A start after a loss of power: what the files say together, and what a full disk delays."""

import errno
import os
from pathlib import Path

import pytest

from tests.kit.fake_broker import FakeBroker, log_of


def test_a_start_on_a_full_disk_gives_out_no_offset_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power took messages that a channel has finished. What the write-ahead log still
    has cannot be flushed."""
    broker = FakeBroker(tmp_path)
    topic = broker.topic()
    consumer, sink = broker.consume(topic.ensure_channel("c"), rdy=10)
    wal = tmp_path / "wal-00000000000000000000"
    sizes = []
    for number in range(5):
        broker.publish(topic, b"old %d" % number)
        sizes.append(wal.stat().st_size)
    broker.finish(consumer, *range(5))
    broker.disk.checkpoints.write_all_now()
    os.truncate(wal, sizes[1])
    writev = os.writev

    def full(fd: int, parts: list[bytes]) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return writev(fd, parts)

    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", full)
        topic = broker.load()["t"]
    assert (log_of(topic).written, topic.log.end) == (0, 5)
    _, sink = broker.consume(topic.ensure_channel("c"), rdy=10)
    assert broker.publish(topic, b"new").succeeded
    broker.settle()
    assert [(offset, body) for offset, _, body in sink.take()] == [(5, b"new")]
    topic = broker.load()["t"]
    assert topic.log.end == 6
    assert topic.ensure_channel("c").depth == 1
