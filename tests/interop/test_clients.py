"""What the users of pynsq, ansq, gnsq, nsqjs and go-nsq rely on, seen from inside each library.

Every test runs once for each library, against a real nsqd, over the library's own public calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.interop.client_process import CLIENTS, DEFLATE_CLIENTS, ClientProcess, Delivery

pytestmark = pytest.mark.interop
every_client = pytest.mark.parametrize("client_name", CLIENTS)

MSG_TIMEOUT_MS = 1000  # the least that nsqd grants
TOUCH_INTERVAL_S = 0.2
HEARTBEAT_INTERVAL_S = 1
# Past two heartbeat intervals: by then nsqd has dropped a client that answers none.
DEFER_MS = 2500
REQUEUE_DELAY_MS = 1000


@every_client
def test_every_published_body_arrives_once_and_unchanged(
    nsqd: Nsqd, client: ClientProcess, topic: str
) -> None:
    singles = [b"single %d" % number for number in range(100)]
    unusual = [bytes(range(256)), b"\n", b"\x00" * 5, b"x" * 200_000]
    batch = [b"batch %d" % number for number in range(100)]
    client.consume("a", topic, "ch", auto_finish=True, max_in_flight=25)
    client.publish(topic, singles + unusual)
    client.multi_publish(topic, batch)

    deliveries = client.wait_for_deliveries(204)

    assert Counter(bodies(deliveries)) == Counter(singles + unusual + batch)
    assert {delivery.attempts for delivery in deliveries} == {1}
    assert len({delivery.id for delivery in deliveries}) == 204
    wait_until(drained(nsqd, topic, "ch"))
    channel = nsqd.channel_stats(topic, "ch")
    assert channel["message_count"] == 204
    assert [consumer["finish_count"] for consumer in channel["clients"]] == [204]


@pytest.mark.slow
@every_client
def test_deferred_publish_arrives_later_on_a_connection_kept_alive_by_heartbeats(
    nsqd: Nsqd, client: ClientProcess, topic: str
) -> None:
    client.consume("a", topic, "ch", auto_finish=True, heartbeat_interval_s=HEARTBEAT_INTERVAL_S)
    wait_until(lambda: nsqd.channel_stats(topic, "ch").get("client_count") == 1)
    client.deferred_publish(topic, b"later", DEFER_MS)
    wait_until(lambda: nsqd.channel_stats(topic, "ch")["deferred_count"] == 1)
    connections_before = remote_addresses(nsqd, topic, "ch")
    client.publish(topic, [b"now"])

    deliveries = client.wait_for_deliveries(2)

    assert bodies(deliveries) == [b"now", b"later"]
    assert remote_addresses(nsqd, topic, "ch") == connections_before
    wait_until(drained(nsqd, topic, "ch"))


@pytest.mark.slow
@every_client
def test_requeued_message_returns_with_attempts_raised(
    nsqd: Nsqd, client: ClientProcess, topic: str
) -> None:
    client.consume("a", topic, "ch", auto_finish=False)
    client.publish(topic, [b"again"])

    client.requeue(client.wait_for_deliveries(1)[0], delay_ms=0)
    client.requeue(client.wait_for_deliveries(2)[1], delay_ms=REQUEUE_DELAY_MS)
    client.finish(client.wait_for_deliveries(3)[2])

    assert [delivery.attempts for delivery in client.deliveries] == [1, 2, 3]
    assert len({(delivery.id, delivery.body) for delivery in client.deliveries}) == 1
    wait_until(drained(nsqd, topic, "ch"))
    assert nsqd.channel_stats(topic, "ch")["requeue_count"] == 2
    # The library backed off at each requeue; it must also find its way back.
    client.publish(topic, [b"next"])
    assert client.wait_for_deliveries(4)[3].body == b"next"


@pytest.mark.slow
@every_client
def test_touched_message_stays_owned_while_an_untouched_one_times_out(
    impatient_nsqd: Nsqd, impatient_client: ClientProcess, topic: str
) -> None:
    client = impatient_client
    client.consume(
        "a", topic, "ch", auto_finish=False, max_in_flight=2, msg_timeout_ms=MSG_TIMEOUT_MS
    )
    # Some libraries take more than one message only after the first is finished.
    client.publish(topic, [b"first"])
    client.finish(client.wait_for_deliveries(1)[0])
    client.publish(topic, [b"touched", b"left alone"])
    touched = next(
        delivery for delivery in client.wait_for_deliveries(3) if delivery.body == b"touched"
    )

    def attempts_of(body: bytes) -> list[int]:
        return [delivery.attempts for delivery in client.deliveries if delivery.body == body]

    def touch_until_the_other_timed_out_twice() -> bool:
        client.touch(touched)
        client.take_events_for(TOUCH_INTERVAL_S)
        return attempts_of(b"left alone") == [1, 2, 3]

    wait_until(touch_until_the_other_timed_out_twice, timeout_s=60)
    client.touch(touched)
    client.finish(client.deliveries[-1])
    client.finish(touched)

    wait_until(drained(impatient_nsqd, topic, "ch"))
    assert impatient_nsqd.channel_stats(topic, "ch")["timeout_count"] == 2
    assert attempts_of(b"touched") == [1]
    assert client.errors == []


@every_client
def test_consumers_of_one_channel_share_its_messages(
    nsqd: Nsqd, client: ClientProcess, topic: str
) -> None:
    for consumer in "abc":
        client.consume(consumer, topic, "ch", auto_finish=False)
    published = [b"%d" % number for number in range(30)]
    client.multi_publish(topic, published)

    # Each may hold one, so the first three must be with three different consumers.
    first_held = list(client.wait_for_deliveries(3))
    assert sorted(delivery.consumer for delivery in first_held) == ["a", "b", "c"]
    for number in range(30):
        client.finish(client.wait_for_deliveries(number + 1)[number])

    wait_until(drained(nsqd, topic, "ch"))
    assert Counter(bodies(client.deliveries)) == Counter(published)
    assert {delivery.attempts for delivery in client.deliveries} == {1}


@every_client
def test_each_channel_gets_every_message(nsqd: Nsqd, client: ClientProcess, topic: str) -> None:
    client.consume("left", topic, "left", auto_finish=True, max_in_flight=10)
    client.consume("right", topic, "right", auto_finish=True, max_in_flight=10)
    # A channel has only what is published after it was made.
    wait_until(lambda: nsqd.channel_stats(topic, "left") and nsqd.channel_stats(topic, "right"))
    published = [b"%d" % number for number in range(50)]
    client.multi_publish(topic, published)

    deliveries = client.wait_for_deliveries(100)

    for channel in ("left", "right"):
        received = [delivery for delivery in deliveries if delivery.consumer == channel]
        assert Counter(bodies(received)) == Counter(published)
        wait_until(drained(nsqd, topic, channel))


@every_client
def test_finish_of_a_message_no_longer_in_flight_leaves_the_connection_usable(
    nsqd: Nsqd, client: ClientProcess, topic: str
) -> None:
    client.consume("a", topic, "ch", auto_finish=False)
    client.publish(topic, [b"forgotten"])
    forgotten = client.wait_for_deliveries(1)[0]
    connections_before = remote_addresses(nsqd, topic, "ch")
    assert nsqd.http("POST", f"/channel/empty?topic={topic}&channel=ch")[0] == 200

    client.finish(forgotten)
    # The libraries dress the error's code differently, and keep the words after it.
    assert f"FIN {forgotten.id} failed ID not in flight" in client.wait_for_error()
    client.publish(topic, [b"next"])
    client.finish(client.wait_for_deliveries(2)[1])

    wait_until(drained(nsqd, topic, "ch"))
    assert bodies(client.deliveries) == [b"forgotten", b"next"]
    assert remote_addresses(nsqd, topic, "ch") == connections_before


@every_client
def test_closed_consumer_is_gone_and_leaves_the_rest_to_the_next(
    nsqd: Nsqd, client: ClientProcess, topic: str
) -> None:
    client.consume("a", topic, "ch", auto_finish=False)
    client.publish(topic, [b"one"])
    client.finish(client.wait_for_deliveries(1)[0])
    wait_until(drained(nsqd, topic, "ch"))
    client.close("a")
    wait_until(lambda: nsqd.channel_stats(topic, "ch")["client_count"] == 0)

    client.multi_publish(topic, [b"two", b"three"])
    wait_until(lambda: nsqd.channel_stats(topic, "ch")["depth"] == 2)
    client.consume("b", topic, "ch", auto_finish=True)

    later = client.wait_for_deliveries(3)[1:]
    assert sorted((found.consumer, found.attempts, found.body) for found in later) == [
        ("b", 1, b"three"),
        ("b", 1, b"two"),
    ]
    wait_until(drained(nsqd, topic, "ch"))
    client.close("b")
    assert client.leave() == 0
    assert client.errors == []
    wait_until(lambda: nsqd.channel_stats(topic, "ch")["client_count"] == 0)


@pytest.mark.parametrize("client_name", DEFLATE_CLIENTS)
def test_deflate_stream_carries_every_message(
    nsqd: Nsqd, client: ClientProcess, topic: str
) -> None:
    client.consume("a", topic, "ch", auto_finish=True, max_in_flight=10, deflate=True)
    published = [b"%d " % number * 1000 for number in range(100)]
    client.multi_publish(topic, published)

    assert Counter(bodies(client.wait_for_deliveries(100))) == Counter(published)
    wait_until(drained(nsqd, topic, "ch"))
    consumers = nsqd.channel_stats(topic, "ch")["clients"]
    assert [consumer["deflate"] for consumer in consumers] == [True]


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


def remote_addresses(nsqd: Nsqd, topic: str, channel: str) -> list[str]:
    return [found["remote_address"] for found in nsqd.channel_stats(topic, channel)["clients"]]


def drained(nsqd: Nsqd, topic: str, channel: str) -> Callable[[], bool]:
    """Whether nothing of the channel is queued, in flight or deferred."""

    def is_drained() -> bool:
        counters = nsqd.channel_stats(topic, channel)
        return not any(counters[name] for name in ("depth", "in_flight_count", "deferred_count"))

    return is_drained
