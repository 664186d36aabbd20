"""docs/recipes.md: every program runs."""

from datetime import UTC, datetime

from pumpline.sync import Producer
from pumpline.testing import LocalNsqd
from tests.kit.programs import end, namespace_of, programs, run, running, with_ports

PRIORITIES, REQUESTS, RATE, SCHEDULE = programs("recipes.md")


def test_both_priorities_are_handled(nsqd: LocalNsqd) -> None:
    for topic in ("orders.high", "orders.low"):
        nsqd.publish(topic, *(b"%d" % number for number in range(20)))
    with running("-c", with_ports(PRIORITIES, nsqd)) as worker:
        for topic in ("orders.high", "orders.low"):
            nsqd.wait_until_done(topic, "billing", timeout_s=60)
        printed = end(worker)
    assert printed.count("billed orders.high") == printed.count("billed orders.low") == 20


def test_requests_are_replied_to(nsqd: LocalNsqd) -> None:
    assert run("-c", with_ports(REQUESTS, nsqd)) == "[0, 1, 4, 9, 16]\n"
    nsqd.wait_until_done("squares", "workers")
    topics = {each["topic_name"] for each in nsqd.stats()["topics"]}
    assert topics == {"squares"}  # the topic of the replies is gone with the requester


def test_a_rate_is_kept_and_all_messages_are_handled(nsqd: LocalNsqd) -> None:
    nsqd.publish("orders", *(b"%d" % number for number in range(30)))
    with running("-c", with_ports(RATE, nsqd)) as worker:
        nsqd.wait_until_done("orders", "partner", timeout_s=60)
        assert end(worker).count("call the partner's API with") == 30


def test_a_job_is_published_once_by_all_schedulers(nsqd: LocalNsqd) -> None:
    one, another = namespace_of(SCHEDULE, nsqd), namespace_of(SCHEDULE, nsqd)
    night = datetime(2026, 3, 1, 2, 59, tzinfo=UTC)
    morning = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
    for scheduler in (one, another, one):
        with Producer(nsqd.tcp_address) as producer:
            scheduler.publish(producer, scheduler.last_due(night))
            scheduler.publish(producer, scheduler.last_due(morning))
    assert nsqd.messages("reports") == [
        b'{"report":"sales","day":"2026-02-28"}',
        b'{"report":"sales","day":"2026-03-01"}',
    ]
