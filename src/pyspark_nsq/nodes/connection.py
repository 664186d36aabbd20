"""One keep-alive HTTP connection to a node, with the standard library.

Every failure becomes one sentence that names the node: `Unreachable` when it does not answer,
`Refused` with its status and code when it says no, `Untrusted` when TLS fails for a reason that
waiting does not mend. A node that wants TLS says on which port it has it, and is asked there.
Bounded: answers in JSON are read up to a limit, waiting up to the request timeout. Knows HTTP; must
not know what is asked for.
"""

import json
import ssl
from collections.abc import Mapping
from http.client import (
    BadStatusLine,
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    RemoteDisconnected,
)
from socket import gethostname
from urllib.parse import quote, urlsplit

from pyspark_nsq.errors import BadOption, NsqError, Refused, Unreachable, Untrusted
from pyspark_nsq.options import TOKEN, TOKEN_CHARS, Connecting

JSON_BYTES_MAX = 64 << 20
ERROR_BYTES_MAX = 4096
TOKEN_FILE_BYTES_MAX = 4096
TLS_REQUIRED = "TLS_REQUIRED"
HINTS = {
    "UNAUTHORIZED": "it wants an 'accessToken' that it knows",
    "FORBIDDEN": "its 'accessToken' may only read",
    "CERTIFICATE_REQUIRED": "it wants a certificate: 'tlsCertFile' and 'tlsKeyFile', and https://",
}
# What OpenSSL calls it when the other side speaks no TLS, or will have none of our certificate.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})
_NO_CERTIFICATE = frozenset(
    {
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        "TLSV1_ALERT_UNKNOWN_CA",
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_HANDSHAKE_FAILURE",
    }
)

# urllib would quote '#' and '%' alike; names and numbers need no more than this.
_SAFE = "-_.~:"


class NodeConnection:
    """Requests to one address, one after another."""

    def __init__(self, address: str, connecting: Connecting) -> None:
        self.address = address
        self._connecting = connecting
        self._connection: HTTPConnection | None = None

    def ask(self, path: str, query: Mapping[str, object], *, method: str = "GET") -> object:
        """What the node answers, out of JSON. A connection that was idle may be stale: one more
        try on a new one (every request of ours can be repeated)."""
        body = b""
        for last_try in (self._connection is None, True):
            try:
                body = self._exchange(path, query, method)
            except Unreachable:
                if last_try:
                    raise
                continue
            except Refused as error:
                if not self._goes_on_with_tls(error):
                    raise
                body = self._exchange(path, query, method)
            break
        if len(body) > JSON_BYTES_MAX:
            self.close()
            raise Unreachable(
                f"{self.address} answers {path} with more than {JSON_BYTES_MAX:,} bytes"
            )
        try:
            return json.loads(body) if body else None
        except ValueError:
            text = f"{self.address} answers {path} with something that is not JSON"
            raise Unreachable(text) from None

    def _exchange(self, path: str, query: Mapping[str, object], method: str) -> bytes:
        self.send(path, query, method=method)
        response = self.response()
        try:
            return response.read(JSON_BYTES_MAX + 1)
        except (OSError, HTTPException) as error:
            raise self.failed(error) from None

    def _goes_on_with_tls(self, error: Refused) -> bool:
        """As NSQ's own tools do: nsqlookupd knows the plain port of a node only."""
        port = error.details.get("https_port")
        if error.code != TLS_REQUIRED or not isinstance(port, int) or not 0 < port < 1 << 16:
            return False
        self.close()
        self.address = _with_tls(self.address, port)
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
        if self._connection is None:
            self._connection = self._opened()
        try:
            self._connection.request(method, target, body, headers)
        except (BrokenPipeError, ConnectionResetError) as error:
            # A node that will not have all of a body answers and hangs up: the answer says why.
            if body is None:
                raise self.failed(error) from None
        except (OSError, HTTPException) as error:
            raise self.failed(error) from None

    def response(self) -> HTTPResponse:
        """The answer to what was sent; Refused unless its status is 200."""
        assert self._connection is not None
        try:
            response = self._connection.getresponse()
            if response.status == 200:
                return response
            text = response.read(ERROR_BYTES_MAX)
        except (OSError, HTTPException) as error:
            raise self.failed(error) from None
        if not response.isclosed():
            self.close()  # the rest of it would be taken for the next answer
        raise self._refused(response.status, text)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def failed(self, error: Exception) -> NsqError:
        """Closes, and says why: Untrusted, or Unreachable, which is worth another try."""
        self.close()
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = error.verify_message or str(error)
            return Untrusted(
                f"{self.address} has a certificate that is not trusted: {reason}; 'tlsCaFile' says "
                "which authority to trust"
            )
        if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
            return Untrusted(f"{self.address} speaks no TLS: it is no HTTPS port of a node")
        if isinstance(error, ssl.SSLError) and error.reason in _NO_CERTIFICATE:
            return Untrusted(
                f"{self.address} wants a certificate by an authority that it trusts: 'tlsCertFile' "
                f"and 'tlsKeyFile' ({error.reason})"
            )
        if isinstance(error, BadStatusLine) and not isinstance(error, RemoteDisconnected):
            return Unreachable(f"{self.address} answers, but not in HTTP; is it an https:// port?")
        return Unreachable(f"{self.address} does not answer: {str(error) or type(error).__name__}")

    def _opened(self) -> HTTPConnection:
        parts = urlsplit(self.address)
        assert parts.hostname is not None
        timeout_s = self._connecting.request_timeout_s
        if parts.scheme == "http":
            return HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
        return HTTPSConnection(
            parts.hostname, parts.port, timeout=timeout_s, context=_tls(self._connecting)
        )

    def _refused(self, status: int, text: bytes) -> Refused:
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
        return Refused(
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
            data = file.read(TOKEN_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadOption(f"{where} cannot be read: {_reason(error)}") from None
    token = data.decode("ascii", "replace").strip()
    if len(data) > TOKEN_FILE_BYTES_MAX or not TOKEN.fullmatch(token):
        raise BadOption(f"{where} has to hold one token, of {TOKEN_CHARS}, and nothing else")
    return token


def _tls(connecting: Connecting) -> ssl.SSLContext:
    """BadOption, with the file, when one cannot be used on this machine."""
    authority, certificate = connecting.tls_ca_file, connecting.tls_cert_file
    try:
        context = ssl.create_default_context(cafile=authority or None)
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
