"""The layers of a connection, without one: what goes in comes out, in pieces that are bounded."""

import random
import ssl
import zlib
from contextlib import suppress
from pathlib import Path

import pytest

from pumpline.core.protocol.layers import (
    Compression,
    Deflate,
    EndOfStream,
    Layers,
    Snappy,
    Tls,
    UpgradeError,
)
from pumpline.nsqd.options import Options
from pumpline.nsqd.security.tls import server_context
from tests.kit.certificates import Authority, Identity, client_context

PIECE_BYTES = 1000
SNAPPY_BLOCK_BYTES = 65_536


def new_compression(name: str) -> Compression:
    return Snappy() if name == "snappy" else Deflate(6)


def read_all(layer: Compression | Layers, bytes_max: int = PIECE_BYTES) -> bytes:
    pieces = []
    while piece := layer.read(bytes_max):
        pieces.append(piece)
    return b"".join(pieces)


compressions = pytest.mark.parametrize("name", ["snappy", "deflate"])


@compressions
def test_no_more_is_unpacked_than_was_asked_for(name: str) -> None:
    sender, receiver = new_compression(name), new_compression(name)
    receiver.receive(sender.pack(bytes(10_000_000)))
    sizes = []
    while piece := receiver.read(PIECE_BYTES):
        sizes.append(len(piece))
    assert sum(sizes) == 10_000_000
    assert max(sizes) <= (PIECE_BYTES if name == "deflate" else SNAPPY_BLOCK_BYTES)


def test_deflate_that_ends_gives_what_came_before() -> None:
    packer = zlib.compressobj(wbits=-15)
    layer = Deflate(6)
    layer.receive(packer.compress(b"last words") + packer.flush() + b"more")
    assert layer.read(PIECE_BYTES) == b"last words"
    with pytest.raises(EndOfStream):
        layer.read(PIECE_BYTES)


def new_tls(server: Identity, policy: str = "", root: Path | None = None) -> Tls:
    options = Options(
        tls_cert=str(server.certificate),
        tls_key=str(server.key),
        tls_client_auth_policy=policy,
        tls_root_ca_file="" if root is None else str(root),
    )
    context = server_context(options)
    assert context is not None
    return Tls(context)


class Client:
    """The other end of TLS."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing)

    def shake_hands_with(self, tls: Tls) -> None:
        for _ in range(4):
            with suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
            if wire := self._outgoing.read():
                tls.receive(wire)
            tls.shake_hands()
            self._incoming.write(tls.take())
        assert tls.established

    def pack(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self._outgoing.read()

    def goodbye(self) -> bytes:
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.unwrap()
        return self._outgoing.read()

    def unpack(self, wire: bytes) -> bytes:
        self._incoming.write(wire)
        data = b""
        while True:
            try:
                piece = self.tls.read()
            except ssl.SSLWantReadError:
                return data
            if not piece:
                return data
            data += piece


@pytest.mark.parametrize("policy", ["", "require", "require-verify"])
def test_tls_there_and_back(authority: Authority, server: Identity, policy: str) -> None:
    tls = new_tls(server, policy, authority.path)
    identity = authority.issue("client") if policy else None
    client = Client(client_context(identity=identity))
    client.shake_hands_with(tls)
    assert tls.common_name == ("client" if policy else "")
    assert (tls.version, tls.cipher.startswith("TLS_")) == ("TLSv1.3", True)
    data = random.Random(1).randbytes(300_000)
    tls.receive(client.pack(data))
    received = b""
    while piece := tls.read(100_000):
        assert len(piece) <= 100_000
        received += piece
    assert received == data
    tls.write(data)
    assert client.unpack(tls.take()) == data


@pytest.mark.parametrize("policy", ["", "require"])
def test_what_came_before_the_end_is_given_first(
    authority: Authority, server: Identity, policy: str
) -> None:
    for ending, error in [("goodbye", EndOfStream), ("garbage", UpgradeError)]:
        tls = new_tls(server, policy, authority.path)
        client = Client(client_context(identity=authority.issue("client")))
        client.shake_hands_with(tls)
        last = client.pack(b"last words")
        tls.receive(last + (client.goodbye() if ending == "goodbye" else b"garbage" * 10))
        assert tls.read(1000) == b"last words"
        for _ in range(2):
            with pytest.raises(error):
                tls.read(1000)
        tls.say_goodbye()


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_client_without_a_certificate(authority: Authority, server: Identity, policy: str) -> None:
    tls = new_tls(server, policy, authority.path)
    with pytest.raises(UpgradeError, match="peer did not return a certificate"):
        Client(client_context()).shake_hands_with(tls)


@compressions
def test_greeting_is_once_in_each_layer(server: Identity, name: str) -> None:
    tls = new_tls(server)
    client = Client(client_context())
    client.shake_hands_with(tls)
    layers = Layers(tls=tls, compression=new_compression(name))
    layers.greet(b"OK")
    layers.write([b"more", bytearray(b" and"), memoryview(b" more")])
    plain = client.unpack(layers.take())
    assert plain.startswith(b"OK")
    inside = new_compression(name)
    inside.receive(plain[2:])
    assert read_all(inside) == b"OKmore and more"
    layers.receive(client.pack(new_compression(name).pack(b"x" * 5000)))
    assert read_all(layers) == b"x" * 5000
