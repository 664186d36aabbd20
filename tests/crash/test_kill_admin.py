"""What was done to topics and channels stays done, though the daemon is killed right after it."""

import pytest

from tests.crash.conftest import NewNsqd
from tests.crash.test_kill import kill_under_load
from tests.kit.crash.killable_nsqd import (
    KillableNsqd,
    await_checkpoint,
    create_channel,
    drain,
    until_barrier,
)
from tests.kit.crash.ledger import Ledger
from tests.kit.crash.load import Load
from tests.kit.daemons import wait_until

SEEDS = (3,)
SENT = [b"%d" % number for number in range(50)]


@pytest.fixture
def nsqd(new_nsqd: NewNsqd) -> KillableNsqd:
    """A daemon whose topic t has channels a and b, with the same messages waiting in both."""
    nsqd = new_nsqd().start()
    create_channel(nsqd, "t", "a")
    create_channel(nsqd, "t", "b")
    with nsqd.connect() as client:
        client.mpub("t", SENT)
    await_metadata(nsqd, b'"a"', b'"b"')
    return nsqd


def await_metadata(nsqd: KillableNsqd, *names: bytes) -> None:
    """Waits until nsqd.dat has all of these: what is done next is then the only thing pending."""
    path = nsqd.data_path / "nsqd.dat"
    wait_until(lambda: all(name in path.read_bytes() for name in names))


def kill_and_start(nsqd: KillableNsqd) -> None:
    nsqd.kill()
    nsqd.again()


def test_deleted_channel_stays_deleted(nsqd: KillableNsqd) -> None:
    nsqd.act("/channel/delete", topic="t", channel="a")
    kill_and_start(nsqd)
    assert nsqd.channel_stats("t", "a") == {}
    assert nsqd.depth("t", "b") == len(SENT)
    # Made anew it starts at the end, as a new channel does.
    assert drain(nsqd, "t", "a", 0) == []


def test_deleted_last_channel_leaves_nothing_to_the_next(nsqd: KillableNsqd) -> None:
    drain(nsqd, "t", "b", len(SENT))
    nsqd.act("/channel/delete", topic="t", channel="a")
    nsqd.act("/channel/delete", topic="t", channel="b")
    kill_and_start(nsqd)
    assert nsqd.stats("t")["topics"][0]["channels"] == []
    assert drain(nsqd, "t", "c", 0) == []


def test_deleted_topic_stays_deleted(nsqd: KillableNsqd) -> None:
    nsqd.act("/topic/delete", topic="t")
    kill_and_start(nsqd)
    assert not nsqd.stats("t")["topics"]
    assert not nsqd.topic_path("t").exists()


def test_topic_deleted_and_made_again_has_only_what_is_new(nsqd: KillableNsqd) -> None:
    nsqd.act("/topic/delete", topic="t")
    create_channel(nsqd, "t", "b")
    with nsqd.connect() as client:
        client.publish("t", b"new")
    kill_and_start(nsqd)
    assert nsqd.channel_stats("t", "a") == {}
    assert [message.body for message in drain(nsqd, "t", "b", 1)] == [b"new"]


def test_paused_channel_stays_paused(nsqd: KillableNsqd) -> None:
    nsqd.act("/channel/pause", topic="t", channel="a")
    kill_and_start(nsqd)
    with nsqd.connect() as client:
        client.sub("t", "a")
        client.rdy(1)
        assert drain(nsqd, "t", "b", len(SENT))
        assert until_barrier(client) == []
        assert nsqd.depth("t", "a") == len(SENT)
    nsqd.act("/channel/unpause", topic="t", channel="a")
    kill_and_start(nsqd)
    assert [message.body for message in drain(nsqd, "t", "a", len(SENT))] == SENT


def test_paused_topic_stays_paused_and_keeps_what_it_holds(nsqd: KillableNsqd) -> None:
    nsqd.act("/topic/pause", topic="t")
    with nsqd.connect() as client:
        client.publish("t", b"while paused")
    kill_and_start(nsqd)
    assert nsqd.stats("t")["topics"][0]["depth"] == 1
    assert [message.body for message in drain(nsqd, "t", "a", len(SENT))] == SENT
    nsqd.act("/topic/unpause", topic="t")
    kill_and_start(nsqd)
    assert [message.body for message in drain(nsqd, "t", "b", len(SENT) + 1)] == [
        *SENT,
        b"while paused",
    ]


def test_emptied_channel_stays_empty(nsqd: KillableNsqd) -> None:
    with nsqd.connect() as client:
        client.sub("t", "a")
        client.rdy(5)
        for _ in range(5):
            client.read_message()
        nsqd.act("/channel/empty", topic="t", channel="a")
        await_checkpoint(nsqd, "t", "a")
        nsqd.kill()
    nsqd.again()
    assert nsqd.depth("t", "a") == 0
    with nsqd.connect() as client:
        client.publish("t", b"new")
    assert [message.body for message in drain(nsqd, "t", "a", 1)] == [b"new"]
    assert nsqd.depth("t", "b") == len(SENT) + 1


def test_emptied_topic_stays_empty(new_nsqd: NewNsqd) -> None:
    nsqd = new_nsqd().start()
    with nsqd.connect() as client:
        client.mpub("t", SENT)
    nsqd.act("/topic/empty", topic="t")
    with nsqd.connect() as client:
        client.publish("t", b"new")
    kill_and_start(nsqd)
    assert [message.body for message in drain(nsqd, "t", "c", 1)] == [b"new"]


def test_messages_that_an_ephemeral_channel_finished_do_not_wait_for_the_next(
    new_nsqd: NewNsqd,
) -> None:
    nsqd = new_nsqd().start()
    with nsqd.connect() as producer, nsqd.connect() as consumer:
        consumer.sub("t", "tail#ephemeral")
        consumer.rdy(100)
        producer.mpub("t", SENT)
        for _ in SENT:
            consumer.fin(consumer.read_message().id)
        until_barrier(consumer)
        # A channel beside it is the clock: its state is written later than the other's could be.
        create_channel(nsqd, "clock", "c")
        await_checkpoint(nsqd, "clock", "c")
        nsqd.kill()
    nsqd.again()
    assert drain(nsqd, "t", "c", 0) == []


@pytest.mark.slow
def test_paused_channel_has_everything_after_kills_under_load(new_nsqd: NewNsqd, seed: int) -> None:
    nsqd = new_nsqd().start()
    ledger = Ledger()
    for channel in ("running", "paused", "deleted"):
        create_channel(nsqd, "t", channel)
    nsqd.act("/channel/pause", topic="t", channel="paused")
    ledger.open_books("t", "running")
    ledger.open_books("t", "paused")
    for run in range(3):
        load = Load(nsqd, ledger, seed)
        load.consume("t", "running")
        load.consume("t", "paused")  # what it gets before the end would be an early delivery
        load.publish("mpub", ["t", "gone"])
        load.publish("dpub", ["t", "gone"])
        if run == 1:
            nsqd.act("/channel/delete", topic="t", channel="deleted")
        kill_under_load(nsqd, ledger, load, 0.2 + 0.1 * run)
        nsqd.again()
        assert ledger.deliveries("t", "paused") == 0
    assert nsqd.channel_stats("t", "deleted") == {}
    nsqd.act("/topic/delete", topic="gone")
    nsqd.act("/channel/unpause", topic="t", channel="paused")
    kill_and_start(nsqd)
    assert not nsqd.stats("gone")["topics"]
    load = Load(nsqd, ledger, seed)
    load.consume("t", "running", finish_all=True)
    load.consume("t", "paused", finish_all=True)
    ledger.await_nothing_outstanding(20)
    load.stop()
    assert not ledger.faults, "\n".join(ledger.faults[:50])
    assert {key: len(bodies) for key, bodies in ledger.outstanding().items()} == {}
