"""Retention: when consumed history is deleted.

A segment may be deleted when every channel and every hold has passed it, and is when it is older
than `--retention-time`, when its topic's history exceeds `--retention-bytes`, or when the disk runs
low. A topic's settings take precedence over the options. The newest segment may be deleted as well
if it is fully consumed: after a minute without a write, at once when somebody empties a channel or
the topic, and when the disk is full.

A pass over all topics is made in slices of a few milliseconds: messages do not wait for it.
"""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise

from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.queue.topic_state import CLOSED
from pumpline.nsqd.queue.topics import Topics

PASS_S = 10.0
SLICE_S = 0.005  # of work, after which others get their turn
FREE_SHARE_MIN = 0.10
_IDLE_NS_MIN = 60_000_000_000  # a newest segment that was written to since is kept

_LOG = logging.getLogger(__name__)


class Retention:
    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def start(self) -> None:
        self._topics.tick.later(PASS_S, self._on_timer)

    def run(self) -> None:
        """One pass over all topics, without a pause."""
        for _ in self._pass():
            pass

    def _pass(self) -> Iterator[None]:
        """One pass over all topics there are now; yields after each."""
        disk = self._topics.disk
        is_full = disk.health.is_full
        is_low = is_full or disk.directory.free_share() < FREE_SHARE_MIN
        now_ns = time.time_ns()
        for topic in list(self._topics.values()):
            if not topic.ephemeral and topic.state is not CLOSED:
                topic.upkeep.holds.drop_excess()
                if is_low:
                    topic.upkeep.drop_history(newest=is_full)
                self._retire(topic, now_ns, idle_ns=_IDLE_NS_MIN)
            yield

    def retire_now(self, topic: Topic) -> None:
        """The topic or a channel of it was emptied, or its settings have changed: delete at once
        what may be deleted."""
        if topic.ephemeral or topic.state is CLOSED:
            return
        disk = self._topics.disk
        try:
            if disk.health.is_full or disk.directory.free_share() < FREE_SHARE_MIN:
                topic.upkeep.drop_history(newest=True)
        except OSError as error:  # there is always a next pass
            _LOG.error("RETENTION: %s", error)
        self._try_retire(topic, idle_ns=0)

    def _try_retire(self, topic: Topic, *, idle_ns: int) -> None:
        if topic.state is not CLOSED:
            try:
                self._retire(topic, time.time_ns(), idle_ns=idle_ns)
            except OSError as error:  # there is always a next pass
                _LOG.error("RETENTION: %s", error)

    def _on_timer(self) -> None:
        self._continue_pass(self._pass())

    def _continue_pass(self, steps: Iterator[None]) -> None:
        until_s = time.perf_counter() + SLICE_S
        try:
            for _ in steps:
                if time.perf_counter() >= until_s:
                    self._topics.tick.later(0, lambda: self._continue_pass(steps))
                    return
        except OSError as error:
            _LOG.error("RETENTION: %s", error)
        self.start()

    def _retire(self, topic: Topic, now_ns: int, *, idle_ns: int) -> None:
        """Delete history that is too old or too large; the newest segment if nothing was written to
        it for `idle_ns`."""
        log = topic.log
        settings, options = topic.settings, self._topics.options
        time_ns = _first(settings.retention_time_ns, options.retention_time_ns)
        bytes_max = _first(settings.retention_bytes, options.retention_bytes)
        if topic.ttl_ns and (expired := _expire_segments(topic, now_ns)):
            _LOG.info("TOPIC(%s): passed over %d messages that are too old", topic.name, expired)
        low = topic.upkeep.low
        if low >= log.end and log.segments:
            age_ns = _age_ns(log.segments[-1].path, now_ns)
            if age_ns >= idle_ns and (age_ns >= time_ns or log.size_bytes > bytes_max):
                with suppress(OSError):  # a full disk: there is always a next pass
                    log.roll()
        consumed = log.consumed(low)
        history_bytes = sum(segment.size_bytes for segment in consumed)
        count = 0
        for segment in consumed:
            old = _age_ns(segment.path, now_ns) >= time_ns
            if not old and history_bytes <= bytes_max:
                break
            history_bytes -= segment.size_bytes
            count += 1
        again = partial(self._try_retire, topic, idle_ns=idle_ns)
        if count and topic.upkeep.may_retire(count, otherwise=again):
            _LOG.info("TOPIC(%s): retiring %d consumed segments", topic.name, count)
            topic.upkeep.retire(count)


def _expire_segments(topic: Topic, now_ns: int) -> int:
    """Let all channels pass segments with expired messages only; returns how many messages."""
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
