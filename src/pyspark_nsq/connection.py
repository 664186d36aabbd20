"""One keep-alive HTTP connection to a node, with the standard library.

Every failure becomes one sentence that names the node: `Unreachable` when it does not answer,
`Refused` with its status and code when it says no. Bounded: answers in JSON are read up to a limit,
waiting up to the request timeout. Knows HTTP; must not know what is asked for.
"""

import json
import ssl
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import quote, urlsplit

from pyspark_nsq.errors import Refused, Unreachable
from pyspark_nsq.options import Connecting

JSON_BYTES_MAX = 64 << 20
ERROR_BYTES_MAX = 4096

# urllib would quote '#' and '%' alike; names and numbers need no more than this.
_SAFE = "-_.~:"


class NodeConnection:
    """Requests to one address, one after another."""

    def __init__(self, address: str, connecting: Connecting) -> None:
        self.address = address
        self._connecting = connecting
        self._connection: HTTPConnection | None = None
        token = connecting.access_token
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, path: str, query: Mapping[str, object], *, method: str = "GET") -> object:
        """What the node answers, out of JSON. A connection that was idle may be stale: one more
        try on a new one (every request of ours can be repeated)."""
        for last_try in (self._connection is None, True):
            try:
                self.send(path, query, method=method)
                response = self.response()
                body = response.read(JSON_BYTES_MAX + 1)
            except Unreachable:
                if last_try:
                    raise
                continue
            except (OSError, HTTPException) as error:
                self.close()
                if last_try:
                    raise self.unreachable(error) from None
                continue
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

    def send(
        self,
        path: str,
        query: Mapping[str, object],
        *,
        method: str = "GET",
        body: bytes | None = None,
    ) -> None:
        target = path + "?" + "&".join(f"{k}={quote(str(v), _SAFE)}" for k, v in query.items())
        try:
            if self._connection is None:
                self._connection = self._open()
            self._connection.request(method, target, body, self._headers)
        except (OSError, HTTPException) as error:
            self.close()
            raise self.unreachable(error) from None

    def response(self) -> HTTPResponse:
        """The answer to what was sent; Refused unless its status is 200."""
        assert self._connection is not None
        try:
            response = self._connection.getresponse()
            if response.status == 200:
                return response
            text = response.read(ERROR_BYTES_MAX)
        except (OSError, HTTPException) as error:
            self.close()
            raise self.unreachable(error) from None
        if not response.isclosed():
            self.close()  # the rest of it would be taken for the next answer
        raise self._refused(response.status, text)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def unreachable(self, error: BaseException) -> Unreachable:
        return Unreachable(f"{self.address} does not answer: {str(error) or type(error).__name__}")

    def _open(self) -> HTTPConnection:
        parts = urlsplit(self.address)
        assert parts.hostname is not None
        timeout_s = self._connecting.request_timeout_s
        if parts.scheme == "http":
            return HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
        context = ssl.create_default_context(cafile=self._connecting.tls_ca_file or None)
        if self._connecting.tls_cert_file:
            context.load_cert_chain(self._connecting.tls_cert_file, self._connecting.tls_key_file)
        return HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s, context=context)

    def _refused(self, status: int, text: bytes) -> Refused:
        try:
            details = json.loads(text)
        except ValueError:
            details = {}
        if not isinstance(details, dict):
            details = {}
        code = str(details.get("message", ""))
        said = code or text.decode(errors="replace")[:200]
        return Refused(
            f"{self.address} answers {status} {said}", status=status, code=code, details=details
        )
