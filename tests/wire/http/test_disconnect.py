"""POST /channel/disconnect: one consumer of a channel is sent away, and others get its messages."""

import json
from urllib.parse import urlencode

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.wire.admin import act, await_channel, await_no_channel
from tests.kit.wire.session import Connect, Session, bodies
from tests.kit.wire.web import Answer, ask

pytestmark = pytest.mark.deviation  # NSQ has no such thing


def disconnect(nsqd: Nsqd, topic: str, client: str, channel: str = "ch") -> Answer:
    query = urlencode({"topic": topic, "channel": channel, "client": client})
    return ask(nsqd, "POST", f"/channel/disconnect?{query}")


def address(session: Session) -> str:
    """As /stats shows it."""
    return "{}:{}".format(*session.raw.socket.getsockname())


def test_others_get_its_messages_at_once(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    first, second, producer = connect(), connect(), connect()
    first.subscribe(topic, "ch", ready=3)
    second.subscribe(topic, "ch")
    producer.publish(topic, b"0", b"1", b"2", b"3")
    held = first.messages(3)
    first.finish(held[0])
    assert first.message().body == b"3"
    answer = disconnect(nsqd, topic, address(first))
    assert answer.json() == {"in_flight": 3}
    assert first.until_closed() == []
    (left,) = nsqd.channel_stats(topic, "ch")["clients"]
    assert left["remote_address"] == address(second)
    second.send(b"RDY 10\n")
    got = second.messages(3)
    assert sorted(bodies(got)) == [b"1", b"2", b"3"]
    assert {message.attempts for message in got} == {2}
    second.finish(*got)
    assert second.before_barrier() == []


def test_a_second_time_it_is_not_found(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    consumer = connect()
    consumer.subscribe(topic, "ch")
    assert disconnect(nsqd, topic, address(consumer)).json() == {"in_flight": 0}
    answer = disconnect(nsqd, topic, address(consumer))
    assert (answer.status, answer.code) == (404, "CLIENT_NOT_FOUND")
    assert consumer.until_closed() == []


def test_it_may_come_back(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=1)
    producer.publish(topic, b"x")
    assert consumer.message().body == b"x"
    assert disconnect(nsqd, topic, address(consumer)).status == 200
    again = connect()
    again.subscribe(topic, "ch", ready=1)
    assert again.message().body == b"x"


def test_a_client_of_something_else_stays(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    own, other, elsewhere, producer = connect(), connect(), connect(), connect()
    own.subscribe(topic, "ch")
    other.subscribe(topic, "other")
    elsewhere.subscribe(f"{topic}-2", "ch")
    producer.publish(f"{topic}-2", b"x")
    for session in (other, elsewhere, producer):
        answer = disconnect(nsqd, topic, address(session))
        assert (answer.status, answer.code) == (404, "CLIENT_NOT_FOUND")
    for session in (own, other, elsewhere):
        assert session.before_barrier() == []
    producer.publish(topic, b"y")
    await_channel(nsqd, topic, "ch", client_count=1, depth=1)


def test_what_it_sent_before_counts(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=2)
    producer.publish(topic, b"0", b"1")
    done, _ = consumer.messages(2)
    consumer.finish(done)
    assert consumer.before_barrier() == []
    assert disconnect(nsqd, topic, address(consumer)).json() == {"in_flight": 1}
    await_channel(nsqd, topic, "ch", client_count=0, in_flight_count=0, depth=1)


def test_a_message_out_of_attempts_is_a_dead_letter(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    act(nsqd, "/topic/create", topic=topic)
    assert ask(nsqd, "POST", f"/topic/settings?topic={topic}", b'{"max_attempts":1}').status == 200
    consumer, other, producer = connect(), connect(), connect()
    consumer.subscribe(topic, "ch", ready=1)
    producer.publish(topic, b"x")
    consumer.message()
    assert disconnect(nsqd, topic, address(consumer)).status == 200
    other.subscribe(f"{topic}.dlq", "look", ready=1)
    assert json.loads(other.message().body)["body"] == "x"
    await_channel(nsqd, topic, "ch", depth=0, in_flight_count=0)


def test_an_ephemeral_channel_goes_with_its_last_consumer(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    one, two = connect(), connect()
    for session in (one, two):
        session.subscribe(topic, "ch#ephemeral")
    assert disconnect(nsqd, topic, address(one), "ch#ephemeral").status == 200
    await_channel(nsqd, topic, "ch#ephemeral", client_count=1)
    assert disconnect(nsqd, topic, address(two), "ch#ephemeral").status == 200
    await_no_channel(nsqd, topic, "ch#ephemeral")
    assert disconnect(nsqd, topic, address(two), "ch#ephemeral").code == "CHANNEL_NOT_FOUND"


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("", 400, "MISSING_ARG_TOPIC"),
        ("topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("topic=t&channel=c", 400, "MISSING_ARG_CLIENT"),
        ("topic=a%20b&channel=c&client=1.2.3.4:5", 400, "INVALID_ARG_TOPIC"),
        ("topic=t&channel=a%20b&client=1.2.3.4:5", 400, "INVALID_ARG_CHANNEL"),
        ("topic=nobody&channel=c&client=1.2.3.4:5", 404, "TOPIC_NOT_FOUND"),
        ("topic=t&channel=nobody&client=1.2.3.4:5", 404, "CHANNEL_NOT_FOUND"),
        ("topic=t&channel=c&client=1.2.3.4:5", 404, "CLIENT_NOT_FOUND"),
        ("topic=t&channel=c&client=", 404, "CLIENT_NOT_FOUND"),
        ("topic=t&channel=c&client=%00%ff", 404, "CLIENT_NOT_FOUND"),
    ],
)
def test_bad_requests_are_refused(nsqd: Nsqd, query: str, status: int, code: str) -> None:
    act(nsqd, "/topic/create", topic="t")
    act(nsqd, "/channel/create", topic="t", channel="c")
    answer = ask(nsqd, "POST", f"/channel/disconnect?{query}")
    assert (answer.status, answer.code) == (status, code)
    assert ask(nsqd, "GET", f"/channel/disconnect?{query}").status == 405
