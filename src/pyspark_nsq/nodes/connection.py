"""One node's HTTP API: questions, and the answer or one sentence that names the node.

| exception     | when                                                             |
|---------------|------------------------------------------------------------------|
| `Unreachable` | it does not answer, or not in HTTP: worth another try            |
| `NodeRefused`     | it answers with an error: has its status and code                |
| `Untrusted`   | TLS fails for a reason that waiting does not mend                |
| `BadOption`   | a token's or certificate's file cannot be used on this machine,  |
|               | or the address is a TCP port of a daemon                         |

A node that requires TLS says on which port it has it, and is asked there. Knows access tokens, the
TLS options and how a node words an error; `pumpline.client.http_connection` does the HTTP. Must not
know what is asked for.
"""

import json
import ssl
from collections.abc import Mapping
from http.client import BadStatusLine, RemoteDisconnected
from socket import gethostname
from urllib.parse import quote

from pumpline.client.http_connection import HttpClientConnection, HttpRequestError
from pumpline.core.protocol.verification import verifying_context
from pumpline.core.text.access_tokens import FILE_BYTES_MAX, parse_access_tokens
from pyspark_nsq.errors import BadOption, NodeRefused, NsqError, Unreachable, Untrusted
from pyspark_nsq.options import Connecting

JSON_BYTES_MAX = 64 << 20
ERROR_BYTES_MAX = 4096
TLS_REQUIRED = "TLS_REQUIRED"
HINTS = {
    "UNAUTHORIZED": "it wants an 'accessToken' that it knows",
    "FORBIDDEN": "its 'accessToken' may only read",
    "ACCESS_TOKEN_REQUIRED": "it has --auth-http-address; start it with --http-token-file, too",
    "UNKNOWN_HOST": "it does not know this host name; start it with --http-host and the name",
    "CERTIFICATE_REQUIRED": "it wants a certificate: 'tlsCertFile' and 'tlsKeyFile', and https://",
}
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

# What the TCP port of a daemon answers to HTTP, in an error frame (type 1) if it is an nsqd.
_TCP_ERROR = "E_BAD_PROTOCOL"
_TCP_FRAME = "\0\0\0\1E_BAD_PROTOCOL"

# urllib would quote '#' and '%' alike; names and numbers need no more than this.
_SAFE = "-_.~:"


class NodeConnection:
    """Requests to one address, one after another, on one connection that is kept open."""

    def __init__(self, address: str, connecting: Connecting) -> None:
        self.address = address
        self._connecting = connecting
        self._http = self._new_http()

    def ask(self, path: str, query: Mapping[str, object], *, method: str = "GET") -> object:
        """What the node answers, out of JSON. A kept connection may be stale, so there is one more
        try on a new one (every request that is asked this way can be repeated)."""
        body = b""
        for last_try in (not self._http.is_open, True):
            try:
                body = self._exchange(path, query, method)
            except Unreachable:
                if last_try:
                    raise
                continue
            except NodeRefused as error:
                if not self._goes_on_with_tls(error):
                    raise
                body = self._exchange(path, query, method)
            break
        try:
            return json.loads(body) if body else None
        except ValueError:
            text = f"{self.address} answers {path} with something that is not JSON"
            raise Unreachable(text) from None

    def _exchange(self, path: str, query: Mapping[str, object], method: str) -> bytes:
        self.send(path, query, method=method)
        self.receive()
        return self.read()

    def _goes_on_with_tls(self, error: NodeRefused) -> bool:
        """As NSQ's own tools do: nsqlookupd only knows the plain port of a node."""
        port = error.details.get("https_port")
        if error.code != TLS_REQUIRED or not isinstance(port, int) or not 0 < port < 1 << 16:
            return False
        self.close()
        self.address = _with_tls(self.address, port)
        self._http = self._new_http()
        return True

    def send(
        self,
        path: str,
        query: Mapping[str, object],
        *,
        method: str = "GET",
        body: bytes | memoryview | None = None,
    ) -> None:
        target = path + "?" + "&".join(f"{k}={quote(str(v), _SAFE)}" for k, v in query.items())
        headers = _authorization(self._connecting)
        try:
            self._http.send(method, target, headers=headers, body=body)
        except HttpRequestError as error:
            raise self._failed(error) from None

    def receive(self) -> None:
        """Wait for the answer to what was sent; NodeRefused unless its status is 200."""
        try:
            status = self._http.receive()
            if status == 200:
                return
            text = self._http.read_start(ERROR_BYTES_MAX)
        except HttpRequestError as error:
            raise self._failed(error) from None
        raise self._refused(status, text)

    def header(self, name: str) -> str:
        """Of the answer; empty if it has no such header."""
        return self._http.header(name)

    def read(self) -> bytes:
        """The body of the answer, of at most JSON_BYTES_MAX."""
        try:
            return self._http.read(JSON_BYTES_MAX)
        except HttpRequestError as error:
            raise self._failed(error) from None

    def read_into(self, view: memoryview) -> None:
        """Fill `view` with the body, which must have this size."""
        try:
            self._http.read_into(view)
        except HttpRequestError as error:
            raise self._failed(error) from None

    def close(self) -> None:
        self._http.close()

    def _new_http(self) -> HttpClientConnection:
        connecting = self._connecting
        timeout_s = connecting.request_timeout_s
        return HttpClientConnection(self.address, timeout_s=timeout_s, tls=lambda: _tls(connecting))

    def _failed(self, error: HttpRequestError) -> NsqError:
        """Untrusted, BadOption, or Unreachable, which is worth another try."""
        cause = error.__cause__
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = cause.verify_message or str(cause)
            return Untrusted(
                f"{self.address} has a certificate that is not trusted: {reason}; 'tlsCaFile' says "
                "which authority to trust"
            )
        if isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS:
            return Untrusted(f"{self.address} speaks no TLS: it is no HTTPS port of a node")
        if isinstance(cause, ssl.SSLError) and cause.reason in _NO_CERTIFICATE:
            return Untrusted(
                f"{self.address} wants a certificate by an authority that it trusts: 'tlsCertFile' "
                f"and 'tlsKeyFile' ({cause.reason})"
            )
        if isinstance(cause, BadStatusLine) and _TCP_ERROR in str(cause):
            # nsqd's error is a frame, with a type before the text; that of nsqlookupd is not.
            is_nsqd = _TCP_FRAME in str(cause)
            daemon, port = ("nsqd", 4151) if is_nsqd else ("nsqlookupd", 4161)
            return BadOption(
                f"{self.address} is the TCP port of an {daemon}: give its HTTP port, often {port}"
            )
        if isinstance(cause, BadStatusLine) and not isinstance(cause, RemoteDisconnected):
            return Unreachable(f"{self.address} answers, but not in HTTP; is it an https:// port?")
        return Unreachable(f"{self.address} does not answer: {error}")

    def _refused(self, status: int, text: bytes) -> NodeRefused:
        try:
            details = json.loads(text)
        except ValueError:
            details = {}
        if not isinstance(details, dict):
            details = {}
        code = str(details.get("message", ""))
        said = code or text.decode(errors="replace")[:200]
        hint = HINTS.get(code)
        if code == TLS_REQUIRED:
            port = details.get("https_port")
            hint = f"say {_with_tls(self.address, port)}" if isinstance(port, int) else None
        why = f": {hint}" if hint else ""
        return NodeRefused(
            f"{self.address} answers {status} {said}{why}",
            status=status,
            code=code,
            details=details,
        )


def _with_tls(address: str, port: int) -> str:
    host = address.partition("://")[2].rpartition(":")[0]
    return f"https://{host}:{port}"


def _authorization(connecting: Connecting) -> dict[str, str]:
    """A file is read for every request (20 us), so a token may be changed while a stream runs."""
    token = connecting.access_token
    if connecting.access_token_file:
        token = _token_in(connecting.access_token_file)
    return {"Authorization": f"Bearer {token}"} if token else {}


def _token_in(path: str) -> str:
    """BadOption, with the machine, as the file has to be on each of a cluster."""
    where = f"'accessTokenFile': {path} on {gethostname()}"
    try:
        with open(path, "rb") as file:
            return parse_access_tokens(file.read(FILE_BYTES_MAX + 1))[0].token
    except OSError as error:
        raise BadOption(f"{where} cannot be read: {_reason(error)}") from None
    except ValueError as error:
        raise BadOption(f"{where} cannot be used: {error}") from None


def _tls(connecting: Connecting) -> ssl.SSLContext:
    """BadOption, with the file, when one cannot be used on this machine."""
    authority, certificate = connecting.tls_ca_file, connecting.tls_cert_file
    try:
        context = verifying_context(authority)
    except (OSError, ValueError) as error:
        raise BadOption(f"'tlsCaFile': {authority}: {_reason(error)}") from None
    if certificate:
        try:
            context.load_cert_chain(certificate, connecting.tls_key_file)
        except (OSError, ValueError) as error:
            files = f"{certificate} and {connecting.tls_key_file}"
            raise BadOption(f"'tlsCertFile' and 'tlsKeyFile': {files}: {_reason(error)}") from None
    return context


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return "no PEM file, or not of that key"
    return (isinstance(error, OSError) and error.strerror) or str(error)
