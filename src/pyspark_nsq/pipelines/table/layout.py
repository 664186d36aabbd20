"""What an archived table looks like: its columns, its partitions, and how its rows were made.

The archive pipeline writes tables of this layout, and `history` reads them. Knows columns; must not
know files or nodes.
"""

import json
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

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
    is_quarantine: bool = False  # whether the table is one, whose rows have a reason

    @classmethod
    def from_json(cls, text: str | None) -> "ArchiveSettings":
        return cls(**json.loads(text)) if text else cls()


def placed(messages: DataFrame) -> DataFrame:
    """The columns of a topic, and those that the table is partitioned by: date and hour in UTC,
    whatever the time zone of the session is."""
    return placed_only(messages.select(*COLUMNS))


def placed_only(rows: DataFrame) -> DataFrame:
    """The rows with date and hour of their timestamp."""
    hours = F.floor(F.unix_seconds("timestamp") / S_PER_HOUR)
    days = F.floor(hours / HOURS_PER_DAY).cast("int")
    rows = rows.withColumn("date", F.date_from_unix_date(days))
    return rows.withColumn("hour", F.pmod(hours, F.lit(HOURS_PER_DAY)).cast("int"))
