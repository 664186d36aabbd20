"""Certificates for a test: an authority of its own, and what it issues, as PEM files.

Knows nothing of nsqd. Keys are small and short-lived; none of this is meant to keep a secret.
"""

import datetime
import ipaddress
import ssl
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LIFETIME = datetime.timedelta(days=2)
LOOPBACK = ipaddress.ip_address("127.0.0.1")


class Identity(NamedTuple):
    """A certificate and its key."""

    certificate: Path
    key: Path

    def flags(self) -> list[str]:
        """Those that make it a daemon's."""
        return [f"--tls-cert={self.certificate}", f"--tls-key={self.key}"]


class Authority:
    """Its certificates have no key identifiers: those of private authorities often have none."""

    def __init__(
        self, directory: Path, name: str = "authority", *, issuer: "Authority | None" = None
    ) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        by = issuer or self
        certificate = _sign(self._name, by._name, self._key, by._key, is_authority=True)
        self.path = directory / f"{name}.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def authorize(self, name: str) -> "Authority":
        """An intermediate authority."""
        return Authority(self._directory, name, issuer=self)

    def issue(self, name: str) -> Identity:
        """An identity for 127.0.0.1, with that common name."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _sign(_name(name), self._name, key, self._key, is_authority=False)
        identity = Identity(self._directory / f"{name}.pem", self._directory / f"{name}-key.pem")
        identity.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        identity.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return identity


def client_context(
    *, authority: Authority | None = None, identity: Identity | None = None
) -> ssl.SSLContext:
    """For a client; without an authority it believes every server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authority is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(authority.path)
    if identity is not None:
        context.load_cert_chain(identity.certificate, identity.key)
    return context


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _sign(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - LIFETIME)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(LOOPBACK)]), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
