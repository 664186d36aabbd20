"""A channel shares the log among its consumers, with time and threads moved by hand."""

import gc
import weakref
from pathlib import Path

import pytest

from pumpline.log import reader as reader_module
from pumpline.nsqd.options import Options
from tests.kit.fake_broker import NS_PER_S, FakeBroker, log_of


def bodies(taken: list[tuple[int, int, bytes]]) -> list[bytes]:
    return [body for _, _, body in taken]


# -- sharing --------------------------------------------------------------------------------------


def test_messages_go_out_as_far_as_credit_goes(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    consumer, sink = broker.consume(channel, rdy=2)
    broker.publish(topic, b"a", b"b", b"c")
    assert sink.take() == [(0, 1, b"a"), (1, 1, b"b")]
    assert (channel.depth, channel.in_flight_count) == (1, 2)
    broker.finish(consumer, 1)
    assert sink.take() == [(2, 1, b"c")]
    assert channel.delivery.low == 0


def test_what_waits_is_shared_fairly(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    sinks = [broker.consume(channel, rdy=10)[1] for _ in range(3)]
    broker.publish(topic, *(b"%d" % i for i in range(9)))
    counts = [len(sink.take()) for sink in sinks]
    assert sum(counts) == channel.in_flight_count == 9
    assert min(counts) >= 2


def test_what_is_in_flight_counts_against_credit(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    consumer, sink = broker.consume(channel, rdy=3)
    broker.publish(topic, *(b"%d" % i for i in range(9)))
    sink.take()
    broker.finish(consumer, 1)
    assert [offset for offset, _, _ in sink.take()] == [3]
    broker.ready(consumer, 2)
    broker.finish(consumer, 0)
    assert (sink.take(), channel.in_flight_count) == ([], 2)


def test_a_consumer_that_is_backed_up_gets_nothing_and_the_others_all(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    slow, slow_sink = broker.consume(channel, rdy=10)
    _, sink = broker.consume(channel, rdy=10)
    slow_sink.output_room_bytes = 0
    broker.publish(topic, *(b"%d" % i for i in range(4)))
    assert (len(sink.take()), slow_sink.take()) == (4, [])
    slow_sink.output_room_bytes = 1
    channel.offer(slow)
    broker.publish(topic, b"4", b"5", b"6", b"7")
    assert len(slow_sink.take()) == 1  # which is more than there is room for
    assert len(sink.take()) == 3


def test_what_came_back_is_shared_fairly(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    leaving, _ = broker.consume(channel, rdy=9)
    broker.publish(topic, *(b"%d" % i for i in range(9)))
    sinks = [broker.consume(channel, rdy=10)[1] for _ in range(3)]
    channel.remove(leaving)
    broker.run()
    taken = [sink.take() for sink in sinks]
    assert sorted(offset for each in taken for offset, _, _ in each) == list(range(9))
    assert min(map(len, taken)) >= 2


def test_every_channel_gets_every_message(broker: FakeBroker) -> None:
    topic = broker.topic()
    sinks = [broker.consume(topic.ensure_channel(name), rdy=5)[1] for name in ("c", "d")]
    broker.publish(topic, b"a", b"b")
    assert [bodies(sink.take()) for sink in sinks] == [[b"a", b"b"]] * 2


def test_a_paused_channel_holds_its_messages(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    _, sink = broker.consume(channel, rdy=5)
    channel.pause()
    broker.publish(topic, b"a")
    assert (sink.take(), channel.depth) == ([], 1)
    channel.unpause()
    broker.run()
    assert bodies(sink.take()) == [b"a"]


# -- coming back ----------------------------------------------------------------------------------


def test_a_lease_that_runs_out_comes_again_with_more_attempts(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    _, sink = broker.consume(channel, rdy=1, msg_timeout_ns=2 * NS_PER_S)
    broker.publish(topic, b"a")
    assert sink.take() == [(0, 1, b"a")]
    broker.advance(1.9)
    assert sink.take() == []
    broker.advance(0.1)
    assert sink.take() == [(0, 2, b"a")]
    assert channel.timeout_count == 1


def test_a_touched_lease_lasts_longer_but_not_for_ever(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, Options(max_msg_timeout_ns=5 * NS_PER_S))
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    consumer, sink = broker.consume(channel, rdy=1, msg_timeout_ns=2 * NS_PER_S)
    broker.publish(topic, b"a")
    for _ in range(4):
        broker.advance(1)
        channel.touch_one(consumer, 0)
    assert sink.take() == [(0, 1, b"a")]
    broker.advance(1)
    assert sink.take() == [(0, 2, b"a")]


def test_what_a_consumer_leaves_behind_goes_to_another(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    consumer, _ = broker.consume(channel, rdy=5)
    broker.publish(topic, b"a", b"b")
    _, sink = broker.consume(channel, rdy=5)
    channel.remove(consumer)
    broker.run()
    assert sink.take() == [(0, 2, b"a"), (1, 2, b"b")]


def test_a_requeued_message_waits_for_its_delay(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    consumer, sink = broker.consume(channel, rdy=1)
    broker.publish(topic, b"a", b"b")
    channel.requeue_one(consumer, 0, 3 * NS_PER_S)
    broker.run()
    assert sink.take() == [(0, 1, b"a"), (1, 1, b"b")]
    broker.finish(consumer, 1)
    broker.advance(2.9)
    assert sink.take() == []
    broker.advance(0.1)
    assert sink.take() == [(0, 2, b"a")]


def refuse_one(
    broker: FakeBroker, *, refused: bytes, count: int, consumer_rdy: int = 1
) -> list[int]:
    """Publish `count` messages to a channel whose one consumer requeues `refused` each time and
    finishes the others; returns the offsets in the order of delivery, until all were delivered."""
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    consumer, sink = broker.consume(channel, rdy=consumer_rdy)
    broker.publish(topic, *(b"%d" % i for i in range(count)))
    order: list[int] = []
    while len(set(order)) < count and len(order) < 10 * count:
        for offset, _, body in sink.take():
            order.append(offset)
            if body == refused:
                channel.requeue_one(consumer, offset, 0)
            else:
                channel.finish_one(consumer, offset)
        broker.run()
    return order


def test_what_comes_back_waits_for_what_was_ready(broker: FakeBroker) -> None:
    assert refuse_one(broker, refused=b"0", count=20) == list(range(20))


def test_what_comes_back_waits_for_as_many_as_memory_may_hold(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, Options(mem_queue_size=3))
    assert refuse_one(broker, refused=b"0", count=7) == [0, 1, 2, 3, 0, 4, 5, 6]


def test_what_comes_back_does_not_keep_others_waiting_without_a_memory_queue(
    tmp_path: Path,
) -> None:
    broker = FakeBroker(tmp_path, Options(mem_queue_size=0))
    assert refuse_one(broker, refused=b"0", count=4) == [0, 1, 0, 2, 0, 3]


def test_what_times_out_waits_for_what_was_ready_and_not_for_what_came_later(
    broker: FakeBroker,
) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    consumer, sink = broker.consume(channel, rdy=1, msg_timeout_ns=2 * NS_PER_S)
    broker.publish(topic, b"a", b"b", b"c")
    broker.advance(2)  # `a` times out
    broker.publish(topic, b"d")
    order = sink.take()
    for _ in range(4):
        broker.finish(consumer, order[-1][0])
        order += sink.take()
    assert order == [(0, 1, b"a"), (1, 1, b"b"), (2, 1, b"c"), (0, 2, b"a"), (3, 1, b"d")]


def test_what_a_consumer_leaves_behind_waits_for_what_was_ready(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    leaving, _ = broker.consume(channel, rdy=2)
    broker.publish(topic, b"a", b"b", b"c", b"d")
    channel.remove(leaving)
    broker.run()
    assert channel.depth == 4
    _, sink = broker.consume(channel, rdy=9)
    assert bodies(sink.take()) == [b"c", b"d", b"a", b"b"]


def test_a_delay_that_is_over_goes_to_the_end_of_the_line(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    consumer, sink = broker.consume(channel, rdy=1)
    broker.publish(topic, *(b"%d" % i for i in range(4)))
    channel.requeue_one(consumer, 0, NS_PER_S)
    broker.run()
    broker.advance(1)
    for offset in (1, 2, 3):
        broker.finish(consumer, offset)
    assert bodies(sink.take()) == [b"0", b"1", b"2", b"3", b"0"]


def test_the_order_of_what_came_back_does_not_survive_a_restart(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path)
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    consumer, _ = broker.consume(channel, rdy=1)
    broker.publish(topic, b"a", b"b", b"c")
    channel.requeue_one(consumer, 0, 0)
    broker.checkpoint()
    again = FakeBroker(tmp_path)
    _, sink = again.consume(again.load()["t"].channels["c"], rdy=9)
    again.settle()
    assert sorted(bodies(sink.take())) == [b"a", b"b", b"c"]


def test_what_came_back_goes_out_while_others_cannot_be_read_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "_NOWAIT", 0)
    broker = FakeBroker(tmp_path, Options(mem_queue_size=3, max_bytes_per_file=500))
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    for i in range(50):
        broker.publish(topic, b"%d" % i)
        log_of(topic).flush()
    second = Path(log_of(topic).segments[1].path)
    last = log_of(topic).segments[1].first - 1  # message of the first segment
    second.rename(second.with_suffix(".away"))
    second.mkdir()  # which cannot be read
    consumer, sink = broker.consume(channel, rdy=last + 1)
    broker.settle()
    assert [offset for offset, _, _ in sink.take()] == list(range(last + 1))
    channel.requeue_one(consumer, last, 0)
    broker.settle()
    assert sink.take() == [(last, 2, b"%d" % last)]
    second.rmdir()
    second.with_suffix(".away").rename(second)
    broker.finish(consumer, last)
    broker.advance(10)
    broker.settle()
    assert sink.take()[0] == (last + 1, 1, b"%d" % (last + 1))


def test_a_delayed_message_is_delivered_when_due_and_counts_one_attempt(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    _, sink = broker.consume(channel, rdy=5)
    broker.publish(topic, b"late", delay_ns=3 * NS_PER_S)
    broker.publish(topic, b"now")
    assert sink.take() == [(1, 1, b"now")]
    broker.advance(3)
    assert sink.take() == [(0, 1, b"late")]


# -- behind ---------------------------------------------------------------------------------------


def test_a_channel_far_behind_reads_from_disk_and_gets_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "_NOWAIT", 0)
    broker = FakeBroker(tmp_path, Options(mem_queue_size=3, max_bytes_per_file=500))
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    expected = [b"%d" % i for i in range(50)]
    for body in expected:
        broker.publish(topic, body)
    consumer, sink = broker.consume(channel, rdy=1)
    got = []
    while len(got) < 50:
        broker.settle()
        taken = sink.take()
        assert taken
        got += bodies(taken)
        broker.finish(consumer, *(offset for offset, _, _ in taken))
    assert got == expected
    assert channel.delivery.low == 50


def test_what_is_gone_from_the_log_is_counted_and_stepped_over(tmp_path: Path) -> None:
    """An ephemeral channel does not hold back the log."""
    broker = FakeBroker(tmp_path, Options(max_bytes_per_file=1))
    topic = broker.topic()
    channel = topic.ensure_channel("e#ephemeral")
    for body in (b"a", b"b", b"c"):
        broker.publish(topic, body)
        log_of(topic).flush()
    log_of(topic).retire(2)
    log_of(topic).trim(3, messages_max=0, bytes_max=0)
    _, sink = broker.consume(channel, rdy=5)
    assert sink.take() == [(2, 1, b"c")]
    assert channel.dropped_count == 2


# -- ephemeral channels ---------------------------------------------------------------------------


def test_an_ephemeral_channel_keeps_so_many_and_drops_the_newest(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, Options(mem_queue_size=5))
    topic = broker.topic()
    channel = topic.ensure_channel("e#ephemeral")
    for i in range(8):
        broker.publish(topic, b"%d" % i)
    assert (channel.depth, channel.dropped_count) == (5, 3)
    _, sink = broker.consume(channel, rdy=20)
    assert [offset for offset, _, _ in sink.take()] == [0, 1, 2, 3, 4]


def test_messages_that_came_back_do_not_make_the_overflow_count_run_away(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, Options(mem_queue_size=5))
    topic = broker.topic()
    channel = topic.ensure_channel("e#ephemeral")
    consumer, _ = broker.consume(channel, rdy=3)
    other, _ = broker.consume(channel, rdy=0)
    broker.publish(topic, *(b"%d" % i for i in range(10)))
    dropped = channel.dropped_count
    channel.remove(consumer)  # three come back
    for _ in range(5):
        broker.tick.dispatch(channel)
        broker.run()
    before = channel.dropped_count
    assert dropped <= before <= 10
    broker.ready(other, 50)
    assert channel.in_flight_count + channel.dropped_count == 10


def test_a_delayed_message_survives_the_overflow_around_it(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, Options(mem_queue_size=2))
    topic = broker.topic()
    channel = topic.ensure_channel("e#ephemeral")
    consumer, sink = broker.consume(channel, rdy=0)
    broker.publish(topic, b"a")
    broker.publish(topic, b"late", delay_ns=NS_PER_S)
    broker.publish(topic, b"b", b"c", b"d")
    assert channel.depth == 2
    broker.ready(consumer, 50)
    broker.advance(1)
    broker.settle()
    got = [offset for offset, _, _ in sink.take()]
    assert got == [0, 2, 1]
    broker.finish(consumer, *got)
    assert (channel.delivery.low, channel.delivery.finished.above) == (5, 0)


# -- restarts -------------------------------------------------------------------------------------


def test_after_a_kill_only_what_was_not_written_down_comes_again(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path)
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    consumer, _ = broker.consume(channel, rdy=6)
    broker.publish(topic, *(b"%d" % i for i in range(6)))
    channel.requeue_one(consumer, 2, 30 * NS_PER_S)
    channel.requeue_one(consumer, 5, 0)
    broker.finish(consumer, 0, 3)
    broker.settle()
    broker.checkpoint()
    broker.finish(consumer, 1)
    again = FakeBroker(tmp_path)
    found = again.load()["t"].channels["c"]
    _, sink = again.consume(found, rdy=9)
    again.settle()
    assert sorted(sink.take()) == [(1, 2, b"1"), (4, 2, b"4"), (5, 3, b"5")]
    again.advance(30)
    again.settle()
    assert sink.take() == [(2, 2, b"2")]


def test_channels_beyond_a_log_that_lost_its_end_go_on_with_new_messages(tmp_path: Path) -> None:
    """After a power failure: one channel has finished what is lost, the other had not seen it."""
    broker = FakeBroker(tmp_path)
    topic = broker.topic()
    ahead, behind = topic.ensure_channel("ahead"), topic.ensure_channel("behind")
    consumer, _ = broker.consume(ahead, rdy=9)
    for i in range(4):
        broker.publish(topic, b"%d" % i)
    broker.finish(consumer, 1, 2, 3)
    broker.checkpoint()
    path = Path(log_of(topic).segments[0].path)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size // 2])
    again = FakeBroker(tmp_path)
    found = again.load()["t"]
    sinks = {name: again.consume(channel, rdy=9)[1] for name, channel in found.channels.items()}
    again.settle()
    assert {name: bodies(sink.take()) for name, sink in sinks.items()} == {
        "ahead": [b"0"],
        "behind": [b"0", b"1"],
    }
    again.publish(found, b"new")
    again.settle()
    assert {name: bodies(sink.take()) for name, sink in sinks.items()} == {
        "ahead": [b"new"],
        "behind": [b"new"],
    }
    assert behind.delivery.next == 0


def test_a_sample_goes_on_after_messages_that_are_not_in_it(broker: FakeBroker) -> None:
    topic = broker.topic()
    channel = topic.ensure_channel("c")
    consumer, sink = broker.consume(channel, rdy=1, sample_rate=1)
    broker.publish(topic, *[b"m"] * 2000)
    while received := sink.take():
        broker.finish(consumer, *(offset for offset, _, _ in received))
    assert channel.depth == 0
    assert channel.delivery.low == 2000


def test_consumers_that_come_and_go_without_a_message_leave_nothing_behind(
    broker: FakeBroker,
) -> None:
    channel = broker.topic().ensure_channel("c")
    consumer, sink = broker.consume(channel, rdy=1)
    gone = weakref.ref(sink)
    channel.remove(consumer)
    del consumer, sink
    gc.collect()
    assert gone() is None
