"""Topics, channels and nodes as rows of figures, with rates and an hour of history.

A row lives as long as what it is about. With every poll it takes a sum over nodes and makes rates
of the counters in it. `shown` is the row as the page gets it.

| rate of a channel | is                                                                 |
|-------------------|--------------------------------------------------------------------|
| in                | messages that came                                                 |
| finish            | messages that came, less the growth of what is not finished        |
| out               | finished, requeued, timed out, and the growth of what is in flight |

Pure: time is an argument.
"""

from collections.abc import Iterable
from typing import Any

from pumpline.nsqadmin.live.history import SPARK_STEPS, HourHistory, step_of
from pumpline.nsqadmin.live.rates import CounterReading, RateWindow, positive
from pumpline.nsqadmin.live.sums import NodeSum, PolledChannelSum, PolledTopicSum

CHANNEL_SERIES = (
    "in_rate out_rate finish_rate requeue_rate timeout_rate waiting in_flight deferred "
    "lag_ms".split()
)
TOPIC_SERIES = ("in_rate", "finish_rate", "waiting")
NODE_SERIES = ("in_rate", "out_rate", "finish_rate", "waiting", "in_flight")
CHANNEL_FIGURES = (
    "in_rate out_rate finish_rate requeue_rate timeout_rate waiting in_flight deferred lag_ms "
    "message_count requeue_count timeout_count consumers nodes paused troubles".split()
)
TOPIC_FIGURES = (
    "in_rate finish_rate channels consumers depth waiting in_flight deferred lag_ms message_count "
    "message_bytes log_bytes nodes paused troubles".split()
)
NODE_FIGURES = (
    "node hostname version pumpline ok error since_ms health started_at_ms in_rate out_rate "
    "finish_rate requeue_rate timeout_rate waiting in_flight deferred topics channels consumers "
    "disk_free disk_total missing_at tombstones troubles".split()
)

_NS_PER_MS = 1_000_000


class FlowRates:
    """The rates of what has messages coming and going. None: nobody knows."""

    def __init__(self) -> None:
        self.in_rate: float | None = None
        self.out_rate: float | None = None
        self.finish_rate: float | None = None
        self.requeue_rate: float | None = None
        self.timeout_rate: float | None = None
        self._window = RateWindow()

    def take(
        self,
        now_s: float,
        signature: int,
        *,
        came: int,
        unfinished: int,
        requeued: int,
        timed_out: int,
        in_flight: int,
    ) -> None:
        counters = (came, unfinished, requeued, timed_out, in_flight)
        rates = self._window.rates(CounterReading(now_s, signature, counters))
        if rates is None:
            self.in_rate = self.out_rate = self.finish_rate = None
            self.requeue_rate = self.timeout_rate = None
            return
        came_rate, growth, requeue_rate, timeout_rate, flight_growth = rates
        finished = max(came_rate - growth, 0.0)
        self.in_rate = positive(came_rate)
        self.finish_rate = positive(finished)
        self.requeue_rate = positive(requeue_rate)
        self.timeout_rate = positive(timeout_rate)
        self.out_rate = positive(finished + requeue_rate + timeout_rate + flight_growth)


class ChannelRow(FlowRates):
    def __init__(self, topic: str, channel: str) -> None:
        super().__init__()
        self.topic = topic
        self.channel = channel
        self.hold = False
        self.history: HourHistory | None = None
        self.lag_ms: int | None = None
        self.troubles = 0
        self.waiting = self.in_flight = self.deferred = self.consumers = 0
        self.message_count = self.requeue_count = self.timeout_count = 0
        self.nodes = self.paused = 0

    @property
    def key(self) -> str:
        return f"{self.topic}/{self.channel}"

    def settle(self, told: PolledChannelSum, now_s: float) -> None:
        self.hold = told.hold
        self.waiting, self.in_flight, self.deferred = told.waiting, told.in_flight, told.deferred
        self.message_count, self.requeue_count = told.message_count, told.requeue_count
        self.timeout_count, self.consumers = told.timeout_count, told.consumers
        self.nodes, self.paused = told.nodes, told.paused
        unfinished = told.waiting + told.in_flight + told.deferred
        self.take(
            now_s,
            told.signature,
            came=told.message_count,
            unfinished=unfinished,
            requeued=told.requeue_count,
            timed_out=told.timeout_count,
            in_flight=told.in_flight,
        )
        oldest_ms = told.oldest_ns // _NS_PER_MS
        has_lag = oldest_ms and unfinished
        self.lag_ms = max(int(now_s * 1000) - oldest_ms, 0) if has_lag else None
        if self.history is not None:
            self.history.put(step_of(now_s), figures_of(self, CHANNEL_SERIES))

    def shown(self, now_s: float) -> dict[str, Any]:
        return {
            "key": self.key,
            "topic": self.topic,
            "channel": self.channel,
            "hold": self.hold,
            "spark": spark(self.history, "finish_rate", now_s),
            **figures_of(self, CHANNEL_FIGURES),
        }


class TopicRow:
    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.by_channel: dict[str, ChannelRow] = {}
        self.history: HourHistory | None = None
        self.in_rate: float | None = None
        self.finish_rate: float | None = None
        self.lag_ms: int | None = None
        self.troubles = 0
        self.depth = self.waiting = self.in_flight = self.deferred = 0
        self.consumers = self.channels = self.message_count = self.message_bytes = 0
        self.log_bytes: int | None = None  # a Go nsqd has no log
        self.paused = 0
        self.on: list[str] = []  # nodes
        self._window = RateWindow()

    @property
    def key(self) -> str:
        return self.topic

    @property
    def nodes(self) -> int:
        return len(self.on)

    def settle(self, told: PolledTopicSum, now_s: float) -> None:
        self.depth, self.paused, self.on = told.depth, told.paused, told.nodes
        self.message_count, self.message_bytes = told.message_count, told.message_bytes
        self.log_bytes = told.log_bytes or None
        self._settle_channels(told, now_s)
        rates = self._window.rates(CounterReading(now_s, told.signature, (told.message_count,)))
        self.in_rate = None if rates is None else positive(rates[0])
        if rates is None:
            self.finish_rate = None
        if self.history is not None:
            self.history.put(step_of(now_s), figures_of(self, TOPIC_SERIES))

    def _settle_channels(self, told: PolledTopicSum, now_s: float) -> None:
        waiting, in_flight, deferred, consumers, channels = told.depth, 0, 0, 0, 0
        finished, lag_ms = 0.0, None
        rows = {}
        for name, each in told.channels.items():
            row = rows[name] = self.by_channel.get(name) or ChannelRow(self.topic, name)
            row.settle(each, now_s)
            if row.hold:
                continue
            channels += 1
            waiting += row.waiting
            in_flight += row.in_flight
            deferred += row.deferred
            consumers += row.consumers
            finished += row.finish_rate or 0.0
            if row.lag_ms is not None:
                lag_ms = max(lag_ms or 0, row.lag_ms)
        self.by_channel = rows
        self.waiting, self.in_flight, self.deferred = waiting, in_flight, deferred
        self.consumers, self.channels, self.lag_ms = consumers, channels, lag_ms
        self.finish_rate = round(finished, 3)

    def shown(self, now_s: float) -> dict[str, Any]:
        return {
            "key": self.topic,
            "topic": self.topic,
            "spark": spark(self.history, "in_rate", now_s),
            **figures_of(self, TOPIC_FIGURES),
        }


class NodeRow(FlowRates):
    def __init__(self, node: str) -> None:
        super().__init__()
        self.node = node
        self.hostname = self.version = self.error = self.health = ""
        self.pumpline: str | None = None  # its version, if it is ours
        self.ok = True
        self.since_ms: int | None = None  # when it became silent
        self.started_at_ms: int | None = None
        self.disk_free: int | None = None
        self.disk_total: int | None = None
        self.missing_at: list[str] = []
        self.tombstones: list[str] = []
        self.troubles = 0
        self.history = HourHistory(NODE_SERIES)
        self._published = RateWindow()
        self.taken = 0  # by channels, since nsqadmin saw it first
        self._delivered: tuple[int, int] | None = None  # who said it, and how many
        self.waiting: int | None = None
        self.in_flight: int | None = None
        self.deferred: int | None = None
        self.topics: int | None = None
        self.channels: int | None = None
        self.consumers: int | None = None

    @property
    def key(self) -> str:
        return self.node

    def settle(self, told: NodeSum, now_s: float, signature: int) -> None:
        self.ok, self.error, self.since_ms = True, "", None
        self.waiting, self.in_flight, self.deferred = told.waiting, told.in_flight, told.deferred
        self.topics, self.channels, self.consumers = told.topics, told.channels, told.consumers
        self.take(
            now_s,
            signature,
            came=told.delivered_count,
            unfinished=told.unfinished,
            requeued=told.requeue_count,
            timed_out=told.timeout_count,
            in_flight=told.in_flight,
        )
        if self._delivered is not None and self._delivered[0] == signature:
            self.taken += max(told.delivered_count - self._delivered[1], 0)
        self._delivered = signature, told.delivered_count
        rates = self._published.rates(CounterReading(now_s, signature, (told.message_count,)))
        self.in_rate = None if rates is None else positive(rates[0])
        self.history.put(step_of(now_s), figures_of(self, NODE_SERIES))

    def fail(self, error: str, now_s: float) -> None:
        """It does not answer: what it said before is not true any more."""
        self.ok, self.error = False, error
        if self.since_ms is None:
            self.since_ms = int(now_s * 1000)
        self.waiting = self.in_flight = self.deferred = None
        self.topics = self.channels = self.consumers = None
        self.in_rate = self.out_rate = self.finish_rate = None
        self.requeue_rate = self.timeout_rate = None

    def shown(self, now_s: float) -> dict[str, Any]:
        return {
            "key": self.node,
            "spark": spark(self.history, "in_rate", now_s),
            **figures_of(self, NODE_FIGURES),
        }


def figures_of(row: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def spark(history: HourHistory | None, name: str, now_s: float) -> list[float | None]:
    """Ten minutes of a series, without the step that is not over; empty if there is no history."""
    if history is None:
        return []
    return history.series[name].known(step_of(now_s) - 1, SPARK_STEPS)
