"""What an archived table looks like: its columns, its partitions, and how its rows were made.

The archive pipeline writes tables of this layout, and `history` reads them. Knows columns; must not
know files or nodes.
"""

import json
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pyspark_nsq.pipelines.json_events import events

CHECKPOINT = "_checkpoint"  # the directory in the table, unless --checkpoint names another
PARTITION_BY = ("topic", "date", "hour")
NULL_TOPIC = "__HIVE_DEFAULT_PARTITION__"  # a valid topic name, which Spark reads back as NULL
S_PER_HOUR, HOURS_PER_DAY = 3600, 24
COLUMNS = ("topic", "node", "offset", "timestamp", "id", "attempts", "body")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """How the archive made rows of messages; kept in the table, so that `history` can do the same
    with messages that are not in it yet."""

    is_json: bool = True
    grows: bool = True  # whether new fields become columns
    keeps_body: bool = True
    dedupe: str | None = None
    watermark: str = "1 hour"
    quarantine: str = ""

    @classmethod
    def from_json(cls, text: str | None) -> "ArchiveSettings":
        return cls(**json.loads(text)) if text else cls()


def key_of(path: str, text: Column | None = None) -> Column:
    """The key at a JSON path of the body, or of another text. A message without that key gets its
    own id as key, so that it equals no other."""
    key = _found(path, events.text_of() if text is None else text)
    return F.coalesce(F.concat(F.lit("key:"), key), F.concat_ws("/", F.lit("id:"), "node", "id"))


def has_key(path: str) -> Column:
    """Whether the body has something at a JSON path."""
    return _found(path, events.text_of()).isNotNull()


def _found(path: str, text: Column) -> Column:
    return F.get_json_object(text, path if path.startswith("$") else f"$.{path}")


def placed(messages: DataFrame) -> DataFrame:
    """The columns of a topic, and those that the table is partitioned by: date and hour in UTC,
    whatever the time zone of the session is."""
    hours = F.floor(F.unix_seconds("timestamp") / S_PER_HOUR)
    rows = messages.select(*COLUMNS)
    days = F.floor(hours / HOURS_PER_DAY).cast("int")
    rows = rows.withColumn("date", F.date_from_unix_date(days))
    return rows.withColumn("hour", F.pmod(hours, F.lit(HOURS_PER_DAY)).cast("int"))
