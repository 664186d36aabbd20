"""The flags of every command that asks nsqds over HTTP: which ones, and how.

A flag wins over its environment variable. With neither, the nsqd on this machine is asked.
"""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from pumpline.core.protocol.verification import verifying_context
from pumpline.core.text.access_tokens import FILE_BYTES_MAX, parse_access_tokens
from pumpline.core.text.durations import NS_PER_S
from pumpline.core.text.flags import BOOL, DURATION, STRING, STRINGS, OptionsError, option

DEFAULT_NSQD = "127.0.0.1:4151"
NSQD_VARIABLE = "PUMPLINE_NSQD"
LOOKUPD_VARIABLE = "PUMPLINE_LOOKUPD"
TOKEN_FILE_VARIABLE = "PUMPLINE_TOKEN_FILE"
TIMEOUT_NS = 5 * NS_PER_S


@dataclass(slots=True, kw_only=True)
class ClusterOptions:
    nsqd: list[str] = option(
        STRINGS,
        list,
        f"HTTP address of an nsqd, <host>:<port> or https://<host>:<port> (may be given multiple "
        f"times; {NSQD_VARIABLE}; {DEFAULT_NSQD} if there is no other)",
    )
    lookupd: list[str] = option(
        STRINGS,
        list,
        f"HTTP address of an nsqlookupd that knows the nsqds (may be given multiple times; "
        f"{LOOKUPD_VARIABLE})",
    )
    token_file: str = option(
        STRING, "", f"path of a file with the access token ({TOKEN_FILE_VARIABLE})"
    )
    tls_ca_file: str = option(STRING, "", "path of the authorities that nsqds are checked against")
    tls_cert: str = option(STRING, "", "path of a client certificate")
    tls_key: str = option(STRING, "", "path of its key")
    tls_insecure_skip_verify: bool = option(BOOL, False, "take any certificate of an nsqd")
    timeout_ns: int = option(DURATION, TIMEOUT_NS, "how long to wait for each node")

    def with_environment(self, environment: Mapping[str, str] = os.environ) -> None:
        """Fill in what no flag says."""
        if not self.nsqd and not self.lookupd:
            self.nsqd = _words(environment.get(NSQD_VARIABLE, ""))
            self.lookupd = _words(environment.get(LOOKUPD_VARIABLE, ""))
        if not self.nsqd and not self.lookupd:
            self.nsqd = [DEFAULT_NSQD]
        self.token_file = self.token_file or environment.get(TOKEN_FILE_VARIABLE, "")

    @property
    def has_tls_flags(self) -> bool:
        return bool(self.tls_ca_file or self.tls_cert or self.tls_key)

    def tls(self) -> ssl.SSLContext:
        """OptionsError, with the file, when one cannot be used."""
        try:
            context = verifying_context(self.tls_ca_file)
        except (OSError, ValueError) as error:
            raise OptionsError(f"--tls-ca-file {self.tls_ca_file}: {_reason(error)}") from None
        if self.tls_insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if bool(self.tls_cert) != bool(self.tls_key):
            raise OptionsError("--tls-cert and --tls-key must be given together")
        if self.tls_cert:
            try:
                context.load_cert_chain(self.tls_cert, self.tls_key)
            except (OSError, ValueError) as error:
                files = f"--tls-cert {self.tls_cert}, --tls-key {self.tls_key}"
                raise OptionsError(f"{files}: {_reason(error)}") from None
        return context

    def access_token(self) -> str:
        """The first access token of the file; OptionsError if there is none."""
        if not self.token_file:
            return ""
        try:
            with open(self.token_file, "rb") as file:
                return parse_access_tokens(file.read(FILE_BYTES_MAX + 1))[0].token
        except (OSError, ValueError) as error:
            raise OptionsError(f"--token-file {self.token_file}: {_reason(error)}") from None


def _words(text: str) -> list[str]:
    return [word for word in text.replace(",", " ").split() if word]


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return "no PEM file, or not of that key"
    return (isinstance(error, OSError) and error.strerror) or str(error)
