"""The demo's table: runs the archive pipeline in this process, and asks its table with Spark SQL.

Spark is an optional dependency: it is imported only by the methods that need it, and its types only
for type checking.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumpline.tools.pipeline import lacking

if TYPE_CHECKING:  # pyspark may not be installed
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pyspark_nsq.pipelines.archive import Archive

EVERY = "500 milliseconds"
DEDUPE_KEY = "order_id"
SCHEMA = (
    "order_id BIGINT, customer STRING, city STRING, total DOUBLE, "
    "lines ARRAY<STRUCT<item STRING, quantity BIGINT, price DOUBLE>>"
)
EXAMPLE_CHARS = 40
FILE_BYTES = 0  # no file is smaller: the demo is too short to merge small files
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "1",
    # Batches are small and the demo is short: compiling quickly is worth more than compiling well.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def why_not() -> str | None:
    """One sentence on what is missing for the part with Spark; None if nothing is."""
    sentence = lacking()
    if sentence is None and find_spec("pyspark_nsq") is not None:
        from pyspark_nsq.session import JavaMissing, require_java

        try:
            require_java()
        except JavaMissing as error:
            sentence = str(error)
    return sentence


@dataclass(slots=True)
class Books:
    """What Spark SQL finds in the table and in its quarantine."""

    rows: int
    orders: set[int]
    quarantined: int
    repeated: int  # messages left out because their order was there; counted by the archive
    cities: list[tuple[str, int, float]]
    reasons: list[tuple[int, str, str]]

    def balances(self, in_logs: int, acknowledged: set[int]) -> bool:
        accounted = self.rows + self.quarantined + self.repeated
        once = self.rows == len(self.orders)
        return accounted == in_logs and once and acknowledged <= self.orders


class OrdersTable:
    """The archive pipeline and the table that it fills."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._table = str(directory / "orders")
        self._quarantine = str(directory / "orders-quarantine")
        self._spark: SparkSession | None = None
        self._query: StreamingQuery | None = None
        self._archive: Archive | None = None
        self._batches: dict[int, Any] = {}

    def start(self, lookupd: str, topic: str) -> None:
        from pyspark_nsq.pipelines.archive import Archive
        from pyspark_nsq.pipelines.json_events.events import schema_from_ddl
        from pyspark_nsq.pipelines.table.layout import PARTITION_BY
        from pyspark_nsq.pipelines.table.table import ParquetTable
        from pyspark_nsq.session import local_session

        self._directory.mkdir()
        with stderr_to(self._directory / "spark.log"):
            spark = self._spark = local_session("pumpline demo", settings=SETTINGS)
        spark.sparkContext.setLogLevel("OFF")
        archive = self._archive = Archive(
            spark=spark,
            table=ParquetTable(spark, self._table, PARTITION_BY, file_bytes=FILE_BYTES),
            quarantine=ParquetTable(spark, self._quarantine, PARTITION_BY, file_bytes=FILE_BYTES),
            checkpoint=f"{self._table}/_checkpoint",
            schema=schema_from_ddl(SCHEMA),
            dedupe=DEDUPE_KEY,
        )
        options = {"lookupd": lookupd, "subscribe": topic, "startingOffsets": "earliest"}
        self._query = archive.start({**options, "hold": "archive"}, every=EVERY, once=False)

    def messages(self) -> int:
        """How many messages the pipeline has dealt with: archived, left out or quarantined."""
        self._look()
        return sum(progress["numInputRows"] for progress in self._batches.values())

    def finish(self) -> None:
        """Waits until the pipeline has dealt with everything published, and stops it."""
        assert self._query is not None
        self._query.processAllAvailable()
        self._look()
        self._query.stop()

    def close(self) -> None:
        if self._query is not None:
            self._query.stop()
        if self._spark is not None:
            self._spark.stop()

    def books(self) -> Books:
        assert self._spark is not None and self._archive is not None
        spark = self._spark
        spark.read.option("mergeSchema", "true").parquet(self._table).createOrReplaceTempView("t")
        spark.read.parquet(self._quarantine).createOrReplaceTempView("q")
        ids = [int(row[0]) for row in spark.sql("SELECT event.order_id FROM t").collect()]
        cities = spark.sql(
            "SELECT event.city, count(*), sum(event.total) FROM t GROUP BY 1 ORDER BY 2 DESC "
            "LIMIT 5"
        )
        reasons = spark.sql(
            "SELECT count(*), kind, min(body) FROM (SELECT *, CASE WHEN reason LIKE 'not %' "
            "THEN substring_index(reason, ':', 1) ELSE reason END AS kind FROM q) "
            "GROUP BY kind ORDER BY 1 DESC"
        )
        return Books(
            rows=len(ids),
            orders=set(ids),
            quarantined=spark.sql("SELECT * FROM q").count(),
            repeated=self._archive.repeats,
            cities=[(str(c), int(n), float(total)) for c, n, total in cities.collect()],
            reasons=[(int(n), str(r), _example(b)) for n, r, b in reasons.collect()],
        )

    def _look(self) -> None:
        if self._query is None:
            return
        if (failure := self._query.exception()) is not None:
            raise OSError(f"the archive has failed: {str(failure).splitlines()[0]}")
        last = self._query.lastProgress
        if last is None or last["batchId"] in self._batches:
            return  # the recent ones are up to a hundred: fetched only when there is a new one
        for progress in self._query.recentProgress:
            if "addBatch" in progress["durationMs"]:
                self._batches[progress["batchId"]] = progress


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Sends the stderr of child processes started in here to a file: Java prints warnings."""
    sys.stderr.flush()
    before = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _example(body: bytes) -> str:
    return bytes(body[:EXAMPLE_CHARS]).decode(errors="replace")
