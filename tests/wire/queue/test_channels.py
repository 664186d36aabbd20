"""Channels: pause, empty, delete, deferral, overflow beyond memory, limit of consumers."""

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.wire.admin import act, await_channel, await_no_channel, await_topic
from tests.kit.wire.commands import dpub, fin, mpub, req, sub
from tests.kit.wire.session import FRAME_ERROR, OK, Connect, bodies

CONSUMERS_MAX = 3

# Small enough that tests overflow it.
MEM_QUEUE_MESSAGES = 10
NSQD_FLAGS = (
    f"--max-channel-consumers={CONSUMERS_MAX}",
    f"--mem-queue-size={MEM_QUEUE_MESSAGES}",
)


def test_paused_channel_delivers_to_nobody(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    producer, one, two, elsewhere = (connect() for _ in range(4))
    one.subscribe(topic, "ch", ready=5)
    two.subscribe(topic, "ch", ready=5)
    elsewhere.subscribe(topic, "elsewhere", ready=5)
    act(nsqd, "/channel/pause", topic=topic, channel="ch")
    producer.publish(topic, b"1", b"2")
    await_channel(nsqd, topic, "ch", paused=True, depth=2, in_flight_count=0, message_count=2)
    assert bodies(elsewhere.messages(2)) == [b"1", b"2"]
    assert one.before_barrier() == two.before_barrier() == []
    act(nsqd, "/channel/unpause", topic=topic, channel="ch")
    await_channel(nsqd, topic, "ch", paused=False, depth=0, in_flight_count=2)


def test_messages_in_flight_may_be_settled_while_paused(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=2)
    producer.publish(topic, b"1", b"2")
    first, second = consumer.messages(2)
    act(nsqd, "/channel/pause", topic=topic, channel="ch")
    consumer.send(fin(first.id), req(second.id, 0))
    await_channel(nsqd, topic, "ch", in_flight_count=0, depth=1, requeue_count=1)
    assert consumer.before_barrier() == []
    act(nsqd, "/channel/unpause", topic=topic, channel="ch")
    assert consumer.message() == second._replace(attempts=2)


def test_pausing_twice_is_the_same_as_once(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=2)
    for _ in range(2):
        act(nsqd, "/channel/pause", topic=topic, channel="ch")
        act(nsqd, "/topic/pause", topic=topic)
    producer.publish(topic, b"x")
    for _ in range(2):
        act(nsqd, "/channel/unpause", topic=topic, channel="ch")
        act(nsqd, "/topic/unpause", topic=topic)
    assert consumer.message().body == b"x"


def test_consumer_of_a_paused_channel_waits_for_it(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    consumer, producer = connect(), connect()
    act(nsqd, "/topic/create", topic=topic)
    act(nsqd, "/channel/create", topic=topic, channel="ch")
    act(nsqd, "/channel/pause", topic=topic, channel="ch")
    producer.publish(topic, b"x")
    consumer.subscribe(topic, "ch", ready=1)
    await_channel(nsqd, topic, "ch", depth=1, client_count=1)
    assert consumer.before_barrier() == []
    act(nsqd, "/channel/unpause", topic=topic, channel="ch")
    assert consumer.message().body == b"x"


def test_empty_channel_drops_queued_and_deferred(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    producer, consumer = connect(), connect()
    consumer.subscribe(topic, "ch")
    act(nsqd, "/channel/create", topic=topic, channel="full")
    assert producer.request(dpub(topic, 3600000, b"later")) == OK
    await_channel(nsqd, topic, "ch", deferred_count=1)
    # More than the memory queue holds: what lies on disk must go as well.
    queued = 3 * MEM_QUEUE_MESSAGES
    assert producer.request(mpub(topic, [b"x"] * queued)) == OK
    for channel in ("ch", "full"):
        await_channel(nsqd, topic, channel, depth=queued, message_count=queued + 1)
    act(nsqd, "/channel/empty", topic=topic, channel="ch")
    await_channel(nsqd, topic, "ch", depth=0, backend_depth=0, deferred_count=0)
    await_channel(nsqd, topic, "full", depth=queued)
    producer.publish(topic, b"new")
    consumer.send(b"RDY 10\n")
    assert consumer.message().body == b"new"
    await_channel(nsqd, topic, "ch", depth=0, in_flight_count=1)


def test_deleted_channel_is_forgotten(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    producer, old, new = connect(), connect(), connect()
    act(nsqd, "/topic/create", topic=topic)
    act(nsqd, "/channel/create", topic=topic, channel="other")
    old.subscribe(topic, "ch", ready=1)
    producer.publish(topic, b"in flight", b"queued")
    old.message()
    act(nsqd, "/channel/pause", topic=topic, channel="ch")
    act(nsqd, "/channel/delete", topic=topic, channel="ch")
    assert old.until_closed() == []
    await_no_channel(nsqd, topic, "ch")
    new.subscribe(topic, "ch", ready=10)
    producer.publish(topic, b"new")
    assert new.message().body == b"new"
    await_channel(nsqd, topic, "ch", depth=0, message_count=1, paused=False)


def test_overflow_beyond_memory_loses_nothing(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    producer, consumer = connect(), connect()
    consumer.subscribe(topic, "ch")
    sent = [b"%d" % n for n in range(10 * MEM_QUEUE_MESSAGES)]
    assert producer.request(mpub(topic, sent[:50])) == OK
    producer.publish(topic, *sent[50:])
    await_channel(nsqd, topic, "ch", depth=100, backend_depth=90, message_count=100)
    consumer.send(b"RDY 7\n")
    received = set()
    for _ in sent:
        message = consumer.message()
        received.add(message.body)
        assert message.attempts == 1
        consumer.finish(message)
    assert received == set(sent)
    await_channel(nsqd, topic, "ch", depth=0, backend_depth=0, in_flight_count=0)


def test_backlog_of_a_topic_beyond_memory_loses_nothing(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    producer, consumer = connect(), connect()
    sent = [b"%d" % n for n in range(5 * MEM_QUEUE_MESSAGES)]
    assert producer.request(mpub(topic, sent)) == OK
    await_topic(nsqd, topic, depth=50)
    consumer.subscribe(topic, "ch", ready=50)
    assert set(bodies(consumer.messages(50))) == set(sent)


def test_a_message_that_always_comes_back_keeps_no_other_waiting(
    connect: Connect, topic: str
) -> None:
    consumer = connect()
    consumer.subscribe(topic, "ch", ready=1)
    others = {b"%d" % n for n in range(19)}
    assert connect().request(mpub(topic, [b"poison", *others])) == OK
    delivered = 0
    while others:
        message = consumer.message()
        others.discard(message.body)
        poison = message.body == b"poison"
        consumer.send(req(message.id, 0) if poison else fin(message.id))
        delivered += 1
        assert delivered < 100


def test_deferral_is_counted_in_each_channel(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    producer, consumer = connect(), connect()
    consumer.subscribe(topic, "one", ready=5)
    act(nsqd, "/channel/create", topic=topic, channel="two")
    assert producer.request(dpub(topic, 3600000, b"x")) == OK
    for channel in ("one", "two"):
        await_channel(
            nsqd, topic, channel, deferred_count=1, depth=0, message_count=1, in_flight_count=0
        )
    await_topic(nsqd, topic, depth=0, message_count=1)
    # A later channel is too late for it, though nobody has had it yet.
    act(nsqd, "/channel/create", topic=topic, channel="three")
    await_channel(nsqd, topic, "three", deferred_count=0, message_count=0)
    assert consumer.before_barrier() == []


def test_deferred_message_waits_in_a_topic_without_channels(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    producer, consumer = connect(), connect()
    assert producer.request(dpub(topic, 3600000, b"x")) == OK
    await_topic(nsqd, topic, depth=1, message_count=1)
    consumer.subscribe(topic, "ch", ready=5)
    await_channel(nsqd, topic, "ch", deferred_count=1, depth=0, in_flight_count=0)
    await_topic(nsqd, topic, depth=0)


def test_consumers_beyond_the_limit_are_refused(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    consumers = [connect() for _ in range(CONSUMERS_MAX)]
    for session in consumers:
        session.subscribe(topic, "ch")
    refused = connect()
    refused.send(sub(topic, "ch"))
    text = f"E_SUB_FAILED SUB failed consumers for {topic}:ch exceeds limit of {CONSUMERS_MAX}"
    assert refused.until_closed() == [(FRAME_ERROR, text.encode())]
    await_channel(nsqd, topic, "ch", client_count=CONSUMERS_MAX)
    # The limit is for each channel, and a place left is free again.
    connect().subscribe(topic, "other")
    consumers[0].close()
    await_channel(nsqd, topic, "ch", client_count=CONSUMERS_MAX - 1)
    connect().subscribe(topic, "ch")


def test_channel_outlives_its_consumers(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    consumer, producer, heir = connect(), connect(), connect()
    consumer.subscribe(topic, "ch")
    consumer.close()
    await_channel(nsqd, topic, "ch", client_count=0)
    producer.publish(topic, b"x")
    heir.subscribe(topic, "ch", ready=1)
    assert heir.message().body == b"x"


@pytest.mark.parametrize("path", ["/channel/empty", "/channel/delete"])
def test_messages_of_other_channels_survive(
    nsqd: Nsqd, connect: Connect, topic: str, path: str
) -> None:
    producer, consumer = connect(), connect()
    consumer.subscribe(topic, "kept", ready=1)
    act(nsqd, "/channel/create", topic=topic, channel="hit")
    producer.publish(topic, b"in flight", b"queued")
    message = consumer.message()
    act(nsqd, path, topic=topic, channel="hit")
    consumer.finish(message)
    assert consumer.message().body == b"queued"
    assert consumer.before_barrier() == []
