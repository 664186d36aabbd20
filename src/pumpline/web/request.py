"""A request as its handler sees it: complete, with its body, before the handler is called.

Knows what the client said and where from. Must not know the connection.
"""

import logging
from collections.abc import Mapping
from string import punctuation
from urllib.parse import quote

import msgspec

from pumpline.web.head import Head
from pumpline.web.query import QueryError
from pumpline.web.replies import HttpError

_LOG = logging.getLogger(__name__)


class HttpClient(msgspec.Struct, frozen=True, kw_only=True):
    """Who is at the other end of a connection."""

    address: str
    is_local: bool  # on this machine
    has_certificate: bool  # showed one, and it was verified


class Request:
    """The body is `buffer[start:end]` until the handler, or the coroutine it made, is done; others
    may have the buffer then. `body` is a copy."""

    __slots__ = ("buffer", "client", "end", "head", "start", "variable")

    head: Head
    client: HttpClient
    variable: str  # the variable segment of the path
    buffer: bytearray
    start: int
    end: int

    @property
    def method(self) -> str:
        return self.head.method

    @property
    def path(self) -> str:
        return self.head.path

    @property
    def body(self) -> bytes:
        return bytes(memoryview(self.buffer)[self.start : self.end])

    def set_body(self, buffer: bytearray, start: int, end: int) -> None:
        self.buffer, self.start, self.end = buffer, start, end

    def keep_body(self) -> None:
        """Have a buffer of its own."""
        self.set_body(self.buffer[self.start : self.end], 0, self.end - self.start)

    def header(self, name: str) -> str:
        """The first value; empty if there is none."""
        values = self.head.values(name)
        return values[0] if values else ""

    def headers(self, name: str) -> list[str]:
        """Every value given for a header."""
        return self.head.values(name)

    def query(self) -> Mapping[str, str]:
        """The parameters, which are in the query string only."""
        try:
            return self.head.query()
        except QueryError as error:
            _LOG.error("failed to parse request params - %s", printable(str(error)))
            raise HttpError(400, "INVALID_REQUEST") from None


NO_BODY = bytearray()


def printable(text: str) -> str:
    """`text` fit for a log line or a header: what is not plain ASCII is escaped."""
    if text.isascii() and text.isprintable():
        return text
    return quote(text, safe=punctuation, errors="surrogateescape")
