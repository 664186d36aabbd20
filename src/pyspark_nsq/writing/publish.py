"""Publishes chunks to nodes: exactly once to a pumpline nsqd, at least once to a Go nsqd.

One chunk is on its way to a node while the next is encoded; no more are queued, so a slow node
slows Spark down. Every chunk has a publish token made of its writer and its contents. A pumpline
nsqd answers a repeated token with OK and does nothing; a Go nsqd publishes the chunk again. As the
token covers the contents, rows that come in another order after a failure are published again
instead of being mistaken for others: they may be there twice, but none is lost.

If a node does not answer, this waits for it. Another node would not know the token.
"""

import logging
import time
from hashlib import blake2b

from pumpline.core.messages.crc import crc32
from pyspark_nsq.errors import NodeRefused, NsqError, Unreachable
from pyspark_nsq.nodes.connection import NodeConnection
from pyspark_nsq.options import Connecting
from pyspark_nsq.writing.chunks import Chunk

RETRY_FIRST_S = 0.05
RETRY_MAX_S = 2.0
SERVER_ERROR = 500
TOKEN_BYTES = 16
REASONS = {
    "BAD_MESSAGE": "a message is larger than its --max-msg-size",
    "BODY_TOO_BIG": "a chunk is larger than its --max-body-size; make chunkBytes smaller",
    "INVALID_TOPIC": "the topic's name is not valid",
}

_LOG = logging.getLogger(__name__)


class NodePublisher:
    """Publishes chunks to one node, one after another."""

    def __init__(self, address: str, connecting: Connecting) -> None:
        self._connection = NodeConnection(address, connecting)
        self._retry_s = connecting.retry_s
        self._waiting: tuple[Chunk, str] | None = None

    def publish(self, chunk: Chunk, token: str) -> None:
        """Send a chunk; the next publish, or flush, waits for its reply."""
        self.flush()
        self._waiting = chunk, token
        try:
            self._send(chunk, token)
        except Unreachable:
            self._repeat(chunk, token)

    def flush(self) -> None:
        """Wait until the node has confirmed every chunk."""
        if self._waiting is None:
            return
        chunk, token = self._waiting
        try:
            self._confirm(chunk)
        except (Unreachable, _Unwilling):
            self._repeat(chunk, token)
        self._waiting = None

    def close(self) -> None:
        self._connection.close()

    def _repeat(self, chunk: Chunk, token: str) -> None:
        """Send a chunk again with the same token, until the node confirms it or the time is up."""
        since_s = time.monotonic()
        pause_s = RETRY_FIRST_S
        while True:
            try:
                self._send(chunk, token)
                self._confirm(chunk)
                self._waiting = None
                return
            except (Unreachable, _Unwilling) as error:
                silent_s = time.monotonic() - since_s
                if silent_s + pause_s > self._retry_s:
                    raise Unreachable(
                        f"{chunk.rows} rows could not be published to topic {chunk.topic} for "
                        f"{silent_s:.0f} s: {error}"
                    ) from None
                _LOG.warning("topic %s: %s; trying again", chunk.topic, error)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _send(self, chunk: Chunk, token: str) -> None:
        query = {"topic": chunk.topic, "binary": "true", "token": token}
        self._connection.send("/mpub", query, method="POST", body=chunk.body)

    def _confirm(self, chunk: Chunk) -> None:
        try:
            self._connection.receive()
            self._connection.read()
        except NodeRefused as error:
            if error.status >= SERVER_ERROR:
                raise _Unwilling(str(error)) from None
            reason = REASONS.get(error.code)
            why = f": {reason}" if reason else ""
            raise NsqError(f"topic {chunk.topic}: {error}{why}") from None


class _Unwilling(NsqError):
    """The node answers with a server error: it may take the chunk later."""


def token_of(writer: str, partition: int, number: int, chunk: Chunk) -> str:
    """The publish token of a chunk: equal only for the same chunk of the same write."""
    body = chunk.body
    said = f"{writer}/{partition}/{number}/{chunk.topic}/{len(body)}/{crc32(body):08x}"
    return blake2b(said.encode(), digest_size=TOKEN_BYTES).hexdigest()
