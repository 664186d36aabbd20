"""Middleware that traces, for OpenTelemetry; needs opentelemetry-api.

A publish is a span `publish <topic>` of kind PRODUCER, below the caller's span. A call of a handler
is a span `process <topic>` of kind CONSUMER, which is the current span in the handler. Attributes
are those of OpenTelemetry's conventions for messaging.

NSQ's messages have no headers, so the span of the handler begins a trace of its own.
"""

from typing import TYPE_CHECKING, Any

from pumpline import __version__
from pumpline.client.around import Around, CallNext
from pumpline.client.errors import MissingExtraError
from pumpline.client.middleware.observed import Observed, message_count, outcome_of
from pumpline.client.publishing.outgoing import Outgoing

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


def traced(tracer_provider: "TracerProvider | None" = None) -> Around[Any]:
    """
    tracer_provider     by default that of the program (`opentelemetry.trace.set_tracer_provider`)
    """
    try:
        from opentelemetry import trace  # here: the client works without it
    except ImportError:
        text = "traced() needs OpenTelemetry: pip install opentelemetry-api"
        raise MissingExtraError(text) from None
    tracer = trace.get_tracer("pumpline", __version__, tracer_provider)
    kinds = trace.SpanKind

    async def around(subject: Observed, call_next: CallNext[Observed]) -> None:
        is_publish = isinstance(subject, Outgoing)
        with tracer.start_as_current_span(
            f"{'publish' if is_publish else 'process'} {subject.topic}",
            kind=kinds.PRODUCER if is_publish else kinds.CONSUMER,
            attributes=_attributes(subject),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                await call_next(subject)
            except BaseException as error:
                outcome = outcome_of(error)
                span.set_attribute("pumpline.outcome", outcome)
                if outcome == "error":  # a retry or a drop is what the handler wants
                    span.record_exception(error)
                    span.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
                raise

    return around


def _attributes(subject: Observed) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "messaging.system": "nsq",
        "messaging.destination.name": subject.topic,
    }
    if isinstance(subject, Outgoing):
        attributes["messaging.operation.name"] = "publish"
        attributes["messaging.operation.type"] = "send"
        if (count := message_count(subject)) is not None and count > 1:
            attributes["messaging.batch.message_count"] = count
        return attributes
    attributes["messaging.operation.name"] = "process"
    attributes["messaging.operation.type"] = "process"
    attributes["messaging.destination.subscription.name"] = subject.channel
    attributes["messaging.message.id"] = subject.id
    attributes["messaging.message.body.size"] = len(subject.body)
    attributes["pumpline.attempts"] = subject.attempts
    attributes["server.address"] = subject.node
    return attributes
