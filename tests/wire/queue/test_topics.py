"""Topics: how they come to be, what each channel gets of them, pause, empty, delete, counters."""

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.wire.admin import (
    act,
    await_channel,
    await_no_channel,
    await_no_topic,
    await_topic,
    topic_stats,
)
from tests.kit.wire.commands import dpub, mpub, pub, req, sub
from tests.kit.wire.session import OK, Connect, Session, bodies


def take(session: Session, topic: str, channel: str, count: int) -> list[bytes]:
    session.subscribe(topic, channel, ready=count)
    return bodies(session.messages(count))


@pytest.mark.parametrize("verb", ["PUB", "MPUB", "DPUB", "SUB"])
def test_commands_create_topics(nsqd: Nsqd, connect: Connect, topic: str, verb: str) -> None:
    command = {
        "PUB": pub(topic, b"x"),
        "MPUB": mpub(topic, [b"x"]),
        "DPUB": dpub(topic, 100, b"x"),
        "SUB": sub(topic, "ch"),
    }[verb]
    assert connect().request(command) == OK
    stats = topic_stats(nsqd, topic)
    assert [c["channel_name"] for c in stats["channels"]] == (["ch"] if verb == "SUB" else [])
    assert stats["message_count"] == (0 if verb == "SUB" else 1)
    assert stats["paused"] is False


def test_every_channel_gets_every_message(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    sessions = [connect() for _ in range(3)]
    for number, session in enumerate(sessions):
        session.subscribe(topic, f"ch{number}", ready=20)
    sent = [b"%d" % n for n in range(20)]
    connect().publish(topic, *sent)
    copies = [session.messages(20) for session in sessions]
    assert bodies(copies[0]) == sent
    # Not only the bodies: ids, times and attempts are the same in every channel.
    assert copies[0] == copies[1] == copies[2]


def test_attempts_are_counted_for_each_channel(connect: Connect, topic: str) -> None:
    often, once = connect(), connect()
    often.subscribe(topic, "often", ready=1)
    once.subscribe(topic, "once")
    connect().publish(topic, b"x")
    for _ in range(3):
        often.send(req(often.message().id, 0))
    assert often.message().attempts == 4
    once.send(b"RDY 1\n")
    assert once.message().attempts == 1


def test_first_channel_gets_the_backlog_and_later_ones_only_what_is_new(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    producer, first, second = connect(), connect(), connect()
    producer.publish(topic, b"1", b"2", b"3")
    stats = topic_stats(nsqd, topic)
    assert (stats["depth"], stats["channels"]) == (3, [])
    act(nsqd, "/channel/create", topic=topic, channel="first")
    await_channel(nsqd, topic, "first", depth=3, message_count=3)
    await_topic(nsqd, topic, depth=0)
    act(nsqd, "/channel/create", topic=topic, channel="second")
    producer.publish(topic, b"4")
    assert take(first, topic, "first", 4) == [b"1", b"2", b"3", b"4"]
    assert take(second, topic, "second", 1) == [b"4"]
    await_channel(nsqd, topic, "second", message_count=1, depth=0, in_flight_count=1)


def test_topic_that_lost_its_last_channel_gathers_a_backlog_again(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    producer, heir = connect(), connect()
    act(nsqd, "/topic/create", topic=topic)
    act(nsqd, "/channel/create", topic=topic, channel="gone")
    producer.publish(topic, b"for the lost one")
    await_channel(nsqd, topic, "gone", depth=1)
    act(nsqd, "/channel/delete", topic=topic, channel="gone")
    await_no_channel(nsqd, topic, "gone")
    producer.publish(topic, b"kept", b"kept too")
    await_topic(nsqd, topic, depth=2, message_count=3)
    assert take(heir, topic, "heir", 2) == [b"kept", b"kept too"]
    await_channel(nsqd, topic, "heir", message_count=2, depth=0)


def test_paused_topic_accepts_and_holds_back(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    producer, consumer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=10)
    act(nsqd, "/topic/pause", topic=topic)
    producer.publish(topic, b"1", b"2")
    await_topic(nsqd, topic, paused=True, depth=2, message_count=2)
    await_channel(nsqd, topic, "ch", depth=0, in_flight_count=0, message_count=0, paused=False)
    assert consumer.before_barrier() == []
    act(nsqd, "/topic/unpause", topic=topic)
    assert bodies(consumer.messages(2)) == [b"1", b"2"]
    await_topic(nsqd, topic, paused=False, depth=0)
    producer.publish(topic, b"3")
    assert consumer.message().body == b"3"


def test_channels_still_deliver_what_they_had_when_the_topic_was_paused(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    producer, consumer = connect(), connect()
    consumer.subscribe(topic, "ch")
    producer.publish(topic, b"1", b"2")
    await_channel(nsqd, topic, "ch", depth=2)
    act(nsqd, "/topic/pause", topic=topic)
    producer.publish(topic, b"3")
    consumer.send(b"RDY 10\n")
    assert bodies(consumer.messages(2)) == [b"1", b"2"]
    assert consumer.before_barrier() == []
    act(nsqd, "/topic/unpause", topic=topic)
    assert consumer.message().body == b"3"


def test_channel_made_during_a_pause_gets_all_that_was_held_back(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    producer, early, late = connect(), connect(), connect()
    early.subscribe(topic, "early", ready=10)
    producer.publish(topic, b"before")
    assert early.message().body == b"before"
    act(nsqd, "/topic/pause", topic=topic)
    producer.publish(topic, b"1", b"2")
    late.subscribe(topic, "late", ready=10)
    producer.publish(topic, b"3")
    act(nsqd, "/topic/unpause", topic=topic)
    assert bodies(early.messages(3)) == [b"1", b"2", b"3"]
    assert bodies(late.messages(3)) == [b"1", b"2", b"3"]
    await_channel(nsqd, topic, "late", message_count=3, depth=0)


def test_empty_topic_drops_only_what_no_channel_has(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    producer, consumer = connect(), connect()
    consumer.subscribe(topic, "ch")
    producer.publish(topic, b"1", b"2")
    await_channel(nsqd, topic, "ch", depth=2)
    act(nsqd, "/topic/pause", topic=topic)
    producer.publish(topic, b"dropped", b"dropped", b"dropped")
    await_topic(nsqd, topic, depth=3)
    act(nsqd, "/topic/empty", topic=topic)
    await_topic(nsqd, topic, depth=0, message_count=5)
    await_channel(nsqd, topic, "ch", depth=2)
    act(nsqd, "/topic/unpause", topic=topic)
    producer.publish(topic, b"3")
    consumer.send(b"RDY 10\n")
    assert bodies(consumer.messages(3)) == [b"1", b"2", b"3"]


def test_empty_topic_without_channels_leaves_nothing_for_the_first(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    producer, consumer = connect(), connect()
    producer.publish(topic, b"dropped", b"dropped")
    act(nsqd, "/topic/empty", topic=topic)
    await_topic(nsqd, topic, depth=0, message_count=2)
    producer.publish(topic, b"kept")
    assert take(consumer, topic, "ch", 1) == [b"kept"]
    await_channel(nsqd, topic, "ch", message_count=1, depth=0)


def test_deleted_topic_is_forgotten(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    producer, consumer = connect(), connect()
    producer.publish(topic, b"old", b"old")
    act(nsqd, "/channel/create", topic=topic, channel="old")
    producer.publish(topic, b"old")
    act(nsqd, "/topic/pause", topic=topic)
    act(nsqd, "/topic/delete", topic=topic)
    await_no_topic(nsqd, topic)
    producer.publish(topic, b"new")
    stats = await_topic(nsqd, topic, depth=1, message_count=1, message_bytes=3, paused=False)
    assert stats["channels"] == []
    assert take(consumer, topic, "ch", 1) == [b"new"]
    await_channel(nsqd, topic, "ch", message_count=1, depth=0)


def test_deleting_a_topic_leaves_the_producer_connected(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    producer = connect()
    producer.publish(topic, b"x")
    act(nsqd, "/topic/delete", topic=topic)
    await_no_topic(nsqd, topic)
    producer.publish(topic, b"y")


def test_deleting_a_channel_leaves_the_topic_and_other_channels(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    producer, kept = connect(), connect()
    kept.subscribe(topic, "kept")
    act(nsqd, "/channel/create", topic=topic, channel="gone")
    producer.publish(topic, b"1")
    act(nsqd, "/channel/delete", topic=topic, channel="gone")
    await_no_channel(nsqd, topic, "gone")
    producer.publish(topic, b"2")
    kept.send(b"RDY 10\n")
    assert bodies(kept.messages(2)) == [b"1", b"2"]
    # Made again, it is a later channel like any other: it starts at the end.
    act(nsqd, "/channel/create", topic=topic, channel="gone")
    await_channel(nsqd, topic, "gone", depth=0, message_count=0)


def test_counters_of_topic_and_channels(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    producer, consumer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=3)
    act(nsqd, "/channel/create", topic=topic, channel="idle")
    producer.publish(topic, b"a", b"bb")
    assert producer.request(mpub(topic, [b"ccc", b"dddd"])) == OK
    assert producer.request(dpub(topic, 3600000, b"eeeee")) == OK
    first, second, _ = consumer.messages(3)
    consumer.send(req(second.id, 3600000))
    consumer.finish(first)
    consumer.messages(1)
    await_topic(nsqd, topic, message_count=5, message_bytes=15, depth=0)
    await_channel(
        nsqd,
        topic,
        "ch",
        message_count=5,
        depth=0,
        in_flight_count=2,
        deferred_count=2,
        requeue_count=1,
        timeout_count=0,
        client_count=1,
    )
    await_channel(
        nsqd,
        topic,
        "idle",
        message_count=5,
        depth=4,
        in_flight_count=0,
        deferred_count=1,
        requeue_count=0,
        timeout_count=0,
        client_count=0,
        clients=[],
    )


def test_topics_and_channels_are_listed_in_order(nsqd: Nsqd, topic: str) -> None:
    for name in ("c", "a", "b"):
        act(nsqd, "/topic/create", topic=f"{topic}-{name}")
        act(nsqd, "/topic/create", topic=topic)
        act(nsqd, "/channel/create", topic=topic, channel=name)
    names = [entry["topic_name"] for entry in nsqd.stats()["topics"]]
    assert names == sorted(names)
    channels = [entry["channel_name"] for entry in topic_stats(nsqd, topic)["channels"]]
    assert channels == ["a", "b", "c"]
