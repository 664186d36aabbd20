"""The replies of nsqd's /log API, and of /topic/settings: offsets, messages by offset, settings."""

from base64 import b64decode

import msgspec

from pumpline.cluster.node import ClusterNode, NodeFailure
from pumpline.core.messages.spans import Span, left_out

PAGE_MESSAGES_MAX = 1000  # in one reply of /log/peek


class LogOffsets(msgspec.Struct, kw_only=True):
    """The reply of /log/offsets for a topic."""

    topic: str = ""
    node: str = ""
    log: str = ""
    first: int
    end: int
    bytes: int = 0
    segments: int = 0
    first_timestamp: int | None = None  # ns
    timestamp: int | None = None
    offset: int | None = None  # of the time that was asked for
    started: str = ""  # changes with every start of the node
    gaps: list[Span] = []

    @property
    def messages(self) -> int:
        """How many there are: offsets in gaps have none."""
        return self.end - self.first - left_out(self.gaps, self.first, self.end)


class LogMessage(msgspec.Struct, kw_only=True):
    """A message in the reply of /log/peek, and in an event of /log/tail."""

    offset: int
    id: str
    timestamp: int  # ns
    attempts: int = 0
    size_bytes: int = msgspec.field(name="bytes", default=0)
    state: str = ""
    deferred_until: int = 0  # ns
    body: str | None = None
    body_base64: str | None = None
    truncated: bool = False

    def raw(self) -> bytes:
        """NodeFailure if it was sent as what it is not."""
        return raw_body(self.body, self.body_base64)


class LogPage(msgspec.Struct, kw_only=True):
    """The reply of /log/peek."""

    log: str = ""
    first: int
    end: int
    messages: list[LogMessage]
    next: int


def offsets_of(node: ClusterNode, topic: str) -> LogOffsets | None:
    """None if the node has no such topic, or no log of it."""
    try:
        return node.get_as(LogOffsets, "/log/offsets", {"topic": topic})
    except NodeFailure as failure:
        if failure.code in ("TOPIC_NOT_FOUND", "INVALID_TOPIC", "EPHEMERAL_TOPIC"):
            return None
        raise


def in_ms(time_ns: int | None) -> int | None:
    return time_ns // 1_000_000 if time_ns else None


def raw_body(text: str | None, in_base64: str | None) -> bytes:
    try:
        return (text or "").encode() if in_base64 is None else b64decode(in_base64)
    except ValueError as error:
        raise NodeFailure(f"its reply has a body that is no base64: {error}") from None
