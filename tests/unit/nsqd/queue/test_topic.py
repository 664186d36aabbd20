"""A topic answers publishers only when what they sent is safe, and not at all otherwise."""

import errno
import os
from pathlib import Path

import pytest

from pumpline.core.protocol.commands import SIZE
from pumpline.nsqd.options import Options
from pumpline.nsqd.queue.topic_state import CLOSED
from tests.kit.fake_broker import NS_PER_S, FakeBroker, log_of


@pytest.fixture
def grouped(tmp_path: Path) -> FakeBroker:
    """With group commit: an answer waits for the fsync."""
    return FakeBroker(tmp_path, Options(sync_every=1, mem_queue_size=2))


def refuse(monkeypatch: pytest.MonkeyPatch, call: str, code: int = errno.EIO) -> None:
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)


# -- writing --------------------------------------------------------------------------------------


def test_a_publish_is_settled_in_its_tick(broker: FakeBroker) -> None:
    completion = broker.publish(broker.topic(), b"a")
    assert (completion.done, completion.error) == (True, None)


def test_a_large_message_is_a_batch_of_its_own_in_its_place(broker: FakeBroker) -> None:
    topic = broker.topic()
    _, sink = broker.consume(topic.ensure_channel("c"), rdy=9)
    large = [bytearray(b"PUB t\n\0\0\0\1".rjust(40) + body) for body in (b"2", b"3")]
    topic.publishing.add(b"1", 0, 1)
    for buf in large:
        topic.publishing.add_owned(buf, 40, 41)
    topic.publishing.add(b"late", 0, 4, delay_ns=NS_PER_S)
    topic.publishing.add_owned(bytearray(b"5".rjust(35)), 34, 35)
    topic.publishing.add(b"6", 0, 1)
    topic.publishing.add(b"7", 0, 1)
    broker.run()
    sent = [(0, b"1"), (1, b"2"), (2, b"3"), (4, b"5"), (5, b"6"), (6, b"7")]
    assert sink.take() == [(offset, 1, body) for offset, body in sent]
    broker.advance(1)
    broker.settle()
    assert sink.take() == [(3, 1, b"late")]
    topic.publishing.add_owned(bytearray(b"8".rjust(35)), 34, 35)
    broker.run()
    assert sink.take() == [(7, 1, b"8")]


def test_all_of_a_tick_is_one_batch(broker: FakeBroker) -> None:
    topic = broker.topic()
    topic.ensure_channel("c")
    topic.publishing.add(b"a", 0, 1)
    topic.publishing.add(b"b", 0, 1)
    topic.publishing.add(b"c", 0, 1, delay_ns=NS_PER_S)
    topic.publishing.add(b"d", 0, 1)
    broker.run()
    assert [(batch.first, batch.count) for batch in log_of(topic).tail] == [(0, 4)]


def test_the_messages_of_one_body_are_put_all_or_none(broker: FakeBroker) -> None:
    topic = broker.topic()
    _, sink = broker.consume(topic.ensure_channel("c"), rdy=5)
    body = bytearray(b"".join(SIZE.pack(len(each)) + each for each in (b"a", b"bc", b"")))
    whole = len(body) - SIZE.size
    assert topic.publishing.add_many(body, 0, whole, 2) == -1
    assert topic.publishing.add_many(body, 0, len(body), 3) == 2  # the index of the empty one
    assert topic.publishing.add_many(body, 0, whole - 1, 2) == 1  # of the one cut short
    broker.run()
    assert [body for _, _, body in sink.take()] == [b"a", b"bc"]


def test_hundreds_of_different_delays_in_one_tick_are_all_taken(broker: FakeBroker) -> None:
    """One batch each, and more pieces than one writev takes."""
    topic = broker.topic()
    _, sink = broker.consume(topic.ensure_channel("c"), rdy=500)
    for i in range(400):
        body = b"%d" % i
        topic.publishing.add(body, 0, len(body), delay_ns=NS_PER_S + i)
    completion = topic.publishing.completion()
    broker.run()
    assert (completion.done, completion.error, log_of(topic).end) == (True, None, 400)
    broker.advance(2)
    assert len(sink.take()) == 400


def test_a_failed_write_refuses_the_publish_and_queues_nothing(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    _, sink = broker.consume(topic.ensure_channel("c"), rdy=5)
    with monkeypatch.context() as broken:
        refuse(broken, "writev", errno.ENOSPC)
        completion = broker.publish(topic, b"refused")
    assert (completion.done, completion.error) == (True, "no space left on device")
    assert (topic.message_count, topic.depth, sink.take()) == (0, 0, [])
    assert broker.publish(topic, b"taken").error is None
    assert sink.take() == [(0, 1, b"taken")]


def test_a_full_disk_costs_consumed_history_before_a_publish(
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
    assert broker.publish(topic, b"c").error is None
    assert log_of(topic).first > 0


# -- group commit ---------------------------------------------------------------------------------


def test_with_group_commit_the_answer_and_the_message_wait_for_the_fsync(
    grouped: FakeBroker,
) -> None:
    topic = grouped.topic()
    _, sink = grouped.consume(topic.ensure_channel("c"), rdy=5)
    completion = grouped.publish(topic, b"a")
    assert (completion.done, sink.take()) == (False, [])
    grouped.settle()
    assert (completion.done, completion.error) == (True, None)
    assert sink.take() == [(0, 1, b"a")]


def test_what_came_during_an_fsync_waits_for_the_next(grouped: FakeBroker) -> None:
    topic = grouped.founded()
    _, sink = grouped.consume(topic.ensure_channel("c"), rdy=5)
    first = grouped.publish(topic, b"a")
    grouped.threads.work()
    second = grouped.publish(topic, b"b")
    grouped.threads.report()
    grouped.run()
    assert (first.done, second.done) == (True, False)
    assert sink.take() == [(0, 1, b"a")]
    grouped.settle()
    assert second.done
    assert sink.take() == [(1, 1, b"b")]


def test_a_failed_fsync_takes_back_everything_since_the_last(
    grouped: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = grouped.topic()
    channel = topic.ensure_channel("c")
    _, sink = grouped.consume(channel, rdy=50)
    grouped.publish(topic, b"kept")
    grouped.settle()
    completions = [grouped.publish(topic, b"x"), grouped.publish(topic, b"y")]
    with monkeypatch.context() as broken:
        refuse(broken, "fsync")
        grouped.settle()
    assert [completion.error for completion in completions] == ["input/output error"] * 2
    assert (log_of(topic).end, channel.depth) == (1, 0)
    completion = grouped.publish(topic, b"new")
    grouped.settle()
    assert (completion.done, completion.error) == (True, None)
    assert sink.take() == [(0, 1, b"kept"), (1, 1, b"new")]


def test_a_slow_channel_is_never_given_what_was_taken_back(
    grouped: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads ahead from the file, where the refused messages were already."""
    topic = grouped.topic()
    channel = topic.ensure_channel("c")
    for i in range(6):
        grouped.publish(topic, b"%d" % i)
        grouped.settle()
    grouped.publish(topic, b"refused")
    consumer, sink = grouped.consume(channel, rdy=1)
    with monkeypatch.context() as broken:
        refuse(broken, "fsync")
        grouped.settle()
    grouped.publish(topic, b"new")
    got = []
    for _ in range(20):
        grouped.settle()
        taken = sink.take()
        got += [body for _, _, body in taken]
        grouped.finish(consumer, *(offset for offset, _, _ in taken))
    assert got == [b"0", b"1", b"2", b"3", b"4", b"5", b"new"]


def test_what_was_put_before_a_failed_fsync_came_back_is_refused_with_the_rest(
    grouped: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is open, its offsets given out, when the log is cut back below them."""
    topic = grouped.topic()
    channel = topic.ensure_channel("c")
    _, sink = grouped.consume(channel, rdy=50)
    refused = grouped.publish(topic, b"x", b"y")
    completion = topic.publishing.add(b"new", 0, 3)
    with monkeypatch.context() as broken:
        refuse(broken, "fsync")
        grouped.threads.run()
    grouped.settle()
    assert refused.error == "input/output error"
    assert (completion.done, completion.error) == (True, "input/output error")
    grouped.publish(topic, b"again")
    grouped.settle()
    assert [(offset, body) for offset, _, body in sink.take()] == [(0, b"again")]
    assert (channel.depth, channel.dropped_count) == (0, 0)


# -- channels and depth ---------------------------------------------------------------------------


def test_without_channels_messages_wait_for_the_first_one_alone(broker: FakeBroker) -> None:
    topic = broker.topic()
    broker.publish(topic, b"a", b"b")
    assert topic.depth == 2
    first = topic.ensure_channel("first")
    assert (topic.depth, first.depth, topic.ensure_channel("second").depth) == (0, 2, 0)


def test_a_paused_topic_keeps_what_comes_to_itself(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    topic.pause()
    broker.publish(topic, b"a")
    assert (topic.depth, channel.depth) == (1, 0)
    topic.unpause()
    broker.run()
    assert (topic.depth, channel.depth) == (0, 1)


def test_a_topic_that_awaits_channels_takes_messages_and_gives_them_to_all_of_them(
    broker: FakeBroker,
) -> None:
    topic = broker.topic()
    topic.await_channels()
    early = topic.ensure_channel("early")
    _, sink = broker.consume(early, rdy=9)
    completion = broker.publish(topic, b"a")
    assert (completion.done, completion.error) == (True, None)
    late = topic.ensure_channel("late")
    topic.pause()
    topic.unpause()
    assert (topic.depth, early.depth, late.depth, sink.take()) == (1, 0, 0, [])
    topic.channels_known()
    broker.run()
    assert (topic.depth, late.depth) == (0, 1)
    assert sink.take() == [(0, 1, b"a")]


def test_a_topic_that_is_paused_or_gone_does_not_move_when_its_channels_are_known(
    broker: FakeBroker,
) -> None:
    topic = broker.topic()
    topic.await_channels()
    channel = topic.ensure_channel("c")
    broker.publish(topic, b"a")
    topic.pause()
    topic.channels_known()
    assert (topic.depth, channel.depth) == (1, 0)
    topic.await_channels()
    topic.delete()
    topic.channels_known()
    broker.settle()
    assert topic.pumped == 0


def test_a_topic_that_awaited_channels_when_it_was_killed_still_does(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path)
    topic = broker.topic()
    topic.await_channels()
    topic.upkeep.manifest.write()
    topic.ensure_channel("early")
    broker.publish(topic, b"a")
    again = FakeBroker(tmp_path)
    topic = again.load()["t"]
    assert topic.awaits_channels
    late = topic.ensure_channel("late")
    topic.channels_known()
    again.run()
    assert (topic.channels["early"].depth, late.depth) == (1, 1)
    assert not FakeBroker(tmp_path).load()["t"].awaits_channels


def test_emptying_a_paused_topic_leaves_its_channels_what_they_have(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    broker.publish(topic, b"a", b"b")
    topic.pause()
    broker.publish(topic, b"x", b"y")
    topic.empty()
    topic.unpause()
    broker.publish(topic, b"c")
    assert (topic.depth, channel.depth) == (0, 3)
    _, sink = broker.consume(channel, rdy=9)
    assert [body for _, _, body in sink.take()] == [b"a", b"b", b"c"]


def test_a_topic_is_found_again_with_its_channels(tmp_path: Path, broker: FakeBroker) -> None:
    topic = broker.topic("..")
    topic.ensure_channel(".")
    broker.publish(topic, b"a")
    found = FakeBroker(tmp_path).load()
    assert list(found) == [".."]
    assert list(found[".."].channels) == ["."]
    assert found[".."].channels["."].depth == 1


def test_a_lost_manifest_costs_nothing_but_the_place_of_the_pump(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path)
    topic = broker.topic()
    topic.ensure_channel("c")
    broker.publish(topic, b"a", b"b")
    log_of(topic).flush()
    (tmp_path / "topics" / "t" / "topic.json").write_bytes(b"\0\0\0")
    again = FakeBroker(tmp_path)
    _, sink = again.consume(again.load()["t"].channels["c"], rdy=9)
    assert sink.take() == [(0, 1, b"a"), (1, 1, b"b")]


# -- watching -------------------------------------------------------------------------------------


def test_watchers_are_called_once_a_batch_when_it_may_be_seen(grouped: FakeBroker) -> None:
    topic = grouped.topic()
    seen: list[int] = []
    topic.watchers.add(lambda: seen.append(topic.log.end))
    topic.publishing.add(b"a", 0, 1)
    topic.publishing.add(b"b", 0, 1)
    grouped.tick.run()
    assert seen == []  # it is not on the disk yet
    grouped.settle()
    assert seen == [2]


def test_watchers_are_told_that_a_topic_ends(broker: FakeBroker) -> None:
    topic = broker.topic()
    ended: list[bool] = []
    topic.watchers.add(lambda: ended.append(topic.state is CLOSED))
    topic.delete()
    assert ended == [True]
