"""Ports of loopback that stay with one test, also while nothing listens on them.

A daemon that is killed and started again must find its port free, though tests in other processes
take free ports all the time. A socket that is bound but does not listen keeps the port: the kernel
gives it to nobody else, connections to it are refused, and a server that sets SO_REUSEADDR, as all
servers on asyncio and Go do, can listen on it.
"""

import socket

LOOPBACK = "127.0.0.1"


class HeldPort:
    """A free port, kept for as long as the object is."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((LOOPBACK, 0))
        self.number: int = self._socket.getsockname()[1]

    def __del__(self) -> None:
        self._socket.close()
