"""Tests with a real nsqd in the same process: the fixture `nsqd` comes with pumpline.

pytest examples/test_orders.py
"""

from pumpline.sync import Consumer, Producer
from pumpline.testing import LocalNsqd


def place_order(nsqd_address: str, number: int) -> None:
    """The function under test: it publishes to two topics."""
    with Producer(nsqd_address) as producer:
        producer.publish("orders", b"%d" % number)
        producer.publish("reminders", b"%d" % number, defer=3600)


def test_an_order_is_published(nsqd: LocalNsqd) -> None:
    place_order(nsqd.tcp_address, 7)
    consumer = Consumer("orders", "test", nsqd=nsqd.tcp_address)
    with consumer:
        message = next(iter(consumer))
        assert message.body == b"7"
        message.finish()
    nsqd.wait_until_done("orders", "test")


def test_a_reminder_waits(nsqd: LocalNsqd) -> None:
    nsqd.post("/topic/create?topic=reminders")
    nsqd.post("/channel/create?topic=reminders&channel=mail")
    place_order(nsqd.tcp_address, 7)
    assert nsqd.stats("reminders", "mail")["deferred_count"] == 1


def test_nsqd_may_be_away_for_a_while(nsqd: LocalNsqd) -> None:
    with Producer(nsqd.tcp_address) as producer:
        producer.publish("orders", b"1")
        nsqd.restart()
        producer.publish("orders", b"2")
    assert nsqd.depth("orders") == 2
