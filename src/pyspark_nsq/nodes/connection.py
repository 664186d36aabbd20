"""One node's HTTP API for Spark: `ClusterNode` with Spark's options and exceptions.

| exception     | when                                                             |
|---------------|------------------------------------------------------------------|
| `Unreachable` | it does not answer, or not in HTTP: worth another try            |
| `NodeRefused` | it answers with an error: has its status and code                |
| `Untrusted`   | TLS fails for a reason that waiting does not mend                |
| `BadOption`   | a token's or certificate's file cannot be used on this machine,  |
|               | or the address is that of another port                           |
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from socket import gethostname

from pumpline.cluster.access import AccessError, AccessNames, NodeAccess
from pumpline.cluster.node import ClusterNode, NodeFailure, NodeFault, parsed
from pyspark_nsq.errors import BadOption, NodeRefused, NsqError, Unreachable, Untrusted
from pyspark_nsq.options import Connecting

CONNECT_S = 5.0  # a node that drops packets takes no longer; an answer may take longer

OPTION_NAMES = AccessNames(
    nsqd="'nsqd'",
    lookupd="'lookupd'",
    token="'accessToken'",
    token_file="'accessTokenFile'",
    ca_file="'tlsCaFile'",
    cert_file="'tlsCertFile'",
    key_file="'tlsKeyFile'",
)


class NodeConnection:
    """Requests to one address, one after another, on one connection that is kept open."""

    def __init__(self, address: str, connecting: Connecting) -> None:
        access = NodeAccess(
            timeout_s=connecting.request_timeout_s,
            connect_timeout_s=min(connecting.request_timeout_s, CONNECT_S),
            names=OPTION_NAMES,
            token=connecting.access_token,
            token_file=connecting.access_token_file,
            tls_ca_file=connecting.tls_ca_file,
            tls_cert_file=connecting.tls_cert_file,
            tls_key_file=connecting.tls_key_file,
        )
        self._node = ClusterNode(address, access)

    @property
    def address(self) -> str:
        """Where it is asked now: a node that requires TLS is asked at its HTTPS port."""
        return self._node.origin

    def ask(self, path: str, query: Mapping[str, object], *, method: str = "GET") -> object:
        """What the node answers, out of JSON. Every request that is asked this way can be
        repeated."""
        with self._failures():
            if method == "GET":
                body = self._node.get(path, query)
            else:
                body = self._node.post(path, query, is_repeatable=True)
            return parsed(body) if body else None

    def send(
        self,
        path: str,
        query: Mapping[str, object],
        *,
        method: str = "GET",
        body: bytes | memoryview | None = None,
    ) -> None:
        with self._failures():
            self._node.send(path, query, method=method, body=body)

    def receive(self) -> None:
        """Wait for the answer to what was sent; NodeRefused unless its status is 200."""
        with self._failures():
            self._node.receive()

    def header(self, name: str) -> str:
        """Of the answer; empty if it has no such header."""
        return self._node.header(name)

    def read(self) -> bytes:
        with self._failures():
            return self._node.read()

    def read_into(self, view: memoryview) -> None:
        """Fill `view` with the body, which must have this size."""
        with self._failures():
            self._node.read_into(view)

    def close(self) -> None:
        self._node.close()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except NodeFailure as failure:
            raise self._explained(failure) from None
        except AccessError as error:  # with the machine: the file has to be on each of a cluster
            raise BadOption(f"{error} (on {gethostname()})") from None

    def _explained(self, failure: NodeFailure) -> NsqError:
        if failure.status:
            return NodeRefused(
                f"{self.address} answers {failure}",
                status=failure.status,
                code=failure.code,
                details=failure.details,
            )
        if failure.fault is NodeFault.TLS:
            return Untrusted(f"{self.address}: {failure}")
        if failure.fault is NodeFault.ADDRESS:
            return BadOption(f"{self.address}: {failure}")
        return Unreachable(f"{self.address} does not answer: {failure}")
