"""Clients that mean no good, once they are wrapped: each ends, and nobody else notices."""

import contextlib
import socket
import ssl
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import cramjam
import pytest

from tests.kit.auth_server import Answer, Asked, AuthorityServer, grant
from tests.kit.certificates import Authority, client_context
from tests.kit.daemons import IO_TIMEOUT_S, Nsqd
from tests.kit.wire.commands import auth, pub, rdy, u32
from tests.kit.wire.session import FRAME_ERROR, HEARTBEAT_FRAME, OK, Connect, Session
from tests.kit.wire.upgraded import PackedSocket, negotiate, upgrade

MIB = 1 << 20
GROWTH_BYTES_MAX = 96 * MIB  # a few bodies of the largest size, and what Python makes of it


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    directory = tmp_path_factory.mktemp("tls")
    server = Authority(directory).issue("server")
    with Nsqd(directory / "data", [*server.flags(), "--https-address=127.0.0.1:0"]) as daemon:
        yield daemon
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.log_text()


@pytest.fixture(autouse=True)
def bystander(connect: Connect, topic: str) -> Iterator[Session]:
    """Someone who is there all the time, and is served at the end."""
    session = connect()
    negotiate(session, heartbeat_interval=-1)  # none comes between a command and its answer
    assert session.request(pub(f"{topic}-bystander", b"before")) == OK
    yield session
    assert session.request(pub(f"{topic}-bystander", b"after")) == OK


def wire(session: Session) -> socket.socket:
    packed = session.raw.socket
    return packed.wire if isinstance(packed, PackedSocket) else packed


def peak_bytes(nsqd: Nsqd) -> int:
    """The most memory it has ever had."""
    status = Path(f"/proc/{nsqd.process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def deflated(*pieces: tuple[bytes, int]) -> bytes:
    """Each of these so many times. After a full flush the same bytes unpack again: a piece is
    packed once."""
    packer = zlib.compressobj(level=9, wbits=-15)
    return b"".join(
        (packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)) * count
        for piece, count in pieces
    )


BOMBS = {
    "line without end": (bytes(MIB), 300),
    "identify too big": (b"IDENTIFY\n" + u32(2_000_000_000) + bytes(MIB), 300),
    "message too big": (b"PUB t\n" + u32(2_000_000_000) + bytes(MIB), 300),
    "batch too big": (b"MPUB t\n" + u32(2_000_000_000) + u32(400_000_000) + bytes(MIB), 300),
}


@pytest.mark.deviation
@pytest.mark.parametrize("bomb", BOMBS, ids=str)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_what_unpacks_to_far_too_much_is_not_unpacked(
    nsqd: Nsqd, connect: Connect, bomb: str, tls: bool
) -> None:
    session = connect()
    upgrade(session, tls=client_context() if tls else None, deflate=True)
    before = peak_bytes(nsqd)
    with contextlib.suppress(OSError):  # it may not be read to the end
        wire(session).sendall(deflated(BOMBS[bomb]))
    frames = session.until_closed()
    assert [frame.type for frame in frames] in ([], [FRAME_ERROR])
    assert peak_bytes(nsqd) - before < GROWTH_BYTES_MAX


@pytest.mark.deviation
def test_messages_that_unpack_to_much_are_taken_one_after_the_other(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    """NSQ keeps them in memory."""
    session = connect()
    upgrade(session, deflate=True)
    before = peak_bytes(nsqd)
    wire(session).sendall(deflated((pub(topic, bytes(MIB)), 300)))
    assert session.frames(300) == [OK] * 300
    assert peak_bytes(nsqd) - before < GROWTH_BYTES_MAX


@pytest.mark.deviation
def test_flood_takes_turns_with_others(connect: Connect, bystander: Session, topic: str) -> None:
    """Seconds of work for the one thread of the server, in one small packet."""
    session = connect()
    upgrade(session, deflate=True, heartbeat_interval=-1)
    wire(session).sendall(deflated((b"NOP\n" * (MIB // 4), 6), (pub(topic, b"last"), 1)))
    assert bystander.request(pub(f"{topic}-other", b"x")) == OK
    wire(session).settimeout(0)
    with pytest.raises(BlockingIOError):
        wire(session).recv(1)
    assert session.frame(60) == OK


def test_snappy_chunks_that_unpack_to_much(nsqd: Nsqd, connect: Connect) -> None:
    session = connect()
    upgrade(session, snappy=True)
    before = peak_bytes(nsqd)
    block = bytes(cramjam.snappy.compress(bytes(MIB)))
    with contextlib.suppress(ConnectionError):
        for _ in range(100):
            wire(session).sendall(block)
    assert session.until_closed() == []
    assert peak_bytes(nsqd) - before < GROWTH_BYTES_MAX


@pytest.mark.slow
def test_handshakes_that_do_not_end(connect: Connect) -> None:
    """Each is given five seconds, whatever the heartbeats; they wait side by side."""
    sessions = []
    for said in (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"):
        sessions.append(session := connect())
        negotiate(session, tls_v1=True, heartbeat_interval=1000)
        session.send(said)
    for session in sessions:
        (frame,) = [frame for frame in session.until_closed() if frame != HEARTBEAT_FRAME]
        assert frame.type == FRAME_ERROR
        assert frame.data.startswith(b"E_IDENTIFY_FAILED IDENTIFY failed ")
        assert frame.data.endswith(b"i/o timeout")


def test_slow_handshake_within_its_time(connect: Connect, topic: str) -> None:
    session = connect()
    negotiate(session, tls_v1=True)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context().wrap_bio(incoming, outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    session.send_by_byte(outgoing.read())
    while True:
        incoming.write(session.raw.socket.recv(1 << 16))
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
            break
    tls.write(pub(topic, b"x"))
    session.send_by_byte(outgoing.read())
    received = b""
    while len(received) < 20:  # OK of the upgrade, and of the message
        with contextlib.suppress(ssl.SSLWantReadError):
            received += tls.read()
            continue
        incoming.write(session.raw.socket.recv(1 << 16))
    assert received == (u32(6) + bytes(4) + b"OK") * 2


@pytest.mark.parametrize(
    "garbage", [b"\x00" * 100, b"\x17\x03\x03\x00\x20" + bytes(32), b"PUB t\n" * 20], ids=repr
)
def test_garbage_instead_of_a_record(connect: Connect, garbage: bytes) -> None:
    session = connect()
    upgrade(session, tls=client_context())
    raw = session.raw.socket
    # Below TLS, which the client's side knows nothing of.
    with socket.socket(fileno=raw.detach()) as below:
        below.settimeout(IO_TIMEOUT_S)
        below.sendall(garbage)
        with contextlib.suppress(ConnectionError):
            while below.recv(1 << 16):  # an alert, or nothing
                pass
    session.raw.socket = below


@pytest.mark.parametrize("compression", ["snappy", "deflate"])
def test_garbage_inside_tls(connect: Connect, compression: str) -> None:
    session = connect()
    upgrade(session, tls=client_context(), **{compression: True})
    wire(session).sendall(b"\xff" * 1000)
    assert session.until_closed() == []


def test_clients_that_vanish_in_the_middle(connect: Connect) -> None:
    for part in range(20):
        session = connect()
        negotiate(session, tls_v1=True, snappy=bool(part % 2))
        outgoing = ssl.MemoryBIO()
        tls = client_context().wrap_bio(ssl.MemoryBIO(), outgoing)
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        hello = outgoing.read()
        session.send(hello[: len(hello) * part // 19])
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # a reset instead of a goodbye
        session.raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        session.close()


def test_client_that_takes_nothing_is_not_read_from(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    """Every command it sends would be answered, and the answers have to be kept somewhere."""
    session = connect()
    upgrade(session, tls=client_context())
    session.subscribe(topic, "ch")
    session.send(rdy(1))
    before = peak_bytes(nsqd)
    wrong = b"FIN 0123456789abcdef\n" * 10_000
    sent = 0
    session.raw.socket.settimeout(1)
    with pytest.raises((TimeoutError, ssl.SSLError)):
        while sent < 400 * MIB:
            session.raw.socket.sendall(wrong)
            sent += len(wrong)
    assert peak_bytes(nsqd) - before < GROWTH_BYTES_MAX


def test_https_takes_garbage_and_silence(nsqd: Nsqd) -> None:
    port = nsqd.listening_port("HTTPS")
    silent = socket.create_connection(("127.0.0.1", port), IO_TIMEOUT_S)
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\x00" * 1000):
        with socket.create_connection(("127.0.0.1", port), IO_TIMEOUT_S) as raw:
            raw.sendall(garbage)
            with contextlib.suppress(ConnectionError):
                while raw.recv(1 << 16):
                    pass
    with client_context().wrap_socket(socket.create_connection(("127.0.0.1", port))) as tls:
        tls.settimeout(IO_TIMEOUT_S)
        tls.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
        assert tls.recv(1 << 16).startswith(b"HTTP/1.")
    silent.close()


def test_flood_behind_an_auth_that_takes_long(connect: Connect, tmp_path: Path, topic: str) -> None:
    """What comes meanwhile is left in the socket, and carried out afterwards."""
    go_on = threading.Event()

    def answering(asked: Asked) -> Answer:
        assert go_on.wait(60)
        return grant()

    flags = ["--http-client-request-timeout=60s"]
    with (
        AuthorityServer(answering) as server,
        Nsqd(tmp_path / "data", [*flags, f"--auth-http-address={server.address}"]) as nsqd,
    ):
        session = connect(nsqd)
        before = peak_bytes(nsqd)
        session.send(auth(b"secret"))
        message = pub(topic, bytes(MIB))
        stream = memoryview(message * 64)
        session.raw.socket.settimeout(1)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < len(stream):
                sent += session.raw.socket.send(stream[sent:])
        assert peak_bytes(nsqd) - before < 16 * MIB
        go_on.set()
        session.raw.send(stream[sent : (sent // len(message) + 1) * len(message)])
        assert session.frame().data.startswith(b'{"identity"')
        assert session.frames(sent // len(message) + 1) == [OK] * (sent // len(message) + 1)


def test_old_handshake_is_no_use_for_a_new_one(connect: Connect) -> None:
    """A client hello inside the layers is but garbage."""
    session = connect()
    upgrade(session, tls=client_context())
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        client_context().wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    session.send(outgoing.read() + b"\n")
    (frame,) = session.until_closed()
    assert frame.data.startswith(b"E_INVALID invalid command ")
