"""Magic, command lines, bodies and frames: how bytes become commands, however they arrive."""

import re
import time
from random import Random

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.wire.admin import await_channel, topic_stats
from tests.kit.wire.commands import MAGIC, dpub, identify, mpub, pub, rdy, req, sub, u32
from tests.kit.wire.session import (
    FRAME_ERROR,
    FRAME_MESSAGE,
    FRAME_RESPONSE,
    OK,
    Connect,
    Session,
    as_message,
    bodies,
)

LINE_BYTES_MAX = 16384


@pytest.mark.parametrize("magic", [b"  V1", b"  V3", b"V2  ", b"GET ", b"\0\0\0\0", b"  v2"])
def test_wrong_magic_is_answered_and_closed(connect: Connect, magic: bytes) -> None:
    assert connect(magic=magic).until_closed() == [(FRAME_ERROR, b"E_BAD_PROTOCOL")]


@pytest.mark.parametrize("magic", [b"", b" ", b"  V"])
def test_short_magic_is_closed_silently(connect: Connect, magic: bytes) -> None:
    session = connect(magic=magic)
    session.half_close()
    assert session.until_closed() == []


def test_magic_may_come_byte_by_byte(connect: Connect, topic: str) -> None:
    session = connect(magic=b"")
    session.send_by_byte(MAGIC)
    assert session.request(pub(topic, b"x")) == OK


def test_magic_and_command_may_share_a_packet(connect: Connect, topic: str) -> None:
    assert connect(magic=MAGIC + pub(topic, b"x")).frame() == OK


def test_server_says_nothing_until_a_command_asks(connect: Connect, topic: str) -> None:
    session = connect()
    session.send(b"NOP\nNOP\n")
    assert session.request(pub(topic, b"x")) == OK


@pytest.mark.parametrize(
    "line",
    [b"NOP\r\n", b"NOP \n", b"NOP  \n", b"NOP a b c\n", b"NOP a b c\r\n"],
    ids=["carriage return", "trailing space", "two spaces", "parameters", "all of it"],
)
def test_lines_that_are_as_good_as_nop(connect: Connect, topic: str, line: bytes) -> None:
    session = connect()
    session.send(line)
    assert session.request(pub(topic, b"x")) == OK


def test_extra_parameters_are_ignored_by_every_command(connect: Connect, topic: str) -> None:
    session = connect()
    t = topic.encode()
    session.send(b"IDENTIFY x y\n" + u32(2) + b"{}")
    session.send(b"PUB " + t + b" x y\n" + u32(1) + b"a")
    session.send(b"MPUB " + t + b" x\n" + u32(9) + u32(1) + u32(1) + b"b")
    session.send(b"DPUB " + t + b" 0 x\n" + u32(1) + b"c")
    session.send(b"SUB " + t + b" ch x\n")
    assert session.frames(5) == [OK] * 5
    session.send(b"RDY 3 x\n")
    first, second, third = session.messages(3)
    session.send(f"TOUCH {first.id} x\nFIN {first.id} x\nREQ {second.id} 0 x\n".encode())
    again = session.message()
    assert (again.id, again.attempts) == (second.id, 2)
    session.finish(again, third)
    session.send(b"CLS x\n")
    assert session.frame() == (FRAME_RESPONSE, b"CLOSE_WAIT")


def test_carriage_return_before_a_body_is_no_part_of_it(connect: Connect, topic: str) -> None:
    session = connect()
    session.subscribe(topic, "ch")
    assert session.request(f"PUB {topic}\r\n".encode() + u32(2) + b"\r\n") == OK
    session.send(b"RDY 1\r\n")
    assert session.message().body == b"\r\n"


def nop_line(length: int) -> bytes:
    """A NOP with a parameter, `length` bytes with its newline."""
    return b"NOP ".ljust(length - 1, b"x") + b"\n"


@pytest.mark.parametrize("before", [0, 1, 100, 16380])
def test_line_of_the_greatest_length_works(connect: Connect, topic: str, before: int) -> None:
    session = connect()
    session.send(pub(topic, b"p" * before) if before else b"", nop_line(LINE_BYTES_MAX))
    assert session.frames(1 if before else 0) == [OK] * bool(before)
    assert session.request(pub(topic, b"x")) == OK


@pytest.mark.parametrize("before", [0, 1, 16380])
def test_line_one_byte_longer_is_dropped_without_a_word(
    connect: Connect, topic: str, before: int
) -> None:
    session = connect()
    if before:
        assert session.request(pub(topic, b"p" * before)) == OK
    session.send(nop_line(LINE_BYTES_MAX + 1))
    assert session.until_closed() == []


def test_endless_line_is_dropped_before_its_newline(connect: Connect) -> None:
    session = connect()
    session.send(b"x" * (LINE_BYTES_MAX + 1))
    assert session.until_closed() == []


def test_unfinished_line_at_the_end_is_discarded(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    session.send(pub(topic, b"whole"), b"PUB other-" + topic.encode())
    session.half_close()
    assert session.until_closed() == [OK]
    assert topic_stats(nsqd, f"other-{topic}") == {}


def test_answers_are_still_written_after_the_client_half_closed(
    connect: Connect, topic: str
) -> None:
    session = connect()
    session.send(*[pub(topic, b"%d" % n) for n in range(20)])
    session.half_close()
    assert session.until_closed() == [OK] * 20


def test_message_frame_layout(connect: Connect, topic: str) -> None:
    session = connect()
    session.subscribe(topic, "ch")
    before_ns = time.time_ns()
    session.publish(topic, b"\x00body\xff\n")
    after_ns = time.time_ns()
    session.send(rdy(1))
    frame = session.frame()
    assert (frame.type, len(frame.data)) == (FRAME_MESSAGE, 26 + 7)
    message = as_message(frame)
    assert before_ns - 10**9 <= message.timestamp_ns <= after_ns + 10**9
    assert message.attempts == 1
    assert re.fullmatch("[0-9a-f]{16}", message.id)
    assert message.body == b"\x00body\xff\n"


def test_message_ids_of_a_topic_are_unique(connect: Connect, topic: str) -> None:
    session = connect()
    session.subscribe(topic, "ch")
    assert session.request(mpub(topic, [b"x"] * 500)) == OK
    session.publish(topic, *[b"y"] * 20)
    session.send(rdy(520))
    assert len({message.id for message in session.messages(520)}) == 520


def drain(session: Session, topic: str, count: int) -> list[bytes]:
    session.subscribe(topic, "ch", ready=count)
    return bodies(session.messages(count))


def test_fifty_publishes_in_one_packet(connect: Connect, topic: str) -> None:
    producer = connect()
    sent = [b"message %d" % n for n in range(50)]
    producer.send(*[pub(topic, body) for body in sent])
    assert producer.frames(50) == [OK] * 50
    assert drain(connect(), topic, 50) == sent


def test_commands_may_come_byte_by_byte(connect: Connect, topic: str) -> None:
    producer = connect()
    producer.send_by_byte(
        identify({"client_id": "slow"})
        + pub(topic, b"one")
        + b"NOP\r\n"
        + mpub(topic, [b"two", b"three"])
        + dpub(topic, 0, b"four")
        + b"NOP\n"
        + pub(topic, b"five\n")
    )
    assert producer.frames(5) == [OK] * 5
    assert drain(connect(), topic, 5) == [b"one", b"two", b"three", b"four", b"five\n"]


@pytest.mark.parametrize("piece_bytes", [3, 7, 64, 1000])
def test_commands_may_be_cut_anywhere(connect: Connect, topic: str, piece_bytes: int) -> None:
    producer = connect()
    sent = [b"PUB %d\n" % n * (n + 1) for n in range(20)]
    stream = b"".join(pub(topic, body) for body in sent)
    for start in range(0, len(stream), piece_bytes):
        producer.send(stream[start : start + piece_bytes])
    assert producer.frames(20) == [OK] * 20
    assert drain(connect(), topic, 20) == sent


@pytest.mark.parametrize("piece_bytes", [511, 100_000, 1_000_000, 1 << 30])
def test_large_bodies_may_be_cut_anywhere(connect: Connect, topic: str, piece_bytes: int) -> None:
    """What is large is received in a buffer of its own; what follows on it is not."""
    producer = connect()
    sizes = [70_000, 300_000, 1, 1_048_576, 900_000, 65_536, 200, 65_000, 524_288, 1]
    random = Random(piece_bytes)
    sent = [random.randbytes(size) for size in sizes]
    stream = b"".join(
        dpub(topic, 0, body) if index == 3 else pub(topic, body) for index, body in enumerate(sent)
    )
    for start in range(0, len(stream), piece_bytes):
        producer.send(stream[start : start + piece_bytes])
    assert producer.frames(len(sent)) == [OK] * len(sent)
    consumer = connect()
    consumer.subscribe(topic, "ch", ready=1)
    for body in sent:
        message = consumer.message()
        assert (message.body, message.attempts) == (body, 1)
        consumer.send(req(message.id, 0))
    consumer.send(rdy(len(sent)))
    again = consumer.messages(len(sent))
    assert {message.attempts for message in again} == {2}
    assert sorted(bodies(again)) == sorted(sent)


def test_large_body_that_ends_too_early_is_told(connect: Connect, topic: str) -> None:
    producer = connect()
    producer.send(pub(topic, bytes(500_000)), pub(topic, bytes(500_000))[:-1])
    producer.half_close()
    text = b"E_BAD_MESSAGE PUB failed to read message body"
    assert producer.until_closed() == [OK, (FRAME_ERROR, text)]


def test_large_body_for_a_topic_that_is_none_is_an_error(connect: Connect, topic: str) -> None:
    producer = connect()
    producer.send(pub(topic, bytes(500_000)), pub("no?", bytes(500_000)))
    text = b'E_BAD_TOPIC PUB topic name "no?" is not valid'
    assert producer.until_closed() == [OK, (FRAME_ERROR, text)]


def test_a_whole_session_in_one_packet(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    session.send(
        identify({"client_id": "hasty"}),
        pub(topic, b"a"),
        sub(topic, "ch"),
        rdy(10),
        b"NOP\n",
        mpub(topic, [b"b", b"c"]),
        b"FIN 0000000000000000\n",
        pub(topic, b"d"),
    )
    frames = session.frames(10)
    replies = [frame for frame in frames if frame.type != FRAME_MESSAGE]
    assert [frame.type for frame in replies] == [0, 0, 0, 0, 1, 0]
    messages = [as_message(frame) for frame in frames if frame.type == FRAME_MESSAGE]
    assert sorted(bodies(messages)) == [b"a", b"b", b"c", b"d"]
    session.finish(*messages)
    await_channel(nsqd, topic, "ch", in_flight_count=0, depth=0)


def test_body_that_looks_like_commands_is_not_run(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    producer = connect()
    body = b"BAD\nCLS\n" + pub(f"inner-{topic}", b"x")
    producer.send(pub(topic, body), pub(topic, b"next"))
    assert producer.frames(2) == [OK, OK]
    assert topic_stats(nsqd, f"inner-{topic}") == {}
    assert drain(connect(), topic, 2) == [body, b"next"]


def test_large_and_small_bodies_mixed(connect: Connect, topic: str) -> None:
    producer = connect()
    sent = [b"s", b"L" * 1_000_000, b"t" * 17, b"M" * 300_000, b"u"]
    producer.send(*[pub(topic, body) for body in sent])
    assert producer.frames(5) == [OK] * 5
    assert drain(connect(), topic, 5) == sent


def test_producer_that_vanishes_leaves_its_whole_commands(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    producer = connect()
    producer.send(pub(topic, b"whole"))
    assert producer.frame() == OK
    producer.send(pub(topic, b"cut")[:-1])
    producer.close()
    assert drain(connect(), topic, 1) == [b"whole"]
    assert topic_stats(nsqd, topic)["message_count"] == 1
