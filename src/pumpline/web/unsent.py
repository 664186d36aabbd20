"""A bound on the memory of replies that clients do not take, over all connections of a server.

A connection is listed while its transport holds more than the client takes at once. If the listed
bytes exceed the bound, the connection that has been listed longest is aborted, until they do not.
The newest one stays: a single reply may be larger than the bound. Knows no sockets.
"""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a connection notes what it has unsent
    from pumpline.web.connection import HttpConnection

UNSENT_BYTES_MAX = 128 << 20

_LOG = logging.getLogger(__name__)


class UnsentReplies:
    def __init__(self, bytes_max: int = UNSENT_BYTES_MAX) -> None:
        self.dropped_count = 0
        self._bytes_max = bytes_max
        self._total_bytes = 0
        self._by_connection: dict[HttpConnection, int] = {}  # listed longest first

    def note(self, connection: "HttpConnection", unsent_bytes: int) -> None:
        """The client has left so many bytes; 0 if it takes what is sent."""
        self._total_bytes += unsent_bytes - self._by_connection.get(connection, 0)
        if unsent_bytes:
            self._by_connection[connection] = unsent_bytes
        else:
            self._by_connection.pop(connection, None)
        while self._total_bytes > self._bytes_max and len(self._by_connection) > 1:
            self._drop_first()

    def _drop_first(self) -> None:
        connection = next(iter(self._by_connection))
        unsent_bytes = self._by_connection.pop(connection)
        self._total_bytes -= unsent_bytes
        self.dropped_count += 1
        _LOG.error(
            "HTTP: client (%s) has left %d bytes unread, and all clients more than %d: dropped",
            connection.address,
            unsent_bytes,
            self._bytes_max,
        )
        connection.abort()
