"""TLS that requires a certificate of every client, whoever issued it, by means of pyOpenSSL.

`AnyCertificateContext` is used as any other ssl.SSLContext: it is set up by the same calls, and
what its `wrap_bio` returns has the methods of an ssl.SSLObject that asyncio, uvloop and
`core.layers` call. Knows no options and no sockets.
"""

import socket
import ssl
from collections.abc import Callable
from typing import Any

from OpenSSL import SSL

WIRE_READ_BYTES = 256 * 1024
_SESSION_ID = b"nsqd"  # of sessions that clients resume


class AnyCertificateContext(ssl.SSLContext):
    """Keeps what it is told, to tell it to the context of the other library."""

    def __init__(self, protocol: int) -> None:
        self._ciphers = b""
        self._chain = "", ""
        self._made: SSL.Context | None = None

    def set_ciphers(self, cipherlist: str, /) -> None:
        super().set_ciphers(cipherlist)
        self._ciphers = cipherlist.encode()

    def load_cert_chain(
        self, certfile: Any, keyfile: Any = None, password: Callable[[], str] | Any = None
    ) -> None:
        super().load_cert_chain(certfile, keyfile, password)
        self._chain = certfile, keyfile

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> Any:
        if self._made is None:
            self._made = self._make()
        return AnyCertificateObject(SSL.Connection(self._made, None), incoming, outgoing)

    def _make(self) -> SSL.Context:
        context = SSL.Context(SSL.TLS_SERVER_METHOD)
        context.set_min_proto_version(self.minimum_version)
        context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
        context.set_session_id(_SESSION_ID)
        if self._ciphers:
            context.set_cipher_list(self._ciphers)
        certificate, key = self._chain
        context.use_certificate_chain_file(certificate)
        context.use_privatekey_file(key)
        context.set_verify(
            SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT,
            lambda connection, certificate, error, depth, valid: True,
        )
        return context


class AnyCertificateObject:
    def __init__(
        self, connection: SSL.Connection, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
    ) -> None:
        self._connection = connection
        self._incoming = incoming
        self._outgoing = outgoing
        connection.set_accept_state()

    def do_handshake(self) -> None:
        self._call(self._connection.do_handshake)

    def read(self, bytes_max: int, buffer: Any = None) -> Any:
        """Bytes, or their number if they are read into a buffer; none at the end."""
        try:
            data: bytes = self._call(self._connection.recv, bytes_max)
        except ssl.SSLZeroReturnError:
            data = b""
        if buffer is None:
            return data
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        return int(self._call(self._connection.send, data))

    def unwrap(self) -> None:
        if not self._call(self._connection.shutdown):
            raise ssl.SSLWantReadError

    def pending(self) -> int:
        """How much can be read; over 0, too, if reading would fail or find the end."""
        try:
            self._call(self._connection.recv, 1, socket.MSG_PEEK)
        except ssl.SSLWantReadError:
            return 0
        except ssl.SSLError:
            return 1
        return self._connection.pending()

    def getpeercert(self) -> dict[str, Any]:
        """The subject, in the form of the ssl module, and nothing else."""
        certificate = self._connection.get_peer_certificate(as_cryptography=True)
        if certificate is None:
            return {}
        names = [
            ("commonName" if name.rfc4514_attribute_name == "CN" else name.oid.dotted_string, value)
            for name in certificate.subject
            if isinstance(value := name.value, str)
        ]
        return {"subject": tuple((name,) for name in names)}

    def cipher(self) -> tuple[str, str, int] | None:
        name = self._connection.get_cipher_name()
        return (name, self.version(), self._connection.get_cipher_bits() or 0) if name else None

    def version(self) -> str:
        return self._connection.get_protocol_version_name()

    def compression(self) -> None:
        return None

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call the other library with all that came, and pass on what it says, even on failure."""
        if self._incoming.pending:
            self._connection.bio_write(self._incoming.read())
        try:
            return method(*arguments)
        except SSL.WantReadError:
            raise ssl.SSLWantReadError from None
        except SSL.ZeroReturnError:
            raise ssl.SSLZeroReturnError from None
        except SSL.Error as error:
            raise _as_ssl_error(error) from None
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        try:
            while True:
                self._outgoing.write(self._connection.bio_read(WIRE_READ_BYTES))
        except SSL.WantReadError:
            pass


def _as_ssl_error(error: SSL.Error) -> ssl.SSLError:
    """pyOpenSSL's errors hold a list of (library, function, reason)."""
    reasons = error.args[0] if error.args and isinstance(error.args[0], list) else []
    found = ssl.SSLError(ssl.SSL_ERROR_SSL, "failed")
    found.reason = str(reasons[-1][-1]) if reasons else "failed"
    return found
