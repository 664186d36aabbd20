"""Retention: when consumed history goes.

A segment may go when every channel and every hold is past it, and goes when it is older than
`--retention-time`, when its topic's history exceeds `--retention-bytes`, or when the disk runs low.
A topic's settings come before the options.
A fully consumed newest segment is closed once it is old enough, so that idle topics let go too.
"""

import logging
import os
import time
from itertools import pairwise

from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.queue.topics import Topics

PASS_S = 10.0
FREE_SHARE_MIN = 0.10
_IDLE_NS_MIN = 60_000_000_000  # a newest segment is left alone for this long at least

_LOG = logging.getLogger(__name__)


class Retention:
    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def start(self) -> None:
        self._topics.tick.later(PASS_S, self._on_timer)

    def run(self) -> None:
        """One pass over all topics."""
        low_disk = self._topics.disk.directory.free_share() < FREE_SHARE_MIN
        now_ns = time.time_ns()
        for topic in self._topics.values():
            if not topic.ephemeral and not topic.exiting:
                topic.holds.drop_excess()
                if low_disk:
                    topic.drop_history()
                self._retire(topic, now_ns)

    def _on_timer(self) -> None:
        try:
            self.run()
        except OSError as error:
            _LOG.error("RETENTION: %s", error)
        self.start()

    def _retire(self, topic: Topic, now_ns: int) -> None:
        log = topic.log
        settings, options = topic.settings, self._topics.options
        time_ns = _first(settings.retention_time_ns, options.retention_time_ns)
        bytes_max = _first(settings.retention_bytes, options.retention_bytes)
        if topic.ttl_ns and (expired := _expire_segments(topic, now_ns)):
            _LOG.info("TOPIC(%s): passed over %d messages that are too old", topic.name, expired)
        low = topic.low
        consumed = log.consumed(low)
        history_bytes = sum(segment.size_bytes for segment in consumed)
        count = 0
        for segment in consumed:
            old = _age_ns(segment.path, now_ns) >= time_ns
            if not old and history_bytes <= bytes_max:
                break
            history_bytes -= segment.size_bytes
            count += 1
        if count:
            _LOG.info("TOPIC(%s): retiring %d consumed segments", topic.name, count)
            topic.retire(count)
        if low >= log.end and log.segments and log.segments[-1].size_bytes:
            age_ns = _age_ns(log.segments[-1].path, now_ns)
            if age_ns >= max(time_ns, _IDLE_NS_MIN):
                log.roll()


def _expire_segments(topic: Topic, now_ns: int) -> int:
    """Let all channels pass segments with nothing but old messages; returns how many messages."""
    old_ns = topic.ttl_ns + topic.options.max_req_timeout_ns
    end = 0
    for segment, following in pairwise(topic.log.segments):
        try:
            written_ns = os.stat(segment.path).st_mtime_ns
        except FileNotFoundError:
            break
        if now_ns - written_ns < old_ns:
            break
        end = following.first
    if not end:
        return 0
    if not topic.channels:
        return topic.forget_below(end)
    return sum(channel.expiry.drop_below(end) for channel in topic.channels.values())


def _first(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _age_ns(path: str, now_ns: int) -> int:
    try:
        return now_ns - os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return 0
