"""Deflate: what travels through it, however it is flushed; the upgrade itself is in
test_identify."""

import zlib

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.wire.commands import mpub, pub, rdy, sub
from tests.kit.wire.session import FRAME_ERROR, OK, Connect, Session
from tests.kit.wire.upgraded import PackedSocket, consume_and_finish, upgrade

OK_FRAME = b"\0\0\0\6\0\0\0\0OK"


def wire_send(session: Session, data: bytes) -> None:
    packed = session.raw.socket
    assert isinstance(packed, PackedSocket)
    packed.wire.sendall(data)


def deflater() -> "zlib._Compress":
    return zlib.compressobj(wbits=-15)


def test_publish_consume_finish(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    upgrade(session, deflate=True)
    published = [b"one", b"two" * 100_000, bytes(range(256)) * 100]
    assert session.request(mpub(topic, published)) == OK
    consume_and_finish(session, topic, published)
    counters = nsqd.channel_stats(topic, "ch")
    assert (counters["depth"], counters["in_flight_count"]) == (0, 0)
    (client,) = counters["clients"]
    assert (client["snappy"], client["deflate"], client["tls"]) == (False, True, False)


FLUSHED = b"\0\0\xff\xff"  # ends what is flushed


def flushes(session: Session, count: int) -> list[bytes]:
    """What the server flushes, each apart; NSQ also flushes nothing at all now and then."""
    packed = session.raw.socket
    assert isinstance(packed, PackedSocket)
    wire, unpacked = b"", []
    while len(unpacked) < count:
        wire += packed.wire.recv(1 << 16)
        *whole, wire = wire.split(FLUSHED)
        unpacked += filter(None, (packed.codec.unpack(each + FLUSHED) for each in whole))
    return unpacked


def test_nothing_is_flushed_after_a_reply_together_with_it(connect: Connect, topic: str) -> None:
    """A client for Java loses what is flushed together with a reply."""
    session, consumer = connect(), connect()
    upgrade(session, deflate=True)
    session.send(pub(topic, b"a") * 3)
    assert flushes(session, 3) == [OK_FRAME] * 3
    upgrade(consumer, deflate=True)
    consumer.send(sub(topic, "ch"), rdy(10), pub(topic, b"b"))
    flushed = flushes(consumer, 3)
    assert flushed[0] == OK_FRAME
    assert all(OK_FRAME not in each.removesuffix(OK_FRAME) for each in flushed)


def test_commands_may_be_cut_anywhere(connect: Connect, topic: str) -> None:
    session = connect()
    upgrade(session, deflate=True)
    packer = deflater()
    data = packer.compress(pub(topic, bytes(range(256)))) + packer.compress(pub(topic, b"b"))
    data += packer.flush(zlib.Z_FULL_FLUSH)
    data += packer.compress(mpub(topic, [b"c" * 70_000, b"d"])) + packer.flush(zlib.Z_SYNC_FLUSH)
    for start in range(0, len(data), 7):
        wire_send(session, data[start : start + 7])
    assert session.frames(3) == [OK] * 3


def test_what_unpacks_to_much_is_carried_out_to_the_end(connect: Connect, topic: str) -> None:
    """More than the server unpacks at once, from a few kilobytes."""
    session = connect()
    upgrade(session, deflate=True)
    packer = deflater()
    data = packer.compress(b"NOP\n" * 1_000_000 + pub(topic, bytes(1_000_000)))
    wire_send(session, data + packer.flush(zlib.Z_SYNC_FLUSH))
    assert session.frame() == OK


def test_end_of_the_stream_is_the_end_of_the_connection(connect: Connect, topic: str) -> None:
    session = connect()
    upgrade(session, deflate=True)
    packer = deflater()
    wire_send(session, packer.compress(pub(topic, b"last")) + packer.flush())
    assert session.until_closed() == [OK]


def test_error_frame_is_inside(connect: Connect) -> None:
    session = connect()
    upgrade(session, deflate=True)
    session.send(b"BOGUS\n")
    assert session.until_closed() == [(FRAME_ERROR, b"E_INVALID invalid command BOGUS")]


@pytest.mark.parametrize("garbage", [b"\xff" * 100, b"\x00\x01\x00\x00\x00x", b"PUB plain\n" * 9])
def test_what_is_no_deflate_ends_the_connection(connect: Connect, garbage: bytes) -> None:
    session = connect()
    upgrade(session, deflate=True)
    wire_send(session, garbage)
    assert session.until_closed() == []
