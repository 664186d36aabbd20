"""TLS, snappy and deflate under random and mutated bytes: handshakes that break off, streams that
do not unpack, commands that are wrong inside of them.

The process lives, its log has no traceback, what comes back can be unpacked into documented frames
as long as nothing was damaged, a bystander loses nothing, and memory and sockets come back.
"""

import json
import random
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fuzz.conftest import Rounds
from tests.kit.certificates import Authority, client_context
from tests.kit.daemons import IO_TIMEOUT_S, Nsqd
from tests.kit.fuzz import replies
from tests.kit.fuzz.grammar import LIMIT_FLAGS, MAGIC, sized, stream
from tests.kit.fuzz.mutation import mutated, pieces
from tests.kit.fuzz.swarm import swarm
from tests.kit.wire.upgraded import Codec, DeflateCodec, SnappyCodec

SEEDS = (1, 2)
CONNECTIONS = 80  # a round
AT_ONCE = 8
WARM_UP = 20  # what the first of each kind costs is spent once
RECEIVE_BYTES = 1 << 16
SILENCE_S = 0.1
FLAGS = [flag for flag in LIMIT_FLAGS if not flag.startswith(("--deflate", "--snappy"))]
OK = b"\0\0\0\6\0\0\0\0OK"
HELLO = b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03"  # how a TLS client begins

pytestmark = pytest.mark.slow


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    identity = Authority(tmp_path).issue("server")
    with Nsqd(tmp_path / "data", [*FLAGS, *identity.flags(), "--https-address="]) as daemon:
        yield daemon


class Damaged(Exception):
    """The connection is beyond what can be checked."""


class Client:
    """One hostile connection, after its IDENTIFY."""

    def __init__(self, nsqd: Nsqd, rng: random.Random, wishes: dict[str, object]) -> None:
        self.rng = rng
        self.socket = socket.create_connection(("127.0.0.1", nsqd.tcp_port), IO_TIMEOUT_S)
        request = {"feature_negotiation": True, **wishes}
        self.socket.sendall(MAGIC + b"IDENTIFY\n" + sized(json.dumps(request).encode()))
        size = int.from_bytes(self._exactly(4))
        self.granted = json.loads(self._exactly(size)[4:])
        self.codec: Codec | None = None

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def upgrade(self) -> None:
        if self.granted["tls_v1"]:
            if self.rng.random() < 0.3:
                self._send(mutated(self.rng, HELLO + self.rng.randbytes(200)))
                raise Damaged
            self.socket = client_context().wrap_socket(self.socket)
            assert self._exactly(len(OK)) == OK  # before anything is compressed
        if self.granted["snappy"]:
            self.codec = SnappyCodec()
        elif self.granted["deflate"]:
            self.codec = DeflateCodec()

    def speak(self) -> bool:
        """Whether it can be known what comes back."""
        plain = stream(self.rng).removeprefix(MAGIC)
        upgraded = self.codec is not None or self.granted["tls_v1"]
        packed = self.codec.pack(plain) if self.codec is not None and plain else plain
        damaged = self.rng.random() < 0.5
        self._send(mutated(self.rng, packed) if damaged else packed)
        return not damaged and (upgraded or b"IDENTIFY" not in plain)

    def _send(self, data: bytes) -> None:
        for piece in pieces(self.rng, data):
            self.socket.sendall(piece)

    def end(self) -> tuple[bytes, bool]:
        """What came once we had nothing more to say, and whether that is all."""
        whole = not isinstance(self.socket, ssl.SSLSocket)
        if whole:
            self.socket.shutdown(socket.SHUT_WR)
        else:
            self.socket.settimeout(SILENCE_S)  # there is no half of a TLS connection
        received = b""
        try:
            while piece := self.socket.recv(RECEIVE_BYTES):
                received += piece
        except TimeoutError:
            assert not whole, "the connection was not closed"
        return received, whole


def attack(nsqd: Nsqd, seed: int) -> None:
    """One connection."""
    rng = random.Random(seed)
    wishes: dict[str, object] = {"tls_v1": rng.random() < 0.5}
    wishes[rng.choice(("snappy", "deflate", "neither"))] = True
    wishes["deflate_level"] = rng.randint(0, 12)
    client = Client(nsqd, rng, wishes)
    try:
        with suppress(Damaged, OSError, EOFError):
            client.upgrade()
            if rng.random() < 0.1:
                return
            if client.speak():
                check(client, *client.end())
    except AssertionError as error:
        error.add_note(f"connection {seed} with {wishes}")
        raise
    finally:
        client.socket.close()


def check(client: Client, received: bytes, whole: bool) -> None:
    plain = client.codec.unpack(received) if client.codec is not None else received
    frames, rest = replies.whole_frames(plain)
    assert not (whole and rest)
    replies.check(frames)


def test_hostile_upgrades_harm_nobody(rounds: Rounds, nsqd: Nsqd) -> None:
    swarm(rounds, nsqd, attack, connections=CONNECTIONS, at_once=AT_ONCE, warm_up=WARM_UP)
