"""JSON from a seed, as hostile as it gets, through the pipelines: table and quarantine have what
was published, once, and the values are those that were sent. `ODD_SEED=7` plays a seed again, and
`ODD_SEED=100:130` plays those from 100 to 129."""

import json
import os
import random
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from pyspark_nsq.columns import SCHEMA
from pyspark_nsq.pipelines import archive, replay, sql, transform
from pyspark_nsq.pipelines.archive import Archive
from pyspark_nsq.pipelines.json_events.fitting import FIELDS_MAX
from pyspark_nsq.pipelines.table.layout import PARTITION_BY
from pyspark_nsq.pipelines.table.storage import Storage
from pyspark_nsq.pipelines.table.table import ParquetTable
from tests.kit.daemons import Nsqd
from tests.kit.spark.drivers import Driver
from tests.kit.spark.odd_json import Bodies, Ledger, loaded, same
from tests.kit.spark.pipelines import plain, run, table
from tests.kit.spark.streams import addresses
from tests.kit.spark.topics import publish

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(1200)]

_FIRST, _, _END = os.environ.get("ODD_SEED", "19").partition(":")
SEEDS = pytest.mark.parametrize("seed", range(int(_FIRST), int(_END or int(_FIRST) + 1)))
BEGIN = datetime(2026, 11, 16, 8, tzinfo=UTC)


def frame(spark: SparkSession, bodies: list[bytes], first: int) -> DataFrame:
    """Messages as a topic has them, with no topic."""
    rows = [
        ("t", "n:4150", first + at, BEGIN + timedelta(seconds=first + at), f"{first + at}", 1, body)
        for at, body in enumerate(bodies)
    ]
    return spark.createDataFrame(rows, SCHEMA).repartition(2)


def rows_of(spark: SparkSession, path: Path) -> list[tuple[int, bytes | None, Any]]:
    found = []
    for row in table(spark, path).collect():
        named = row.asDict()
        body = named.get("body")
        event = plain(named.get("event")) or {}
        found.append((row.offset, None if body is None else bytes(body), event))
    return found


def quarantined(spark: SparkSession, path: Path) -> list[tuple[int, bytes, str]]:
    if not (path / "_spark_metadata").exists():
        return []
    rows = spark.read.parquet(str(path)).collect()
    return [(row.offset, bytes(row.body), row.reason) for row in rows]


class Death(BaseException):
    """As good as a kill: nothing in an archive's way catches it."""


@SEEDS
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"keeps_body": False, "dedupe": "id", "hints": StructType([StructField("w1", LongType())])},
    ],
    ids=["plain", "without bodies and repeats"],
)
def test_an_archive_keeps_what_was_sent_whatever_that_is_and_whenever_it_dies(
    spark: SparkSession,
    work: Path,
    settings: dict[str, Any],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bodies, chance, ledger = Bodies(seed), random.Random(seed), Ledger()
    path, aside = work / "t", work / "t-quarantine"
    for batch in range(3):
        new = bodies.take(150)
        rows = frame(spark, new, len(ledger.sent))
        ledger.sent += new

        def add() -> None:
            made = Archive(
                spark=spark,
                table=ParquetTable(spark, str(path), PARTITION_BY),
                quarantine=ParquetTable(spark, str(aside), PARTITION_BY),
                checkpoint=str(work / "c"),
                **settings,
            )
            made.add(rows, batch)  # noqa: B023 - called before the next round

        with monkeypatch.context() as patch, suppress(Death):
            left = [chance.randrange(1, 9)]
            real = Storage.write_text

            def write(self: Storage, name: str, text: str, real=real, left=left) -> None:  # type: ignore[no-untyped-def]
                left[0] -= 1
                if not left[0]:
                    raise Death
                real(self, name, text)

            patch.setattr(Storage, "write_text", write)
            add()
        add()
    found, bad = rows_of(spark, path), quarantined(spark, aside)
    if "dedupe" not in settings:
        kept = ledger.check(found, bad)
    else:  # repeats are in neither
        there = {offset for offset, *_ in found}
        fit = set(range(len(ledger.sent))) - {offset for offset, *_ in bad}
        assert there == ledger.firsts(fit, "id")
        missing = [(n, None, loaded(ledger.sent[n])) for n in fit - there]
        kept = ledger.check([*found, *missing], bad)
    reasons = Counter(reason.partition(":")[0] for _, _, reason in bad)
    assert len(kept) > len(ledger.sent) / 3, reasons
    orders = [n for n in range(len(ledger.sent)) if ledger.sent[n].startswith(b'{"id":')]
    assert sum(n in kept for n in orders) > len(orders) / 2


def test_a_batch_whose_quarantine_is_written_is_judged_as_before(
    spark: SparkSession, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks learn more than there is room for. What is left out makes room, but not for this
    batch, of which a part may have been written."""
    wide = json.dumps({f"w{n}": n for n in range(FIELDS_MAX - 1)}).encode()
    ledger = Ledger([wide, b'{"k": {"x": 1}}', b'{"c": 1}'])
    one, other = frame(spark, ledger.sent[:1], 0), frame(spark, ledger.sent[1:], 1)
    rows = one.coalesce(1).union(other.coalesce(1))
    path, aside = work / "t", work / "t-quarantine"

    def add() -> None:
        Archive(
            spark=spark,
            table=ParquetTable(spark, str(path), PARTITION_BY),
            quarantine=ParquetTable(spark, str(aside), PARTITION_BY),
            checkpoint=str(work / "c"),
        ).add(rows, 0)

    def die(self: ParquetTable, *arguments: Any, **more: Any) -> None:
        if self.path == str(path):
            raise Death
        append(self, *arguments, **more)

    append = ParquetTable.append
    with monkeypatch.context() as patch, suppress(Death):
        patch.setattr(ParquetTable, "append", die)
        add()
    add()
    assert ledger.check(rows_of(spark, path), quarantined(spark, aside)) == {0}


@SEEDS
@pytest.mark.crash
def test_all_pipelines_together_lose_and_change_nothing_whatever_is_sent_and_killed(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path, seed: int
) -> None:
    bodies, ledger = Bodies(seed + 1), Ledger()
    path = work / "t"
    source = ("--nsqd", addresses(nsqd), "--topic", topic)
    asked = (*source, "--table", str(path), "--max-rows", "120")
    state = work / "state"
    moving = (*source, "--to", f"{topic}-out", "--sql", "SELECT event.total, body FROM input")
    moving += ("--checkpoint", str(state), "--start", "earliest", "--max-rows", "120")

    def send(count: int) -> None:
        new = [body for body in bodies.take(count) if body]  # nsqd takes no empty message
        ledger.sent += new
        publish(nsqd, topic, new)

    send(500)
    with Driver(work, "archive", *asked, "--every", "0 seconds") as driver:
        driver.wait_for((path / "_spark_metadata" / "1").exists)
        driver.kill()
    run(archive, *asked, "--once")
    with Driver(work, "transform", *moving, "--every", "0 seconds") as driver:
        driver.wait_for((state / "commits" / "0").exists)
        driver.kill()
    send(300)
    run(transform, *moving, "--once")

    # transform: a message is published, as it was, or set aside.
    out = (
        spark.read.format("nsq").option("nsqd", addresses(nsqd)).option("subscribe", f"{topic}-out")
    )
    passed = Counter(bytes(row.body) for row in out.load().collect())
    aside = spark.read.parquet(str(state / "quarantine")).collect()
    assert passed + Counter(bytes(row.body) for row in aside) == Counter(ledger.sent)

    # sql: the table and what only the node has, once each; the archive then makes the same of it.
    view, quarantine = sql.views(spark, {"nsqd": addresses(nsqd)}, [str(path)])
    live = spark.table(view).collect()
    bad = [(row.offset, bytes(row.body), row.reason) for row in spark.table(quarantine).collect()]
    assert sorted(row.offset for row in live) + sorted(row[0] for row in bad) == sorted(
        row.offset for row in live
    ) + sorted({*range(len(ledger.sent))} - {row.offset for row in live})
    run(archive, *asked, "--once")
    kept = ledger.check(rows_of(spark, path), quarantined(spark, work / "t-quarantine"))

    # replay: what the table has comes back as it was sent.
    again = ("--nsqd", addresses(nsqd), "--table", str(path), "--to", f"{topic}-again")
    run(replay, *again, "--state", str(work / "replay.json"))
    back = (
        spark.read.format("nsq")
        .option("nsqd", addresses(nsqd))
        .option("subscribe", f"{topic}-again")
    )
    assert Counter(bytes(row.body) for row in back.load().collect()) == Counter(
        ledger.sent[offset] for offset in kept
    )


def test_the_ledger_knows_what_was_changed() -> None:
    body = json.loads('{"a": 1, "b": [1.5, null], "c": {"d": "x"}, "e": [], "f": 12}')
    kept = {"a": 1.0, "b": [1.5, None], "c": {"d": "x", "more": None}, "e": None, "f": "12"}
    assert same(body, kept)
    for name, wrong in (("a", 2.0), ("b", [1.5]), ("c", None), ("c", {}), ("f", "13"), ("a", True)):
        assert not same(body, {**kept, name: wrong})
    assert not same({**body, "lost": 0}, kept)
