"""What a daemon that was asked to stop finds again: metadata, messages, attempts, pauses.

One daemon is prepared, stopped and started once; each test looks at its own topic of it.
"""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd, RawClient, wait_until
from tests.kit.wire.admin import act, await_channel, await_no_channel, await_no_topic, topic_stats
from tests.kit.wire.commands import dpub, mpub, req
from tests.kit.wire.session import OK, Connect, Session, bodies

BATCH = [b"%d" % n for n in range(1000)]
DELAY_MS = 3600000


def prepare(nsqd: Nsqd) -> None:
    """Topics named after what was done to them."""
    producer = Session(RawClient(nsqd.tcp_port))
    for topic in ("queued", "deleted", "emptied"):
        act(nsqd, "/topic/create", topic=topic)
        act(nsqd, "/channel/create", topic=topic, channel="ch")
        assert producer.request(mpub(topic, BATCH)) == OK
        await_channel(nsqd, topic, "ch", depth=1000)
    producer.publish("no-channel", b"1", b"2")
    for name in (".", "..", "nsqd.dat", "x" * 64):
        producer.publish(name, name.encode())
    act(nsqd, "/topic/delete", topic="deleted")
    await_no_topic(nsqd, "deleted")
    act(nsqd, "/channel/empty", topic="emptied", channel="ch")
    prepare_pauses(nsqd, producer)
    prepare_deliveries(nsqd, producer)
    producer.close()


def prepare_pauses(nsqd: Nsqd, producer: Session) -> None:
    for topic in ("pauses", "fleeting#ephemeral"):
        act(nsqd, "/topic/create", topic=topic)
        for channel in ("paused", "running", "gone", "fleeting#ephemeral"):
            act(nsqd, "/channel/create", topic=topic, channel=channel)
    producer.publish("pauses", b"before")
    await_channel(nsqd, "pauses", "running", depth=1)
    act(nsqd, "/channel/pause", topic="pauses", channel="paused")
    act(nsqd, "/channel/delete", topic="pauses", channel="gone")
    await_no_channel(nsqd, "pauses", "gone")
    act(nsqd, "/topic/pause", topic="pauses")
    producer.publish("pauses", b"held back")


def prepare_deliveries(nsqd: Nsqd, producer: Session) -> None:
    consumer = Session(RawClient(nsqd.tcp_port))
    consumer.subscribe("deliveries", "ch", ready=4)
    act(nsqd, "/channel/create", topic="deliveries", channel="deferred")
    producer.publish("deliveries", b"finished", b"in flight", b"requeued", b"in flight, thrice")
    finished, _, requeued, thrice = consumer.messages(4)
    consumer.send(b"RDY 3\n")
    consumer.finish(finished)
    for attempts in (2, 3):
        consumer.send(req(thrice.id, 0))
        assert consumer.message().attempts == attempts
    consumer.send(b"RDY 0\n", req(requeued.id, 0))
    await_channel(nsqd, "deliveries", "ch", in_flight_count=2, depth=1)
    producer.publish("deliveries", b"queued")
    assert producer.request(dpub("deliveries", DELAY_MS, b"deferred")) == OK
    await_channel(nsqd, "deliveries", "ch", depth=2, deferred_count=1, in_flight_count=2)


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("restart") / "data") as nsqd:
        prepare(nsqd)
        assert nsqd.stop() == 0
        nsqd.start()
        yield nsqd


def take(session: Session, topic: str, channel: str, count: int) -> dict[bytes, int]:
    """Bodies and attempts of so many messages."""
    session.subscribe(topic, channel, ready=count)
    return {message.body: message.attempts for message in session.messages(count)}


def test_queued_messages_are_found_again(restarted: Nsqd, connect: Connect) -> None:
    await_channel(restarted, "queued", "ch", depth=1000, in_flight_count=0)
    session = connect(restarted)
    session.subscribe("queued", "ch", ready=1000)
    assert bodies(session.messages(1000)) == BATCH


def test_backlog_without_channels_is_found_again(restarted: Nsqd, connect: Connect) -> None:
    assert topic_stats(restarted, "no-channel")["depth"] == 2
    assert take(connect(restarted), "no-channel", "ch", 2) == {b"1": 1, b"2": 1}


@pytest.mark.parametrize("name", [".", "..", "nsqd.dat", "x" * 64])
def test_topics_with_odd_names_are_found_again(
    restarted: Nsqd, connect: Connect, name: str
) -> None:
    assert take(connect(restarted), name, "..", 1) == {name.encode(): 1}


def test_counters_start_from_zero(restarted: Nsqd) -> None:
    stats = topic_stats(restarted, "emptied")
    assert (stats["message_count"], stats["message_bytes"]) == (0, 0)
    assert restarted.channel_stats("emptied", "ch")["message_count"] == 0


def test_what_was_deleted_stays_deleted(restarted: Nsqd, connect: Connect) -> None:
    assert topic_stats(restarted, "deleted") == {}
    assert restarted.channel_stats("pauses", "gone") == {}
    session = connect(restarted)
    session.publish("deleted", b"new")
    assert take(session, "deleted", "ch", 1) == {b"new": 1}


def test_what_was_emptied_stays_empty(restarted: Nsqd) -> None:
    await_channel(restarted, "emptied", "ch", depth=0, in_flight_count=0)


def test_ephemeral_names_are_gone(restarted: Nsqd) -> None:
    assert topic_stats(restarted, "fleeting#ephemeral") == {}
    assert restarted.channel_stats("pauses", "fleeting#ephemeral") == {}


def test_pauses_and_what_they_hold_back_are_found_again(restarted: Nsqd, connect: Connect) -> None:
    consumer = connect(restarted)
    topic = topic_stats(restarted, "pauses")
    assert (topic["paused"], topic["depth"]) == (True, 1)
    paused = {c["channel_name"]: (c["paused"], c["depth"]) for c in topic["channels"]}
    assert paused == {"paused": (True, 1), "running": (False, 1)}
    assert take(consumer, "pauses", "running", 1) == {b"before": 1}
    act(restarted, "/topic/unpause", topic="pauses")
    consumer.send(b"RDY 5\n")
    assert consumer.message().body == b"held back"
    await_channel(restarted, "pauses", "paused", paused=True, depth=2)


@pytest.fixture(scope="module")
def deliveries(restarted: Nsqd) -> dict[bytes, int]:
    """Bodies and attempts that the topic of that name gives after the restart."""
    session = Session(RawClient(restarted.tcp_port))
    session.subscribe("deliveries", "ch", ready=10)
    received = {m.body: m.attempts for m in session.messages(4)}
    session.close()
    return received


def test_in_flight_messages_come_again_with_their_attempts(deliveries: dict[bytes, int]) -> None:
    expected = {b"in flight": 2, b"in flight, thrice": 4, b"requeued": 2, b"queued": 1}
    # The original gives the deferred one out at once, in any order with the others.
    found = {body: attempts for body, attempts in deliveries.items() if body in expected}
    assert found.items() <= expected.items()
    assert len(found) >= 3


def test_finished_messages_do_not_come_again(deliveries: dict[bytes, int]) -> None:
    assert b"finished" not in deliveries


@pytest.mark.deviation
def test_deferral_survives_a_restart(restarted: Nsqd, deliveries: dict[bytes, int]) -> None:
    assert b"deferred" not in deliveries
    for channel in ("ch", "deferred"):
        await_channel(restarted, "deliveries", channel, deferred_count=1)


def test_ids_stay_unique_across_a_restart(own_nsqd: Nsqd, connect: Connect, topic: str) -> None:
    own_nsqd.start()
    producer = connect(own_nsqd)
    assert producer.request(mpub(topic, BATCH)) == OK
    own_nsqd.restart()
    consumer = connect(own_nsqd)
    assert consumer.request(mpub(topic, BATCH)) == OK
    consumer.subscribe(topic, "ch", ready=2000)
    assert len({message.id for message in consumer.messages(2000)}) == 2000


def metadata_topics(nsqd: Nsqd) -> list[dict[str, object]] | None:
    """The topics of nsqd.dat, whose layout is checked on the way."""
    text = (nsqd.data_path / "nsqd.dat").read_text()
    metadata = json.loads(text)
    assert text == json.dumps(metadata, separators=(",", ":"))
    assert list(metadata) == ["topics", "version"]
    assert metadata["version"] == "1.3.0"
    topics: list[dict[str, object]] | None = metadata["topics"]
    return topics


def test_metadata_file(own_nsqd: Nsqd, topic: str) -> None:
    own_nsqd.start()
    assert metadata_topics(own_nsqd) is None
    act(own_nsqd, "/topic/create", topic=topic)
    created = {"name": topic, "paused": False, "channels": None}
    wait_until(lambda: metadata_topics(own_nsqd) == [created])
    act(own_nsqd, "/channel/create", topic=topic, channel="ch")
    running_channels = [{"name": "ch", "paused": False}]
    wait_until(lambda: metadata_topics(own_nsqd) == [{**created, "channels": running_channels}])
    # A pause is on disk by the time it is answered.
    act(own_nsqd, "/channel/pause", topic=topic, channel="ch")
    paused_channels = [{"name": "ch", "paused": True}]
    assert metadata_topics(own_nsqd) == [{**created, "channels": paused_channels}]
    act(own_nsqd, "/topic/pause", topic=topic)
    paused = {**created, "paused": True, "channels": paused_channels}
    assert metadata_topics(own_nsqd) == [paused]
    act(own_nsqd, "/topic/unpause", topic=topic)
    act(own_nsqd, "/channel/delete", topic=topic, channel="ch")
    assert own_nsqd.stop() == 0
    assert metadata_topics(own_nsqd) == [created]
    assert list(own_nsqd.data_path.glob("*.tmp")) == []


@pytest.mark.deviation
def test_deletions_are_written_down_while_running(own_nsqd: Nsqd, topic: str) -> None:
    """The original may write the file just before the name leaves its map, and not after."""
    own_nsqd.start()
    act(own_nsqd, "/topic/create", topic=topic)
    act(own_nsqd, "/channel/create", topic=topic, channel="ch")
    act(own_nsqd, "/channel/delete", topic=topic, channel="ch")
    created = {"name": topic, "paused": False, "channels": None}
    wait_until(lambda: metadata_topics(own_nsqd) == [created])
    act(own_nsqd, "/topic/delete", topic=topic)
    wait_until(lambda: metadata_topics(own_nsqd) is None)


def test_metadata_written_by_hand_is_obeyed(own_nsqd: Nsqd) -> None:
    metadata = {
        "topics": [
            {"name": "a", "paused": True, "channels": [{"name": "x", "paused": True}]},
            {"name": "not valid", "paused": False, "channels": None},
            {"name": "b", "channels": [{"name": "not valid"}, {"name": "y"}], "extra": 1},
        ],
        "version": "0.0.0",
    }
    own_nsqd.data_path.mkdir()
    (own_nsqd.data_path / "nsqd.dat").write_text(json.dumps(metadata))
    own_nsqd.start()
    topics = {
        topic["topic_name"]: (
            topic["paused"],
            [(channel["channel_name"], channel["paused"]) for channel in topic["channels"]],
        )
        for topic in own_nsqd.stats()["topics"]
    }
    assert topics == {"a": (True, [("x", True)]), "b": (False, [("y", False)])}


def test_metadata_that_is_no_json_stops_the_start(own_nsqd: Nsqd) -> None:
    own_nsqd.data_path.mkdir()
    (own_nsqd.data_path / "nsqd.dat").write_text("{")
    with pytest.raises(AssertionError):
        own_nsqd.start()
    assert own_nsqd.process.wait() == 1
    assert "failed to load metadata - failed to parse metadata in " in own_nsqd.log_text()
    assert (own_nsqd.data_path / "nsqd.dat").read_text() == "{"


def test_data_directory_is_locked(own_nsqd: Nsqd, tmp_path: Path) -> None:
    own_nsqd.start()
    (tmp_path / "elsewhere").mkdir()
    intruder = Nsqd(tmp_path / "elsewhere" / "data", [f"--data-path={own_nsqd.data_path}"])
    with pytest.raises(AssertionError):
        intruder.start()
    assert intruder.process.wait() == 1
    assert f"cannot flock directory {own_nsqd.data_path}" in intruder.log_text()
    assert own_nsqd.is_running


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_stop_closes_connections_without_a_word(
    own_nsqd: Nsqd, connect: Connect, topic: str, signal_number: signal.Signals
) -> None:
    own_nsqd.start()
    consumer, producer = connect(own_nsqd), connect(own_nsqd)
    consumer.subscribe(topic, "ch", ready=1)
    producer.publish(topic, b"x")
    consumer.message()
    own_nsqd.process.send_signal(signal_number)
    assert consumer.until_closed() == producer.until_closed() == []
    assert own_nsqd.process.wait(10) == 0
