"""An nsqd that a test kills, starves of descriptors or disk, or starts from damaged files.

Adds to `daemons.Nsqd` what only the crash suite needs.
"""

import errno
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

from tests.kit.daemons import ErrorFrame, Nsqd, RawClient, RawMessage, wait_until


class KillableNsqd(Nsqd):
    """Killed, not stopped, when the test ends."""

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self.kill()

    def again(self) -> Self:
        """Starts it on the same ports after a kill."""
        return self.start()

    def act(self, path: str, **params: str) -> None:
        """POSTs an admin action, which must succeed."""
        status, body = self.http("POST", f"{path}?{urlencode(params)}")
        assert status == 200, (path, params, status, body)

    def depth(self, topic: str, channel: str) -> int | None:
        """Messages waiting in a channel; None if there is no such channel."""
        stats: dict[str, Any] = self.channel_stats(topic, channel)
        return int(stats["depth"]) if stats else None

    # -- limits -------------------------------------------------------------------------------

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    # -- files --------------------------------------------------------------------------------

    def topic_path(self, topic: str) -> Path:
        return self.data_path / "topics" / topic

    def wal_files(self) -> list[Path]:
        return sorted(self.data_path.glob("wal-*"))

    def in_wal(self, text: bytes) -> bool:
        """Whether the write-ahead log has this."""
        return any(text in path.read_bytes() for path in self.wal_files())

    def flush(self, *topics: str) -> None:
        """Let the segments have everything that was published."""
        for topic in topics:
            assert self.http("GET", f"/log/peek?topic={topic}&limit=1")[0] == 200

    def await_flush(self) -> None:
        """Wait until nothing is in the write-ahead log any more."""
        wait_until(lambda: not any(path.stat().st_size for path in self.wal_files()))

    def segments(self, topic: str) -> list[Path]:
        return sorted(self.topic_path(topic).glob("*.log"))

    def log_since_start(self) -> str:
        """What the present run has logged."""
        return self.log_path.read_bytes()[self._log_start_bytes :].decode(errors="replace")


def create_channel(nsqd: Nsqd, topic: str, channel: str) -> None:
    with nsqd.connect() as client:
        client.sub(topic, channel)


def refusal(client: RawClient, line: str, body: bytes) -> str:
    """The error that a publish is answered with; it must be refused, and the connection closed."""
    client.send_command(line, body)
    try:
        answer = client.read_response()
    except ErrorFrame as error:
        return str(error)
    raise AssertionError(f"{line} was answered with {answer!r}")


def drain(nsqd: KillableNsqd, topic: str, channel: str, count: int) -> list[RawMessage]:
    """Receives and finishes all there is in a channel, which must be `count` messages."""
    received = drain_all(nsqd, topic, channel)
    assert len(received) == count, f"{len(received)} instead of {count}: {received[:3]}"
    return received


def drain_all(nsqd: KillableNsqd, topic: str, channel: str) -> list[RawMessage]:
    """Receives and finishes all there is in a channel: at most 2500 messages."""
    received: list[RawMessage] = []
    with nsqd.connect() as client:
        client.sub(topic, channel)
        client.rdy(2500)

        def is_empty() -> bool:
            # Reading from disk takes its time: only a depth of 0 says that all there is was sent.
            received.extend(until_barrier(client))
            return bool(nsqd.channel_stats(topic, channel)["depth"] == 0)

        wait_until(is_empty)
        received.extend(until_barrier(client))
        for message in received:
            client.fin(message.id)
        assert until_barrier(client) == []
    return received


def await_checkpoint(nsqd: KillableNsqd, topic: str, channel: str) -> None:
    """Waits until all that a channel has gone through so far is in its cursor file.

    The first write that is seen may have begun before now; the second one cannot have.
    """
    path = nsqd.topic_path(topic) / f"{channel}.cursor"
    for _ in range(2):
        written_ns = path.stat().st_mtime_ns
        create_channel(nsqd, topic, channel)  # a consumer that comes and goes is a change
        wait_until(lambda: path.stat().st_mtime_ns > written_ns)  # noqa: B023


def until_barrier(client: RawClient) -> list[RawMessage]:
    """The messages that come before nsqd has carried out all that was sent to it so far."""
    client.fin("barrier-barrier-")
    messages: list[RawMessage] = []
    while True:
        try:
            messages.append(client.read_message())
        except ErrorFrame as error:
            assert str(error).startswith("E_FIN_FAILED FIN barrier-barrier- "), error
            return messages


def mpub_body(bodies: Sequence[bytes]) -> bytes:
    sized = (struct.pack(">i", len(body)) + body for body in bodies)
    return struct.pack(">i", len(bodies)) + b"".join(sized)


def reason(number: int) -> str:
    """An OS error in the words of the error frames."""
    return os.strerror(number).lower()


EFBIG_REASON = reason(errno.EFBIG)
ENOSPC_REASON = reason(errno.ENOSPC)
