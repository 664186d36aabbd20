"""One nsqd or nsqlookupd, asked over HTTP.

Answers are JSON or text, whole and bounded. A node that wants TLS and says where is asked again
there, as NSQ's tools do. Blocks; a node is used by one thread at a time. Must not know what the
answers mean.
"""

import json
import re
import ssl
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from pumpline.client.http_connection import HttpClientConnection, HttpRequestError

ANSWER_BYTES_MAX = 256 << 20
TLS_REQUIRED = "TLS_REQUIRED"
NAME_RULE = "a name has 1 to 64 characters of A-Z a-z 0-9 . _ -"
HINTS = {
    "UNAUTHORIZED": "it wants an access token: --token-file",
    "FORBIDDEN": "this access token may only read",
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
    "CERTIFICATE_REQUIRED": "it wants a client certificate: --tls-cert and --tls-key",
}

Query = Mapping[str, object]
NO_QUERY: Query = {}

_ADDRESS = re.compile(r"(https?://)?(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})/?")


class NodeFailure(Exception):
    """A node gives no answer, or refuses; the text says why, without its address."""

    def __init__(self, text: str, *, status: int = 0, code: str = "") -> None:
        super().__init__(text)
        self.status = status  # 0: no answer
        self.code = code


class ClusterNode:
    def __init__(
        self,
        address: str,
        *,
        timeout_s: float,
        tls: Callable[[], ssl.SSLContext],
        token: str = "",
        is_nsqlookupd: bool = False,
    ) -> None:
        """`address` is one that `is_address` takes. `is_nsqlookupd`: else it should be an nsqd."""
        self._is_nsqlookupd = is_nsqlookupd
        self.address = address.removeprefix("http://").rstrip("/")
        self.answer_date = ""  # the header `Date` of the last answer
        self.answer_took_s = 0.0
        self._timeout_s = timeout_s
        self._tls = tls
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = self._connection(self.address)

    def get(self, path: str, query: Query = NO_QUERY) -> bytes:
        """The answer; NodeFailure if its status is not 200. None in a query is left out."""
        return self._ask("GET", path, query, None, is_repeatable=True)

    def get_json(self, path: str, query: Query = NO_QUERY) -> object:
        return _decoded(self.get(path, query))

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

    def post_json(self, path: str, query: Query = NO_QUERY, body: bytes = b"") -> object:
        return _decoded(self.post(path, query, body))

    def close(self) -> None:
        self._http.close()

    def _ask(
        self, method: str, path: str, query: Query, body: bytes | None, *, is_repeatable: bool
    ) -> bytes:
        given = {name: value for name, value in query.items() if value is not None}
        target = f"{path}?{urlencode(given)}" if given else path
        try:
            return self._exchange(method, target, body, is_repeatable=is_repeatable)
        except NodeFailure as failure:
            if failure.code == "NOT_FOUND" and (mistake := self._mistake()):
                raise NodeFailure(mistake) from None
            port = _https_port(failure)
            if not port:
                raise
        self._http.close()
        host = self.address.rpartition(":")[0]
        self._http = self._connection(f"https://{host}:{port}")
        return self._exchange(method, target, body, is_repeatable=is_repeatable)

    def _exchange(
        self, method: str, target: str, body: bytes | None, *, is_repeatable: bool
    ) -> bytes:
        """A kept connection may be stale, so what may be repeated is tried once more on a new
        one, and what may not goes to a new one."""
        retries = 1 if self._http.is_open and is_repeatable else 0
        if self._http.is_open and not is_repeatable:
            self._http.close()
        while True:
            try:
                began_s = time.monotonic()
                status, answer = self._http.ask(
                    method, target, bytes_max=ANSWER_BYTES_MAX, headers=self._headers, body=body
                )
                self.answer_took_s = time.monotonic() - began_s
                self.answer_date = self._http.header("Date")
                break
            except HttpRequestError as failure:
                self._http.close()
                if not retries:
                    raise NodeFailure(_said(failure)) from None
                retries -= 1
        if status != 200:
            raise _refusal(status, answer)
        return answer

    def _mistake(self) -> str:
        """Empty, or what to use instead if this is an nsqd that was taken for an nsqlookupd, or
        the other way round."""
        try:
            info = _decoded(self._exchange("GET", "/info", None, is_repeatable=True))
        except NodeFailure:
            return ""
        is_nsqd = isinstance(info, dict) and "tcp_port" in info
        if is_nsqd == (not self._is_nsqlookupd) or not isinstance(info, dict):
            return ""
        return "this is an nsqd: use --nsqd" if is_nsqd else "this is an nsqlookupd: use --lookupd"

    def _connection(self, address: str) -> HttpClientConnection:
        origin = address if address.startswith("https://") else f"http://{address}"
        return HttpClientConnection(origin, timeout_s=self._timeout_s, tls=self._tls)


def _decoded(answer: bytes) -> object:
    try:
        return json.loads(answer)
    except ValueError:
        raise NodeFailure("it answers with something that is not JSON") from None


class _Refusal(NodeFailure):
    https_port = 0


def is_address(text: str) -> bool:
    """Whether `text` is <host>:<port>, or a URL of that."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match[3]) < 1 << 16


def printable(text: str) -> str:
    """Without what would steer a terminal: others write bodies and answers."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def _refusal(status: int, answer: bytes) -> NodeFailure:
    try:
        details = json.loads(answer)
    except ValueError:
        details = {}
    if not isinstance(details, dict):
        details = {}
    code = str(details.get("message", ""))
    said = code or answer.decode(errors="replace").strip()[:200]
    why = str(details.get("detail") or HINTS.get(code, ""))
    text = printable(f"{status} {said}" + (f": {why}" if why else ""))
    failure = _Refusal(text, status=status, code=code)
    port = details.get("https_port")
    if code == TLS_REQUIRED and isinstance(port, int) and 0 < port < 1 << 16:
        failure.https_port = port
    return failure


def _https_port(failure: NodeFailure) -> int:
    return failure.https_port if isinstance(failure, _Refusal) else 0


def _said(failure: HttpRequestError) -> str:
    cause = failure.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({cause.verify_message}): --tls-ca-file"
    said = str(failure)
    return said[:1].lower() + said[1:]
