"""The layers of a connection: what is packed is unpacked, and anything else is refused."""

import functools
import random
import ssl
from contextlib import suppress
from pathlib import Path

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumpline.core.protocol.layers import (
    Compression,
    Deflate,
    EndOfStream,
    Snappy,
    Tls,
    UpgradeError,
)
from pumpline.nsqd.options import Options
from pumpline.nsqd.security.tls import server_context
from tests.kit.certificates import Authority

SNAPPY_START = b"\xff\x06\x00\x00sNaPpY"
LARGE_BYTES = 70_000  # more than a block of snappy's

compressions = pytest.mark.parametrize("name", ["snappy", "deflate"])


def new_compression(name: str) -> Compression:
    return Snappy() if name == "snappy" else Deflate(6)


def read_all(layer: Compression, bytes_max: int = 1000) -> bytes:
    pieces = []
    while piece := layer.read(bytes_max):
        pieces.append(piece)
    return b"".join(pieces)


@compressions
@given(
    sizes=st.lists(st.integers(0, 300) | st.just(LARGE_BYTES), max_size=5),
    seed=st.integers(0, 1000),
)
def test_what_is_packed_is_unpacked_however_it_is_cut(
    name: str, sizes: list[int], seed: int
) -> None:
    chance = random.Random(seed)
    data = [chance.choice([bytes, chance.randbytes])(size) for size in sizes]
    sender, receiver = new_compression(name), new_compression(name)
    wire = b"".join(sender.pack(piece) for piece in data)
    received = b""
    while wire:
        count = chance.choice([1, 70, 5000])
        receiver.receive(wire[:count])
        received += read_all(receiver, chance.choice([50, 5000]))
        wire = wire[count:]
    assert received == b"".join(data)


@compressions
@given(data=st.binary(max_size=200))
def test_any_bytes_are_unpacked_or_refused(name: str, data: bytes) -> None:
    layer = new_compression(name)
    layer.receive(data)
    with suppress(UpgradeError, EndOfStream):
        read_all(layer)


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 0x80, 0xFE, 0xFF]), st.binary(max_size=20)), max_size=6
    )
)
def test_any_chunks_are_unpacked_or_refused(chunks: list[tuple[int, bytes]]) -> None:
    wire = SNAPPY_START
    for kind, body in chunks:
        wire += bytes([kind]) + len(body).to_bytes(3, "little") + body
    layer = Snappy()
    layer.receive(wire)
    with suppress(UpgradeError):
        read_all(layer)


@given(st.binary(min_size=1, max_size=2000), st.data())
def test_damaged_chunks_are_found_out(plain: bytes, data: st.DataObject) -> None:
    wire = bytearray(cramjam.snappy.compress(plain))
    at = data.draw(st.integers(len(SNAPPY_START) + 4, len(wire) - 1))
    wire[at] ^= data.draw(st.integers(1, 255))
    layer = Snappy()
    layer.receive(bytes(wire))
    with pytest.raises(UpgradeError):
        read_all(layer)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("certificates")
    Authority(path).issue("server")
    return path


@functools.cache  # the certificates of the system's authorities take 40 ms to load
def context_of(directory: Path, policy: str) -> ssl.SSLContext:
    options = Options(
        tls_cert=str(directory / "server.pem"),
        tls_key=str(directory / "server-key.pem"),
        tls_client_auth_policy=policy,
    )
    context = server_context(options)
    assert context is not None
    return context


@pytest.mark.parametrize("policy", ["", "require-verify"])
@given(data=st.binary(min_size=1, max_size=300))
def test_any_bytes_instead_of_a_handshake(directory: Path, policy: str, data: bytes) -> None:
    for wire in (data, b"\x16\x03\x01" + len(data).to_bytes(2) + data):
        tls = Tls(context_of(directory, policy))
        tls.receive(wire)
        with suppress(UpgradeError):
            tls.shake_hands()
        assert not tls.established
