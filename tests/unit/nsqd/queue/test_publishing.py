"""What is added to a topic in a tick: in batches, in order, with what belongs to each message."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pumpline.core.messages.publish_tokens import digest_of
from pumpline.core.text.settings import TopicSettings
from pumpline.log.completion import Completion
from pumpline.log.group_commit import DIRECT_BYTES
from pumpline.log.ranges import find_time, select
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.queue.topic_state import CLOSED
from tests.kit.fake_broker import NS_PER_S, FakeBroker, log_of


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    return FakeBroker(tmp_path)


def raising(number: int) -> Callable[..., int]:
    """A system call that always fails."""

    def call(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return call


def bodies_of(broker: FakeBroker, topic: Topic) -> list[bytes]:
    """What a consumer of the topic gets, in the order of offsets."""
    _, sink = broker.consume(topic.ensure_channel("c"), rdy=1000)
    broker.settle()
    return [body for _, _, body in sorted(sink.take())]


def run_of(line: bytes, *bodies: bytes) -> bytearray:
    return bytearray(b"".join(line + len(body).to_bytes(4) + body for body in bodies))


# -- adding ---------------------------------------------------------------------------------------


def test_all_ways_to_add_keep_the_order_of_their_calls(broker: FakeBroker) -> None:
    topic = broker.topic()
    expected: list[bytes] = []
    outcomes: list[Completion] = []
    publishing = topic.publishing

    def add(body: bytes) -> Completion:
        expected.append(body)
        return publishing.add(body, 0, len(body))

    for turn in range(4):  # in the first the batch is not open yet
        names = iter([b"%d%c" % (turn, letter) for letter in b"abcdefghi"])
        outcomes.append(add(next(names)))
        run = [next(names), next(names)]
        buf = run_of(publishing.pub_line, *run)
        after, count, outcome = publishing.add_run(buf, 0, len(buf), publishing.pub_line)
        assert (after, count) == (len(buf), 2)
        expected += run
        outcomes.append(outcome)
        if turn % 2:
            outcomes.append(add(next(names)))
        many = [next(names), next(names)]
        buf = bytearray(b"".join(len(body).to_bytes(4) + body for body in many))
        assert publishing.add_many(buf, 0, len(buf), 2) == -1
        expected += many
        owned = next(names)
        publishing.add_owned(bytearray(owned.rjust(40)), 40 - len(owned), 40)
        expected.append(owned)
        outcomes += [publishing.completion(), add(next(names))]
        broker.run()
    assert all(outcome.succeeded for outcome in outcomes)
    assert (topic.log.end, topic.message_count) == (len(expected), len(expected))
    assert bodies_of(broker, topic) == expected
    again = FakeBroker(Path(broker.disk.directory.path)).load()["t"]
    assert again.log.end == len(expected)


def test_what_is_added_by_itself_shares_no_batch_with_others(broker: FakeBroker) -> None:
    """So that it can have publish tokens."""
    topic = broker.topic()
    broker.publish(topic, b"first")
    assert log_of(topic).is_shared
    small = topic.publishing.add(b"small", 0, 5)
    topic.publishing.add(b"alone", 0, 5, alone=True)
    topic.publishing.add_token(digest_of("token"))
    alone = topic.publishing.completion()
    assert small is not alone
    broker.run()
    assert (small.succeeded, alone.succeeded) == (True, True)
    log_of(topic).flush()
    assert bodies_of(broker, topic) == [b"first", b"small", b"alone"]


def test_a_run_stops_before_what_is_not_whole_empty_or_too_large(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, Options(max_msg_size=10))
    topic = broker.topic()
    line = topic.publishing.pub_line
    for _ in range(2):  # before and after its batch is open
        for bad in (b"", bytes(11), None):
            buf = run_of(line, b"a", b"b", *([] if bad is None else [bad]))
            end = len(buf) if bad is not None else len(buf) - 1
            after, count, outcome = topic.publishing.add_run(buf, 0, end, line)
            size_bytes = len(line) + 5
            assert (after, count) == ((2 * size_bytes, 2) if bad is not None else (size_bytes, 1))
            broker.run()
            assert outcome.succeeded
    assert bodies_of(broker, topic) == [b"a", b"b", b"a", b"b", b"a"] * 2


def test_many_are_added_all_or_none(broker: FakeBroker) -> None:
    topic = broker.topic()
    body = bytearray(b"\0\0\0\2ab\0\0\0\1c\0\0\0\0")
    whole = len(body) - 4
    assert topic.publishing.add_many(body, 0, len(body), 3) == 2  # the index of the empty one
    assert topic.publishing.add_many(body, 0, whole - 1, 2) == 1  # of the one cut short
    nothing = topic.publishing.completion()
    broker.run()
    assert (nothing.succeeded, topic.log.end) == (True, 0)
    assert topic.publishing.add_many(body, 0, whole, 2) == -1
    broker.run()
    assert bodies_of(broker, topic) == [b"ab", b"c"]


def test_a_large_message_and_small_ones_after_it_are_in_order(broker: FakeBroker) -> None:
    topic = broker.topic()
    bodies: list[bytes] = []
    for number in range(10):
        for body in (b"%d" % number, b"%d" % number * DIRECT_BYTES):
            bodies.append(body)
            assert broker.publish(topic, body).succeeded
        bodies.append(b"in the same tick")
        broker.pub(topic, bodies[-1])
        bodies.append(b"large" * DIRECT_BYTES)
        completion = broker.pub(topic, bodies[-1])
        broker.run()
        assert completion.succeeded
    assert bodies_of(broker, topic) == bodies


# -- times ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_flushed", [False, True])
def test_a_time_leads_to_the_message_within_the_batch_of_many_ticks(
    broker: FakeBroker, is_flushed: bool
) -> None:
    topic = broker.topic()
    broker.publish(topic, b"opens the batch")
    log_of(topic).flush()
    times = []
    for _ in range(20):
        broker.advance(0.001)
        times.append(broker.clock.wall_ns())
        broker.pub(topic)
        broker.run()
    log = log_of(topic)
    batch = log.in_tail(1)
    assert batch is not None
    assert (batch.first, log.end) == (1, 21)  # all are in one
    if is_flushed:
        log.flush()
        selection = select(log, 0, 21)
        for offset, at_ns in enumerate(times, 1):
            assert find_time(selection, at_ns) == offset
            assert find_time(selection, at_ns - 1) == offset
    for offset, at_ns in enumerate(times, 1):
        assert batch.published_ns(offset) == at_ns
        assert batch.first_at(at_ns, 1, 21) == offset


def test_each_message_of_a_batch_of_many_ticks_gets_too_old_by_itself(broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.store_settings(TopicSettings(message_ttl_ns=10 * NS_PER_S))
    channel = topic.ensure_channel("c")
    broker.publish(topic, b"opens the batch")
    for number in range(20):
        broker.clock.passed_ns += NS_PER_S  # without a flush
        broker.pub(topic, b"%d" % number)
        broker.run()
    batch = topic.log.in_tail(1)
    assert batch is not None
    assert batch.end == 21
    broker.clock.passed_ns += NS_PER_S // 2
    _, sink = broker.consume(channel, rdy=100)
    broker.settle()
    assert [body for _, _, body in sink.take()] == [b"%d" % number for number in range(10, 20)]
    assert channel.expiry.count == 11


# -- an ephemeral topic ---------------------------------------------------------------------------


@pytest.mark.parametrize("room", [0, 1])
def test_a_deferred_message_that_a_full_ring_drops_leaves_no_delay_behind(
    tmp_path: Path, room: int
) -> None:
    """The next message gets its offset, and must not get its delay."""
    broker = FakeBroker(tmp_path, Options(mem_queue_size=3))
    topic = broker.topic("t#ephemeral")
    channel = topic.ensure_channel("c")
    for number in range(3 - room):
        broker.publish(topic, b"%d" % number)
    broker.publish(topic, *[b"late"] * (1 + room), delay_ns=60 * NS_PER_S)
    assert (topic.log.end, topic.log.dropped) == (3, 1)
    consumer, sink = broker.consume(channel, rdy=10)
    broker.finish(consumer, *(offset for offset, _, _ in sink.take()))
    broker.tick.dispatch(topic)  # makes room
    broker.run()
    broker.publish(topic, b"next")
    assert [(offset, body) for offset, _, body in sink.take()] == [(3, b"next")]
    assert channel.delivery.deferred_count == room
    broker.finish(consumer, 3)
    broker.advance(61)
    assert [body for _, _, body in sink.take()] == [b"late"] * room


def test_a_ring_that_is_full_acknowledges_and_counts_what_it_drops(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, Options(mem_queue_size=2))
    topic = broker.topic("t#ephemeral")
    completions = [broker.publish(topic, b"12345") for _ in range(5)]
    assert all(completion.succeeded for completion in completions)
    assert (topic.log.end, topic.message_count, topic.log.message_bytes) == (2, 5, 25)


# -- what is refused ------------------------------------------------------------------------------


def test_a_refused_deferred_message_leaves_no_delay_behind(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    _, sink = broker.consume(channel, rdy=10)
    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", raising(errno.EIO))
        refused = broker.publish(topic, b"late", b"too", delay_ns=60 * NS_PER_S)
        assert refused.error is not None
    broker.publish(topic, b"now", b"as well")
    assert [body for _, _, body in sink.take()] == [b"now", b"as well"]
    assert channel.delivery.deferred_count == 0


def test_a_refused_token_may_be_used_again(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    token = digest_of("token")

    def publish() -> Completion:
        assert topic.upkeep.tokens.outcome(token) is None
        topic.publishing.add(b"x", 0, 1, alone=True)
        topic.publishing.add_token(token)
        completion = topic.publishing.completion()
        broker.run()
        return completion

    topic.upkeep.tokens.prepare()
    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", raising(errno.EIO))
        assert publish().error is not None
    assert publish().succeeded
    assert topic.upkeep.tokens.outcome(token) is not None
    assert topic.log.end == 1


def test_a_topic_that_ends_refuses_what_was_added(broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.publishing.add(b"x", 0, 1, alone=True)
    completion = topic.publishing.completion()
    topic.state = CLOSED
    broker.run()
    assert (completion.error, topic.log.end) == ("exiting", 0)


def test_a_deleted_topic_has_answered_what_was_added(broker: FakeBroker) -> None:
    topic = broker.topic()
    broker.publish(topic, b"first")
    completions = [broker.pub(topic, b"small")]
    topic.publishing.add(b"alone", 0, 5, alone=True)
    completions.append(topic.publishing.completion())
    broker.topics.delete("t")
    broker.run()
    assert all(completion.done for completion in completions)
    new = broker.publish(broker.topic(), b"new")
    assert new.succeeded
    assert bodies_of(broker, broker.topic()) == [b"new"]
