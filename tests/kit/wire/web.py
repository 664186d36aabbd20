"""HTTP requests as a test wants them: nothing followed, nothing decoded, headers included.

Knows http.client and nothing of what the daemon answers.
"""

import http.client
import json
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit.daemons import IO_TIMEOUT_S, Daemon, Nsqd

NSQ_HEADER = "X-NSQ-Content-Type"
JSON_TYPE = "application/json; charset=utf-8"
TEXT_TYPE = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def code(self) -> str:
        """The code in an error's body, which must be one."""
        assert self.headers["Content-Type"] == JSON_TYPE, self
        assert self.headers[NSQ_HEADER] == "nsq; version=1.0", self
        decoded = json.loads(self.body)
        assert list(decoded) == ["message"]
        return str(decoded["message"])

    def json(self) -> Any:
        assert (self.status, self.headers["Content-Type"]) == (200, JSON_TYPE), self
        return json.loads(self.body)


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a socket file."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=IO_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(IO_TIMEOUT_S)
        self.sock.connect(str(self._path))


def open_connection(nsqd: Daemon) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", nsqd.http_port, timeout=IO_TIMEOUT_S)


def ask(
    nsqd: Nsqd,
    method: str,
    target: str,
    body: bytes | Iterable[bytes] | None = None,
    *,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """One request on a connection of its own; a body that is no bytes is sent in chunks."""
    connection = open_connection(nsqd)
    try:
        return ask_on(connection, method, target, body, headers=headers)
    finally:
        connection.close()


def ask_on(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    body: bytes | Iterable[bytes] | None = None,
    *,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    connection.request(method, target, body, dict(headers or {}))
    response = connection.getresponse()
    return Answer(response.status, response.headers, response.read())


def send_raw(nsqd: Nsqd, data: bytes) -> socket.socket:
    """A connection on which `data` was sent as it is."""
    raw = socket.create_connection(("127.0.0.1", nsqd.http_port), IO_TIMEOUT_S)
    raw.sendall(data)
    return raw


def read_to_end(raw: socket.socket) -> bytes:
    with raw, raw.makefile("rb") as stream:
        return stream.read()
