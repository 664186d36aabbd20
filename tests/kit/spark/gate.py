"""A relay in front of a node's HTTP port that keeps answers back, so that a kill has a defined
moment: the node has done what it was asked for, and who asked does not know.

Runs in threads, as Spark's tests do. Knows of HTTP no more than how a request begins.
"""

import socket
import threading
from contextlib import suppress
from typing import Self

CHUNK_BYTES = 1 << 16
MPUB, RAW = b"POST /mpub", b"GET /log/raw"


class Gate:
    """Lets `answered` answers to requests that begin with `to` pass, and keeps the next back."""

    def __init__(self, target_port: int, *, to: bytes, answered: int) -> None:
        self._target_port = target_port
        self._to = to
        self._answered = answered
        self._asked = 0
        self._is_open = False
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.withheld = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.open()

    def open(self) -> None:
        """From now on everything passes, on new connections; those there are, are cut."""
        with self._lock:
            self._is_open = True
            for each in self._sockets:
                _cut(each)
            self._sockets.clear()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets += [client, server]
            threading.Thread(target=self._relay, args=(client, server), daemon=True).start()
            threading.Thread(target=self._relay, args=(server, client), daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if self._passes(data):
                    target.sendall(data)
        _cut(source)
        _cut(target)

    def _passes(self, data: bytes) -> bool:
        with self._lock:
            if data.startswith(self._to):
                self._asked += 1
            if self._is_open or self._asked <= self._answered or not data.startswith(b"HTTP/"):
                return True
        self.withheld.set()
        return False


def _cut(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
