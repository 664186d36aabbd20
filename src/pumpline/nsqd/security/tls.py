"""TLS contexts from the options, with NSQ's words for what is wrong with them.

| policy for clients | their certificates                                             |
|--------------------|----------------------------------------------------------------|
| (none)             | not asked for                                                  |
| require-verify     | required, from an authority in --tls-root-ca-file              |
| require            | as require-verify, with a warning in the log                   |

NSQ's `require` accepts any certificate, also one that the client issued to itself. Python's ssl
module can only require certificates that it verifies. TLS before 1.2, which NSQ allows by default,
is offered only if clients' certificates are not verified: OpenSSL offers it at a security level
that accepts signatures that can be forged.
"""

import logging
import re
import ssl
import warnings
from dataclasses import replace

from pumpline.nsqd.options import Options

POLICY_REQUIRE = "require"
POLICY_REQUIRE_VERIFY = "require-verify"

# TLS before 1.2 has none but CBC suites with SHA-1, which OpenSSL allows at level 0 only.
OLD_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES:!AESCCM:!aNULL:!eNULL:@SECLEVEL=0"

_PEM_TYPE = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----")
_OPENSSL_CIPHER = re.compile(
    r"(?:(?P<exchange>.+)-)??(?P<name>AES|CHACHA20)(?P<bits>\d+)?-(?P<rest>[A-Z0-9-]+)"
)

_LOG = logging.getLogger(__name__)


class TlsError(Exception):
    """TLS cannot be had; the text is the last part of the FATAL log line."""


def server_context(options: Options) -> ssl.SSLContext | None:
    """For clients and HTTPS; None if there is no certificate."""
    if not options.tls_cert and not options.tls_key:
        return None
    certificate, key = _read(options.tls_cert), _read(options.tls_key)
    _check_certificate(certificate)
    _check_key(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    _set_min_version(context, options.tls_min_version)
    verifies = options.tls_client_auth_policy in (POLICY_REQUIRE, POLICY_REQUIRE_VERIFY)
    if options.tls_min_version < ssl.TLSVersion.TLSv1_2 and not verifies:
        context.set_ciphers(OLD_CIPHERS)
    try:
        # An encrypted key must not make OpenSSL ask at the terminal.
        context.load_cert_chain(options.tls_cert, options.tls_key, password=lambda: "")
    except ssl.SSLError as error:
        raise TlsError(_chain_fault(error)) from None
    if options.tls_root_ca_file:
        _load_authorities(context, options.tls_root_ca_file)
    if verifies:
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        if not options.tls_root_ca_file:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    return context


def warn_of_policy(options: Options) -> None:
    """Say in the log that `require` is stricter than NSQ's."""
    if options.tls_client_auth_policy == POLICY_REQUIRE:
        _LOG.warning(
            "TLS: --tls-client-auth-policy=%s is taken as %s: a client's certificate must be "
            "from an authority in --tls-root-ca-file, or in the system's list without one",
            POLICY_REQUIRE,
            POLICY_REQUIRE_VERIFY,
        )


def https_context(options: Options) -> ssl.SSLContext | None:
    """For HTTPS; None if there is no certificate.

    With --http-client-ca-file it asks for a certificate of those authorities, and takes no other.
    A client may do without one unless the policy says otherwise: it just gets to see less.
    """
    if not options.http_client_ca_file:
        return server_context(options)
    required = bool(options.tls_client_auth_policy)
    verifying = replace(
        options,
        tls_client_auth_policy=POLICY_REQUIRE_VERIFY,
        tls_root_ca_file=options.http_client_ca_file,
    )
    context = server_context(verifying)
    if context is not None and not required:
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def client_context(options: Options) -> ssl.SSLContext:
    """For requests to the auth server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_min_version(context, options.tls_min_version)
    if options.tls_root_ca_file:
        _load_authorities(context, options.tls_root_ca_file)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    else:
        context.load_default_certs()
    return context


def _set_min_version(context: ssl.SSLContext, version: int) -> None:
    with warnings.catch_warnings():
        # Python warns of versions before 1.2, which are NSQ's default and the user's choice.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion(version)


def go_cipher_name(name: str) -> str:
    """The standard's name of a cipher suite, which Go uses, for OpenSSL's."""
    parts = _OPENSSL_CIPHER.fullmatch(name)
    if name.startswith("TLS_") or parts is None:
        return name
    exchange = (parts["exchange"] or "RSA").replace("-", "_")
    if parts["name"] == "CHACHA20":
        return f"TLS_{exchange}_WITH_CHACHA20_POLY1305_SHA256"
    rest = parts["rest"].replace("-", "_")
    mode = rest if "_" in rest else f"CBC_{rest}"
    return f"TLS_{exchange}_WITH_AES_{parts['bits']}_{mode}"


def go_version_name(version: str) -> str:
    """`TLS1.2` for OpenSSL's `TLSv1.2`."""
    return {"TLSv1": "TLS1.0"}.get(version, version.replace("v", ""))


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except IsADirectoryError as error:
        raise TlsError(f"read {path}: {_cause(error)}") from None
    except OSError as error:
        raise TlsError(f"open {path}: {_cause(error)}") from None


def _cause(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _check_certificate(data: bytes) -> None:
    types = _pem_types(data)
    if not types:
        raise TlsError("tls: failed to find any PEM data in certificate input")
    if "CERTIFICATE" in types:
        return
    if len(types) == 1 and types[0].endswith("PRIVATE KEY"):
        raise TlsError(
            "tls: failed to find certificate PEM data in certificate input, but did find a "
            "private key; PEM inputs may have been switched"
        )
    raise TlsError(
        'tls: failed to find "CERTIFICATE" PEM block in certificate input after skipping PEM '
        f"blocks of the following types: [{' '.join(types)}]"
    )


def _check_key(data: bytes) -> None:
    types = _pem_types(data)
    if not types:
        raise TlsError("tls: failed to find any PEM data in key input")
    if any(each.endswith("PRIVATE KEY") for each in types):
        return
    if types == ["CERTIFICATE"]:
        raise TlsError("tls: found a certificate rather than a key in the PEM for the private key")
    raise TlsError(
        'tls: failed to find PEM block with type ending in "PRIVATE KEY" in key input after '
        f"skipping PEM blocks of the following types: [{' '.join(types)}]"
    )


def _pem_types(data: bytes) -> list[str]:
    return [each.decode() for each in _PEM_TYPE.findall(data)]


def _chain_fault(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "tls: private key does not match public key"
    if error.reason == "KEY_TYPE_MISMATCH":
        return "tls: private key type does not match public key type"
    return f"tls: {(error.reason or 'failed to parse certificate or key').lower()}"


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    _read(path)
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError:
        raise TlsError("failed to append certificate to pool") from None
