"""Middleware that measures, for Prometheus; needs prometheus_client.

| metric                             | labels                  | type, and meaning               |
|------------------------------------|-------------------------|---------------------------------|
| `pumpline_client_publish_seconds`  | topic, outcome          | histogram: time until nsqd has  |
|                                    |                         | confirmed a publish             |
| `pumpline_client_handle_seconds`   | topic, channel, outcome | histogram: time of a handler    |
| `pumpline_client_wait_seconds`     | topic, channel          | histogram: from the publish of  |
|                                    |                         | a message until a handler begins|
| `pumpline_client_handlers_running` | topic, channel          | gauge                           |

`outcome` is ok, retry, drop, cancelled or error. Nothing is labelled by message or by consumer, so
the number of series is bounded by topics and channels.
"""

import time
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pumpline.client.around import Around, CallNext
from pumpline.client.consuming.message import Message
from pumpline.client.errors import MissingExtraError
from pumpline.client.middleware.observed import OK, Observed, outcome_of
from pumpline.client.publishing.outgoing import Outgoing

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

# Up to the longest time that a handler has.
BUCKETS_S = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 300.0, 900.0)


def measured(registry: "CollectorRegistry | None" = None) -> Around[Any]:
    """
    registry    where the metrics are registered; by default that of prometheus_client
    """
    try:
        import prometheus_client  # here: the client works without it
    except ImportError:
        text = "measured() needs prometheus_client: pip install prometheus-client"
        raise MissingExtraError(text) from None
    metrics = _metrics_of(prometheus_client.REGISTRY if registry is None else registry)

    async def around(subject: Observed, call_next: CallNext[Observed]) -> None:
        if isinstance(subject, Outgoing):
            await metrics.publish(subject, call_next)
        else:
            await metrics.handle(subject, call_next)

    return around


class ClientMetrics:
    def __init__(self, registry: Any) -> None:
        from prometheus_client import Gauge, Histogram

        def histogram(name: str, help_text: str, labels: tuple[str, ...]) -> Any:
            return Histogram(name, help_text, labels, registry=registry, buckets=BUCKETS_S)

        self._publish_s = histogram(
            "pumpline_client_publish_seconds",
            "Time of a publish until nsqd has confirmed it.",
            ("topic", "outcome"),
        )
        self._handle_s = histogram(
            "pumpline_client_handle_seconds",
            "Time of a call of a handler.",
            ("topic", "channel", "outcome"),
        )
        self._wait_s = histogram(
            "pumpline_client_wait_seconds",
            "Time from the publish of a message until its handler begins.",
            ("topic", "channel"),
        )
        self._running = Gauge(
            "pumpline_client_handlers_running",
            "Handlers that run at this moment.",
            ("topic", "channel"),
            registry=registry,
        )

    async def publish(self, outgoing: Outgoing, call_next: CallNext[Observed]) -> None:
        began, outcome = time.perf_counter(), OK
        try:
            await call_next(outgoing)
        except BaseException as error:
            outcome = outcome_of(error)
            raise
        finally:
            took_s = time.perf_counter() - began
            self._publish_s.labels(outgoing.topic, outcome).observe(took_s)

    async def handle(self, message: Message, call_next: CallNext[Observed]) -> None:
        labels = (message.topic, message.channel)
        waited_s = time.time() - message.timestamp_ns / 1e9  # the clock of nsqd may be ahead
        self._wait_s.labels(*labels).observe(max(0.0, waited_s))
        running = self._running.labels(*labels)
        running.inc()
        began, outcome = time.perf_counter(), OK
        try:
            await call_next(message)
        except BaseException as error:
            outcome = outcome_of(error)
            raise
        finally:
            running.dec()
            self._handle_s.labels(*labels, outcome).observe(time.perf_counter() - began)


_by_registry: "WeakKeyDictionary[Any, ClientMetrics]" = WeakKeyDictionary()


def _metrics_of(registry: Any) -> ClientMetrics:
    """One for each registry, which takes every name once."""
    if registry not in _by_registry:
        _by_registry[registry] = ClientMetrics(registry)
    return _by_registry[registry]
