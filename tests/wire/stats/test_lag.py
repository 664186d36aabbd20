"""The lag of a channel: the age of its oldest message that is neither finished nor deferred."""

import time
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.go_diskqueues import Stored, write_queue
from tests.kit.wire.admin import act
from tests.kit.wire.commands import dpub, req
from tests.kit.wire.session import Connect
from tests.wire.stats.test_prometheus import scrape
from tests.wire.storage.test_go_import import write_metadata

pytestmark = pytest.mark.deviation

NS_PER_S = 1_000_000_000
DELAY_MS = 300


class Lag:
    """What a scrape said, between two readings of the clock."""

    def __init__(self, nsqd: Nsqd, topic: str, channel: str = "ch") -> None:
        before_ns = time.time_ns()
        found = scrape(nsqd, f"?topic={topic}")
        after_ns = time.time_ns()
        where = frozenset({"topic": topic, "channel": channel}.items())
        self.seconds = found[("nsqd_channel_lag_seconds", where)]
        self._bounds_ns = before_ns, after_ns

    def is_since(self, time_ns: int) -> bool:
        first, last = (each - time_ns for each in self._bounds_ns)
        rounding = 0.001
        return first / NS_PER_S - rounding <= self.seconds <= last / NS_PER_S + rounding


def test_it_is_the_age_of_the_oldest_message_until_that_is_finished(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=1)
    assert Lag(nsqd, topic).seconds == 0
    producer.publish(topic, b"1")
    first = consumer.message()
    producer.publish(topic, b"2")
    assert Lag(nsqd, topic).is_since(first.timestamp_ns)
    consumer.finish(first)
    second = consumer.message()
    assert second.timestamp_ns > first.timestamp_ns
    assert Lag(nsqd, topic).is_since(second.timestamp_ns)
    consumer.finish(second)
    consumer.before_barrier()
    assert Lag(nsqd, topic).seconds == 0


def test_deferred_messages_do_not_count(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=2)
    producer.request(dpub(topic, 60_000, b"much later"))
    assert Lag(nsqd, topic).seconds == 0
    producer.publish(topic, b"retried", b"waits")
    retried, waits = consumer.messages(2)
    consumer.send(req(retried.id, 60_000))
    consumer.before_barrier()
    assert Lag(nsqd, topic).is_since(waits.timestamp_ns)
    consumer.finish(waits)
    consumer.before_barrier()
    assert Lag(nsqd, topic).seconds == 0


def test_a_delayed_message_counts_from_when_it_is_due(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=2)
    producer.send(dpub(topic, DELAY_MS, b"later"))
    delayed = consumer.message()
    due_ns = delayed.timestamp_ns + DELAY_MS * 1_000_000
    assert Lag(nsqd, topic).is_since(due_ns)
    consumer.send(req(delayed.id, 0))
    assert consumer.message().id == delayed.id
    assert Lag(nsqd, topic).is_since(due_ns)


def test_a_delayed_message_that_is_due_does_not_hide_an_older_one(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=2)
    producer.request(dpub(topic, DELAY_MS, b"later"))
    producer.publish(topic, b"now")
    now, later = consumer.messages(2)
    assert (now.body, later.body) == (b"now", b"later")
    assert Lag(nsqd, topic).is_since(now.timestamp_ns)
    consumer.finish(now)
    consumer.before_barrier()
    assert Lag(nsqd, topic).is_since(later.timestamp_ns + DELAY_MS * 1_000_000)


def test_it_is_known_after_a_restart(own_nsqd: Nsqd, connect: Connect) -> None:
    own_nsqd.flags += ["--mem-queue-size=1"]
    with own_nsqd:
        act(own_nsqd, "/topic/create", topic="t")
        act(own_nsqd, "/channel/create", topic="t", channel="ch")
        consumer = connect(own_nsqd)
        connect(own_nsqd).publish("t", *(b"%d" % index for index in range(20)))
        consumer.subscribe("t", "ch", ready=1)
        oldest = consumer.message().timestamp_ns
        for stop in (own_nsqd.stop, own_nsqd.kill):
            stop()
            own_nsqd.start()
            assert Lag(own_nsqd, "t").is_since(oldest)


def test_imported_messages_count_from_their_import(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    write_metadata(directory, {"orders": ["ch"]})
    published_ns = 1_600_000_000_000_000_000  # years ago
    write_queue(directory, "orders:ch", [Stored(b"%d" % n, 0, published_ns) for n in range(3)])
    before_ns = time.time_ns()
    with Nsqd(directory) as nsqd:
        lag = Lag(nsqd, "orders")
        assert 0 < lag.seconds <= (time.time_ns() - before_ns) / NS_PER_S
        nsqd.restart()
        again = Lag(nsqd, "orders")
        assert lag.seconds < again.seconds <= (time.time_ns() - before_ns) / NS_PER_S


def test_a_hold_has_one_as_well(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    act(nsqd, "/topic/create", topic=topic)
    act(nsqd, "/hold/create", topic=topic, hold="reader", to="beginning")
    connect().publish(topic, b"unread")
    where = frozenset({"topic": topic, "hold": "reader"}.items())
    found = scrape(nsqd, f"?topic={topic}")
    assert found[("nsqd_hold_lag_seconds", where)] > 0
