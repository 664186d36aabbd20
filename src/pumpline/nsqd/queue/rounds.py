"""Rounds: with many topics whose consumers wait, messages are delivered a few at a time.

A message that is delivered alone costs an append to its log, a write to its consumer's socket and,
later, the read of its FIN: some 30 us, most of it the kernel's. Where few topics are busy that is
well spent: it is delivered at once. Where many are, in one tick, they are *awaited*: the journal
has what is published to them, which is acknowledged at once, and in every round their logs get what
came since the last one, and their consumers all of it in one write.

After a round there is a rest, REST times as long as the round took: so messages wait the longer the
more topics are busy, with 100 of them some milliseconds, but not longer than REST_S_MAX. NSQ's nsqd
waits for the output_buffer_timeout of a client, 250 ms, or until its RDY is used up.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from pumpline.core.messages.batches import Builder
from pumpline.nsqd.queue.tick import Tick

CROWD = 8  # awaited topics in a tick: so many are served at once
REST = 2.0  # times as long as a round took: so rounds take a third of the time at most
REST_S_MIN, REST_S_MAX = 0.002, 0.1
TOPICS_AT_ONCE = 200  # filed before others have their turn: each takes 25 us

_NS_PER_S = 1_000_000_000


class Awaited(Protocol):
    """A topic, as seen from here."""

    journaled: Builder | None  # what the journal has of it, and the log has not

    def file(self) -> object:
        """Append what the journal has of it to its log, and show it to channels."""


_Topic = TypeVar("_Topic", bound=Awaited)


class Rounds(Generic[_Topic]):
    def __init__(self, tick: Tick, gather: Callable[[_Topic], bool]) -> None:
        """`gather` lets the journal have what is published to a topic from now on; it returns
        whether it does."""
        self._tick = tick
        self._gather = gather
        self._topics: dict[_Topic, None] = {}  # that are filed in the next round
        self._round: list[_Topic] = []  # that are still to be filed in this one
        self._filed = 0  # in this round
        self._begun_ns = 0  # when it began
        self._rest_s = REST_S_MIN  # until the next one begins
        self._is_under_way = False  # there is a round, or there will be
        self._crowd = 0  # topics in this tick that consumers waited for
        self._crowd_tick = 0  # the number of that tick

    def __contains__(self, topic: _Topic) -> bool:
        return topic in self._topics

    @property
    def is_crowded(self) -> bool:
        """To be asked for each topic that consumers wait for: whether it should wait for a round,
        as too many others are served in this tick, or wait already."""
        if self._crowd_tick != self._tick.number:
            self._crowd_tick = self._tick.number
            self._crowd = 0
        self._crowd += 1
        return self._crowd > CROWD or bool(self._topics)

    def add(self, topic: _Topic) -> None:
        """The journal gathers what is published to the topic, and consumers wait for it."""
        if not self._is_under_way:
            self._is_under_way = True
            self._tick.later(self._rest_s, self._begin)
        self._topics[topic] = None

    def discard(self, topic: _Topic) -> None:
        """The journal gathers nothing for the topic any more."""
        self._topics.pop(topic, None)

    def _begin(self) -> None:
        self._round = list(self._topics)
        self._filed = 0
        self._begun_ns = self._tick.clocks.steady_ns
        self._file_some()

    def _file_some(self) -> None:
        for topic in self._round[:TOPICS_AT_ONCE]:
            if topic not in self._topics:
                continue
            had_news = topic.journaled is not None and bool(topic.journaled.ends)
            topic.file()  # and with that it is discarded
            self._filed += had_news
            if had_news and self._gather(topic):
                self._topics[topic] = None
        del self._round[:TOPICS_AT_ONCE]
        # The tick comes first: it delivers what was filed.
        self._tick.later(0, self._file_some if self._round else self._end)

    def _end(self) -> None:
        """All is filed and delivered."""
        took_s = (self._tick.clocks.steady_ns - self._begun_ns) / _NS_PER_S
        self._rest_s = min(max(REST * took_s, REST_S_MIN), REST_S_MAX)
        if self._filed < CROWD:
            self._dissolve()
        if self._topics:
            self._tick.later(self._rest_s, self._begin)
        else:
            self._is_under_way = False

    def _dissolve(self) -> None:
        """So few topics are busy that each is served at once."""
        while self._topics:
            self._topics.popitem()[0].file()
