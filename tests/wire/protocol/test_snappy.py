"""Snappy: the upgrade, and what travels through it in chunks of every shape."""

import socket

import cramjam
import pytest

from tests.kit.daemons import Nsqd
from tests.kit.wire.commands import identify, mpub, pub, sub
from tests.kit.wire.session import FRAME_ERROR, FRAME_RESPONSE, OK, Connect, Session
from tests.kit.wire.upgraded import (
    PackedSocket,
    SnappyCodec,
    consume_and_finish,
    negotiate,
    upgrade,
    wrap,
)

START = b"\xff\x06\x00\x00sNaPpY"
BLOCK_BYTES = 65_536


def chunks(data: bytes) -> bytes:
    """The chunks of one flush, without the stream identifier."""
    return bytes(cramjam.snappy.compress(data))[len(START) :]


def wire(session: Session) -> socket.socket:
    packed = session.raw.socket
    assert isinstance(packed, PackedSocket)
    return packed.wire


def test_response_is_plain_and_ok_is_the_first_frame_inside(connect: Connect) -> None:
    session = connect()
    answer = negotiate(session, snappy=True)
    assert (answer["snappy"], answer["deflate"], answer["tls_v1"]) == (True, False, False)
    received = bytes(session.raw._received)
    while len(received) < len(START):
        received += session.raw.socket.recv(100)
    assert received.startswith(START)
    session.raw._received[:] = received
    wrap(session, SnappyCodec())
    assert session.frame() == OK


def test_publish_consume_finish(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    upgrade(session, snappy=True)
    published = [b"one", b"two" * 10_000, bytes(range(256)) * 100]
    for body in published:
        assert session.request(pub(topic, body)) == OK
    consume_and_finish(session, topic, published)
    counters = nsqd.channel_stats(topic, "ch")
    assert (counters["depth"], counters["in_flight_count"]) == (0, 0)


def test_stats_tell_who_has_snappy(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    upgrade(session, snappy=True)
    assert session.request(sub(topic, "ch")) == OK
    (client,) = nsqd.channel_stats(topic, "ch")["clients"]
    assert (client["snappy"], client["deflate"], client["tls"]) == (True, False, False)


def test_commands_may_be_cut_anywhere(connect: Connect, topic: str) -> None:
    session = connect()
    upgrade(session, snappy=True)
    data = START + chunks(pub(topic, b"a" * 300)) + chunks(pub(topic, b"b")[:7])
    data += chunks(pub(topic, b"b")[7:]) + chunks(mpub(topic, [b"c" * 70_000, b"d"]))
    for start in range(0, len(data), 11):
        wire(session).sendall(data[start : start + 11])
    assert session.frames(3) == [OK] * 3


def test_chunks_that_are_plain_or_to_be_skipped(connect: Connect, topic: str) -> None:
    session = connect()
    upgrade(session, snappy=True)
    stored = chunks(b"NOP\n")
    assert stored[0] == 1  # too short to compress
    padding = b"\xfe\x0a\x00\x00" + bytes(10)
    wire(session).sendall(START + padding + stored + START + chunks(pub(topic, b"x")))
    assert session.frame() == OK


def test_many_messages_in_one_block(connect: Connect, topic: str) -> None:
    session = connect()
    upgrade(session, snappy=True)
    session.send(*[pub(topic, b"%d" % number) for number in range(2000)])
    assert session.frames(2000) == [OK] * 2000


def test_error_frame_is_inside(connect: Connect) -> None:
    session = connect()
    upgrade(session, snappy=True)
    session.send(b"BOGUS\n")
    assert session.until_closed() == [(FRAME_ERROR, b"E_INVALID invalid command BOGUS")]


def test_body_cut_short_is_told_inside(connect: Connect, topic: str) -> None:
    session = connect()
    upgrade(session, snappy=True)
    session.send(pub(topic, b"whole")[:-2])
    session.half_close()
    text = b"E_BAD_MESSAGE PUB failed to read message body"
    assert session.until_closed() == [(FRAME_ERROR, text)]


@pytest.mark.parametrize(
    "garbage",
    [
        b"no stream identifier at all",
        b"\xff\x06\x00\x00sNaPpX" + b"\x01\x05\x00\x00",
        START + b"\x01\x05\x00\x00\x00\x00\x00\x00a",
        START + b"\x00\x0a\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x0fa",
        START + b"\x02\x01\x00\x00a",
        START + b"\x80\xff\xff\xff" + bytes(100),
        START + b"\x01\xff\xff\xff" + bytes(100),
        START + b"\x00\x00\x00\x00",
    ],
    ids=["start", "identifier", "checksum", "4 GiB", "kind", "skip 16 MiB", "store 16 MiB", "none"],
)
def test_what_is_no_snappy_ends_the_connection(connect: Connect, garbage: bytes) -> None:
    session = connect()
    upgrade(session, snappy=True)
    wire(session).sendall(garbage)
    assert session.until_closed() == []


def test_both_compressions_are_refused(connect: Connect) -> None:
    session = connect()
    session.send(identify({"feature_negotiation": True, "snappy": True, "deflate": True}))
    text = b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
    assert session.until_closed() == [(FRAME_ERROR, text)]


def test_without_the_flag_nothing_is_granted(
    nsqd: Nsqd, connect: Connect, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("plain") / "data"
    with Nsqd(path, ["--snappy=false", "--deflate=false"]) as plain:
        session = connect(plain)
        answer = negotiate(session, snappy=True, deflate=True)
        assert (answer["snappy"], answer["deflate"]) == (False, False)
        assert session.request(pub("t", b"x")) == (FRAME_RESPONSE, b"OK")


@pytest.mark.deviation
def test_what_follows_identify_at_once_is_taken_as_upgraded(connect: Connect, topic: str) -> None:
    """NSQ loses it."""
    session = connect()
    request = identify({"feature_negotiation": True, "snappy": True})
    session.send(request, START + chunks(pub(topic, b"x")))
    assert session.frame().type == FRAME_RESPONSE
    wrap(session, SnappyCodec())
    assert session.frames(2) == [OK, OK]
