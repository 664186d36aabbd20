"""Who may use the HTTP API: access tokens from a file, and client certificates on the HTTPS port.

Off unless an option turns it on: NSQ has nothing of the kind, and its tools can show neither. Only
reading the log, which NSQ has not, is closed by AUTH alone (`require_certificate`). When it is on,
every endpoint that is not open to all requires one of the two:

| shown                                      | open | reading the log | changing anything        |
|--------------------------------------------|------|-----------------|--------------------------|
| nothing, or a wrong access token           | yes  | 401             | 401 (403 without tokens) |
| an access token whose line ends in `read`  | yes  | yes             | 403                      |
| an access token, or a verified certificate | yes  | yes             | yes                      |

The file is described in `core.text.access_tokens`. To replace a token without a gap: add the new
one, SIGHUP, move the clients, remove the old one, SIGHUP. Tokens are kept and compared as digests.
Every request is compared with all of them, so that the time taken tells nothing. What an endpoint
requires is in the table of routes; nothing else about endpoints is known here.
"""

import hmac
import logging
import os
from hashlib import sha256
from typing import NamedTuple

from pumpline.core.text.access_tokens import FILE_BYTES_MAX, TokenLine, parse_access_tokens
from pumpline.web.endpoint import Access, AccessGrant
from pumpline.web.replies import HttpError
from pumpline.web.request import Request

ACCESS_TOKEN_CHARS_MIN = 16
ACCESS_TOKENS_MAX = 100  # every request is compared with all of them

_OTHERS_CAN_READ = 0o004
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="nsqd"'}

_LOG = logging.getLogger(__name__)


class AccessTokenError(Exception):
    """The file of access tokens cannot be used; the text says why, and holds no token."""


class AccessToken(NamedTuple):
    digest: bytes
    read_only: bool


class Gate:
    """Decides on every request to an endpoint that is not open to all."""

    def __init__(self, *, token_path: str, certificates: bool) -> None:
        """`token_path` is empty for none; `certificates`: a verified one is accepted as well."""
        self.refused_count = 0
        self._path = token_path
        self._certificates = certificates
        self._access_tokens = read_access_tokens(token_path) if token_path else ()
        self._grant = AccessGrant()  # by the access tokens known now

    def reload(self) -> None:
        """Read the file again; if that fails, the access tokens known so far stay."""
        if not self._path:
            return
        try:
            self._access_tokens = read_access_tokens(self._path)
        except AccessTokenError as error:
            _LOG.error("HTTP: tokens not changed - %s", error)
        else:
            self._grant.revoked = True
            self._grant = AccessGrant()
            _LOG.info("HTTP: %d tokens read from %s", len(self._access_tokens), self._path)

    def check(self, request: Request, access: Access) -> AccessGrant:
        """HttpError unless the request may have what it asks for."""
        if access is Access.OPEN or (self._certificates and request.client.has_certificate):
            return self._grant
        try:
            self._check_access_token(request, access)
        except HttpError:
            self.refused_count += 1
            raise
        return self._grant

    def _check_access_token(self, request: Request, access: Access) -> None:
        if not self._access_tokens:
            raise HttpError(403, "CERTIFICATE_REQUIRED")
        shown = _bearer(request.headers("Authorization"))
        digest = _digest(shown)
        found = None
        for token in self._access_tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token  # no break: all take the same time
        if found is None or not shown:
            raise HttpError(401, "UNAUTHORIZED", headers=_CHALLENGE)
        if found.read_only and access is not Access.READ_LOG:
            raise HttpError(403, "FORBIDDEN")


def require_certificate(request: Request) -> None:
    """For reading the log, and for settings that bring messages to another topic, where TCP clients
    must AUTH, and there are no access tokens. AUTH grants single topics, and HTTP clients do not
    AUTH: without this they would see every topic."""
    if not request.client.has_certificate:
        raise HttpError(403, "ACCESS_TOKEN_REQUIRED")


def read_access_tokens(path: str) -> tuple[AccessToken, ...]:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
            mode = os.fstat(file.fileno()).st_mode
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise AccessTokenError(f"open {path}: {reason}") from None
    if mode & _OTHERS_CAN_READ:
        _LOG.warning("HTTP: %s can be read by every user of this machine", path)
    try:
        lines = parse_access_tokens(data)
        _check(lines)
    except ValueError as error:
        raise AccessTokenError(f"{path}: {error}") from None
    return tuple(AccessToken(_digest(line.token), line.read_only) for line in lines)


def _check(lines: list[TokenLine]) -> None:
    if len(lines) > ACCESS_TOKENS_MAX:
        raise ValueError(f"there are more than {ACCESS_TOKENS_MAX} tokens in it")
    short = [line.number for line in lines if len(line.token) < ACCESS_TOKEN_CHARS_MIN]
    if short:
        fault = f"has fewer than {ACCESS_TOKEN_CHARS_MIN} characters"
        raise ValueError(f"the token of line {short[0]} {fault}")


def _bearer(values: list[str]) -> str:
    """The access token shown, or empty; two headers count as none."""
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    return token.strip() if scheme.lower() == "bearer" else ""


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
