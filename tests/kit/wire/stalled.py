"""An HTTP client that does not read what it asked for, until it is told to."""

import http.client
import socket

from tests.kit.daemons import IO_TIMEOUT_S

RECEIVE_BUFFER_BYTES = 4096


class StalledClient:
    def __init__(self, port: int, target: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=IO_TIMEOUT_S)
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        raw.settimeout(IO_TIMEOUT_S)
        raw.connect(("127.0.0.1", port))
        self._connection.sock = raw
        self._connection.request("GET", target)

    def __enter__(self) -> "StalledClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def has_answer(self) -> None:
        """Wait for the first byte, without taking it."""
        assert self._connection.sock.recv(1, socket.MSG_PEEK) == b"H"

    def read(self) -> bytes:
        self._connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        return self._connection.getresponse().read()
