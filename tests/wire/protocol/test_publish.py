"""PUB, MPUB and DPUB: names, limits, layouts, and what is queued when something is wrong."""

import time

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.wire.admin import await_channel, topic_stats
from tests.kit.wire.commands import dpub, mpub, mpub_body, pub, sized, u32
from tests.kit.wire.session import FRAME_ERROR, OK, Connect, bodies

MSG_BYTES_MAX = 1048576
BODY_BYTES_MAX = 5242880

VALID_NAMES = [
    "a",
    ".",
    "..",
    "-",
    "_",
    "0",
    "nsqd.dat",
    "a.b-c_D9",
    "x" * 64,
    "x" * 54 + "#ephemeral",
    "a#ephemeral",
    ".#ephemeral",
]
INVALID_NAMES = [
    "x" * 65,
    "x" * 55 + "#ephemeral",
    "#ephemeral",
    "a#b",
    "a#",
    "a#Ephemeral",
    "a#ephemeral#ephemeral",
    "#ephemerala",
    "a/b",
    "a:b",
    "a*",
    "a\\b",
    "é",
]


@pytest.mark.parametrize("name", VALID_NAMES)
def test_valid_names_are_accepted_for_topics_and_channels(
    nsqd: Nsqd, connect: Connect, name: str
) -> None:
    producer, consumer = connect(), connect()
    for command in (pub(name, b"1"), mpub(name, [b"2"]), dpub(name, 0, b"3")):
        assert producer.request(command) == OK
    consumer.subscribe(name, name, ready=10)
    received = consumer.messages(3)
    assert bodies(received) == [b"1", b"2", b"3"]
    consumer.finish(*received)
    await_channel(nsqd, name, name, in_flight_count=0)


@pytest.mark.parametrize("name", INVALID_NAMES)
def test_invalid_names_are_refused_for_topics_and_channels(
    connect: Connect, topic: str, name: str
) -> None:
    quoted = '"' + name.replace("\\", "\\\\") + '"'
    cases = {
        f"PUB {name}\n": f"E_BAD_TOPIC PUB topic name {quoted} is not valid",
        f"MPUB {name}\n": f"E_BAD_TOPIC E_BAD_TOPIC MPUB topic name {quoted} is not valid",
        f"DPUB {name} 0\n": f"E_BAD_TOPIC DPUB topic name {quoted} is not valid",
        f"SUB {name} ch\n": f"E_BAD_TOPIC SUB topic name {quoted} is not valid",
        f"SUB {topic} {name}\n": f"E_BAD_CHANNEL SUB channel name {quoted} is not valid",
    }
    for line, text in cases.items():
        session = connect()
        session.send(line.encode())
        assert session.until_closed() == [(FRAME_ERROR, text.encode())]


def test_names_that_differ_in_case_are_different(connect: Connect, topic: str) -> None:
    producer, lower, upper = connect(), connect(), connect()
    producer.publish(topic.lower(), b"lower")
    producer.publish(topic.upper(), b"upper")
    lower.subscribe(topic.lower(), "ch", ready=1)
    upper.subscribe(topic.upper(), "ch", ready=1)
    assert (lower.message().body, upper.message().body) == (b"lower", b"upper")


def test_largest_message_is_accepted_by_every_verb(connect: Connect, topic: str) -> None:
    producer, consumer = connect(), connect()
    sent = [letter * MSG_BYTES_MAX for letter in (b"a", b"b", b"c")]
    assert producer.request(pub(topic, sent[0])) == OK
    assert producer.request(mpub(topic, [sent[1]])) == OK
    assert producer.request(dpub(topic, 0, sent[2])) == OK
    consumer.subscribe(topic, "ch", ready=3)
    assert bodies(consumer.messages(3)) == sent


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("PUB {t}", "E_BAD_MESSAGE PUB message too big 1048577 > 1048576"),
        ("DPUB {t} 0", "E_BAD_MESSAGE DPUB message too big 1048577 > 1048576"),
    ],
)
def test_larger_message_is_refused(connect: Connect, topic: str, line: str, text: str) -> None:
    session = connect()
    session.send(line.replace("{t}", topic).encode(), b"\n", u32(MSG_BYTES_MAX + 1))
    assert session.until_closed() == [(FRAME_ERROR, text.encode())]


def test_largest_mpub_body_is_accepted(connect: Connect, topic: str) -> None:
    producer, consumer = connect(), connect()
    sent = [b"%d" % n * 1048571 for n in range(4)] + [b"4" * 1048572]
    assert len(mpub_body(sent)) == BODY_BYTES_MAX
    assert producer.request(mpub(topic, sent)) == OK
    consumer.subscribe(topic, "ch", ready=5)
    assert bodies(consumer.messages(5)) == sent


def test_larger_mpub_body_is_refused(connect: Connect, topic: str) -> None:
    session = connect()
    session.send(f"MPUB {topic}\n".encode(), u32(BODY_BYTES_MAX + 1))
    text = b"E_BAD_BODY MPUB body too big 5242881 > 5242880"
    assert session.until_closed() == [(FRAME_ERROR, text)]


def test_mpub_queues_its_messages_in_order(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    producer, consumer = connect(), connect()
    sent = [b"%d" % n for n in range(1000)]
    assert producer.request(mpub(topic, sent)) == OK
    stats = topic_stats(nsqd, topic)
    assert (stats["message_count"], stats["message_bytes"]) == (1000, sum(map(len, sent)))
    consumer.subscribe(topic, "ch", ready=1000)
    assert bodies(consumer.messages(1000)) == sent


@pytest.mark.parametrize(
    "bad_message",
    [u32(0), u32(-1), u32(MSG_BYTES_MAX + 1)],
    ids=["empty", "negative", "too big"],
)
def test_mpub_with_a_bad_last_message_queues_none(
    nsqd: Nsqd, connect: Connect, topic: str, bad_message: bytes
) -> None:
    session = connect()
    body = u32(3) + sized(b"good") + sized(b"good") + bad_message
    session.send(f"MPUB {topic}\n".encode(), sized(body))
    (frame,) = session.until_closed()
    assert frame.data.startswith(b"E_BAD_MESSAGE MPUB ")
    # The topic is created before the body is read, and stays.
    stats = topic_stats(nsqd, topic)
    assert (stats["message_count"], stats["depth"]) == (0, 0)


def test_mpub_cut_short_queues_none(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    session.send(mpub(topic, [b"one", b"two"])[:-1])
    session.half_close()
    text = b"E_BAD_MESSAGE MPUB failed to read message body"
    assert session.until_closed() == [(FRAME_ERROR, text)]
    assert topic_stats(nsqd, topic)["message_count"] == 0


@pytest.mark.parametrize("verb", ["PUB", "DPUB"])
def test_refused_message_creates_no_topic(
    nsqd: Nsqd, connect: Connect, topic: str, verb: str
) -> None:
    session = connect()
    session.send(f"{verb} {topic} 0\n".encode(), u32(0))
    assert len(session.until_closed()) == 1
    assert topic_stats(nsqd, topic) == {}


@pytest.mark.deviation
@pytest.mark.parametrize("extra", [b"z", b"NOP\n", b"BAD\n", b"x" * 20000], ids=len)
def test_mpub_ignores_bytes_between_the_last_message_and_its_size(
    nsqd: Nsqd, connect: Connect, topic: str, extra: bytes
) -> None:
    session = connect()
    body = mpub_body([b"one", b"two"]) + extra
    session.send(f"MPUB {topic}\n".encode(), sized(body), pub(topic, b"three"))
    assert session.frames(2) == [OK, OK]
    assert topic_stats(nsqd, topic)["message_count"] == 3


@pytest.mark.deviation
def test_mpub_whose_messages_overrun_its_size_is_refused(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    session = connect()
    body = mpub_body([b"one", b"two"])
    session.send(f"MPUB {topic}\n".encode(), u32(len(body) - 1), body)
    (frame,) = session.until_closed()
    assert frame.data.startswith(b"E_BAD_")
    assert topic_stats(nsqd, topic)["message_count"] == 0


@pytest.mark.parametrize("delay", ["0", "", "000", "18446744073709551616"])
def test_dpub_delays_that_mean_none(connect: Connect, topic: str, delay: str) -> None:
    producer, consumer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=1)
    assert producer.request(f"DPUB {topic} {delay}\n".encode() + sized(b"now")) == OK
    assert consumer.message().body == b"now"


def test_dpub_delay_at_the_default_limit(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    producer, consumer, refused = connect(), connect(), connect()
    consumer.subscribe(topic, "ch", ready=10)
    assert producer.request(dpub(topic, 3600000, b"in an hour")) == OK
    await_channel(nsqd, topic, "ch", deferred_count=1, depth=0, message_count=1)
    refused.send(dpub(topic, 3600001, b"later still"))
    text = b"E_INVALID DPUB timeout 3600001 out of range 0-3600000"
    assert refused.until_closed() == [(FRAME_ERROR, text)]


def test_dpub_is_not_delivered_early(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    producer, consumer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=10)
    before_s = time.monotonic()
    producer.send(dpub(topic, 300, b"later"), pub(topic, b"now"))
    assert producer.frames(2) == [OK, OK]
    assert consumer.message().body == b"now"
    later = consumer.message()
    assert (later.body, later.attempts) == (b"later", 1)
    assert time.monotonic() - before_s >= 0.3
    await_channel(nsqd, topic, "ch", deferred_count=0, message_count=2, in_flight_count=2)


@pytest.mark.deviation
def test_dpub_comes_due_on_time_on_a_new_channel(connect: Connect, topic: str) -> None:
    producer, consumer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=10)
    for delay_ms in (300, 100, 200):
        assert producer.request(dpub(topic, delay_ms, b"%d" % delay_ms)) == OK
    assert bodies(consumer.message() for _ in range(3)) == [b"100", b"200", b"300"]


def test_publishing_is_counted_for_the_connection(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    session.publish(topic, b"a", b"b")
    assert session.request(mpub(topic, [b"c"] * 5)) == OK
    port = session.raw.socket.getsockname()[1]
    (producer,) = [
        client
        for client in nsqd.stats(topic)["producers"]
        if client["remote_address"] == f"127.0.0.1:{port}"
    ]
    assert producer["pub_counts"] == [{"topic": topic, "count": 7}]
    assert producer["state"] == 0
