"""Listeners of a daemon: its sockets are bound before (`web.sockets`); here connections are served,
once everything is ready for them."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any

from pumpline.web.sockets import BACKLOG, ListeningSocket, ListeningSockets

TLS_HANDSHAKE_S = 10.0
TLS_GOODBYE_S = 5.0  # for a client to agree that the connection is over

_LOG = logging.getLogger(__name__)


class Listeners:
    def __init__(self, sockets: ListeningSockets) -> None:
        self._sockets = sockets
        self._loop = asyncio.get_running_loop()
        self._listeners: list[tuple[str, ListeningSocket, list[asyncio.Server]]] = []

    async def prepare(
        self,
        name: str,
        make: Callable[[], asyncio.BaseProtocol],
        *,
        tls: ssl.SSLContext | None = None,
    ) -> ListeningSocket:
        """Have connections at the address of that name served from `start` on."""
        how: dict[str, Any] = {"backlog": BACKLOG, "start_serving": False}
        if tls is not None:
            how |= {
                "ssl": tls,
                "ssl_handshake_timeout": TLS_HANDSHAKE_S,
                "ssl_shutdown_timeout": TLS_GOODBYE_S,
            }
        bound = self._sockets.by_name[name]
        servers = []
        for each in bound.sockets:
            if bound.is_unix:
                server = await self._loop.create_unix_server(make, sock=each, **how)
            else:
                server = await self._loop.create_server(make, sock=each, **how)
            servers.append(server)
        self._listeners.append((name, bound, servers))
        return bound

    async def start(self) -> None:
        """Serve connections, those that are waiting first."""
        for name, bound, servers in self._listeners:
            for server in servers:
                await server.start_serving()
            _LOG.info("%s: listening on %s", name, bound.shown)

    def close(self, only: str = "") -> None:
        """Stop accepting: at all of them, or at those of a name."""
        for name, bound, servers in self._listeners:
            if only in ("", name):
                _LOG.info("%s: closing %s", name, bound.shown)
                for server in servers:
                    server.close()
                bound.close()
        self._listeners = [each for each in self._listeners if only not in ("", each[0])]
        if not only:
            self._sockets.close()
