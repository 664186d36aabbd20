"""Ready-made middleware: what is logged, measured and traced, of publishes and of handlers."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span
from prometheus_client import CollectorRegistry

from pumpline import sync
from pumpline.client import Consumer, Drop, Message, Producer, RefusedError, Retry, Settings
from pumpline.client.around import Around
from pumpline.client.middleware import logged, measured, traced
from pumpline.testing import LocalNsqd

FORMS = ["async", "threads", "sync"]
AT_ONCE = Settings(requeue_delay_s=0, backoff_max_s=0)


@pytest.fixture
def local() -> Iterator[LocalNsqd]:
    with LocalNsqd() as running:
        yield running


def act(message: Message) -> None:
    """Fails, asks for a retry, asks for a drop: one after the other."""
    if message.body == b"bad":
        if message.attempts == 1:
            raise ValueError("no such customer")
        if message.attempts == 2:
            raise Retry(0)
        raise Drop("enough")


async def publish_and_handle(local: LocalNsqd, around: Around[Any], form: str) -> None:
    """Publishes `good` and `bad`, handles both, and publishes one that nsqd refuses."""
    if form == "sync":
        await asyncio.to_thread(publish_and_handle_in_threads, local, around)
        return
    async with Producer(local.tcp_address, middleware=[around]) as producer:
        await producer.publish("orders", b"good")
        await producer.publish_many("orders", [b"bad"])
        with pytest.raises(RefusedError):
            await producer.publish("orders", b"late", defer=10**6)
    consumer = Consumer(
        "orders", "billing", nsqd=local.tcp_address, middleware=[around], settings=AT_ONCE
    )

    async def act_async(message: Message) -> None:
        act(message)

    running = asyncio.create_task(consumer.run(act_async if form == "async" else act))
    await asyncio.to_thread(local.wait_until_done, "orders", "billing")
    await consumer.stop()
    await running


def publish_and_handle_in_threads(local: LocalNsqd, around: Around[Any]) -> None:
    with sync.Producer(local.tcp_address, middleware=[around]) as producer:
        producer.publish("orders", b"good")
        producer.publish_many("orders", [b"bad"])
        with pytest.raises(RefusedError):
            producer.publish("orders", b"late", defer=10**6)
    consumer = sync.Consumer(
        "orders", "billing", nsqd=local.tcp_address, middleware=[around], settings=AT_ONCE
    )
    done = []

    def handle(message: Message) -> None:
        if message.body == b"good" or message.attempts == 3:
            done.append(message.body)
        if len(done) == 2:
            consumer.stop_soon()
        act(message)

    consumer.run(handle, signals=False)


@pytest.mark.parametrize("form", FORMS)
async def test_a_line_for_each_publish_and_each_message(
    local: LocalNsqd, caplog: pytest.LogCaptureFixture, form: str
) -> None:
    caplog.set_level(logging.INFO, "pumpline.client.messages")
    await publish_and_handle(local, logged(), form)
    records = [each for each in caplog.records if each.name == "pumpline.client.messages"]
    lines = [(each.levelname, each.getMessage()) for each in records]
    published = [(level, text.split(":")[1][:6]) for level, text in lines if text[0] == "p"]
    assert published == [("INFO", " ok in"), ("INFO", " ok in"), ("WARNING", " error")]
    handled = [(level, text.split(">: ")[1].split()[0]) for level, text in lines if text[0] == "h"]
    assert sorted(handled) == [
        ("INFO", "drop"),
        ("INFO", "ok"),
        ("INFO", "retry"),
        ("WARNING", "error,"),
    ]
    assert "published 1 message to orders: ok in " in caplog.text
    assert "error, ValueError: no such customer in " in caplog.text
    assert "of orders/billing attempts=" in caplog.text
    assert "good" not in caplog.text  # bodies may be confidential


async def test_a_logger_and_a_level_can_be_given(
    local: LocalNsqd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "shop")
    around = logged(logging.getLogger("shop"), level=logging.DEBUG)
    async with Producer(local.tcp_address, middleware=[around]) as producer:
        await producer.publish_many("orders", (b"%d" % n for n in range(3)))
    [record] = [each for each in caplog.records if each.name == "shop"]
    assert record.levelno == logging.DEBUG
    assert record.getMessage().startswith("published messages to orders: ok in ")
    assert len(await asyncio.to_thread(local.messages, "orders")) == 3


@pytest.mark.parametrize("form", FORMS)
async def test_publishes_and_handlers_are_measured(local: LocalNsqd, form: str) -> None:
    registry = CollectorRegistry()
    await publish_and_handle(local, measured(registry), form)

    def count(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"pumpline_client_{name}", {"topic": "orders", **labels})

    assert count("publish_seconds_count", outcome="ok") == 2
    assert count("publish_seconds_count", outcome="error") == 1
    for outcome in ("ok", "error", "retry", "drop"):
        assert count("handle_seconds_count", channel="billing", outcome=outcome) == 1
    assert count("wait_seconds_count", channel="billing") == 4
    assert count("handlers_running", channel="billing") == 0


def test_one_registry_serves_several_producers_and_consumers() -> None:
    registry = CollectorRegistry()
    measured(registry)
    measured(registry)
    measured()
    measured()


@pytest.mark.parametrize("form", FORMS)
async def test_publishes_and_handlers_are_spans(local: LocalNsqd, form: str) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    await publish_and_handle(local, traced(provider), form)
    spans = exporter.get_finished_spans()
    sent = [each for each in spans if each.name == "publish orders"]
    handled = [each for each in spans if each.name == "process orders"]
    assert len(sent) + len(handled) == len(spans)
    assert [each.kind for each in sent] == [SpanKind.PRODUCER] * 3
    sent_status = [each.status.status_code for each in sent]
    assert sent_status == [StatusCode.UNSET, StatusCode.UNSET, StatusCode.ERROR]
    assert {each.kind for each in handled} == {SpanKind.CONSUMER}
    outcomes = sorted(map(outcome_and_status, handled), key=str)
    assert outcomes == [
        ("", StatusCode.UNSET),
        ("drop", StatusCode.UNSET),
        ("error", StatusCode.ERROR),
        ("retry", StatusCode.UNSET),
    ]
    assert handled[0].attributes is not None
    assert handled[0].attributes["messaging.system"] == "nsq"
    assert handled[0].attributes["messaging.destination.subscription.name"] == "billing"
    assert handled[0].attributes["messaging.message.body.size"] in (3, 4)


def outcome_and_status(span: ReadableSpan) -> tuple[str, StatusCode]:
    assert span.attributes is not None
    return str(span.attributes.get("pumpline.outcome", "")), span.status.status_code


@pytest.mark.parametrize("in_threads", [False, True])
async def test_the_span_is_the_current_one_in_the_handler(
    local: LocalNsqd, in_threads: bool
) -> None:
    provider = TracerProvider()
    seen = []
    await asyncio.to_thread(local.publish, "orders", b"1")

    def look(message: Message) -> None:
        seen.append(get_current_span().is_recording())

    async def look_async(message: Message) -> None:
        look(message)

    handler: Callable[[Message], object] = look if in_threads else look_async
    consumer = Consumer("orders", "c", nsqd=local.tcp_address, middleware=[traced(provider)])
    running = asyncio.create_task(consumer.run(handler))
    await asyncio.to_thread(local.wait_until_done, "orders", "c")
    await consumer.stop()
    await running
    assert seen == [True]


def test_without_its_library_one_sentence_says_what_to_install() -> None:
    program = """
import sys
sys.modules["prometheus_client"] = sys.modules["opentelemetry"] = None  # as if not installed
from pumpline.client import MissingExtraError
from pumpline.client.middleware import logged, measured, traced
logged()
for make in (measured, traced):
    try:
        make()
    except MissingExtraError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "measured() needs prometheus_client: pip install prometheus-client",
        "traced() needs OpenTelemetry: pip install opentelemetry-api",
    ]
