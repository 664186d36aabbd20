"""Which command is legal when: before SUB, subscribed, and closing."""

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.wire.commands import dpub, fin, identify, mpub, pub, rdy, req, touch
from tests.kit.wire.session import FRAME_MESSAGE, FRAME_RESPONSE, OK, Connect, Session

CLOSE_WAIT = (FRAME_RESPONSE, b"CLOSE_WAIT")

REFUSED = {
    "init": ["RDY 1", "FIN 0123456789abcdef", "REQ 0123456789abcdef 0", "TOUCH a", "CLS"],
    "subscribed": ["IDENTIFY", "AUTH", "SUB a b"],
    "closing": ["IDENTIFY", "AUTH", "SUB a b", "CLS"],
}


def in_state(session: Session, state: str, topic: str) -> Session:
    if state != "init":
        session.subscribe(topic, "ch")
    if state == "closing":
        assert session.request(b"CLS\n") == CLOSE_WAIT
    return session


@pytest.mark.parametrize(
    ("state", "line"), [(state, line) for state, lines in REFUSED.items() for line in lines]
)
def test_command_is_refused_in_state(connect: Connect, topic: str, state: str, line: str) -> None:
    session = in_state(connect(), state, topic)
    session.send(line.encode() + b"\n")
    text = f"E_INVALID cannot {line.partition(' ')[0]} in current state".encode()
    assert session.until_closed() == [(1, text)]


@pytest.mark.parametrize("state", ["init", "subscribed", "closing"])
def test_publishing_and_nop_are_legal_in_every_state(
    connect: Connect, topic: str, state: str
) -> None:
    session = in_state(connect(), state, topic)
    session.send(pub(topic, b"1"), b"NOP\n", mpub(topic, [b"2"]), dpub(topic, 0, b"3"))
    assert session.frames(3) == [OK] * 3


def test_states_as_stats_number_them(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    session.publish(topic, b"x")
    session.request(identify({}))
    assert 0 in [client["state"] for client in nsqd.stats(topic)["producers"]]
    session.subscribe(topic, "ch", ready=1)
    session.message()
    (client,) = nsqd.channel_stats(topic, "ch")["clients"]
    assert (client["state"], client["ready_count"], client["in_flight_count"]) == (3, 1, 1)
    assert session.request(b"CLS\n") == CLOSE_WAIT
    (client,) = nsqd.channel_stats(topic, "ch")["clients"]
    assert (client["state"], client["ready_count"], client["in_flight_count"]) == (4, 0, 1)


def test_closing_connection_may_still_settle_its_messages(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    session, other = connect(), connect()
    session.publish(topic, b"a", b"b", b"c")
    session.subscribe(topic, "ch", ready=3)
    first, second, third = session.messages(3)
    assert session.request(b"CLS\n") == CLOSE_WAIT
    session.send(touch(first.id), fin(first.id), req(second.id, 0), fin(third.id))
    assert session.before_barrier() == []
    other.subscribe(topic, "ch", ready=3)
    again = other.message()
    assert (again.id, again.attempts) == (second.id, 2)


def test_closing_connection_gets_no_more_messages(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session, other = connect(), connect()
    session.subscribe(topic, "ch", ready=10)
    assert session.request(b"CLS\n") == CLOSE_WAIT
    # RDY is taken without a word and has no effect, not even when out of range.
    session.send(rdy(10), b"RDY nonsense\n", rdy(99999))
    assert session.request(pub(topic, b"x")) == OK
    other.subscribe(topic, "ch", ready=1)
    assert other.message().body == b"x"
    assert session.before_barrier() == []


def test_connection_is_producer_and_consumer_at_once(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    session = connect()
    session.subscribe(topic, "ch", ready=1)
    session.send(pub(topic, b"x"))
    assert sorted(frame.type for frame in session.frames(2)) == [FRAME_RESPONSE, FRAME_MESSAGE]
    address = f"127.0.0.1:{session.raw.socket.getsockname()[1]}"
    stats = nsqd.stats(topic)
    assert address in [client["remote_address"] for client in stats["producers"]]
    (client,) = nsqd.channel_stats(topic, "ch")["clients"]
    assert client["remote_address"] == address
