"""PUB, MPUB and DPUB: names, limits, layouts, and what is queued when something is wrong."""

import time
from contextlib import suppress

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


SENT = [b"one", b"two", b"three" * 100]
DECLARED = {
    "honest": len(mpub_body(SENT)),
    "without the count": len(mpub_body(SENT)) - 4,
    "the bodies alone": sum(map(len, SENT)),
    "smallest": 1,
    "one more": len(mpub_body(SENT)) + 1,
    "largest": BODY_BYTES_MAX,
}


@pytest.mark.parametrize("size", DECLARED.values(), ids=DECLARED)
def test_mpub_is_read_by_its_messages_whatever_its_size_says(
    connect: Connect, topic: str, size: int
) -> None:
    """Clients for Ruby, Node and Go declare sizes that are too small."""
    session, consumer = connect(), connect()
    command = f"MPUB {topic}\n".encode() + u32(size) + mpub_body(SENT)
    assert session.request(command) == OK
    session.send(command, pub(topic, b"single"), command)
    assert session.frames(3) == [OK] * 3
    session.send_by_byte(command)
    assert session.frame() == OK
    consumer.subscribe(topic, "ch", ready=100)
    published = [*SENT, *SENT, b"single", *SENT, *SENT]
    assert bodies(consumer.messages(len(published))) == published


def test_large_mpub_with_too_small_a_size_comes_in_pieces(connect: Connect, topic: str) -> None:
    session, consumer = connect(), connect()
    sent = [b"%d" % n * 20_000 for n in range(50)]
    for _ in range(2):
        session.send(f"MPUB {topic}\n".encode(), u32(5), mpub_body(sent), pub(topic, b"next"))
        assert session.frames(2) == [OK, OK]
    consumer.subscribe(topic, "ch", ready=102)
    assert bodies(consumer.messages(102)) == [*sent, b"next"] * 2


@pytest.mark.parametrize(
    ("extra", "answers"),
    [
        (b"NOP\n", [OK, OK]),
        (b"z\n", [OK, (FRAME_ERROR, b"E_INVALID invalid command z")]),
        (b"x" * 20000, [OK]),
    ],
    ids=["a command", "no command", "no line"],
)
def test_bytes_between_the_last_message_and_the_size_of_an_mpub_are_the_next_command(
    connect: Connect, topic: str, extra: bytes, answers: list[tuple[int, bytes]]
) -> None:
    session = connect()
    body = mpub_body([b"one", b"two"]) + extra
    session.send(f"MPUB {topic}\n".encode(), sized(body), pub(topic, b"three"))
    with suppress(OSError):  # it may be closed already
        session.half_close()
    assert session.until_closed() == answers


@pytest.mark.parametrize("bad_message", [u32(0), u32(MSG_BYTES_MAX + 1)], ids=["empty", "too big"])
def test_mpub_is_refused_at_its_first_bad_message(
    nsqd: Nsqd, connect: Connect, topic: str, bad_message: bytes
) -> None:
    """Not only when all that it announced is there: the client may send no more."""
    session = connect()
    session.send(f"MPUB {topic}\n".encode(), u32(1000), u32(9), sized(b"good"))
    session.send(bad_message)
    (frame,) = session.until_closed()
    assert frame.data.startswith(b"E_BAD_MESSAGE MPUB ")
    assert topic_stats(nsqd, topic)["message_count"] == 0


@pytest.mark.deviation
def test_mpub_with_more_than_a_body_may_have_is_refused(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    """Whatever its size says: what arrives of an MPUB is in memory until it is whole."""
    session = connect()
    sent = [b"x" * MSG_BYTES_MAX] * 5
    assert sum(map(len, sent)) == BODY_BYTES_MAX
    session.send(f"MPUB {topic}\n".encode(), u32(BODY_BYTES_MAX), mpub_body(sent))
    assert session.frame() == OK
    session.send(f"MPUB {topic}\n".encode(), u32(1), mpub_body([*sent, b"x"]))
    text = b"E_BAD_BODY MPUB body too big 5242881 > 5242880"
    assert session.until_closed() == [(FRAME_ERROR, text)]
    assert topic_stats(nsqd, topic)["message_count"] == 5


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


def test_dpubs_in_one_piece_are_as_if_sent_alone(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    producer, consumer = connect(), connect()
    consumer.subscribe(topic, "ch", ready=10)
    late = [dpub(topic, 3600000, b"%d" % n) for n in range(4)]
    soon = [dpub(topic, 50, b"soon %d" % n) for n in range(4)]
    empty = f"DPUB {topic} 50\n".encode() + u32(0)
    pieces = [*late, *soon[:3], pub(topic, b"now"), late[0], soon[3], empty, soon[0]]
    producer.send(b"".join(pieces))
    text = b"E_BAD_MESSAGE DPUB invalid message body size 0"
    assert producer.until_closed() == [*[OK] * 10, (FRAME_ERROR, text)]
    assert consumer.message().body == b"now"
    later = consumer.messages(4)
    assert bodies(later) == [b"soon %d" % n for n in range(4)]
    assert {message.attempts for message in later} == {1}
    await_channel(nsqd, topic, "ch", deferred_count=5, message_count=10, in_flight_count=5)


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
