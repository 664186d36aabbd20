"""The demo's table: the archive pipeline in this process, and what Spark SQL says of its table.

Imports Spark only when there is one to import.
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EVERY = "1 second"
DEDUPE_KEY = "order_id"
HINTS = "order_id BIGINT, total DOUBLE"  # the rest of the schema is inferred
EXAMPLE_CHARS = 40
SETTINGS = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}


def why_not() -> str | None:
    """What is missing for the part with Spark; None if nothing is."""
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
    """What there is in the table and its quarantine."""

    rows: int
    orders: set[int]
    quarantined: int
    repeated: int  # by Spark's own count
    cities: list[tuple[str, int, float]]
    reasons: list[tuple[int, str, str]]

    def balances(self, in_logs: int, acknowledged: set[int]) -> bool:
        accounted = self.rows + self.quarantined + self.repeated
        once = self.rows == len(self.orders)
        return accounted == in_logs and once and acknowledged <= self.orders


class Keeper:
    """The archive pipeline."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._table = str(directory / "orders")
        self._quarantine = str(directory / "orders-quarantine")
        self._spark: SparkSession | None = None
        self._query: StreamingQuery | None = None
        self._batches: dict[int, Any] = {}

    def start(self, lookupd: str, topic: str) -> None:
        from pyspark_nsq.pipelines.archive import PARTITION_BY, Archive
        from pyspark_nsq.pipelines.json_events.events import schema_from_ddl
        from pyspark_nsq.pipelines.table.table import ParquetTable
        from pyspark_nsq.session import local_session

        self._directory.mkdir()
        with stderr_to(self._directory / "spark.log"):
            spark = self._spark = local_session("pumpline demo", settings=SETTINGS)
        spark.sparkContext.setLogLevel("OFF")
        archive = Archive(
            spark=spark,
            table=ParquetTable(spark, self._table, PARTITION_BY),
            quarantine=ParquetTable(spark, self._quarantine, PARTITION_BY),
            checkpoint=f"{self._table}/_checkpoint",
            hints=schema_from_ddl(HINTS),
            dedupe=DEDUPE_KEY,
        )
        options = {"lookupd": lookupd, "subscribe": topic, "startingOffsets": "earliest"}
        self._query = archive.start({**options, "hold": "archive"}, every=EVERY, once=False)

    @property
    def rows(self) -> int:
        """Messages that the pipeline has dealt with."""
        self._look()
        return sum(progress["numInputRows"] for progress in self._batches.values())

    def finish(self) -> None:
        """Waits until everything published is dealt with, and stops."""
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
        assert self._spark is not None
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
            repeated=self._repeated(),
            cities=[(str(c), int(n), float(total)) for c, n, total in cities.collect()],
            reasons=[(int(n), str(r), _example(b)) for n, r, b in reasons.collect()],
        )

    def _repeated(self) -> int:
        from pyspark_nsq.pipelines.archive import DUPLICATES

        operators = (op for batch in self._batches.values() for op in batch["stateOperators"])
        return sum(operator["customMetrics"].get(DUPLICATES, 0) for operator in operators)

    def _look(self) -> None:
        if self._query is not None:
            for progress in self._query.recentProgress:
                self._batches[progress["batchId"]] = progress


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Children started in here write their stderr to a file: Java is talkative."""
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
