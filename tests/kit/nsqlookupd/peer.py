"""A stand-in for nsqd: speaks V1 to an nsqlookupd, one command and one reply at a time."""

import json
import socket
import struct
from contextlib import suppress
from typing import Any, Self

from tests.kit.daemons import IO_TIMEOUT_S

MAGIC = b"  V1"
OK = b"OK"


class Peer:
    def __init__(self, port: int, magic: bytes = MAGIC) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), IO_TIMEOUT_S)
        self.address = "{}:{}".format(*self.socket.getsockname())
        self._stream = self.socket.makefile("rb")
        self.send(magic)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def finish(self) -> None:
        """Nothing more will be sent; replies still come."""
        self.socket.shutdown(socket.SHUT_WR)

    def read_reply(self) -> bytes:
        """EOFError if the connection ended instead."""
        size = self._stream.read(4)
        if len(size) < 4:
            raise EOFError(size)
        return self._stream.read(int.from_bytes(size))

    def read_rest(self) -> bytes:
        """Everything up to the end of the connection, which is a reset if what we sent was not
        read."""
        received = b""
        with suppress(ConnectionResetError):
            while data := self._stream.read1():
                received += data
        return received

    def ask(self, line: str) -> bytes:
        self.send(line.encode() + b"\n")
        return self.read_reply()

    def identify(self, **changes: Any) -> dict[str, Any]:
        self.send(identify(**changes))
        return dict(json.loads(self.read_reply()))

    def register(self, topic: str, channel: str = "") -> None:
        assert self.ask(f"REGISTER {topic} {channel}") == OK

    def unregister(self, topic: str, channel: str = "") -> None:
        assert self.ask(f"UNREGISTER {topic} {channel}") == OK


def identify(**changes: Any) -> bytes:
    words = {
        "version": "1.3.0",
        "tcp_port": 4150,
        "http_port": 4151,
        "broadcast_address": "node",
        "hostname": "host",
        **changes,
    }
    body = json.dumps(words).encode()
    return b"IDENTIFY\n" + struct.pack(">i", len(body)) + body
