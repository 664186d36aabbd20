"""What the poller reads of an nsqd: /stats, of which Go's has less, and the size of a log."""

import msgspec

from pumpline.nsqadmin.cluster.upstream import decoded, unreadable
from pumpline.web.yielding import Pace


class PolledChannel(msgspec.Struct, kw_only=True):
    channel_name: str
    depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    message_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    client_count: int = 0
    paused: bool = False
    hold: bool = False
    oldest_timestamp: int = 0


class PolledTopic(msgspec.Struct, kw_only=True):
    topic_name: str
    channels: list[PolledChannel] = []
    depth: int = 0
    message_count: int = 0
    message_bytes: int = 0
    log_bytes: int = 0
    paused: bool = False


class PolledNode(msgspec.Struct, kw_only=True):
    version: str = ""
    health: str = ""
    start_time: int = 0
    topics: list[PolledTopic] | None = None


class _RawNode(msgspec.Struct, kw_only=True):
    """The same, with each topic as it was sent."""

    version: str = ""
    health: str = ""
    start_time: int = 0
    topics: list[msgspec.Raw] | None = None


_topic_decoder = msgspec.json.Decoder(PolledTopic)


async def read_stats(answer: bytes) -> PolledNode:
    """/stats of a whole node, or UpstreamError. It is read a topic at a time: the 14 MB of
    50,000 channels at once would hold the event loop."""
    raw = decoded(answer, _RawNode)
    topics = []
    pace = Pace()
    try:
        for each in raw.topics or ():
            topics.append(_topic_decoder.decode(each))
            await pace.breathe()
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise unreadable(error) from None
    return PolledNode(
        version=raw.version, health=raw.health, start_time=raw.start_time, topics=topics
    )


class LogExtent(msgspec.Struct, kw_only=True):
    first: int
    end: int
    bytes: int
    segments: int
    first_timestamp_ms: int | None
    timestamp_ms: int | None


class ToldExtent(msgspec.Struct, kw_only=True):
    """The answer of /log/offsets."""

    first: int
    end: int
    bytes: int = 0
    segments: int = 0
    first_timestamp: int | None = None  # ns
    timestamp: int | None = None

    def extent(self) -> LogExtent:
        return LogExtent(
            first=self.first,
            end=self.end,
            bytes=self.bytes,
            segments=self.segments,
            first_timestamp_ms=in_ms(self.first_timestamp),
            timestamp_ms=in_ms(self.timestamp),
        )


def in_ms(time_ns: int | None) -> int | None:
    return time_ns // 1_000_000 if time_ns else None


STATS_QUERY = {"format": "json", "include_clients": "false", "include_mem": "false"}
