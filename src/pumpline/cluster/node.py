"""One nsqd or nsqlookupd, asked over HTTP.

| method                          | for                                                           |
|---------------------------------|---------------------------------------------------------------|
| `get`, `post`, `get_as`         | a reply as a whole, of at most REPLY_BYTES_MAX                |
| `send`, `receive`, `read_into`  | callers that work while the node does, or read large replies  |
| `stream`                        | a reply without end, in pieces                                |

Every failure is a `NodeFailure`, in one sentence with a hint. A node that requires TLS names its
HTTPS port and is asked there, as NSQ's tools do. Blocks; one thread at a time uses a node, except
for `abort`. `pumpline.client.http_connection` does the HTTP. Must not know what replies mean.
"""

import json
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from http import HTTPStatus
from http.client import BadStatusLine, RemoteDisconnected
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from pumpline import __version__
from pumpline.client.http_connection import HttpClientConnection, HttpRequestError
from pumpline.cluster.access import AccessNames, NodeAccess
from pumpline.core.text.names import go_quote

if TYPE_CHECKING:
    import msgspec

REPLY_BYTES_MAX = 256 << 20
ERROR_BYTES_MAX = 4096
ERROR_CHARS_MAX = 500  # of a reply that is no JSON, in a sentence
PIECE_BYTES_MAX = 64 << 10
TLS_REQUIRED = "TLS_REQUIRED"
NAME_RULE = "a name has 1 to 64 characters of A-Z a-z 0-9 . _ -"
HINTS = {
    "UNAUTHORIZED": "it wants an access token: {token}",
    "FORBIDDEN": "this access token may only read",
    "ACCESS_TOKEN_REQUIRED": "it has --auth-http-address; start it with --http-token-file, too",
    "UNKNOWN_HOST": "it does not know this host name; start it with --http-host and the name",
    "NOT_FOUND": "it does not know this: a stock nsqd",
    "TOPIC_NOT_FOUND": "it has no such topic",
    "CHANNEL_NOT_FOUND": "the topic has no such channel",
    "INVALID_TOPIC": NAME_RULE,
    "INVALID_CHANNEL": NAME_RULE,
    "INVALID_DEFER": "a delay is between 0 and its --max-req-timeout",
    "INVALID_TOKEN": "a publish token has up to 64 characters of A-Z a-z 0-9 . _ : -",
    "MSG_EMPTY": "a message has at least one byte",
    "MSG_TOO_BIG": "a message has at most its --max-msg-size",
    "BODY_TOO_BIG": "a request has at most its --max-body-size",
    "OFFSET_BEYOND_END": "the log ends before",
    "CERTIFICATE_REQUIRED": "it wants a certificate: {certificate}, and https://",
}

Query = Mapping[str, object]
NO_QUERY: Query = {}
T = TypeVar("T")

_HEADERS = {"Accept": "application/vnd.nsq; version=1.0", "User-Agent": f"pumpline/{__version__}"}
_ADDRESS = re.compile(r"(https?://)?(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})/?")
# OpenSSL's reasons when the other side speaks no TLS, or does not accept our certificate.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})
_NO_CERTIFICATE = frozenset(
    {
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        "TLSV1_ALERT_UNKNOWN_CA",
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_HANDSHAKE_FAILURE",
    }
)
# The reply of a TCP port of a daemon to HTTP: in an error frame (type 1) if it is an nsqd.
_TCP_ERROR = "E_BAD_PROTOCOL"
_TCP_FRAME = "\0\0\0\1E_BAD_PROTOCOL"


class NodeFault(Enum):
    """Why there is no reply, where another try fails as well."""

    TLS = auto()
    ADDRESS = auto()  # it is that of another port, or of another daemon


class NodeFailure(Exception):
    """A node does not reply, or refuses; the text says why, without the node's address."""

    def __init__(
        self,
        text: str,
        *,
        status: int = 0,
        code: str = "",
        body: bytes = b"",
        address: str = "",
        fault: NodeFault | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status  # 0: no reply
        self.code = code
        self.body = body  # the first bytes of the reply
        self.address = address
        self.fault = fault

    @property
    def details(self) -> dict[str, Any]:
        """The reply, if it is an object of JSON."""
        try:
            return object_in(self.body)
        except NodeFailure:
            return {}

    @property
    def is_unknown_path(self) -> bool:
        """The node does not have this path. Every nsqd of ours has it, so this is a Go nsqd."""
        return self.status == 404 and self.code in ("NOT_FOUND", "")

    def in_nsq_words(self) -> str:
        """The text of NSQ's nsqadmin."""
        if not self.status:
            return f"{self.address}: {self}" if self.address else str(self)
        phrase = HTTPStatus(self.status).phrase if self.status in set(HTTPStatus) else ""
        return f"got response {self.status} {phrase} {go_quote(self.body[:ERROR_CHARS_MAX])}"


class ClusterNode:
    def __init__(
        self, address: str, access: NodeAccess, *, is_nsqlookupd: bool = False, origin: str = ""
    ) -> None:
        """`address` is one that `is_address` takes. An nsqlookupd gets no access token. `origin` is
        where the node was found to be asked before."""
        self.address = address.removeprefix("http://").rstrip("/")
        self.origin = origin or (
            self.address if self.address.startswith("https://") else f"http://{self.address}"
        )
        self.answer_date = ""  # the header `Date` of the last reply
        self.answer_took_s = 0.0
        self.is_aborted = False
        self._is_nsqlookupd = is_nsqlookupd
        self._access = access
        self._sent_at_s = 0.0
        self._http = self._new_http()

    # -- whole replies --------------------------------------------------------------------------

    def get(self, path: str, query: Query = NO_QUERY) -> bytes:
        """The reply; NodeFailure if its status is not 200. None in a query is left out."""
        return self._ask("GET", path, query, None, is_repeatable=True)

    def get_as(self, kind: type[T], path: str, query: Query = NO_QUERY) -> T:
        return decoded(self.get(path, query), kind, self.address)

    def get_json(self, path: str, query: Query = NO_QUERY) -> object:
        return self.get_as(object, path, query)

    def post(
        self,
        path: str,
        query: Query = NO_QUERY,
        body: bytes = b"",
        *,
        is_repeatable: bool = False,
    ) -> bytes:
        """`is_repeatable`: to ask twice changes no more than to ask once."""
        return self._ask("POST", path, query, body, is_repeatable=is_repeatable)

    def post_as(self, kind: type[T], path: str, query: Query = NO_QUERY, body: bytes = b"") -> T:
        return decoded(self.post(path, query, body), kind, self.address)

    def post_json(self, path: str, query: Query = NO_QUERY, body: bytes = b"") -> object:
        return self.post_as(object, path, query, body)

    def stream(self, path: str, query: Query = NO_QUERY) -> Iterator[bytes]:
        """Pieces of a reply without end. The first is empty: it says that the status is 200."""
        self._begin("GET", path, query, None, is_repeatable=True)
        yield b""
        try:
            while piece := self._http.read_piece(PIECE_BYTES_MAX):
                yield piece
        except HttpRequestError as error:
            raise self._unanswered(error) from None

    def close(self) -> None:
        self._http.close()

    def abort(self) -> None:
        """Make a call that blocks in another thread fail. The node is of no use any more."""
        self.is_aborted = True
        self._http.abort()

    def _ask(
        self, method: str, path: str, query: Query, body: bytes | None, *, is_repeatable: bool
    ) -> bytes:
        retries = 1 if self._http.is_open and is_repeatable else 0
        while True:
            try:
                self._begin(method, path, query, body, is_repeatable=is_repeatable)
                return self.read()
            except NodeFailure as failure:
                if failure.status or failure.fault or not retries or self.is_aborted:
                    raise
                retries -= 1  # a kept connection may be stale

    def _begin(
        self, method: str, path: str, query: Query, body: bytes | None, *, is_repeatable: bool
    ) -> None:
        """Send a request and wait for the status 200. A request that must not be repeated goes to
        a new connection, because a kept one may be stale."""
        if not is_repeatable:
            self._http.close()
        self.send(path, query, method=method, body=body)
        try:
            self.receive()
            return
        except NodeFailure as failure:
            if failure.code == "NOT_FOUND" and (mistake := self._mistake()):
                raise NodeFailure(mistake, address=self.address, fault=NodeFault.ADDRESS) from None
            port = https_port(failure)
            if not port:
                raise
        self._http.close()
        self.origin = f"https://{self.origin.partition('://')[2].rpartition(':')[0]}:{port}"
        self._http = self._new_http()
        self.send(path, query, method=method, body=body)
        self.receive()

    def _mistake(self) -> str:
        """Empty, or which setting to use if this is an nsqd that was taken for an nsqlookupd, or
        the other way round."""
        try:
            self.send("/info", NO_QUERY)
            self.receive()
            info = object_in(self.read())
        except NodeFailure:
            return ""
        is_nsqd = "tcp_port" in info
        if is_nsqd != self._is_nsqlookupd:
            return ""
        names = self._access.names
        if is_nsqd:
            return f"this is an nsqd: use {names.nsqd}"
        return f"this is an nsqlookupd: use {names.lookupd}"

    # -- in steps -------------------------------------------------------------------------------

    def send(
        self,
        path: str,
        query: Query,
        *,
        method: str = "GET",
        body: bytes | memoryview | None = None,
    ) -> None:
        """Send a request. The last reply must have been read as a whole."""
        given = {name: value for name, value in query.items() if value is not None}
        target = f"{path}?{urlencode(given, errors='surrogateescape')}" if given else path
        headers = dict(_HEADERS) if self._is_nsqlookupd else _HEADERS | self._access.authorization()
        if body:
            headers["Content-Type"] = "application/octet-stream"
        self._sent_at_s = time.monotonic()
        try:
            self._http.send(method, target, headers=headers, body=body)
        except HttpRequestError as error:
            raise self._unanswered(error) from None

    def receive(self) -> None:
        """Wait for the reply; NodeFailure unless its status is 200."""
        try:
            status = self._http.receive()
            self.answer_took_s = time.monotonic() - self._sent_at_s
            self.answer_date = self.header("Date")
            if status == 200:
                return
            body = self._http.read_start(ERROR_BYTES_MAX)
        except HttpRequestError as error:
            raise self._unanswered(error) from None
        raise refusal(status, body, self._access.names, self.address)

    def header(self, name: str) -> str:
        """Of the reply; empty if it has no such header."""
        return self._http.header(name)

    def read(self) -> bytes:
        try:
            return self._http.read(REPLY_BYTES_MAX)
        except HttpRequestError as error:
            raise self._unanswered(error) from None

    def read_into(self, view: memoryview) -> None:
        """Fill `view` with the body, which must have this size."""
        try:
            self._http.read_into(view)
        except HttpRequestError as error:
            raise self._unanswered(error) from None

    def _new_http(self) -> HttpClientConnection:
        access = self._access
        http = HttpClientConnection(
            self.origin,
            timeout_s=access.timeout_s,
            connect_timeout_s=access.connect_timeout_s,
            tls=access.tls,
        )
        if self.is_aborted:
            http.abort()
        return http

    def _unanswered(self, error: HttpRequestError) -> NodeFailure:
        self._http.close()
        text, fault = _why(error, self._access.names)
        return NodeFailure(text, address=self.address, fault=fault)


def is_address(text: str) -> bool:
    """Whether `text` is <host>:<port>, or a URL of that."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match[3]) < 1 << 16


def parsed(reply: bytes, address: str = "") -> Any:
    try:
        return json.loads(reply)
    except (ValueError, RecursionError):
        raise NodeFailure("its reply is not JSON", address=address) from None


def object_in(reply: bytes) -> dict[str, Any]:
    found = parsed(reply)
    if not isinstance(found, dict):
        raise NodeFailure("its reply is not one of NSQ: it is no object")
    return found


def decoded(reply: "bytes | msgspec.Raw", kind: type[T], address: str = "") -> T:
    import msgspec  # Here: the workers of a Spark cluster may not have it, and need no types.

    try:
        return msgspec.json.decode(reply, type=kind)
    except msgspec.ValidationError as error:
        why = f"its reply is not one of NSQ: {error}"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        why = "its reply is not JSON"
    raise NodeFailure(why, address=address)


def https_port(failure: NodeFailure) -> int:
    """Where a node that requires TLS has it; 0 if it does not say so."""
    port = failure.details.get("https_port") if failure.code == TLS_REQUIRED else None
    return port if isinstance(port, int) and 0 < port < 1 << 16 else 0


def printable(text: str) -> str:
    """Without what would steer a terminal: others write bodies and replies."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def refusal(status: int, body: bytes, names: AccessNames, address: str) -> NodeFailure:
    failure = NodeFailure("", status=status, body=body, address=address)
    details = failure.details
    failure.code = str(details.get("message", ""))
    said = failure.code or body.decode(errors="replace").strip()[:ERROR_CHARS_MAX]
    hint = HINTS.get(failure.code, "").format(token=names.token, certificate=names.certificate)
    if port := https_port(failure):
        hint = f"use its HTTPS port, https://{address.rpartition(':')[0]}:{port}"
    why = str(details.get("detail") or hint)
    failure.args = (printable(f"{status} {said}" + (f": {why}" if why else "")),)
    return failure


def _why(error: HttpRequestError, names: AccessNames) -> tuple[str, NodeFault | None]:
    """In a sentence."""
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        reason = cause.verify_message or str(cause)
        return f"its certificate is not trusted ({reason}): {names.ca_file}", NodeFault.TLS
    if isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS:
        return "it speaks no TLS: this is no HTTPS port of a node", NodeFault.TLS
    if isinstance(cause, ssl.SSLError) and cause.reason in _NO_CERTIFICATE:
        wanted = "it wants a certificate by an authority that it trusts"
        return f"{wanted}: {names.certificate} ({cause.reason})", NodeFault.TLS
    if isinstance(cause, BadStatusLine) and _TCP_ERROR in str(cause):
        daemon, port = ("nsqd", 4151) if _TCP_FRAME in str(cause) else ("nsqlookupd", 4161)
        return (
            f"this is the TCP port of an {daemon}: use its HTTP port, often {port}",
            NodeFault.ADDRESS,
        )
    if isinstance(cause, BadStatusLine) and not isinstance(cause, RemoteDisconnected):
        return "its reply is not HTTP; is it an https:// port?", None
    said = str(error)
    return said[:1].lower() + said[1:], None
