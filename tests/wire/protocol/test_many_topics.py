"""PUBs to many topics in one go: each is answered at its place, what is refused is not stored."""

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.wire.admin import act, await_topic, topic_stats
from tests.kit.wire.commands import dpub, mpub, pub, rdy, sub
from tests.kit.wire.session import FRAME_ERROR, FRAME_MESSAGE, OK, Connect, bodies

TOPICS = 20
ROUNDS = 5


@pytest.fixture
def names(topic: str) -> list[str]:
    return [f"{topic}.{index}" for index in range(TOPICS)]


def rounds_of_pubs(names: list[str], label: bytes = b"") -> list[bytes]:
    """One message to each topic in turn, again and again."""
    return [pub(name, label + b"%d" % number) for number in range(ROUNDS) for name in names]


def stored(nsqd: Nsqd, connect: Connect, name: str) -> list[bytes]:
    """All that is in a topic, in order."""
    count = topic_stats(nsqd, name).get("message_count", 0)
    session = connect()
    session.subscribe(name, "ch", ready=2500)
    received = session.messages(count)
    session.finish(*received)
    assert session.before_barrier() == []
    return bodies(received)


def test_every_topic_gets_its_messages_in_order(
    nsqd: Nsqd, connect: Connect, names: list[str]
) -> None:
    session = connect()
    for label in (b"new ", b"known "):  # the topics are created by the first
        session.send(*rounds_of_pubs(names, label))
        assert session.frames(TOPICS * ROUNDS) == [OK] * TOPICS * ROUNDS
    expected = [label + b"%d" % n for label in (b"new ", b"known ") for n in range(ROUNDS)]
    for name in names:
        assert stored(nsqd, connect, name) == expected


def test_other_commands_between_are_answered_at_their_place(
    connect: Connect, names: list[str]
) -> None:
    session = connect()
    session.send(
        sub(names[0], "ch"),
        rdy(1),
        pub(names[0], b"1"),
        pub(names[1], b"2"),
        b"FIN no-such-message-\n",
        mpub(names[2], [b"3", b"4"]),
        dpub(names[3], 1, b"5"),
        pub(names[1], b"6"),
    )
    frames = session.frames(8)
    assert [frame.type for frame in frames].count(FRAME_MESSAGE) == 1
    answers = [frame for frame in frames if frame.type != FRAME_MESSAGE]
    assert answers[:3] == [OK] * 3
    assert answers[3].type == FRAME_ERROR
    assert answers[3].data.startswith(b"E_INVALID") or b"E_FIN_FAILED" in answers[3].data
    assert answers[4:] == [OK] * 3


@pytest.mark.parametrize("first_time", [True, False], ids=["new topics", "known topics"])
@pytest.mark.parametrize(
    ("command", "error"),
    [
        (pub("bad/name", b"x"), b'E_BAD_TOPIC PUB topic name "bad/name" is not valid'),
        (pub("x" * 65, b"x"), b'E_BAD_TOPIC PUB topic name "' + b"x" * 65 + b'" is not valid'),
        (b"PUB \n\0\0\0\1x", b'E_BAD_TOPIC PUB topic name "" is not valid'),
        (b"PUB\n\0\0\0\1x", b"E_INVALID PUB insufficient number of parameters"),
        (pub("{}", b""), b"E_BAD_MESSAGE PUB invalid message body size 0"),
        (pub("{}", bytes(1 << 20) + b"x"), b"E_BAD_MESSAGE PUB message too big 1048577 > 1048576"),
    ],
    ids=["a slash", "65 characters", "no name", "no parameter", "empty", "too big"],
)
def test_an_error_in_the_middle_comes_at_its_place_and_ends_it(
    nsqd: Nsqd, connect: Connect, names: list[str], command: bytes, error: bytes, first_time: bool
) -> None:
    if not first_time:
        other = connect()
        other.send(*[pub(name, b"0") for name in names])
        assert other.frames(TOPICS) == [OK] * TOPICS
    session = connect()
    before, after = names[:10], names[10:]
    bad = command.replace(b"{}", names[0].encode())
    session.send(*[pub(n, b"x") for n in before], bad, *[pub(n, b"x") for n in after])
    assert session.until_closed() == [OK] * 10 + [(FRAME_ERROR, error)]
    known = 0 if first_time else 1
    for name in before:
        await_topic(nsqd, name, message_count=known + 1)
    for name in after:
        assert topic_stats(nsqd, name).get("message_count", 0) == known


def test_a_topic_deleted_between_is_a_new_one(
    nsqd: Nsqd, connect: Connect, names: list[str]
) -> None:
    session = connect()
    session.send(*rounds_of_pubs(names))
    assert session.frames(TOPICS * ROUNDS) == [OK] * TOPICS * ROUNDS
    act(nsqd, "/topic/delete", topic=names[3])
    assert topic_stats(nsqd, names[3]) == {}
    session.send(*rounds_of_pubs(names, b"again "))
    assert session.frames(TOPICS * ROUNDS) == [OK] * TOPICS * ROUNDS
    assert stored(nsqd, connect, names[3]) == [b"again %d" % n for n in range(ROUNDS)]
    assert len(stored(nsqd, connect, names[4])) == 2 * ROUNDS


def test_two_connections_that_take_turns(nsqd: Nsqd, connect: Connect, names: list[str]) -> None:
    sessions = [connect(), connect()]
    for number in range(10):
        for label, session in zip((b"a", b"b"), sessions, strict=True):
            session.send(*[pub(name, label + b"%d" % number) for name in names])
    for session in sessions:
        assert session.frames(10 * TOPICS) == [OK] * 10 * TOPICS
    for name in names:
        found = stored(nsqd, connect, name)
        for label in (b"a", b"b"):
            own = [body for body in found if body.startswith(label)]
            assert own == [label + b"%d" % number for number in range(10)]


def publish_and_half_close(nsqd: Nsqd, connect: Connect, names: list[str], *, times: int) -> None:
    for known in range(1, times + 1):
        session = connect()
        session.send(*[pub(name, b"x") for name in names])
        session.half_close()
        assert session.until_closed() == [OK] * TOPICS
        for name in names:
            await_topic(nsqd, name, message_count=known)


def test_a_client_that_says_no_more_gets_all_its_answers(
    nsqd: Nsqd, connect: Connect, names: list[str]
) -> None:
    publish_and_half_close(nsqd, connect, names, times=2)


@pytest.mark.deviation  # the original stops at the first answer that it cannot send
def test_all_is_stored_of_a_client_that_sends_and_closes_without_reading(
    nsqd: Nsqd, connect: Connect, names: list[str]
) -> None:
    publish_and_half_close(nsqd, connect, names, times=2)
    session = connect()
    session.send(*[pub(name, b"x") for name in names])
    session.close()
    for name in names:
        await_topic(nsqd, name, message_count=3)


def test_commands_that_come_byte_by_byte(nsqd: Nsqd, connect: Connect, names: list[str]) -> None:
    session = connect()
    session.send(*[pub(name, b"0") for name in names[:3]])
    session.send_by_byte(b"".join(pub(name, b"1") for name in names[:3]))
    assert session.frames(6) == [OK] * 6
    for name in names[:3]:
        assert stored(nsqd, connect, name) == [b"0", b"1"]


def test_names_that_begin_alike_are_kept_apart(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    names = [topic, topic + "x", topic + "xx", topic[:-1]]
    session = connect()
    for number in range(3):
        session.send(*[pub(name, b"%d to %s" % (number, name.encode())) for name in names])
        assert session.frames(4) == [OK] * 4
    for name in names:
        assert stored(nsqd, connect, name) == [b"%d to %s" % (n, name.encode()) for n in range(3)]


def test_a_carriage_return_ends_a_line_as_well(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    line = f"PUB {topic}\r\n\0\0\0\1".encode()
    session.send(pub(topic, b"0"), line + b"1", pub(topic, b"2"), line + b"3")
    assert session.frames(4) == [OK] * 4
    assert stored(nsqd, connect, topic) == [b"0", b"1", b"2", b"3"]
