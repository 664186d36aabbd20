"""Publishes messages to a pumpline nsqd so that a repeat is no duplicate: each has a publish token.

Over HTTP, which has publish tokens: many `/pub`s in a row on one connection, then their answers.
A message that is not answered is sent again, with the same token, to the same nsqd, for as long as
it takes: only that nsqd knows the token. Raises for what nsqd will never take. Knows nothing of
where messages come from.
"""

import asyncio
import logging
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import httptools

from pumpline.core.protocol.verification import verifying_context
from pumpline.tools.tool import ToolFailure

RETRY_FIRST_S = 0.05
RETRY_MAX_S = 5.0
ANSWER_TIMEOUT_S = 30.0
READ_BYTES = 64 * 1024
OK = 200
SERVER_ERROR = 500

log = logging.getLogger("pumpline.tools")


class TokenMessage(NamedTuple):
    token: str
    body: bytes


class TokenPublisher:
    """One nsqd; concurrent calls take turns on its connection."""

    def __init__(self, address: str, *, access_token: str = "") -> None:
        """`address` is that of its HTTP API: host:port, or a URL with https."""
        parts = urlsplit(address if "://" in address else f"http://{address}")
        if not parts.hostname or not parts.port or parts.scheme not in ("http", "https"):
            raise ToolFailure(f"{address!r} is no HTTP address: expected host:port or a URL")
        self.address = address
        self._host, self._port = parts.hostname, parts.port
        self._tls = verifying_context() if parts.scheme == "https" else None
        authorization = f"Authorization: Bearer {access_token}\r\n" if access_token else ""
        self._head = f"Host: {parts.netloc}\r\n{authorization}".encode()
        self._turn = asyncio.Lock()
        self._connection: _Pipeline | None = None

    async def check(self) -> None:
        """Fail unless a pumpline nsqd answers: another would not know publish tokens."""
        request = b"GET /log/offsets HTTP/1.1\r\n" + self._head + b"\r\n"
        try:
            (status,) = await self._exchange([request])
        except OSError as error:
            raise ToolFailure(f"{self.address}: {error}") from None
        if status == 404:
            raise ToolFailure(f"{self.address} is no pumpline nsqd: it knows no publish tokens")
        if status != 200:
            raise ToolFailure(f"{self.address} answered {status} to /log/offsets")

    async def publish(
        self, topic: str, messages: Sequence[TokenMessage], *, many: bool = False
    ) -> list[TokenMessage]:
        """Returns when each is published or refused; returns those that were refused. With `many`
        each is the body of an MPUB, and its token that of all its messages."""
        path = f"/mpub?binary=true&topic={quote(topic)}" if many else f"/pub?topic={quote(topic)}"
        async with self._turn:
            return await self._publish(path, list(messages))

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def _publish(self, path: str, left: list[TokenMessage]) -> list[TokenMessage]:
        refused: list[TokenMessage] = []
        pause_s = RETRY_FIRST_S
        while True:
            try:
                statuses = await self._exchange([self._request(path, each) for each in left])
            except OSError as error:
                log.warning("%s: %s; trying again", self.address, str(error) or repr(error))
                statuses = []
            for message, status in zip(left, statuses, strict=False):
                if status != OK and status < SERVER_ERROR:
                    log.error("%s refused a message: status %d", self.address, status)
                    refused.append(message)
            answered = [status < SERVER_ERROR for status in statuses]
            answered += [False] * (len(left) - len(answered))
            left = [each for each, is_done in zip(left, answered, strict=True) if not is_done]
            if not left:
                return refused
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _request(self, path: str, message: TokenMessage) -> bytes:
        return b"POST %b&token=%b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (
            path.encode(),
            message.token.encode(),
            self._head,
            len(message.body),
            message.body,
        )

    async def _exchange(self, requests: list[bytes]) -> list[int]:
        """The statuses of the answers; fewer than requests if the connection ended early."""
        if self._connection is None:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                self._connection = await _Pipeline.open(self._host, self._port, self._tls)
        connection = self._connection
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                statuses = await connection.ask(requests)
        except BaseException:
            self._connection = None
            connection.abort()
            raise
        if len(statuses) < len(requests):
            self._connection = None
            connection.abort()
        return statuses


class _Pipeline:
    """A connection on which requests are sent without waiting for answers in between."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parser = httptools.HttpResponseParser(self)
        self._statuses: list[int] = []

    @classmethod
    async def open(cls, host: str, port: int, tls: ssl.SSLContext | None) -> "_Pipeline":
        return cls(*await asyncio.open_connection(host, port, ssl=tls))

    def on_message_complete(self) -> None:  # called by the parser
        self._statuses.append(self._parser.get_status_code())

    async def ask(self, requests: list[bytes]) -> list[int]:
        self._statuses = []
        self._writer.write(b"".join(requests))
        while len(self._statuses) < len(requests):
            data = await self._reader.read(READ_BYTES)
            if not data:
                break
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError as error:
                raise ConnectionError(f"the answer is not HTTP: {error}") from None
        return self._statuses

    def abort(self) -> None:
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
