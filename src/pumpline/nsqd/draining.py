"""Draining: an orderly end. New work is refused, what is in flight may be finished.

While draining, publishes and new subscriptions are refused with NSQ's word for it, `exiting`;
consumers are given nothing new, but may answer what they have, until nothing is in flight or the
time is up. What is still in flight then comes again after the restart. Dead letters on their way
are waited for too. Closing listeners and leaving the lookupds is the server's part.
"""

import asyncio
import logging
from contextlib import suppress

from pumpline.core.text.durations import NS_PER_S, format_duration
from pumpline.nsqd.options import Options
from pumpline.nsqd.protocol.connections import Connections
from pumpline.nsqd.queue.topics import Topics

LOOK_S = 0.02  # between two looks at what is in flight

_LOG = logging.getLogger(__name__)


class Draining:
    def __init__(self, options: Options, topics: Topics, connections: Connections) -> None:
        self.wanted = asyncio.Event()  # somebody asked for it over HTTP
        self.active = False
        self.timeout_ns = options.drain_timeout_ns
        self._topics = topics
        self._connections = connections

    @property
    def in_flight(self) -> int:
        """Messages that somebody has to answer, or that have to be written, before the end."""
        return sum(
            channel.in_flight_count + channel.dead_letters.pending
            for topic in self._topics.values()
            for channel in topic.channels.values()
        )

    def begin(self) -> None:
        """Refuse what is new from now on."""
        if self.active:
            return
        self.active = True
        self._connections.drain()
        for topic in self._topics.values():
            for channel in topic.channels.values():
                for consumer in channel.consumers:
                    consumer.stop()

    async def wait(self, hurry: asyncio.Event) -> None:
        """Until nothing is in flight, the time is up, or somebody is in a hurry."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self.timeout_ns / NS_PER_S
        if (count := self.in_flight) and self.timeout_ns:
            shown = format_duration(self.timeout_ns)
            _LOG.info("DRAIN: %d messages in flight, waiting up to %s", count, shown)
        while self.in_flight and not hurry.is_set() and (left_s := end_s - loop.time()) > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(hurry.wait(), min(LOOK_S, left_s))
        if count := self.in_flight:
            _LOG.info("DRAIN: %d messages are still in flight, to be delivered again", count)
