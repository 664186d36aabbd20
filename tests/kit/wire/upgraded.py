"""Sessions after the upgrades of IDENTIFY: the same commands and frames, wrapped.

Wraps the socket of a session in TLS, snappy or deflate, in the order in which the server puts
them on, and reads the OK of each.
"""

import json
import socket
import ssl
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import snappy

from tests.kit.certificates import Identity, client_context
from tests.kit.daemons import Nsqd
from tests.kit.wire.commands import fin, identify, rdy, sub
from tests.kit.wire.session import OK, Session

RECEIVE_BYTES = 1 << 16


class Codec(Protocol):
    def pack(self, data: bytes) -> bytes: ...

    def unpack(self, data: bytes) -> bytes: ...


class SnappyCodec:
    def __init__(self) -> None:
        self._compressor = snappy.StreamCompressor()
        self._decompressor = snappy.StreamDecompressor()

    def pack(self, data: bytes) -> bytes:
        return bytes(self._compressor.add_chunk(data))

    def unpack(self, data: bytes) -> bytes:
        return bytes(self._decompressor.decompress(data))


class DeflateCodec:
    def __init__(self) -> None:
        self._deflater = zlib.compressobj(wbits=-15)
        self._inflater = zlib.decompressobj(wbits=-15)

    def pack(self, data: bytes) -> bytes:
        return self._deflater.compress(data) + self._deflater.flush(zlib.Z_SYNC_FLUSH)

    def unpack(self, data: bytes) -> bytes:
        return self._inflater.decompress(data)


class PackedSocket:
    """What a session needs of a socket, with a codec in between."""

    def __init__(self, wire: socket.socket, codec: Codec, received: bytes) -> None:
        self.wire = wire
        self.codec = codec
        self._plain = codec.unpack(received) if received else b""

    def settimeout(self, seconds: float) -> None:
        self.wire.settimeout(seconds)

    def sendall(self, data: bytes) -> None:
        self.wire.sendall(self.codec.pack(data))

    def recv(self, count: int) -> bytes:
        while not self._plain:
            data = self.wire.recv(RECEIVE_BYTES)
            if not data:
                return b""
            self._plain = self.codec.unpack(data)
        plain, self._plain = self._plain[:count], self._plain[count:]
        return plain

    def shutdown(self, how: int) -> None:
        self.wire.shutdown(how)

    def close(self) -> None:
        self.wire.close()


def negotiate(session: Session, **wishes: object) -> dict[str, Any]:
    """What IDENTIFY is answered; nothing is upgraded yet."""
    answer: dict[str, Any] = json.loads(
        session.request(identify({"feature_negotiation": True, **wishes})).data
    )
    return answer


def upgrade(
    session: Session, *, tls: ssl.SSLContext | None = None, **wishes: object
) -> dict[str, Any]:
    """IDENTIFY, the upgrades that were granted, and the OK of each; returns the answer."""
    if tls is not None:
        wishes["tls_v1"] = True
    answer = negotiate(session, **wishes)
    if answer["tls_v1"]:
        wrap_tls(session, tls or client_context())
        assert session.frame() == OK
    if answer["snappy"]:
        wrap(session, SnappyCodec())
        assert session.frame() == OK
    if answer["deflate"]:
        wrap(session, DeflateCodec())
        assert session.frame() == OK
    return answer


def wrap_tls(session: Session, context: ssl.SSLContext) -> None:
    session.raw.socket = context.wrap_socket(session.raw.socket, server_hostname="127.0.0.1")


def wrap(session: Session, codec: Codec) -> None:
    """What was received beyond the last frame belongs to the codec."""
    received = bytes(session.raw._received)
    session.raw._received.clear()
    session.raw.socket = PackedSocket(session.raw.socket, codec, received)  # type: ignore[assignment]


def consume_and_finish(session: Session, topic: str, published: Sequence[bytes]) -> None:
    """What was published comes through, and so do the answers."""
    assert session.request(sub(topic, "ch")) == OK
    session.send(rdy(len(published)))
    messages = session.messages(len(published))
    assert sorted(message.body for message in messages) == sorted(published)
    session.send(*[fin(message.id) for message in messages])
    assert session.before_barrier() == []


def secure_nsqd(directory: Path, server: Identity, *flags: str) -> Nsqd:
    return Nsqd(directory / "data", [*server.flags(), "--https-address=127.0.0.1:0", *flags])
