"""The archive pipeline: every message once in the table, or in the quarantine with its reason."""

import json
import os
import re
import runpy
import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pumpline.core.text.names import is_ephemeral, is_valid_name
from pyspark_nsq.errors import NsqError
from pyspark_nsq.pipelines import archive, sql
from pyspark_nsq.pipelines.table.sole_writer import locked
from pyspark_nsq.pipelines.table.table import ParquetTable
from tests.kit.daemons import Nsqd
from tests.kit.spark.pipelines import order_ids, orders, run, table
from tests.kit.spark.streams import addresses
from tests.kit.spark.topics import publish

pytestmark = pytest.mark.slow


def archived(nsqd: Nsqd, topic: str, path: Path, *more: str) -> str:
    source = ("--nsqd", addresses(nsqd), "--topic", topic)
    return run(archive, *source, "--table", str(path), "--once", *more)


def test_a_topic_becomes_a_table_by_topic_date_and_hour(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, orders(range(300)))
    said = archived(nsqd, topic, work / "t")
    rows = table(spark, work / "t")
    assert rows.columns == [
        *("node", "offset", "timestamp", "id", "attempts", "body", "event"),
        *("topic", "date", "hour"),
    ]
    assert order_ids(spark, work / "t") == list(range(300))
    assert rows.where(f"topic = '{topic}' AND date = to_date(timestamp)").count() == 300
    assert [bytes(row.body) for row in rows.sort("offset").collect()] == orders(range(300))
    assert "300 rows in 1 batches, 0 quarantined; done" in said
    publish(nsqd, topic, orders(range(300, 310)))
    archived(nsqd, topic, work / "t")
    assert order_ids(spark, work / "t") == list(range(310))
    _, held = nsqd.http("GET", f"/hold/list?topic={topic}")
    assert [hold["offset"] for hold in json.loads(held)["holds"]] == [310]  # to the end


def test_what_does_not_parse_is_in_the_quarantine_with_the_reason(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    broken = {
        b'{"order_id": 7': "not JSON: Expecting ',' delimiter: line 1 column 15 (char 14)",
        b"\xff\xfe": "not UTF-8: byte 0xff at 0",
        b"[1]": "not an object, but a list",
        b"null": "not an object, but null",
        b'{"order_id": "seven"}': "order_id: a string where bigint is expected",
        b'{"order_id": 1.5}': "order_id: a number with a fraction where bigint is expected",
    }
    publish(nsqd, topic, [*orders(range(5)), *broken])
    archived(nsqd, topic, work / "t", "--schema", "order_id BIGINT, amount DOUBLE")
    assert order_ids(spark, work / "t") == list(range(5))
    quarantine = table(spark, work / "t-quarantine")
    assert {bytes(row.body): row.reason for row in quarantine.collect()} == broken


@pytest.mark.e2e
def test_an_inferred_schema_grows_and_keeps_its_types(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    hints = ("--hints", "id BIGINT, price DECIMAL(9,2)")
    publish(nsqd, topic, [b'{"id": 1, "a": 1, "deep": {"x": 1}, "total": 20}'])
    archived(nsqd, topic, work / "t", *hints)
    bad = {
        b'{"id": 3, "a": "x", "other": "decides no type"}': "a: a string where double is expected",
        b'{"id": 3.5}': "id: a number with a fraction where bigint is expected",
        b'{"price": 1.005}': "price: a number with more digits than decimal(9,2)",
        b'{"a": 9007199254740993}': "a: a whole number that a DOUBLE does not keep exactly",
    }
    new = b'{"id": 2, "a": 2, "b": "new", "deep": {"y": [true]}, "price": 3, "total": 20.5}'
    publish(nsqd, topic, [new, *bad])
    archived(nsqd, topic, work / "t", *hints)
    rows = table(spark, work / "t")
    assert rows.schema["event"].dataType.simpleString() == (
        "struct<id:bigint,price:decimal(9,2),a:double,deep:struct<x:double,y:array<boolean>>,"
        "total:double,b:string>"
    )
    found = rows.select("event.id", "event.a", "event.b", "event.price", "event.total").collect()
    assert {tuple(row) for row in found} == {(1, 1, None, None, 20), (2, 2, "new", 3, 20.5)}
    quarantine = table(spark, work / "t-quarantine").collect()
    assert {bytes(row.body): row.reason for row in quarantine} == bad


@pytest.mark.e2e
def test_a_schema_that_is_given_later_may_add_to_the_table_and_not_change_it(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, [b'{"a": 1, "deep": {"x": [1]}}'])
    archived(nsqd, topic, work / "t")
    for schema, clash in (
        ("a STRING", "a is double in the table, not string"),
        ("b INT, deep STRUCT<x: ARRAY<INT>>", r"deep.x\[\] is double in the table, not int"),
    ):
        with pytest.raises(NsqError, match=f"--schema: {clash}"):
            archived(nsqd, topic, work / "t", "--schema", schema)
    publish(nsqd, topic, [b'{"a": 2, "b": 3}'])
    archived(nsqd, topic, work / "t", "--schema", "b INT")
    known = ParquetTable(spark, str(work / "t"), ()).event_schema()
    assert known.simpleString() == "struct<a:double,deep:struct<x:array<double>>,b:int>"
    rows = table(spark, work / "t").select("event.a", "event.b").collect()
    assert {tuple(row) for row in rows} == {(1, None), (2, 3)}


@pytest.mark.e2e
def test_of_messages_with_one_key_the_first_is_kept_and_none_without_a_key_is_lost(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is in the quarantine takes no key; 1, "1" and true are three keys, and 1.0 is 1."""
    more = ("--dedupe", "order_id", "--watermark", "1 hour", "--drop-body", "--hints", "n BIGINT")
    wrong, right = b'{"order_id": 5, "n": "wrong"}', b'{"order_id": 5, "n": 7}'
    nobody = [b'{"city": "Rome"}', b'{"city": "Rome"}']
    publish(nsqd, topic, [*orders([1, 2, 2, 1, 3]), *nobody, b"{", wrong, b'{"order_id": 1.0}'])
    said = archived(nsqd, topic, work / "t", *more)
    assert "no message has the key" not in said
    assert "2 quarantined, 3 repeats left out" in said
    live = [*orders([3, 4]), right, right, b'{"order_id": 2.0}', b'{"order_id": 6.5}']
    publish(nsqd, topic, live)
    expected = Counter([1.0, 2.0, 3.0, 4.0, 5.0, 6.5, None, None])
    query = f"SELECT event.order_id AS n FROM {sql.view_name(topic)}"
    run(sql, "--nsqd", addresses(nsqd), "--table", str(work / "t"), query, "--output", "json")
    found = [json.loads(line).get("n") for line in capsys.readouterr().out.splitlines()]
    assert Counter(found) == expected
    archived(nsqd, topic, work / "t", *more)
    rows = table(spark, work / "t").select("event.order_id", "event.n").collect()
    assert Counter(row[0] for row in rows) == expected
    assert [row.n for row in rows if row.order_id == 5] == [7]
    assert table(spark, work / "t-quarantine").count() == 2


def test_bodies_that_are_not_json_are_kept_as_they_are(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, [b"\xff", b"plain"])
    said = archived(nsqd, topic, work / "t", "--body", "raw", "--dedupe", "nobody.has")
    assert "no message has the key nobody.has: none is left out" in said
    assert {bytes(row.body) for row in table(spark, work / "t").collect()} == {b"\xff", b"plain"}


@pytest.mark.e2e
def test_small_files_are_put_together_and_a_reader_sees_each_row_once(
    spark: SparkSession, work: Path
) -> None:
    here = ParquetTable(spark, str(work / "t"), ("topic",), grace_s=0.0)
    for batch in range(9):
        rows = spark.createDataFrame([("a", batch)], "topic STRING, n INT")
        here.append(batch, rows, query_id="q", checkpoint="c")
    early = table(spark, work / "t")
    here.grace_s = 600.0
    here.append(9, None, query_id="q", checkpoint="c")
    files = [Path(name).name for name in table(spark, work / "t").inputFiles()]
    assert files == ["9-0-0-all.parquet"]
    assert sorted(row.n for row in table(spark, work / "t").collect()) == list(range(9))
    assert early.count() == 9  # planned before, with the files that were replaced
    here.grace_s = 0.0
    for batch in range(10, 20):
        here.append(batch, None, query_id="q", checkpoint="c")
    assert {path.name for path in (work / "t" / "topic=a").glob("*.parquet")} == {*files}
    assert table(spark, work / "t").count() == 9


@pytest.mark.e2e
def test_a_batch_that_was_written_and_not_noted_is_not_written_again(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, orders(range(50)))
    archived(nsqd, topic, work / "t")
    commits = work / "t" / "_checkpoint" / "commits"
    for path in commits.iterdir():
        path.unlink()  # as if the driver had died before Spark noted the batch
    publish(nsqd, topic, orders(range(50, 60)))
    archived(nsqd, topic, work / "t")
    assert order_ids(spark, work / "t") == list(range(60))


@pytest.mark.e2e
def test_a_batch_without_repeats_that_was_not_noted_is_read_again_and_not_written_again(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    """Spark wants all of a batch to be read, whatever the table has, or its state is incomplete."""
    more = ("--body", "raw", "--dedupe", "order_id")
    publish(nsqd, topic, orders([1, 2, 2]))
    archived(nsqd, topic, work / "t", *more)
    for path in (work / "t" / "_checkpoint" / "commits").iterdir():
        path.unlink()
    publish(nsqd, topic, orders([2, 3]))
    archived(nsqd, topic, work / "t", *more)
    rows = table(spark, work / "t").select("body").collect()
    assert sorted(bytes(row.body) for row in rows) == orders([1, 2, 3])


@pytest.mark.e2e
def test_files_of_a_batch_that_died_half_way_are_not_in_the_table_and_go(
    spark: SparkSession, work: Path
) -> None:
    here = ParquetTable(spark, str(work / "t"), ("topic",))
    rows = spark.sql("SELECT 'a' AS topic, 1 AS n UNION ALL SELECT 'b', 2")
    here.append(0, rows, query_id="q", checkpoint="c")
    here.storage.write_text("_staging/1.moving", "topic=a/1-0.parquet\ntopic=b/1-1.parquet")
    (work / "t" / "topic=a" / "1-0.parquet").write_bytes(b"half a batch")
    assert table(spark, work / "t").count() == 2
    here.append(1, rows, query_id="q", checkpoint="c")
    assert table(spark, work / "t").count() == 4
    assert not (work / "t" / "_staging").exists()


@pytest.mark.e2e
def test_a_table_that_was_moved_is_not_written_to_before_its_record_is_changed(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    old, new = work / "old", work / "new"
    publish(nsqd, topic, [*orders(range(5)), b"broken"])
    archived(nsqd, topic, old / "t")
    old.rename(new)
    for refused in (archive, sql):
        asked = ("--nsqd", addresses(nsqd), "--table", str(new / "t"))
        more = ("--topic", topic, "--once") if refused is archive else ("SELECT 1",)
        with pytest.raises(
            NsqError, match=f"new/t was moved: its record names files of file:{old}/t"
        ):
            run(refused, *asked, *more)
    new.rename(old)
    publish(nsqd, topic, orders(range(5, 7)))
    archived(nsqd, topic, old / "t")
    old.rename(new)
    page = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
    (script,) = re.findall(r"```sh\n(cd /new/tables\n.*?)```", page, re.S)
    script = script.replace("/new/tables", str(new)).replace("/old/tables", str(old))
    subprocess.run(["sh", "-ec", script.replace("orders", "t")], check=True)
    publish(nsqd, topic, orders(range(7, 9)))
    archived(nsqd, topic, new / "t")
    assert order_ids(spark, new / "t") == list(range(9))
    assert table(spark, new / "t-quarantine").count() == 1
    view = sql.views(spark, {"nsqd": addresses(nsqd)}, [str(new / "t")])[0]
    assert spark.table(view).count() == 9


@pytest.mark.e2e
def test_a_full_disk_is_told_in_one_line_and_the_archive_goes_on_when_there_is_room(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    disk = work / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted")
    try:
        publish(nsqd, topic, orders(range(5)))
        archived(nsqd, topic, disk / "t")
        with (disk / "ballast").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        publish(nsqd, topic, [b'{"order_id": 5, "note": "%s"}' % os.urandom(50_000).hex().encode()])
        with pytest.raises(NsqError, match=r"^a disk is full \(No space left on device\): "):
            archived(nsqd, topic, disk / "t")
        (disk / "ballast").unlink()
        archived(nsqd, topic, disk / "t")
        assert order_ids(spark, disk / "t") == list(range(6))
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_second_archive_of_a_table_that_is_being_written_is_refused_at_once(
    nsqd: Nsqd, topic: str, work: Path
) -> None:
    with locked(work / "t"), pytest.raises(NsqError, match="being written by another archive"):
        archived(nsqd, topic, work / "t")


def test_another_stream_s_table_is_not_written_to(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, orders(range(5)))
    archived(nsqd, topic, work / "t")
    with pytest.raises(NsqError, match="was written by the stream with the checkpoint"):
        archived(nsqd, topic, work / "t", "--checkpoint", str(work / "other"))


@pytest.mark.e2e
def test_a_run_that_could_not_read_all_there_is_says_what_is_missing(
    spark: SparkSession, start_nsqd: Callable[..., Nsqd], nsqd: Nsqd, topic: str, work: Path
) -> None:
    other = start_nsqd()
    both = f"{addresses(nsqd)},{addresses(other)}"
    for node in (nsqd, other):
        publish(node, topic, orders(range(5)))
    asked = ("--nsqd", both, "--topic", topic, "--table", str(work / "t"), "--once")
    run(archive, *asked)
    other.kill()
    publish(nsqd, topic, orders(range(5, 8)))
    with pytest.raises(NsqError, match=f"{addresses(other)} does not answer.* is read up to 5"):
        run(archive, *asked)
    assert order_ids(spark, work / "t") == sorted([*range(5), *range(8)])


def holds(nsqd: Nsqd, topic: str) -> set[str]:
    return set(described_holds(nsqd, topic))


def described_holds(nsqd: Nsqd, topic: str) -> dict[str, str]:
    _, body = nsqd.http("GET", f"/hold/list?topic={topic}")
    return {hold["hold"]: hold["description"] for hold in json.loads(body)["holds"]}


@pytest.mark.e2e
def test_each_table_has_a_hold_of_its_own_and_keeps_it(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, orders(range(5)))
    said = archived(nsqd, topic, work / "one")
    (first,) = holds(nsqd, topic)
    assert first.startswith("archive-one-") and f"archive: hold {first}\n" in said
    whose = described_holds(nsqd, topic)[first]
    assert whose.startswith("pumpline pipeline archive, checkpoint file:") and "/one/" in whose
    archived(nsqd, topic, work / "two")
    both = holds(nsqd, topic)
    assert len(both) == 2
    archived(nsqd, topic, work / "one")
    (work / "two" / "_checkpoint").rename(work / "moved")
    archived(nsqd, topic, work / "two", "--checkpoint", str(work / "moved"))
    assert holds(nsqd, topic) == both
    archived(nsqd, topic, work / "three", "--hold", "")
    archived(nsqd, topic, work / "four", "--option", "HOLD=mine")
    assert holds(nsqd, topic) - both == {"mine"}


@pytest.mark.parametrize("directory", ["a" * 300, "täble of mine", "x.y", "#ephemeral", ""])
def test_names_of_holds_are_valid(directory: str) -> None:
    name = archive.hold_of(f"file:/tables/{directory}/_checkpoint")
    assert is_valid_name(name) and not is_ephemeral(name)
    assert name != archive.hold_of(f"hdfs://h/tables/{directory}/_checkpoint")


@pytest.mark.e2e
def test_the_example_archives_by_hand(
    spark: SparkSession,
    nsqd: Nsqd,
    topic: str,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    publish(nsqd, topic, [*orders(range(5)), b"broken"])
    given = {"NSQD": nsqd.http_address, "TOPIC": topic, "TABLE": str(work / "t")}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "spark_archive.py"))
    assert "5 rows, 1 quarantined" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("--schema", "order_id"), "a schema is a list of columns and types"),
        (("--option", "x"), "wants NAME=VALUE"),
        (("--schema", "a INT", "--hints", "b INT"), "--hints is for an inferred schema"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_sentence(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path, more: tuple[str, ...], text: str
) -> None:
    publish(nsqd, topic, orders(range(1)))
    with pytest.raises(NsqError, match=text):
        archived(nsqd, topic, work / "t", *more)
