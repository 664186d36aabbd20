"""What is published to topics that nobody reads from: gathered in the journal, filed in time, and
seen by whoever asks. Kills and failing disks are in the crash suite."""

import errno
import os
from pathlib import Path

import pytest

from pumpline.core.text.settings import TopicSettings
from pumpline.nsqd.queue import journaling as module
from pumpline.nsqd.queue.filing import FILE_S
from pumpline.nsqd.queue.journaling import RUN_BYTES, SMALL_BYTES
from pumpline.nsqd.queue.rounds import TOPICS_AT_ONCE
from pumpline.nsqd.queue.topic import Topic
from tests.kit.fake_broker import FakeBroker, log_of


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    return FakeBroker(tmp_path)


def quiet_topic(broker: FakeBroker, name: str = "t") -> Topic:
    """One whose next message goes to the journal."""
    topic = broker.topic(name)
    broker.publish(topic, b"first")
    assert topic.journaled is not None
    return topic


def journal_bytes(tmp_path: Path) -> int:
    return sum(path.stat().st_size for path in tmp_path.glob("journal-*"))


def test_a_message_is_in_the_journal_when_it_is_acknowledged_and_soon_in_the_log(
    broker: FakeBroker, tmp_path: Path
) -> None:
    topic = quiet_topic(broker)
    ticket = broker.pub(topic)
    assert not ticket.done
    broker.run()
    assert ticket.succeeded
    assert log_of(topic).end == 1
    assert journal_bytes(tmp_path) > 0
    broker.advance(FILE_S)
    assert log_of(topic).end == 2
    assert journal_bytes(tmp_path) == 0
    broker.pub(topic)  # and so it goes on
    broker.run()
    assert (log_of(topic).end, journal_bytes(tmp_path) > 0) == (2, True)


def test_whoever_asks_finds_all_of_it_also_in_the_middle_of_a_tick(broker: FakeBroker) -> None:
    topic = quiet_topic(broker)
    ticket = broker.pub(topic)
    assert broker.topics["t"].message_count == 2
    assert ticket.succeeded
    assert log_of(topic).end == 2


@pytest.mark.parametrize("how", ["many", "delayed", "large"])
def test_other_publishes_come_after_those_of_the_journal(broker: FakeBroker, how: str) -> None:
    topic = quiet_topic(broker)
    channel = topic.channel("c")
    broker.pub(topic, b"journaled")
    if how == "many":
        topic.intake.put_many(bytearray(b"\0\0\0\2ab\0\0\0\1c"), 0, 11, 2)
    elif how == "delayed":
        topic.intake.put(b"later", 0, 5, delay_ns=1)
    else:
        broker.pub(topic, bytes(RUN_BYTES + 1))
    broker.run()
    broker.advance(1)
    _, sink = broker.consume(channel, rdy=10)
    received = sink.take()
    assert [offset for offset, _, _ in received] == list(range(log_of(topic).end))
    assert [body for _, _, body in received[:2]] == [b"first", b"journaled"]


def test_consumers_with_credit_have_it_at_once(broker: FakeBroker) -> None:
    topic = quiet_topic(broker)
    channel = topic.channel("c")
    consumer, sink = broker.consume(channel, rdy=1)
    assert [body for _, _, body in sink.take()] == [b"first"]
    broker.pub(topic, b"second")  # it has no credit left: nobody waits for this one
    broker.run()
    broker.pub(topic, b"third")
    broker.run()
    assert sink.take() == []
    broker.finish(consumer, 0)
    assert [body for _, _, body in sink.take()] == [b"second"]
    broker.finish(consumer, 1)
    assert [body for _, _, body in sink.take()] == [b"third"]
    broker.finish(consumer, 2)
    broker.pub(topic, b"fourth")
    broker.run()
    assert [body for _, _, body in sink.take()] == [b"fourth"]


def test_what_has_to_be_checked_first_does_not_go_to_the_journal(broker: FakeBroker) -> None:
    topic = broker.topic("bounded")
    topic.store_settings(TopicSettings(max_depth=2))
    for _ in range(4):
        broker.pub(topic)
        broker.run()
    assert (log_of(topic).end, topic.refused_count, topic.journaled) == (2, 2, None)
    large = broker.topic("large")
    broker.publish(large, bytes(SMALL_BYTES))
    assert large.journaled is None
    ephemeral = broker.topic("e#ephemeral")
    broker.publish(ephemeral, b"m")
    assert ephemeral.journaled is None


def test_many_topics_are_filed_a_few_at_a_time(broker: FakeBroker, tmp_path: Path) -> None:
    topics = [quiet_topic(broker, f"t{number}") for number in range(450)]
    for topic in topics:
        broker.pub(topic)
    broker.run()
    for handle in broker.clock.waiting:  # the timer that files
        if handle.due_ns == broker.clock.passed_ns + FILE_S * 1e9:
            handle.callback()
            handle.cancel()
    filed = [topic for topic in topics if log_of(topic).end == 2]
    assert len(filed) == TOPICS_AT_ONCE
    assert journal_bytes(tmp_path) > 0  # of those that are still to be filed
    broker.advance(0)
    assert all(log_of(topic).end == 2 for topic in topics)
    assert journal_bytes(tmp_path) == 0


def test_a_large_journal_is_filed_before_its_time(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "JOURNAL_BYTES_MAX", 10_000)
    topic = quiet_topic(broker)
    for _ in range(100):
        broker.pub(topic, bytes(500))
        broker.run()
        assert journal_bytes(tmp_path) <= 11_000
    assert log_of(topic).end > 50


def test_a_stop_files_all_and_gathers_no_more(broker: FakeBroker, tmp_path: Path) -> None:
    topics = [quiet_topic(broker, name) for name in ("a", "b")]
    tickets = [broker.pub(topic) for topic in topics]
    broker.topics.journaling.stop()
    broker.topics.journaling.close()
    assert all(ticket.succeeded for ticket in tickets)
    assert [log_of(topic).end for topic in topics] == [2, 2]
    assert list(tmp_path.glob("journal-*")) == []
    broker.publish(topics[0], b"m")
    assert topics[0].journaled is None


def test_a_stop_leaves_in_the_journal_what_cannot_be_filed(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = quiet_topic(broker)
    ticket = broker.pub(topic, b"second")
    broker.run()
    assert ticket.succeeded

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", refuse)
        broker.topics.journaling.stop()
        broker.topics.journaling.close()
    assert journal_bytes(tmp_path) > 0
    _, sink = broker.consume(broker.load()["t"].channel("c"), rdy=10)
    broker.settle()
    assert [body for _, _, body in sink.take()] == [b"first", b"second"]


def test_what_comes_back_waits_for_what_the_journal_has(broker: FakeBroker) -> None:
    topic = broker.topic()
    consumer, sink = broker.consume(topic.channel("c"), rdy=1)
    broker.publish(topic, b"first")
    assert [body for _, _, body in sink.take()] == [b"first"]
    broker.publish(topic, b"second")
    assert topic.journaled is not None  # nobody has credit
    for body in (b"third", b"fourth"):
        broker.pub(topic, body)
        broker.run()
    assert log_of(topic).end == 2
    consumer.channel.requeue_one(consumer, 0, 0)
    broker.settle()
    order = []
    for _ in range(4):
        [(offset, _, body)] = sink.take()
        order.append(body)
        broker.finish(consumer, offset)
        broker.settle()
    assert order == [b"second", b"third", b"fourth", b"first"]


def test_nothing_is_acknowledged_behind_a_torn_record(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = quiet_topic(broker)
    writev = os.writev

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def tear(fd: int, parts: list[bytes]) -> int:
        writev(fd, [b"".join(parts)[:10]])
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", tear)
        broken.setattr(os, "ftruncate", refuse)
        ticket = broker.pub(topic, b"refused")
        broker.run()
        assert ticket.error
    ticket = broker.pub(topic, b"taken")
    broker.run()
    assert ticket.succeeded
    _, sink = broker.consume(broker.load()["t"].channel("c"), rdy=10)
    broker.settle()
    assert [body for _, _, body in sink.take()] == [b"first", b"taken"]
