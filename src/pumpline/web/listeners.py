"""Listeners of a daemon: all are bound before the first accepts anybody, so that ports are known,
and failures seen, before there are clients."""

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any

from pumpline.core.text.addresses import is_path, join_address, split_address

BACKLOG = 1024
TLS_HANDSHAKE_S = 10.0
TLS_GOODBYE_S = 5.0  # for a client to agree that the connection is over
UNIX_SOCKET = -1  # in place of a port

_LOG = logging.getLogger(__name__)


class StartupError(Exception):
    """A daemon cannot begin; the text is that of the FATAL log line."""


class Listeners:
    def __init__(self, program: str) -> None:
        self._program = program
        self._loop = asyncio.get_running_loop()
        self._listeners: list[tuple[str, asyncio.Server]] = []

    async def bind(
        self,
        name: str,
        address: str,
        make: Callable[[], asyncio.BaseProtocol],
        *,
        tls: ssl.SSLContext | None = None,
        unix_allowed: bool = False,
    ) -> tuple[str, int]:
        """Take an address; returns host and port, or the path of a unix socket and UNIX_SOCKET."""
        how: dict[str, Any] = {"backlog": BACKLOG, "start_serving": False}
        if tls is not None:
            how |= {
                "ssl": tls,
                "ssl_handshake_timeout": TLS_HANDSHAKE_S,
                "ssl_shutdown_timeout": TLS_GOODBYE_S,
            }
        try:
            if unix_allowed and is_path(address):
                _refuse_live_socket(address)
                listener = await self._loop.create_unix_server(make, address, **how)
            else:
                host, port = split_address(address)
                listener = await self._loop.create_server(
                    make, host or None, port, reuse_address=True, **how
                )
        except (OSError, ValueError) as error:
            raise self._failed(address, error) from error
        self._listeners.append((name, listener))
        bound = listener.sockets[0].getsockname()
        return (bound, UNIX_SOCKET) if isinstance(bound, str) else (bound[0], bound[1])

    async def start(self) -> None:
        """Accept connections."""
        for name, listener in self._listeners:
            shown = _shown(listener)
            try:
                await listener.start_serving()
            except OSError as error:
                raise self._failed(shown, error) from error
            _LOG.info("%s: listening on %s", name, shown)

    def close(self, only: str = "") -> None:
        """Stop accepting: at all of them, or at those of a name."""
        for name, listener in self._listeners:
            if only in ("", name):
                _LOG.info("%s: closing %s", name, _shown(listener))
                listener.close()
        self._listeners = [each for each in self._listeners if only not in ("", each[0])]

    def _failed(self, address: str, error: OSError | ValueError) -> StartupError:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        return StartupError(
            f"failed to instantiate {self._program} - listen ({address}) failed - {reason}"
        )


def _shown(listener: asyncio.Server) -> str:
    return join_address(listener.sockets[0].getsockname()) if listener.sockets else ""


def _refuse_live_socket(path: str) -> None:
    """A unix socket left by a process that is gone is replaced; that of one that lives is not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        if probe.connect_ex(path) in (0, errno.EAGAIN):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
