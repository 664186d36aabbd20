"""pipeline sql with --since and --until: the rows of that time, of the table and of the nodes."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_nsq.errors import BadOption
from pyspark_nsq.pipelines import archive, sql
from tests.kit.daemons import Nsqd
from tests.kit.spark.pipelines import orders, run
from tests.kit.spark.streams import addresses
from tests.kit.spark.topics import publish

pytestmark = pytest.mark.slow

IDS = "SELECT event.order_id AS n FROM `{}` ORDER BY 1"


def when(nsqd: Nsqd, topic: str, offset: int) -> str:
    """The time of publishing of a message, as a user would copy it from a column of Spark."""
    query = f"/log/peek?topic={topic}&from={offset}&limit=1&body_max=0"
    time_ns = json.loads(nsqd.http("GET", query)[1])["messages"][0]["timestamp"]
    return sql.time_text(time_ns)


@pytest.fixture
def asked(
    spark: SparkSession, nsqd: Nsqd, topic: str, capfd: pytest.CaptureFixture[str]
) -> Callable[..., list[int]]:
    """The numbers of the orders that a query with these flags prints."""

    def ask(*flags: str) -> list[int]:
        query = IDS.format(sql.view_name(topic))
        run(sql, "--nsqd", addresses(nsqd), query, "--output", "json", *flags)
        return [json.loads(line)["n"] for line in capfd.readouterr().out.splitlines()]

    return ask


def test_a_topic_is_read_from_and_until_a_time(
    nsqd: Nsqd, topic: str, asked: Callable[..., list[int]]
) -> None:
    for start in (0, 10, 20):
        publish(nsqd, topic, orders(range(start, start + 10)))
    second, third = when(nsqd, topic, 10), when(nsqd, topic, 20)
    live = ("--topic", topic)
    assert asked(*live, "--since", second) == [*range(10, 30)]
    assert asked(*live, "--until", second) == [*range(10)]
    assert asked(*live, "--since", second, "--until", third) == [*range(10, 20)]
    assert asked(*live, "--since", "1h") == [*range(30)]
    assert asked(*live, "--until", "1h") == []  # and `event` has its fields all the same
    with pytest.raises(BadOption, match="say --since or --option startingTimestamp, not both"):
        asked(*live, "--since", "1h", "--option", "startingtimestamp=0")


def test_a_field_that_only_recent_messages_have_is_in_the_view(
    spark: SparkSession,
    nsqd: Nsqd,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The sample that decides the schema is of the rows in the view."""
    monkeypatch.setattr("pyspark_nsq.pipelines.json_events.events.SAMPLE_ROWS", 5)
    publish(nsqd, topic, orders(range(10)))
    publish(nsqd, topic, [b'{"order_id": 10, "coupon": "x"}'])
    query = f"SELECT event.coupon FROM `{sql.view_name(topic)}`"
    flags = ("--topic", topic, "--since", when(nsqd, topic, 10), "--output", "json")
    run(sql, "--nsqd", addresses(nsqd), query, *flags)
    assert capfd.readouterr().out == '{"coupon":"x"}\n'


@pytest.mark.e2e
def test_a_table_and_its_live_part_are_limited_alike(
    nsqd: Nsqd, topic: str, work: Path, asked: Callable[..., list[int]]
) -> None:
    table = ("--table", str(work / "t"))
    for start in (0, 10):
        publish(nsqd, topic, orders(range(start, start + 10)))
    dedupe = ("--dedupe", "order_id", "--watermark", "1 hour")
    run(archive, "--nsqd", addresses(nsqd), "--topic", topic, *table, *dedupe, "--once")
    publish(nsqd, topic, orders(range(20, 30)))
    publish(nsqd, topic, orders(range(25, 40)))  # repeats 5 of those that are not archived
    in_table, repeated = when(nsqd, topic, 10), when(nsqd, topic, 30)
    assert asked(*table) == [*range(40)]
    assert asked(*table, "--since", in_table) == [*range(10, 40)]
    assert asked(*table, "--since", repeated) == [*range(30, 40)]  # the first ones are older
    assert asked(*table, "--until", in_table) == [*range(10)]
    assert asked(*table, "--since", in_table, "--until", repeated) == [*range(10, 30)]
    assert asked(*table, "--option", f"startingTimestamp={in_table}") == [*range(10, 40)]
    with pytest.raises(BadOption, match="'startingOffsets' does not limit a table: use --since"):
        asked(*table, "--option", "startingOffsets=latest")


@pytest.mark.parametrize("text", ["soon", "", "1 hour", "-1h", "7d", "2026-13-01"])
def test_what_is_neither_a_time_nor_a_duration_is_told_before_spark_starts(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(sql, f"--since={text}", "SELECT 1")
    assert ended.value.code == 2
    said = f"argument --since: '{text}' is neither a time like 2026-11-16T08:00:00Z nor a duration"
    assert re.sub(r"\s+", " ", said) in re.sub(r"\s+", " ", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("1h", "2026-11-16T11:00:00+00:00"),
        ("1m30s", "2026-11-16T11:58:30+00:00"),
        ("2000000h", "1970-01-01T00:00:00+00:00"),  # longer ago than any message
        ("2026-11-16T08:00:00Z", "2026-11-16T08:00:00Z"),
        ("1794830400000", "1794830400000"),
    ],
)
def test_a_duration_is_before_now(text: str, option: str) -> None:
    noon_ns = 1_794_830_400_000_000_000
    assert sql.at_time(text, now_ns=noon_ns) == option
