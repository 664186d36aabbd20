"""transform, replay, metrics and sql: each does what it says, and goes on where it was."""

import json
from collections import Counter
from pathlib import Path

import pytest
from daemons import Nsqd
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_nsq.errors import NsqError
from pyspark_nsq.pipelines import archive, metrics, replay, sql, transform
from pyspark_nsq.pipelines.replay import Plan

from .pipelines import lines_of, orders, run, table
from .streams import addresses
from .topics import end_of, publish

pytestmark = pytest.mark.slow


def bodies(spark: SparkSession, node: Nsqd, topic: str) -> Counter[bytes]:
    rows = spark.read.format("nsq").option("nsqd", addresses(node)).option("subscribe", topic)
    return Counter(bytes(row.body) for row in rows.load().collect())


def source(nsqd: Nsqd, topic: str) -> tuple[str, ...]:
    return "--nsqd", addresses(nsqd), "--topic", topic


def test_a_topic_goes_through_sql_into_another_and_on_from_there(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, orders(range(10)))
    query = "SELECT event.order_id * 2 AS twice, event.city FROM input WHERE event.order_id > 7"
    asked = (*source(nsqd, topic), "--to", f"{topic}-out", "--sql", query, "--once")
    asked = (*asked, "--checkpoint", str(work / "c"), "--start", "earliest")
    run(transform, *asked)
    expected = [b'{"twice":16,"city":"Oslo"}', b'{"twice":18,"city":"Oslo"}']
    assert bodies(spark, nsqd, f"{topic}-out") == Counter(expected)
    publish(nsqd, topic, orders([20]))
    run(transform, *asked)
    assert bodies(spark, nsqd, f"{topic}-out") == Counter(
        [*expected, b'{"twice":40,"city":"Oslo"}']
    )


def test_a_query_may_say_which_topic_each_row_goes_to(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, [b"even 2", b"odd 3"])
    query = f"SELECT concat('{topic}-', split(text, ' ')[0]) AS topic, body FROM input"
    asked = ("--sql", query, "--once", "--checkpoint", str(work / "c"), "--start", "earliest")
    run(transform, *source(nsqd, topic), *asked)
    assert bodies(spark, nsqd, f"{topic}-even") == Counter([b"even 2"])
    assert bodies(spark, nsqd, f"{topic}-odd") == Counter([b"odd 3"])


def test_a_part_of_a_topic_is_replayed_once_however_often_it_is_asked_for(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, orders(range(100)))
    node = json.loads(nsqd.http("GET", "/log/offsets")[1])["node"]
    state = work / "state.json"
    asked = (*source(nsqd, topic), "--to", f"{topic}-again", "--state", str(state))
    asked = (*asked, "--from-offsets", json.dumps({topic: {node: 10}}), "--where", "offset % 2 = 0")
    said = run(replay, *asked)
    expected = Counter(orders(range(10, 100, 2)))
    assert bodies(spark, nsqd, f"{topic}-again") == expected
    assert "45 messages published" in said
    publish(nsqd, topic, orders(range(100, 110)))
    run(replay, *asked)
    assert bodies(spark, nsqd, f"{topic}-again") == expected


def test_a_replay_goes_on_with_the_first_step_that_is_not_done(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, orders(range(40)))
    state = work / "state.json"
    asked = (*source(nsqd, topic), "--to", f"{topic}-again", "--state", str(state), "--rate", "20")
    run(replay, *asked)
    plan = Plan.load(state)
    assert (plan.done, plan.rows, plan.step_rows) == (2, 40, 20)
    plan.done = 1  # as a kill after the first of two steps leaves it
    plan.save(state)
    nsqd.http("POST", f"/topic/delete?topic={topic}-again")
    run(replay, *asked)
    assert bodies(spark, nsqd, f"{topic}-again") == Counter(orders(range(20, 40)))


def test_a_table_is_replayed_as_it_was_published(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, orders(range(20)))
    run(archive, *source(nsqd, topic), "--table", str(work / "t"), "--once")
    asked = ("--nsqd", addresses(nsqd), "--table", str(work / "t"), "--to", f"{topic}-again")
    run(replay, *asked, "--state", str(work / "state"), "--where", "event.order_id >= 15")
    assert bodies(spark, nsqd, f"{topic}-again") == Counter(orders(range(15, 20)))


def test_history_and_the_live_tail_are_one_table_with_no_row_twice(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, orders(range(30)))
    run(archive, *source(nsqd, topic), "--table", str(work / "t"), "--once")
    publish(nsqd, topic, [*orders(range(30, 40)), b"broken"])
    options = {"nsqd": addresses(nsqd)}
    (view,) = sql.views(spark, options, [str(work / "t")])
    ids = [row[0] for row in spark.sql(f"SELECT event.order_id FROM {view}").collect()]
    assert sorted(ids) == list(range(40))
    run(archive, *source(nsqd, topic), "--table", str(work / "t"), "--once")
    ids = [row[0] for row in spark.sql(f"SELECT event.order_id FROM {view}").collect()]
    assert sorted(ids) == list(range(40))  # the view of before, while the archive went on
    (view,) = sql.views(spark, options, [str(work / "t")])
    counted = spark.sql(f"SELECT count(*) AS n, count(DISTINCT node, topic, id) AS d FROM {view}")
    assert lines_of(counted) == [{"n": 40, "d": 40}]
    sql.views(spark, {}, [str(work / "t")])
    assert lines_of(spark.sql(f"SELECT count(*) AS n FROM {view}")) == [{"n": 40}]


def test_sql_prints_what_it_found(
    spark: SparkSession, nsqd: Nsqd, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(nsqd, topic, orders(range(3)))
    query = f"SELECT sum(event.order_id) AS total FROM {sql.view_name(topic)}"
    run(sql, *source(nsqd, topic), query, "--output", "json")
    assert capsys.readouterr().out == '{"total":3}\n'
    run(sql, *source(nsqd, topic), query, "--output", "csv")
    assert capsys.readouterr().out == "total\r\n3\r\n"


def test_metrics_are_shown_and_final_windows_kept_and_published(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, [b"x" * 10] * 30)
    asked = (*source(nsqd, topic), "--window", "1 second", "--watermark", "0 seconds", "--once")
    asked = (*asked, "--start", "earliest", "--checkpoint", str(work / "c"))
    asked = (*asked, "--table", str(work / "t"), "--to", f"{topic}-metrics")
    said = run(metrics, *asked)
    assert topic in said
    assert "10/10" in said
    publish(nsqd, topic, [b"y"])  # a later window: the first is final now
    run(metrics, *asked, "--quiet")
    rows = table(spark, work / "t").where(f"topic = '{topic}'").collect()
    assert sum(row.messages for row in rows) == 30
    assert {row.size_p50 for row in rows} == {10}
    assert sum(row.bytes for row in rows) == 300
    assert all(row.latency_ms_p99 >= row.latency_ms_p50 > 0 for row in rows)
    assert end_of(nsqd, f"{topic}-metrics") == len(rows)


@pytest.mark.parametrize(
    ("pipeline", "more", "text"),
    [
        (transform, ("--sql", "SELECT 1 AS n FROM input"), "name a --checkpoint"),
        (transform, ("--sql", "SELECT 1 AS n FROM input", "--checkpoint", "c"), "say where to pub"),
        (transform, ("--sql", "SELEC", "--checkpoint", "c"), "Syntax error"),
        (replay, ("--to", "t", "--rate", "0"), "--rate must be at least 1"),
        (replay, ("--to", "t", "--table", "nowhere"), "nowhere is not a table that"),
        (metrics, ("--quiet",), "for nobody"),
        (metrics, ("--table", "t"), "name a --checkpoint"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_sentence(
    spark: SparkSession,
    nsqd: Nsqd,
    topic: str,
    pipeline: object,
    more: tuple[str, ...],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    publish(nsqd, topic, orders(range(1)))
    with pytest.raises((NsqError, PySparkException), match=text):
        run(pipeline, *source(nsqd, topic), *more)  # type: ignore[arg-type]
