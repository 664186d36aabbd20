"""Nothing that a producer sends stops an archive, or is dropped, doubled or changed in silence.

It is in the table as it was sent, or in the quarantine with the reason."""

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_nsq.pipelines import archive, sql
from pyspark_nsq.pipelines.json_events.faults import DEPTH_MAX, KEYS_MAX
from pyspark_nsq.pipelines.json_events.fitting import FIELDS_MAX
from tests.kit.daemons import Nsqd
from tests.kit.spark.odd_json import Ledger
from tests.kit.spark.pipelines import plain, run, table
from tests.kit.spark.streams import addresses
from tests.kit.spark.topics import publish

pytestmark = pytest.mark.slow


def nested(depth: int) -> bytes:
    """Objects and lists in turn, this many in each other."""
    text = "1"
    for level in range(depth, 0, -1):
        text = f'{{"deep":{text}}}' if level % 2 else f"[{text}]"
    return text.encode()


KEPT = [
    b'{"id": 1, "name": "small"}',
    b' {"id": 2, "name": "space around"} \n',
    b'{"id": 3, "a b,;{}()=.`": {"": null}}'.replace(b'{"": null}', b"true"),
    b'{"id": 4, "inner": {"_corrupt_record": "kept"}}',
    nested(DEPTH_MAX),
    json.dumps({f"k{n}": n for n in range(100)}).encode(),
]
SET_ASIDE = {
    b'{"id":4}{"id":5}': "not JSON: Extra data: line 1 column 9 (char 8)",
    b'{"id":4} garbage': "not JSON: Extra data: line 1 column 10 (char 9)",
    b'{"id": NaN}': "not JSON: NaN is not a number",
    b'{"id": 6, "big": 1e400}': "big: a number beyond the largest DOUBLE",
    nested(DEPTH_MAX + 1): "too deep: more than 64 objects and lists in each other",
    nested(150): "too deep: more than 64 objects and lists in each other",
    nested(990): "too deep: more than 64 objects and lists in each other",
    b"[" * 5000: "too deep: more than 64 objects and lists in each other",
    b'{"_corrupt_record": 7}': "_corrupt_record: Spark's parser uses this key for its own ends",
    b'{"_CORRUPT_record": {}}': "_CORRUPT_record: Spark's parser uses this key for its own ends",
    rb'{"half": "\ud800"}': "half a surrogate pair, which no text can have",
    b'{"id": 8, "id": 9}': "the key id is there twice",
    b'{"x": {"name": 1, "NAME": 2}}': "x.NAME: differs from name only in case",
    b'[{"g": "decides no type"}]': "not an object, but a list",
    json.dumps({f"k{n}": n for n in range(KEYS_MAX + 1)}).encode(): (
        "2,001 keys: more than the 2,000 that are parsed"
    ),
}


def archived(nsqd: Nsqd, topic: str, path: Path, *more: str) -> str:
    source = ("--nsqd", addresses(nsqd), "--topic", topic)
    return run(archive, *source, "--table", str(path), "--once", *more)


def quarantine(spark: SparkSession, path: Path) -> dict[bytes, str]:
    rows = table(spark, path.with_name(f"{path.name}-quarantine")).collect()
    found = {bytes(row.body): row.reason for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.e2e
def test_odd_messages_are_kept_as_they_are_or_set_aside_with_the_reason(
    spark: SparkSession,
    nsqd: Nsqd,
    topic: str,
    work: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    publish(nsqd, topic, [*KEPT, *SET_ASIDE, b'{"g": 1}'])
    said = archived(nsqd, topic, work / "t")
    assert f"{len(SET_ASIDE)} quarantined; done" in said
    rows = table(spark, work / "t")
    assert Counter(bytes(r.body) for r in rows.collect()) == Counter([*KEPT, b'{"g": 1}'])
    assert quarantine(spark, work / "t") == SET_ASIDE
    events = rows.where("event.id IS NOT NULL").select("event.id", "event.inner._corrupt_record")
    assert {tuple(r) for r in events.collect()} == {(1, None), (2, None), (3, None), (4, "kept")}
    assert [r.g for r in rows.where("event.g IS NOT NULL").select("event.g").collect()] == [1]

    # A column has one spelling: that of the table, or of one of the messages that are new.
    case = {
        b'{"Id": 1}': "Id: the table has the column id, which differs only in case",
        b'{"inner": {"_Corrupt_record": "x"}}': (
            "inner._Corrupt_record: the table has the column _corrupt_record, which differs only "
            "in case"
        ),
    }
    new = [b'{"id": 10, "city": 1}', b'{"id": 11, "City": 1}', b'{"id": 12, "CITY": 1}']
    publish(nsqd, topic, [*case, *new])
    archived(nsqd, topic, work / "t")
    set_aside = {b: why for b, why in quarantine(spark, work / "t").items() if b not in SET_ASIDE}
    assert {body: set_aside.get(body) for body in case} == case
    (kept,) = table(spark, work / "t").where("event.city IS NOT NULL").collect()
    assert sorted([bytes(kept.body), *(set_aside.keys() - case)]) == new
    column = next(name for name in json.loads(kept.body) if name != "id")
    for body in set_aside.keys() - case:
        name = next(name for name in json.loads(body) if name != "id")
        why = f"{name}: the table has the column {column}, which differs only in case"
        assert set_aside[body] == why

    # What the archive has not read yet is judged in the same way.
    publish(nsqd, topic, [b'{"ID": 20}', b'{"id": 21} x', b'{"id": 22}'])
    view = sql.view_name(topic)
    for query, found in (
        (f"SELECT event.id AS n FROM {view} WHERE event.id > 19", '{"n":22.0}\n'),
        (f"SELECT count(*) AS n FROM {view}_quarantine", f'{{"n":{len(SET_ASIDE) + 6}}}\n'),
    ):
        run(sql, "--nsqd", addresses(nsqd), "--table", str(work / "t"), query, "--output", "json")
        assert capsys.readouterr().out == found


@pytest.mark.e2e
def test_odd_names_of_topics_are_read_back_and_places_are_in_utc(
    spark: SparkSession, nsqd: Nsqd, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark takes the names of directories for numbers, and one of them for NULL."""
    topics = ["007", "1e5", "__HIVE_DEFAULT_PARTITION__"]
    for topic in topics:
        publish(nsqd, topic, [b'{"id": 1}'])
    zone = "spark.sql.session.timeZone"
    spark.conf.set(zone, "Asia/Tokyo")
    try:
        archived(nsqd, ",".join(topics), work / "t")
        for topic in topics:  # one row of the table, and one that only the node has
            publish(nsqd, topic, [b'{"id": 2}'])
            query = (
                "SELECT topic, event.id, (unix_seconds(timestamp) DIV 3600) % 24 = hour AS placed, "
                f"unix_date(date) = unix_seconds(timestamp) DIV 86400 AS dated "
                f"FROM `{sql.view_name(topic)}` ORDER BY 2"
            )
            asked = ("--nsqd", addresses(nsqd), "--table", str(work / "t"), query)
            run(sql, *asked, "--output", "json")
            assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
                {"topic": topic, "id": number, "placed": True, "dated": True} for number in (1, 2)
            ]
    finally:
        spark.conf.set(zone, "UTC")


@pytest.mark.e2e
def test_more_fields_than_a_table_has_columns_are_set_aside_and_none_is_lost(
    spark: SparkSession, nsqd: Nsqd, topic: str, work: Path
) -> None:
    """Without bodies, the event alone says what was sent."""
    ledger = Ledger()
    wide = [{f"f{n}": n for n in range(first, first + 100)} for first in range(0, 2500, 100)]
    whole = [{f"f{n}": n for n in range(count)} for count in (KEYS_MAX, 2500)]
    path, more = work / "t", ("--drop-body", "--hints", "big DECIMAL(20,0)")
    for bodies in (wide[:15], [*wide[15:], *whole], [*wide, {"big": 1.5}, {"big": 10**19}]):
        new = [json.dumps(body).encode() for body in bodies]
        ledger.sent += new
        publish(nsqd, topic, new)
        archived(nsqd, topic, path, *more)
    rows = [(row.offset, None, plain(row.event)) for row in table(spark, path).collect()]
    aside = table(spark, work / "t-quarantine").collect()
    kept = ledger.check(rows, [(row.offset, bytes(row.body), row.reason) for row in aside])
    columns = {name for offset in kept for name in json.loads(ledger.sent[offset])}
    assert FIELDS_MAX - 100 < len(columns) <= FIELDS_MAX
    reasons = {row.reason.partition(": ")[2] or row.reason for row in aside}
    assert reasons == {
        "more than the 2,000 that are parsed",
        "a new field, and the table would have more than 2,000 columns",
        "100 new fields, and the table would have more than 2,000 columns",
        "a number with more digits than decimal(20,0)",
    }
