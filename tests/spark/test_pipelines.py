"""transform, replay, metrics and sql: each does what it says, and goes on where it was."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_nsq.errors import NsqError
from pyspark_nsq.pipelines import archive, metrics, replay, sql, transform
from pyspark_nsq.pipelines.exactly_once.outbox import is_repeatable
from pyspark_nsq.pipelines.json_events import events
from pyspark_nsq.pipelines.replay import ReplayPlan
from tests.kit.daemons import Nsqd
from tests.kit.ports import HeldPort
from tests.kit.spark.pipelines import lines_of, orders, run, table
from tests.kit.spark.streams import addresses
from tests.kit.spark.topics import end_of, name_of, publish
from tests.spark.conftest import Retiring

pytestmark = pytest.mark.slow


def bodies(spark: SparkSession, node: Nsqd, topic: str) -> Counter[bytes]:
    rows = spark.read.format("nsq").option("nsqd", addresses(node)).option("subscribe", topic)
    return Counter(bytes(row.body) for row in rows.load().collect())


def source(nsqd: Nsqd, topic: str) -> tuple[str, ...]:
    return "--nsqd", addresses(nsqd), "--topic", topic


@pytest.mark.e2e
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
    again = run(replay, *asked)
    assert "nothing to publish" in again and "published" in said
    assert bodies(spark, nsqd, f"{topic}-again") == expected


def replayed_in_two_steps(nsqd: Nsqd, topic: str, work: Path) -> tuple[Path, tuple[str, ...]]:
    """40 orders; the state file, and the arguments to go on with."""
    publish(nsqd, topic, orders(range(40)))
    state = work / "state.json"
    asked = (*source(nsqd, topic), "--to", f"{topic}-again", "--state", str(state), "--rate", "20")
    run(replay, *asked)
    return state, asked


def test_a_replay_goes_on_with_the_first_step_that_is_not_done(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    state, asked = replayed_in_two_steps(nsqd, topic, work)
    name = json.loads(state.read_text())["id"].partition("-")[0]
    plan = ReplayPlan.load(state, name)
    assert (plan.done, plan.rows, plan.step_rows) == (2, 40, 20)
    assert plan.arrow["spark.sql.execution.arrow.maxRecordsPerBatch"] == "10000"
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


@pytest.mark.e2e
def test_history_and_the_live_tail_are_one_table_with_no_row_twice(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, orders(range(30)))
    run(archive, *source(nsqd, topic), "--table", str(work / "t"), "--once")
    publish(nsqd, topic, [*orders(range(30, 40)), b"broken"])
    options = {"nsqd": addresses(nsqd)}
    view, quarantine = sql.views(spark, options, [str(work / "t")])
    ids = [row[0] for row in spark.sql(f"SELECT event.order_id FROM {view}").collect()]
    assert sorted(ids) == list(range(40))
    run(archive, *source(nsqd, topic), "--table", str(work / "t"), "--once")
    ids = [row[0] for row in spark.sql(f"SELECT event.order_id FROM {view}").collect()]
    assert sorted(ids) == list(range(40))  # the view of before, while the archive went on
    reason = [{"reason": "not JSON: Expecting value: line 1 column 1 (char 0)"}]
    assert lines_of(spark.sql(f"SELECT reason FROM {quarantine}")) == reason
    sql.views(spark, options, [str(work / "t")])
    counted = spark.sql(f"SELECT count(*) AS n, count(DISTINCT node, topic, id) AS d FROM {view}")
    assert lines_of(counted) == [{"n": 40, "d": 40}]
    assert lines_of(spark.sql(f"SELECT reason FROM {quarantine}")) == reason
    sql.views(spark, {}, [str(work / "t")])
    assert lines_of(spark.sql(f"SELECT count(*) AS n FROM {view}")) == [{"n": 40}]
    assert lines_of(spark.sql(f"SELECT reason FROM {quarantine}")) == reason
    nsqd.http("POST", f"/topic/delete?topic={topic}")
    sql.views(spark, options, [str(work / "t")])
    assert lines_of(spark.sql(f"SELECT count(*) AS n FROM {view}")) == [{"n": 40}]


@pytest.mark.e2e
def test_a_node_that_comes_back_at_another_port_is_counted_once(
    spark: SparkSession, start_nsqd: Callable[..., Nsqd], topic: str, work: Path
) -> None:
    """Before the archive has seen it there, and after."""
    node = start_nsqd()
    publish(node, topic, [*orders(range(30)), b"broken"])
    name = name_of(node)
    run(archive, *source(node, topic), "--table", str(work / "t"), "--once")
    node.stop()
    tcp, http = HeldPort(), HeldPort()
    node.start(tcp_port=tcp.number, http_port=http.number)
    assert name_of(node) != name
    publish(node, topic, [*orders(range(30, 40)), b"broken, too"])
    for _ in range(2):
        view, quarantine = sql.views(spark, {"nsqd": addresses(node)}, [str(work / "t")])
        counted = spark.sql(
            f"SELECT count(*) AS n, count(DISTINCT event.order_id) AS d FROM {view}"
        )
        assert lines_of(counted) == [{"n": 40, "d": 40}]
        assert spark.table(quarantine).count() == 2
        run(archive, *source(node, topic), "--table", str(work / "t"), "--once")


@pytest.mark.e2e
def test_a_topic_that_only_the_table_has_is_asked_and_replayed_by_its_name(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    gone, there = f"{topic}-gone", f"{topic}-there"
    for name in (gone, there):
        publish(nsqd, name, [name.encode()])
    asked = ("--nsqd", addresses(nsqd), "--table", str(work / "t"))
    archiving = ("--topic-pattern", f"{topic}-.*", "--once", "--body", "raw")
    run(archive, *asked, *archiving)
    nsqd.http("POST", f"/topic/delete?topic={gone}")
    publish(nsqd, there, [b"more"])
    run(archive, *asked, *archiving, "--option", "failOnDataLoss=false")
    views = sql.views(spark, {"nsqd": addresses(nsqd)}, [str(work / "t")])
    assert views == [sql.view_name(gone), sql.view_name(there)]
    assert [spark.table(view).count() for view in views] == [1, 2]
    again = ("--topic-pattern", ".*-go+ne", "--to", f"{topic}.again", "--state", str(work / "s"))
    run(replay, *asked, *again)
    assert bodies(spark, nsqd, f"{topic}.again") == Counter([gone.encode()])


def test_rows_that_neither_the_table_nor_a_node_has_are_told(
    spark: SparkSession, retiring: Retiring, work: Path
) -> None:
    """An archive without a hold that was stopped for too long."""
    node, topic = retiring.nsqd, "left-behind"
    publish(node, topic, orders(range(10)))
    asked = (*source(node, topic), "--table", str(work / "t"), "--once", "--hold", "")
    run(archive, *asked)
    retiring.pass_by(topic, 400)
    retiring.nsqd.drop_history(topic, 11)
    sql.views(spark, {"nsqd": addresses(node)}, [str(work / "t")])
    with pytest.raises(PySparkException, match="offset 10 is retired, the oldest is"):
        spark.table(sql.view_name(topic)).count()


def test_names_that_would_be_one_view_are_told(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, f"{topic}.a", orders([1]))
    publish(nsqd, f"{topic}_a", orders([1]))
    both = {"nsqd": addresses(nsqd), "subscribe": f"{topic}.a,{topic}_a"}
    with pytest.raises(NsqError, match="both have a view"):
        sql.views(spark, both, [])


def test_a_state_of_another_replay_is_not_taken_for_this_one_s(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, orders(range(5)))
    state = ("--state", str(work / "state.json"))
    run(replay, *source(nsqd, topic), "--to", f"{topic}-again", *state)
    with pytest.raises(NsqError, match="is of another replay"):
        run(replay, *source(nsqd, topic), "--to", f"{topic}-elsewhere", *state)
    (work / "state.json").write_text("{")
    with pytest.raises(NsqError, match="is not the state of a replay"):
        run(replay, *source(nsqd, topic), "--to", f"{topic}-again", *state)
    with pytest.raises(NsqError, match="cannot be written"):
        run(replay, *source(nsqd, topic), "--to", "t", "--state", str(work / "no" / "such"))


def test_a_replay_does_not_go_on_in_a_topic_that_was_created_again(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    state, asked = replayed_in_two_steps(nsqd, topic, work)
    state.write_text(state.read_text().replace('"done": 2', '"done": 1'))
    nsqd.http("POST", f"/topic/delete?topic={topic}")
    publish(nsqd, topic, orders(range(40)))
    with pytest.raises(NsqError, match="deleted and created again since it was planned"):
        run(replay, *asked)


@pytest.mark.parametrize(
    ("query", "repeats"),
    [
        ("SELECT body FROM input WHERE event.order_id > 3", True),
        ("SELECT upper(text) AS body, explode(sequence(1, 3)) AS n FROM input", True),
        ("SELECT current_timestamp() AS now, body FROM input", True),
        ("SELECT uuid() AS id, body FROM input", False),
        ("SELECT event.city, count(*) AS n FROM input GROUP BY 1", False),
        ("SELECT DISTINCT body FROM input", False),
        ("SELECT body FROM input WHERE event.order_id IN (SELECT id FROM range(3))", False),
        ("SELECT body FROM input JOIN range(3) AS r ON r.id = event.order_id", False),
    ],
)
def test_what_may_differ_when_it_is_repeated_is_known(
    spark: SparkSession, nsqd: Nsqd, topic: str, query: str, repeats: bool
) -> None:
    publish(nsqd, topic, orders([1]))
    options = {"nsqd": addresses(nsqd), "subscribe": topic}
    messages = spark.readStream.format("nsq").options(**options).load()
    schema = events.schema_from_ddl("order_id BIGINT, city STRING")
    events.with_event(messages, schema).createOrReplaceTempView("input")
    assert is_repeatable(spark.sql(query)) is repeats


@pytest.mark.e2e
def test_a_query_that_may_differ_is_published_from_files(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, [*orders([1, 1, 2]), b"broken"])
    query = "SELECT event.order_id, uuid() AS u FROM input WHERE event.order_id IS NOT NULL"
    asked = (*source(nsqd, topic), "--to", f"{topic}-out", "--sql", query, "--once")
    asked = (*asked, "--checkpoint", str(work / "c"), "--start", "earliest")
    run(transform, *asked)
    first = bodies(spark, nsqd, f"{topic}-out")
    for path in (work / "c" / "commits").iterdir():
        path.unlink()  # as if the driver had died before Spark noted the batch
    publish(nsqd, topic, orders([5]))
    run(transform, *asked)
    assert first < bodies(spark, nsqd, f"{topic}-out")
    assert sum(bodies(spark, nsqd, f"{topic}-out").values()) == sum(first.values()) + 1


@pytest.mark.parametrize(
    ("query", "other"),
    [
        ("SELECT body FROM input", ("--option", "minPartitions=3")),
        ("SELECT body FROM input WHERE rand() >= 0", ("--to-nsqd",)),
    ],
    ids=["straight", "by way of files"],
)
@pytest.mark.e2e
def test_a_batch_half_done_is_not_gone_on_with_in_another_way(
    spark: SparkSession,
    nsqd: Nsqd,
    start_nsqd: Callable[..., Nsqd],
    topic: str,
    work: Path,
    query: str,
    other: tuple[str, ...],
) -> None:
    if other == ("--to-nsqd",):
        other += (addresses(nsqd, start_nsqd()),)
    publish(nsqd, topic, orders([1, 2]))
    asked = (*source(nsqd, topic), "--to", f"{topic}-out", "--sql", query, "--once")
    asked = (*asked, "--checkpoint", str(work / "c"), "--start", "earliest")
    run(transform, *asked)
    for path in (work / "c" / "commits").iterdir():
        path.unlink()  # as if the driver had died before Spark noted the batch
    with pytest.raises(
        NsqError, match=r"batch \d was interrupted while .* delete .*/publishing.json"
    ):
        run(transform, *asked, *other)
    run(transform, *asked)
    assert bodies(spark, nsqd, f"{topic}-out") == Counter(orders([1, 2]))
    run(transform, *asked, *other)  # between batches


@pytest.mark.e2e
def test_a_schema_that_was_inferred_stays_when_a_transform_is_started_again(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    asked = (*source(nsqd, topic), "--to", f"{topic}-out", "--sql", "SELECT event.* FROM input")
    asked = (*asked, "--checkpoint", str(work / "c"), "--start", "earliest", "--once")
    publish(nsqd, topic, [b"broken"])
    with pytest.raises(NsqError, match="no message so far is a JSON object: give a --schema"):
        run(transform, *asked)
    publish(nsqd, topic, [b'{"a": 1}'])
    run(transform, *asked)
    publish(nsqd, topic, [b'{"a": 2, "b": 3}'])
    run(transform, *asked)
    assert bodies(spark, nsqd, f"{topic}-out") == Counter([b'{"a":1}', b'{"a":2}'])


@pytest.mark.e2e
def test_what_does_not_fit_a_transform_is_counted_told_and_set_aside(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, [b'{"total": 10, "n": "1"}', b'{"total": 20, "n": "2"}'])
    query = "SELECT event.total FROM input WHERE event.n + 0 >= 0 OR event.n IS NULL"
    asked = (*source(nsqd, topic), "--to", f"{topic}-out", "--sql", query, "--once")
    asked += ("--checkpoint", str(work / "c"), "--start", "earliest")
    assert "2 rows in 1 batches, 0 set aside; done" in run(transform, *asked)
    bad = {
        b'{"total": 30.5}': "total: a number with a fraction where bigint is expected",
        b'{"total": 5} x': "not JSON: Extra data: line 1 column 14 (char 13)",
        b"\xff": "not UTF-8: byte 0xff at 0",
    }
    odd = b'{"total": 40, "n": "10.5 or so"}'  # the query cannot cast it: that is NULL
    publish(nsqd, topic, [*bad, odd, b'{"total": 50}'])
    assert f"3 set aside in file:{work}/c/quarantine" in run(transform, *asked)
    expected = Counter([b'{"total":10}', b'{"total":20}', b'{"total":50}'])
    assert bodies(spark, nsqd, f"{topic}-out") == expected
    for path in (work / "c" / "commits").iterdir():
        path.unlink()  # as if the driver had died before Spark noted the batch
    run(transform, *asked)
    aside = spark.read.parquet(str(work / "c" / "quarantine")).collect()
    assert Counter((bytes(row.body), row.reason) for row in aside) == Counter(bad.items())
    assert bodies(spark, nsqd, f"{topic}-out") == expected
    text = (*source(nsqd, topic), "--to", f"{topic}-all", "--sql", "SELECT body FROM input")
    text += ("--checkpoint", str(work / "all"), "--start", "earliest", "--once")
    run(transform, *text)  # no event is asked for: nothing is set aside
    assert sum(bodies(spark, nsqd, f"{topic}-all").values()) == 7


def test_the_first_batch_begins_where_it_began_although_latest_has_moved(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, [b"before"])
    asked = (*source(nsqd, topic), "--to", f"{topic}-out", "--sql", "SELECT body FROM input")
    asked += ("--checkpoint", str(work / "c"), "--once")
    run(transform, *asked)
    publish(nsqd, topic, [b"1", b"2"])
    run(transform, *asked)
    assert bodies(spark, nsqd, f"{topic}-out") == Counter([b"1", b"2"])
    for path in (work / "c" / "commits").iterdir():
        path.unlink()  # as if the driver had died within the first batch
    nsqd.http("POST", f"/topic/delete?topic={topic}-out")
    publish(nsqd, topic, [b"3"])
    run(transform, *asked)
    assert bodies(spark, nsqd, f"{topic}-out") == Counter([b"1", b"2", b"3"])


@pytest.mark.e2e
def test_what_a_replay_chooses_at_random_is_chosen_once(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, orders(range(200)))
    options = {"nsqd": addresses(nsqd), "subscribe": topic}
    for where, is_fixed in (("offset % 2 = 0", True), ("timestamp < now()", False)):
        asked = replay.Replay(spark, options, None, where)
        assert asked.is_fixed(asked.ranges()) is is_fixed
    random = replay.Replay(spark, options, None, "rand() < 0.5")
    assert not random.is_fixed(random.ranges())
    once = random.select(random.ranges(), str(work / "rows"))
    (whole,) = once.ranges()
    first = sorted(bytes(row.body) for row in once.rows(whole).collect())
    again = random.selected(str(work / "rows"))
    assert sorted(bytes(row.body) for row in again.rows(whole).collect()) == first
    assert 50 < len(first) < 150
    state = work / "state.json"
    asked = (*source(nsqd, topic), "--to", f"{topic}-again", "--state", str(state), "--rate", "50")
    said = run(replay, *asked, "--where", "rand() < 0.5")
    published = bodies(spark, nsqd, f"{topic}-again")
    assert f"{sum(published.values())} messages published" in said
    assert set(published.values()) == {1} and not (work / "state.json.rows").exists()
    (work / "state.json.rows").mkdir()  # as a kill leaves it that comes before it is deleted
    assert "nothing to publish" in run(replay, *asked, "--where", "rand() < 0.5")
    assert not (work / "state.json.rows").exists()


def test_sql_prints_what_it_found(
    spark: SparkSession, nsqd: Nsqd, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(nsqd, topic, orders(range(3)))
    query = f"SELECT sum(event.order_id) AS total FROM {sql.view_name(topic)}"
    run(sql, *source(nsqd, topic), query, "--output", "json")
    assert capsys.readouterr().out == '{"total":3}\n'
    run(sql, *source(nsqd, topic), query, "--output", "csv")
    assert capsys.readouterr().out == "total\r\n3\r\n"
    query = f"SELECT event.order_id AS n FROM {sql.view_name(topic)} ORDER BY 1"
    for output, printed in (("json", '{"n":0}\n{"n":1}\n'), ("csv", "n\r\n0\r\n1\r\n")):
        run(sql, *source(nsqd, topic), query, "--output", output, "--max-rows", "2")
        said = capsys.readouterr()
        assert (said.out, said.err) == (printed, "the first 2 rows; --max-rows shows more\n")


@pytest.mark.e2e
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


def test_a_query_that_is_refused_does_not_say_where_a_later_one_begins(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, [b"1", b"2"])
    asked = (*source(nsqd, topic), "--checkpoint", str(work / "c"), "--once")
    for refused, text in (("SELEC", "Syntax error"), ("SELECT 1 AS n FROM input", "say where to")):
        with pytest.raises((NsqError, PySparkException), match=text):
            run(transform, *asked, "--sql", refused)  # it would begin at the end
    asked += ("--sql", "SELECT body FROM input", "--to", f"{topic}-out", "--start", "earliest")
    run(transform, *asked)
    assert bodies(spark, nsqd, f"{topic}-out") == Counter([b"1", b"2"])
