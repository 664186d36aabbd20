"""How nodes are asked: the access token, TLS files and timeouts, under the caller's own names.

The tools have flags, Spark has options and nsqadmin has flags of NSQ. Errors and hints name the
setting of the caller, so every caller gives its `AccessNames`.
"""

import ssl
from dataclasses import dataclass, field

from pumpline.core.protocol.verification import verifying_context
from pumpline.core.text.access_tokens import FILE_BYTES_MAX, parse_access_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessNames:
    """What the caller calls its settings."""

    nsqd: str
    lookupd: str
    token: str
    token_file: str
    ca_file: str
    cert_file: str
    key_file: str

    @property
    def certificate(self) -> str:
        return f"{self.cert_file} and {self.key_file}"


FLAG_NAMES = AccessNames(
    nsqd="--nsqd",
    lookupd="--lookupd",
    token="--token-file",
    token_file="--token-file",
    ca_file="--tls-ca-file",
    cert_file="--tls-cert",
    key_file="--tls-key",
)


class AccessError(Exception):
    """A file of the settings cannot be used; the text names the setting and the file."""


@dataclass(slots=True, kw_only=True)
class NodeAccess:
    """A token file is read for every request (20 us), so a token may change while a stream runs."""

    timeout_s: float | None  # for each read and write; None: no limit
    connect_timeout_s: float | None = None  # None: the same
    names: AccessNames = FLAG_NAMES
    token: str = field(default="", repr=False)
    token_file: str = ""
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_skip_verify: bool = False
    _context: ssl.SSLContext | None = field(default=None, init=False, repr=False)

    def authorization(self) -> dict[str, str]:
        """The header with the access token, if there is one; or AccessError."""
        token = self.token
        if self.token_file:
            try:
                token = token_in(self.token_file)
            except (OSError, ValueError) as error:
                where = f"{self.names.token_file} {self.token_file}"
                raise AccessError(f"{where}: {_reason(error)}") from None
        return {"Authorization": f"Bearer {token}"} if token else {}

    def tls(self) -> ssl.SSLContext:
        """For https:// nodes, made once (25 ms); or AccessError."""
        if self._context is None:
            self._context = self._new_context()
        return self._context

    def _new_context(self) -> ssl.SSLContext:
        names = self.names
        try:
            context = verifying_context(self.tls_ca_file)
        except (OSError, ValueError) as error:
            raise AccessError(f"{names.ca_file} {self.tls_ca_file}: {_reason(error)}") from None
        if self.tls_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise AccessError(f"{names.certificate} must be given together")
        if self.tls_cert_file:
            try:
                context.load_cert_chain(self.tls_cert_file, self.tls_key_file)
            except (OSError, ValueError) as error:
                cert, key = f"{names.cert_file} {self.tls_cert_file}", self.tls_key_file
                raise AccessError(f"{cert}, {names.key_file} {key}: {_reason(error)}") from None
        return context


def token_in(path: str) -> str:
    """The first access token of a file; OSError or ValueError if there is none."""
    with open(path, "rb") as file:
        return parse_access_tokens(file.read(FILE_BYTES_MAX + 1))[0].token


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return "no PEM file, or not of that key"
    return (isinstance(error, OSError) and error.strerror) or str(error)
