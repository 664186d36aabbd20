"""Names that end in #ephemeral: kept in memory, bounded, and gone with their last user."""

import json

import pytest

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.wire.admin import (
    act,
    await_channel,
    await_no_channel,
    await_no_topic,
    await_topic,
    topic_stats,
)
from tests.kit.wire.commands import mpub
from tests.kit.wire.session import OK, Connect, bodies

MEM_QUEUE_MESSAGES = 10
NSQD_FLAGS = (f"--mem-queue-size={MEM_QUEUE_MESSAGES}",)


@pytest.fixture
def fleeting(topic: str) -> str:
    """A topic of the test's own that is ephemeral."""
    return f"{topic}#ephemeral"


def test_ephemeral_channel_goes_with_its_last_consumer(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    one, two = connect(), connect()
    one.subscribe(topic, "ch#ephemeral")
    two.subscribe(topic, "ch#ephemeral")
    one.close()
    await_channel(nsqd, topic, "ch#ephemeral", client_count=1)
    two.close()
    await_no_channel(nsqd, topic, "ch#ephemeral")
    assert topic_stats(nsqd, topic)["topic_name"] == topic


def test_ephemeral_channel_made_over_http_waits_for_its_first_consumer(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    consumer = connect()
    act(nsqd, "/topic/create", topic=topic)
    act(nsqd, "/channel/create", topic=topic, channel="ch#ephemeral")
    connect().publish(topic, b"x")
    await_channel(nsqd, topic, "ch#ephemeral", depth=1, client_count=0)
    consumer.subscribe(topic, "ch#ephemeral", ready=1)
    assert consumer.message().body == b"x"
    consumer.close()
    await_no_channel(nsqd, topic, "ch#ephemeral")


def test_ephemeral_topic_goes_with_its_last_channel(
    nsqd: Nsqd, connect: Connect, fleeting: str
) -> None:
    act(nsqd, "/topic/create", topic=fleeting)
    for channel in ("one", "two"):
        act(nsqd, "/channel/create", topic=fleeting, channel=channel)
    act(nsqd, "/channel/delete", topic=fleeting, channel="one")
    await_no_channel(nsqd, fleeting, "one")
    assert [c["channel_name"] for c in topic_stats(nsqd, fleeting)["channels"]] == ["two"]
    act(nsqd, "/channel/delete", topic=fleeting, channel="two")
    await_no_topic(nsqd, fleeting)


def test_ephemeral_topic_goes_with_its_last_ephemeral_consumer(
    nsqd: Nsqd, connect: Connect, fleeting: str
) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe(fleeting, "ch#ephemeral", ready=1)
    producer.publish(fleeting, b"x")
    assert consumer.message().body == b"x"
    consumer.close()
    await_no_topic(nsqd, fleeting)
    producer.publish(fleeting, b"y")
    await_topic(nsqd, fleeting, depth=1, message_count=1)


def test_ephemeral_topic_without_channels_lives_on(
    nsqd: Nsqd, connect: Connect, fleeting: str
) -> None:
    producer, consumer = connect(), connect()
    producer.publish(fleeting, b"x")
    producer.close()
    await_topic(nsqd, fleeting, depth=1)
    consumer.subscribe(fleeting, "ch", ready=1)
    assert consumer.message().body == b"x"


def test_normal_channel_of_an_ephemeral_topic_outlives_its_consumer(
    nsqd: Nsqd, connect: Connect, fleeting: str
) -> None:
    consumer, producer, heir = connect(), connect(), connect()
    consumer.subscribe(fleeting, "ch")
    consumer.close()
    await_channel(nsqd, fleeting, "ch", client_count=0)
    producer.publish(fleeting, b"x")
    await_channel(nsqd, fleeting, "ch", depth=1)
    heir.subscribe(fleeting, "ch", ready=1)
    assert heir.message().body == b"x"


def test_ephemeral_channel_drops_the_newest_beyond_memory(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    producer, consumer, normal = connect(), connect(), connect()
    consumer.subscribe(topic, "ch#ephemeral")
    normal.subscribe(topic, "normal")
    sent = [b"%d" % n for n in range(3 * MEM_QUEUE_MESSAGES)]
    producer.publish(topic, *sent)
    await_channel(nsqd, topic, "normal", depth=30)
    await_channel(nsqd, topic, "ch#ephemeral", depth=10, backend_depth=0, message_count=30)
    consumer.send(b"RDY 30\n")
    assert bodies(consumer.messages(10)) == sent[:10]
    await_channel(nsqd, topic, "ch#ephemeral", depth=0, in_flight_count=10)
    # What it dropped is dropped for it alone, and it goes on with what comes next.
    normal.send(b"RDY 30\n")
    assert set(bodies(normal.messages(30))) == set(sent)
    producer.publish(topic, b"next")
    assert consumer.message().body == b"next"


def test_ephemeral_topic_drops_the_newest_beyond_memory(
    nsqd: Nsqd, connect: Connect, fleeting: str
) -> None:
    producer, consumer = connect(), connect()
    sent = [b"%d" % n for n in range(3 * MEM_QUEUE_MESSAGES)]
    assert producer.request(mpub(fleeting, sent)) == OK
    await_topic(nsqd, fleeting, depth=10, backend_depth=0, message_count=30)
    consumer.subscribe(fleeting, "ch", ready=30)
    assert bodies(consumer.messages(10)) == sent[:10]
    await_channel(nsqd, fleeting, "ch", depth=0, in_flight_count=10, message_count=10)


def test_ephemeral_names_are_not_written_down(
    nsqd: Nsqd, connect: Connect, topic: str, fleeting: str
) -> None:
    connect().subscribe(topic, "ch#ephemeral")
    connect().subscribe(fleeting, "normal")
    connect().subscribe(topic, "written")
    metadata_path = nsqd.data_path / "nsqd.dat"

    def written() -> bool:
        topics = {t["name"]: t for t in json.loads(metadata_path.read_text())["topics"] or ()}
        channels = topics.get(topic, {}).get("channels") or []
        assert fleeting not in topics
        assert "ch#ephemeral" not in [channel["name"] for channel in channels]
        return "written" in [channel["name"] for channel in channels]

    wait_until(written)


@pytest.mark.deviation
def test_subscribing_while_the_last_consumer_leaves(
    nsqd: Nsqd, connect: Connect, topic: str, fleeting: str
) -> None:
    """The original may refuse with `exiting`, or accept and then drop the newcomer."""
    for name in (topic, fleeting):
        for _ in range(5):
            leaver, comer, producer = connect(), connect(), connect()
            leaver.subscribe(name, "ch#ephemeral")
            leaver.close()
            comer.subscribe(name, "ch#ephemeral", ready=1)
            producer.publish(name, b"x")
            assert comer.message().body == b"x"
            comer.close()
            await_no_channel(nsqd, name, "ch#ephemeral")
