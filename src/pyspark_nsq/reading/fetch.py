"""Fetches the raw batches of a range from a node over HTTP, into one buffer that is used again.

The next request is sent before an answer is handed out, so the node reads and sends while the
caller decodes. If the connection is lost, the rest is requested again until the node has not
answered for `retry_s`. Knows /log/raw; must not know what is in the bytes.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass

from pumpline.core.messages.batches import BATCH_BYTES_MAX
from pyspark_nsq.errors import DataLoss, NodeRefused, NsqError, Unreachable
from pyspark_nsq.nodes.connection import NodeConnection
from pyspark_nsq.options import ReadOptions
from pyspark_nsq.reading.plan import LogRange

ANSWER_BYTES_MAX = BATCH_BYTES_MAX + (1 << 29)  # batches are sent whole, even larger ones
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 2.0
SERVER_ERROR = 500  # and above: worth another try

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Answer:
    """Whole batches that contain [start, stop); valid until the next answer is taken."""

    data: memoryview
    start: int
    stop: int


class Fetcher:
    """Fetches one range."""

    def __init__(self, wanted: LogRange, options: ReadOptions) -> None:
        self._range = wanted
        self._fetch_bytes = options.fetch_bytes
        self._retry_s = options.connecting.retry_s
        self._connection = NodeConnection(wanted.address, options.connecting)
        self._buffer = bytearray(self._fetch_bytes + (self._fetch_bytes >> 3))
        self._where = f"topic {wanted.topic} on {wanted.node}"

    def answers(self) -> Iterator[Answer]:
        """The whole range in order. Raise DataLoss if a part is gone: Retired if the rest can be
        read by a new Fetcher."""
        at = self._range.start
        asked = False
        while at < self._range.end:
            answer = self._answer(at, asked=asked)
            at = answer.stop
            asked = at < self._range.end and self._ask_ahead(at)
            yield answer
        self._connection.close()

    def _answer(self, at: int, *, asked: bool) -> Answer:
        """One answer from `at` on; the request is repeated if need be."""
        silent_since_s = time.monotonic()
        pause_s = RETRY_FIRST_S
        while True:
            try:
                if not asked:
                    self._send(at)
                return self._receive(at)
            except Unreachable as error:
                reason: NsqError = error
            except NodeRefused as error:
                if error.status < SERVER_ERROR:
                    raise self._explained(error, at) from None
                reason = error
            asked = False
            silent_s = time.monotonic() - silent_since_s
            if silent_s + pause_s > self._retry_s:
                raise Unreachable(
                    f"{self._where}: offset {at} could not be read for {silent_s:.0f} s: {reason}"
                )
            _LOG.warning("%s: %s; trying again", self._where, reason)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _ask_ahead(self, at: int) -> bool:
        try:
            self._send(at)
        except Unreachable:
            return False  # _answer sends it again
        return True

    def _send(self, at: int) -> None:
        query = {
            "topic": self._range.topic,
            "from": at,
            "to": self._range.end,
            "log": self._range.log,
            "bytes_max": self._fetch_bytes,
        }
        self._connection.send("/log/raw", query)

    def _receive(self, at: int) -> Answer:
        connection = self._connection
        connection.receive()
        size = _number(connection.header("Content-Length"))
        stop = _number(connection.header("X-Pumpline-To"))
        if size is None or stop is None or not 0 <= size <= ANSWER_BYTES_MAX:
            self._connection.close()
            raise NsqError(
                f"{self._where}: {self._range.address} sent a /log/raw without its length"
            )
        if stop <= at:
            self._connection.close()
            raise DataLoss(f"{self._where}: nothing is there from offset {at} on")
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        view = memoryview(self._buffer)[:size]
        connection.read_into(view)
        return Answer(view, at, stop)

    def _explained(self, error: NodeRefused, at: int) -> NsqError:
        if error.code == "LOG_CHANGED":
            return DataLoss(f"{self._where} was deleted and created again while it was being read")
        if error.code == "TOPIC_NOT_FOUND":
            return DataLoss(f"{self._where} was deleted while it was being read")
        if error.code == "OFFSET_GONE":
            first = error.details.get("first")
            return Retired(
                f"{self._where}: offset {at} is retired, the oldest is {first}",
                first=first if isinstance(first, int) else None,
            )
        if error.code == "OFFSET_BEYOND_END":
            end = error.details.get("end")
            return DataLoss(f"{self._where}: offset {at} is beyond the end, which is {end}")
        return NsqError(f"{self._where}: {error}")


class Retired(DataLoss):
    """The oldest rows of a range are gone; reading can go on at `first`, if the node named it."""

    def __init__(self, text: str, *, first: int | None) -> None:
        super().__init__(text)
        self.first = first


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
