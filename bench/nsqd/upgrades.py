"""Load connections over TLS, snappy or deflate, with the few methods of a socket that load uses.

A load client must use less CPU than the server it drives, so nothing is compressed twice. A
publisher compresses each command once and sends it again and again: a snappy chunk, or a deflate
block that refers to nothing before it, is valid anywhere in a stream. A consumer does not compress
what it sends. Encryption cannot be done beforehand. Knows no workloads.
"""

from __future__ import annotations

import datetime
import ssl
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.kit import wire
from bench.kit.servers import BenchFailure
from pumpline.core.protocol.layers import Deflate, Layers, Snappy, Tls

UPGRADES = TLS, SNAPPY, DEFLATE = "tls", "snappy", "deflate"
DEFLATE_LEVEL = 6  # the default of nsqd and of clients

_ASKED: dict[str, dict[str, Any]] = {
    TLS: {"tls_v1": True},
    SNAPPY: {"snappy": True},
    DEFLATE: {"deflate": True, "deflate_level": DEFLATE_LEVEL},
}
_RECEIVE_BYTES = 1 << 18
_SPARE_BYTES = 1 << 16  # a snappy chunk may exceed the requested size by this much
_RAW_DEFLATE_BITS = -15
_FILE_MODE = 0o600


class Upgraded:
    """A connection, after IDENTIFY and its upgrade."""

    def __init__(self, port: int, upgrade: str) -> None:
        self._upgrade = upgrade
        self._sock = wire.connect(port, {**wire.IDENTITY, **_ASKED[upgrade]})
        self._sock.settimeout(wire.CONNECT_TIMEOUT_S)
        self._layers = _layers(upgrade)
        while not self._layers.open:
            self._layers.shake_hands()
            self._sock.sendall(self._layers.take())
            if not self._layers.open:
                self._layers.receive(self._sock.recv(_RECEIVE_BYTES))
        if self.read_response() != b"OK":
            raise BenchFailure(f"no OK after the upgrade to {upgrade}")
        self.sendall(wire.NOP)  # sends the mark that begins a snappy stream
        wire.set_wake_up(self._sock)

    def pack(self, command: bytes) -> bytes:
        """The command in the form that `send_packed` takes."""
        if self._upgrade == SNAPPY:
            marked = Snappy().pack(command)
            return marked[10:]  # without the mark
        if self._upgrade == DEFLATE:
            deflater = zlib.compressobj(DEFLATE_LEVEL, zlib.DEFLATED, _RAW_DEFLATE_BITS)
            return deflater.compress(command) + deflater.flush(zlib.Z_FULL_FLUSH)
        return command

    def send_packed(self, data: bytes | memoryview) -> None:
        if self._upgrade == TLS:
            self.sendall(data)
        else:
            self._sock.sendall(data)

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        self._layers.write([data])
        self._sock.sendall(self._layers.take())

    def recv_into(self, into: memoryview) -> int:
        """Like socket.recv_into: BlockingIOError on timeout, 0 at the end."""
        while not (data := self._layers.read(len(into) - _SPARE_BYTES)):
            received = self._sock.recv(_RECEIVE_BYTES)
            if not received:
                return 0
            self._layers.receive(received)
        into[: len(data)] = data
        return len(data)

    def recv(self, size: int) -> bytes:
        """For frames read one by one before the load begins, when at most one is under way."""
        while not (data := self._layers.read(size)):
            self._layers.receive(self._sock.recv(_RECEIVE_BYTES))
        return data

    def settimeout(self, seconds: float | None) -> None:
        self._sock.settimeout(seconds)

    def read_response(self) -> bytes:
        """Reads the one frame under way; raises if it is not a response."""
        data = b""
        while len(data) < wire.FRAME_HEAD.size or len(data) < 4 + struct.unpack(">I", data[:4])[0]:
            data += self.recv(_RECEIVE_BYTES)
        _, kind = wire.FRAME_HEAD.unpack_from(data)
        if kind != wire.RESPONSE:
            raise BenchFailure(f"expected a response, got type {kind}: {data[:100]!r}")
        return data[wire.FRAME_HEAD.size :]

    def subscribe(self, topic: str, channel: str) -> None:
        self._sock.settimeout(wire.CONNECT_TIMEOUT_S)
        self.sendall(b"SUB %s %s\n" % (topic.encode(), channel.encode()))
        if (reply := self.read_response()) != b"OK":
            raise BenchFailure(f"SUB answered {reply!r}")
        wire.set_wake_up(self._sock)


def _layers(upgrade: str) -> Layers:
    if upgrade == SNAPPY:
        return Layers(tls=None, compression=Snappy())
    if upgrade == DEFLATE:
        return Layers(tls=None, compression=Deflate(0))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return Layers(tls=Tls(context, server_name="127.0.0.1"), compression=None)


def tls_flags(directory: Path) -> Sequence[str]:
    """Creates a certificate for a server; returns the flags that name it."""
    # Imported here, so that only the TLS workloads need the library.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "bench")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    certificate_path, key_path = directory / "bench.pem", directory / "bench-key.pem"
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.touch(mode=_FILE_MODE)
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return [f"--tls-cert={certificate_path}", f"--tls-key={key_path}", "--https-address="]
