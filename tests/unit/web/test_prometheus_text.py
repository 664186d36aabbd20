"""What Prometheus is given, read with its own parsers."""

import time
from collections.abc import Iterable

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from pumpline.core.text.histogram import Buckets
from pumpline.web.process_metrics import LoopDelay, add_process
from pumpline.web.prometheus_text import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    OPENMETRICS_TYPE,
    PLAIN_TYPE,
    Exposition,
    Family,
    labels,
)

DEPTH = Family("depth", GAUGE, "How deep it is.")
MESSAGES = Family("messages", COUNTER, "How many there were.")
TIMES = Family("times_seconds", HISTOGRAM, "How long it took.")

# What Prometheus 3 sends.
ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)

Rows = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def rows(families: Iterable[object]) -> Rows:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples  # type: ignore[attr-defined]
    }


async def both(exposition: Exposition) -> tuple[Rows, Rows]:
    plain = await exposition.reply("")
    openmetrics = await exposition.reply(ACCEPT)
    assert plain.headers["Content-Type"] == PLAIN_TYPE
    assert openmetrics.headers["Content-Type"] == OPENMETRICS_TYPE
    return (
        rows(parse_plain(plain.body.decode())),
        rows(parse_openmetrics(openmetrics.body.decode())),
    )


async def test_both_forms_have_the_same_samples() -> None:
    exposition = Exposition()
    exposition.add(DEPTH, 5, labels(topic="a"))
    exposition.add(MESSAGES, 7)
    exposition.add(DEPTH, 0.25, labels(topic="b"))
    plain, openmetrics = await both(exposition)
    expected = {
        ("depth", (("topic", "a"),)): 5,
        ("depth", (("topic", "b"),)): 0.25,
        ("messages_total", ()): 7,
    }
    assert plain == openmetrics == expected


async def test_families_carry_their_kind_and_meaning() -> None:
    exposition = Exposition()
    exposition.add(MESSAGES, 7)
    exposition.add(DEPTH, 7)
    for families in (
        parse_plain((await exposition.reply("")).body.decode()),
        parse_openmetrics((await exposition.reply(ACCEPT)).body.decode()),
    ):
        described = [(each.name, each.type, each.documentation) for each in families]
        assert described == [
            ("messages", "counter", "How many there were."),
            ("depth", "gauge", "How deep it is."),
        ]


async def test_a_histogram_has_buckets_a_sum_and_a_count() -> None:
    exposition = Exposition()
    buckets = Buckets((0.5, 1.0))
    for value in (0.25, 1.0, 8.0):
        buckets.record(value)
    exposition.add_histogram(TIMES, buckets)
    expected = {
        ("times_seconds_bucket", (("le", "0.5"),)): 1,
        ("times_seconds_bucket", (("le", "1.0"),)): 2,
        ("times_seconds_bucket", (("le", "+Inf"),)): 3,
        ("times_seconds_sum", ()): 9.25,
        ("times_seconds_count", ()): 3,
    }
    plain, openmetrics = await both(exposition)
    assert plain == openmetrics == expected


@pytest.mark.parametrize("value", ['"', "\\", "\n", 'a"b\\n\nc', "", "é€", "{},= #", "\r\t\0"])
async def test_any_label_survives(value: str) -> None:
    exposition = Exposition()
    exposition.add(DEPTH, 1, labels(client=value, topic="t"))
    expected = {("depth", (("client", value), ("topic", "t"))): 1}
    plain, openmetrics = await both(exposition)
    assert plain == openmetrics == expected


async def test_bytes_that_are_no_text_do_no_harm() -> None:
    exposition = Exposition()
    exposition.add(DEPTH, 1, labels(client=b"\xff!".decode("utf-8", "surrogateescape")))
    assert (await both(exposition))[0] == {("depth", (("client", "?!"),)): 1}


async def test_a_process_tells_of_itself_under_the_usual_names() -> None:
    exposition = Exposition()
    add_process(exposition)
    LoopDelay().add_to(exposition, "x")
    plain, openmetrics = await both(exposition)
    assert plain == openmetrics
    assert plain["process_cpu_seconds_total", ()] > 0
    assert plain["process_resident_memory_bytes", ()] > 1_000_000
    assert plain["process_open_fds", ()] > 2
    assert plain["x_event_loop_delay_seconds_count", ()] == 0


async def test_the_longest_delay_is_that_of_the_last_minute_or_two() -> None:
    delay = LoopDelay()
    now_s = time.monotonic()

    async def longest_s() -> float:
        exposition = Exposition()
        delay.add_to(exposition, "x")
        return (await both(exposition))[0]["x_event_loop_delay_max_seconds", ()]

    assert await longest_s() == 0
    for delay_s, after_s in ((0.25, 1), (0.5, 2), (0.125, 3)):
        delay.note(delay_s, now_s + after_s)
    assert await longest_s() == 0.5
    delay.note(0.125, now_s + 61)
    assert await longest_s() == 0.5
    delay.note(0.0625, now_s + 122)
    assert await longest_s() == 0.125
    delay.note(0.03125, now_s + 1000)
    assert await longest_s() == 0.03125
