"""The flags of every command that asks nsqds over HTTP: which ones, and how.

A flag wins over its environment variable. A context (`cluster.contexts`) says all of it at once.
With none of them, the nsqd on this machine is asked.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from pumpline.cluster.access import AccessError, NodeAccess, token_in
from pumpline.cluster.contexts import CONTEXT_VARIABLE, chosen_context
from pumpline.core.text.durations import NS_PER_S
from pumpline.core.text.flags import BOOL, DURATION, STRING, STRINGS, OptionsError, option

DEFAULT_NSQD = "127.0.0.1:4151"
NSQD_VARIABLE = "PUMPLINE_NSQD"
LOOKUPD_VARIABLE = "PUMPLINE_LOOKUPD"
TOKEN_FILE_VARIABLE = "PUMPLINE_TOKEN_FILE"
TIMEOUT_NS = 5 * NS_PER_S


@dataclass(slots=True, kw_only=True)
class ClusterOptions:
    context: str = option(
        STRING, "", f"name of the cluster, as `pumpline context` has it ({CONTEXT_VARIABLE})"
    )
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

    def with_environment(self, environment: Mapping[str, str] = os.environ) -> str:
        """Fill in what no flag says; returns the label of the context's environment, if any."""
        if name := self._context_name(environment):
            context = chosen_context(name, environment)
            self.nsqd, self.lookupd = context.nsqd, context.lookupd
            # Not the token of the environment: it may be for another cluster.
            self.token_file = self.token_file or context.token_file
            self.tls_ca_file = self.tls_ca_file or context.tls_ca_file
            self.tls_cert = self.tls_cert or context.tls_cert
            self.tls_key = self.tls_key or context.tls_key
            self.tls_insecure_skip_verify |= context.tls_insecure_skip_verify
            return context.environment or name
        if not self.nsqd and not self.lookupd:
            self.nsqd = _words(environment.get(NSQD_VARIABLE, ""))
            self.lookupd = _words(environment.get(LOOKUPD_VARIABLE, ""))
        if not self.nsqd and not self.lookupd:
            self.nsqd = [DEFAULT_NSQD]
        self.token_file = self.token_file or environment.get(TOKEN_FILE_VARIABLE, "")
        return ""

    def _context_name(self, environment: Mapping[str, str]) -> str:
        """Empty if addresses are given; OptionsError if it is not clear which cluster is meant."""
        if self.context and (self.nsqd or self.lookupd):
            raise OptionsError("use --context or addresses, not both")
        if self.context or self.nsqd or self.lookupd:
            return self.context
        name = environment.get(CONTEXT_VARIABLE, "")
        for variable in (NSQD_VARIABLE, LOOKUPD_VARIABLE):
            if name and environment.get(variable):
                raise OptionsError(f"{CONTEXT_VARIABLE} and {variable} are both set: unset one")
        return name

    def access(self) -> NodeAccess:
        """OptionsError, with the file, when one cannot be used."""
        access = NodeAccess(
            timeout_s=self.timeout_ns / NS_PER_S,
            token_file=self.token_file,
            tls_ca_file=self.tls_ca_file,
            tls_cert_file=self.tls_cert,
            tls_key_file=self.tls_key,
            tls_skip_verify=self.tls_insecure_skip_verify,
        )
        try:
            access.authorization()
            if self.tls_ca_file or self.tls_cert or self.tls_key:
                access.tls()
        except AccessError as error:
            raise OptionsError(str(error)) from None
        return access

    def access_token(self) -> str:
        """The first access token of the file, if one is given; or OptionsError."""
        self.access()
        return token_in(self.token_file) if self.token_file else ""


def _words(text: str) -> list[str]:
    return [word for word in text.replace(",", " ").split() if word]
